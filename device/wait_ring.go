package device

import (
	"fmt"

	"github.com/elevisor/elevisor/backend/uring"
	"github.com/elevisor/elevisor/sys/eventfd"
	"golang.org/x/sys/unix"
)

// watchesMax is how many descriptors one loop watches: kicks and its mailbox.
const watchesMax = 4096

// ringWaiter waits in the io_uring that also carries the disks' operations, so that
// submitting and waiting are one system call. For each watched descriptor a read of 8
// bytes, or a poll, is outstanding.
type ringWaiter struct {
	ring    *uring.Ring
	tag     uring.Tag
	mail    *eventfd.FD
	mailed  bool
	bufs    []byte // 8 bytes per watch, not on the Go heap
	watches []*ringWatch
	unused  []uint32
}

type ringWatch struct {
	index uint32
	fd    int
	fired *bool
	ended bool   // unwatched
	idle  bool   // nothing is outstanding: the descriptor was at end of file, or failed
	poll  bool   // a poll is outstanding, the read comes next
	done  func() // called when nothing is outstanding any more
}

func newRingWaiter() (*ringWaiter, error) {
	ring, err := uring.New(ringEntries)
	if err != nil {
		return nil, err
	}
	mail, err := eventfd.New()
	if err != nil {
		_ = ring.Close()
		return nil, err
	}
	w := &ringWaiter{ring: ring, mail: mail, bufs: ring.Alloc(8 * watchesMax)}
	w.tag = ring.Register(w)
	w.Watch(mail.Raw(), &w.mailed)
	return w, nil
}

// Wait implements Waiter.
func (w *ringWaiter) Wait(d int64) error {
	if err := w.ring.Enter(d); err != nil {
		return fmt.Errorf("enter io_uring: %w", err)
	}
	w.ring.Poll()
	return nil
}

// Wakeup implements Waiter.
func (w *ringWaiter) Wakeup() { w.mail.Notify() }

// Watch implements Waiter.
func (w *ringWaiter) Watch(fd int, fired *bool) Watch {
	var watch *ringWatch
	if n := len(w.unused); n > 0 {
		watch = w.watches[w.unused[n-1]]
		w.unused = w.unused[:n-1]
	} else {
		if len(w.watches) == watchesMax {
			panic("device: more watched descriptors than queuesMax allows")
		}
		watch = &ringWatch{index: uint32(len(w.watches))}
		w.watches = append(w.watches, watch)
	}
	watch.fd, watch.fired = fd, fired
	watch.ended, watch.idle, watch.poll, watch.done = false, false, false, nil
	w.arm(watch)
	return watch
}

func (w *ringWaiter) arm(watch *ringWatch) {
	if watch.poll {
		w.ring.PollIn(w.tag, watch.index, watch.fd)
		return
	}
	at := 8 * int(watch.index)
	w.ring.Read(w.tag, watch.index, watch.fd, w.bufs[at:at+8], -1)
}

// Unwatch implements Waiter. The descriptor may be closed at once: the operation that is
// outstanding refers to its file, not to its number. The number must not be looked up
// again, so nothing is armed for an ended watch.
func (w *ringWaiter) Unwatch(x Watch, done func()) {
	watch := x.(*ringWatch)
	watch.ended, watch.done = true, done
	if watch.idle {
		w.release(watch)
		return
	}
	// An operation that is queued looks up the number when it is submitted: submit it
	// while the number is still the right one.
	w.ring.Submit()
	w.ring.Cancel(w.tag, watch.index)
}

// Signal implements Waiter: the kernel writes, and if it must wait, the loop does not.
func (w *ringWaiter) Signal(fd *eventfd.FD) { w.ring.Signal(fd.Raw()) }

// Flush implements Waiter.
func (w *ringWaiter) Flush() { w.ring.Submit() }

// Completed implements uring.Completer.
func (w *ringWaiter) Completed(index uint32, res int32, _ uint32) {
	watch := w.watches[index]
	polled := watch.poll
	switch {
	case polled && res > 0, res == -int32(unix.EAGAIN), res == -int32(unix.EINTR):
		// A non-blocking descriptor that the kernel cannot read without waiting answers
		// EAGAIN: wait until it is readable, then read.
		watch.poll = !polled && res == -int32(unix.EAGAIN)
	case res == -int32(unix.ECANCELED): // by Unwatch
	default:
		// 8 bytes of an eventfd, fewer of a pipe, or an error or end of file, after which
		// nothing more comes: to check a queue once too often does no harm.
		*watch.fired = true
		watch.idle = res <= 0
	}
	switch {
	case watch.ended:
		w.release(watch)
	case !watch.idle:
		w.arm(watch)
	}
}

// release makes the index of an ended watch free for reuse.
func (w *ringWaiter) release(watch *ringWatch) {
	w.unused = append(w.unused, watch.index)
	if watch.done != nil {
		watch.done()
	}
}

// Close implements Waiter.
func (w *ringWaiter) Close() error {
	w.mail.Close()
	return w.ring.Close()
}

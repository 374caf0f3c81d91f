package device

import (
	"fmt"

	"github.com/elevisor/elevisor/backend/uring"
	"github.com/elevisor/elevisor/sys/eventfd"
	"golang.org/x/sys/unix"
)

// watchesMax is how many descriptors one loop watches: kicks, and its own mailbox.
const watchesMax = 4096

// ringWaiter waits in the io_uring that also carries the disks' operations, so
// that submitting and waiting are one system call. Each watched descriptor has a
// read of 8 bytes outstanding.
type ringWaiter struct {
	ring    *uring.Ring
	tag     uring.Tag
	mail    *eventfd.FD
	mailed  bool
	bufs    []byte // 8 bytes a watch, off the Go heap
	watches []*ringWatch
	unused  []uint32
}

type ringWatch struct {
	index uint32
	fd    int
	fired *bool
	ended bool   // unwatched
	idle  bool   // nothing outstanding: the descriptor came to its end
	poll  bool   // waiting for readability before the read
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

// Unwatch implements Waiter. The descriptor may be closed at once: the operation
// that is still outstanding holds its file, not its number. But its number must
// not be looked up again, so nothing is armed for an ended watch.
func (w *ringWaiter) Unwatch(x Watch, done func()) {
	watch := x.(*ringWatch)
	watch.ended, watch.done = true, done
	if watch.idle {
		w.release(watch)
		return
	}
	// An operation that is queued and not submitted would look the number up when
	// it is: submit it while the number is the right one.
	w.ring.Submit()
	w.ring.Cancel(w.tag, watch.index)
}

// Signal implements Waiter: the kernel writes, and if it cannot, waits without us.
func (w *ringWaiter) Signal(fd *eventfd.FD) { w.ring.Signal(fd.Raw()) }

// Flush implements Waiter.
func (w *ringWaiter) Flush() { w.ring.Submit() }

// Completed implements uring.Completer.
func (w *ringWaiter) Completed(index uint32, res int32, _ uint32) {
	watch := w.watches[index]
	polled := watch.poll
	switch {
	case polled && res > 0, res == -int32(unix.EAGAIN), res == -int32(unix.EINTR):
		// A descriptor that is non-blocking and that the kernel cannot try without
		// waiting answers EAGAIN: wait for it to be readable, then read.
		watch.poll = !polled && res == -int32(unix.EAGAIN)
	case res == -int32(unix.ECANCELED): // by Unwatch
	default:
		// 8 bytes of an eventfd, fewer of a pipe, or an error or end of file, after
		// which nothing more comes: a queue that is looked at once too often is safe.
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

// release lets an ended watch's place be used again.
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

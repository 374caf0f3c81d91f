package device

import (
	"errors"
	"fmt"

	"github.com/elevisor/elevisor/sys/eventfd"
	"golang.org/x/sys/unix"
)

// pollWaiter waits with epoll. It is for systems that refuse io_uring.
type pollWaiter struct {
	epoll   int
	mail    *eventfd.FD
	watches map[int32]*bool // by descriptor; never iterated over
	events  [64]unix.EpollEvent
	poll    [1]unix.PollFd // epoll, for waits with a limit
	limit   unix.Timespec
	into    [][]byte // one buffer, for what drain reads
	mailed  bool
}

func newPollWaiter() (*pollWaiter, error) {
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("create epoll: %w", err)
	}
	mail, err := eventfd.New()
	if err != nil {
		_ = unix.Close(epoll)
		return nil, err
	}
	w := &pollWaiter{epoll: epoll, mail: mail, watches: map[int32]*bool{}, into: [][]byte{make([]byte, 8)}}
	w.poll[0] = unix.PollFd{Fd: int32(epoll), Events: unix.POLLIN}
	w.Watch(mail.Raw(), &w.mailed)
	return w, nil
}

// Wait implements Waiter.
func (w *pollWaiter) Wait(d int64) error {
	ms := -1
	if d >= 0 {
		ms = 0
	}
	if d > 0 { // epoll itself counts milliseconds
		w.poll[0].Revents = 0
		w.limit = unix.NsecToTimespec(d)
		if _, err := unix.Ppoll(w.poll[:], &w.limit, nil); err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("wait for kicks: %w", err)
		}
	}
	n, err := unix.EpollWait(w.epoll, w.events[:], ms)
	if err != nil && !errors.Is(err, unix.EINTR) {
		return fmt.Errorf("wait for kicks: %w", err)
	}
	for i := range max(n, 0) {
		fd := w.events[i].Fd
		fired := w.watches[fd]
		if fired == nil {
			continue
		}
		*fired = true
		// A descriptor at end of file is not waited for again.
		if n, err := w.drain(int(fd)); n == 0 || (err != nil && !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EINTR)) {
			w.Unwatch(fd, nil)
		}
	}
	return nil
}

// drain reads fd empty. It was readable a moment ago, but others who have it, such as
// another queue or the front-end, may have read it since. If it is in blocking mode, a
// plain read would then stop the loop for as long as they like.
func (w *pollWaiter) drain(fd int) (int, error) {
	n, err := unix.Preadv2(fd, w.into, -1, unix.RWF_NOWAIT)
	if errors.Is(err, unix.EOPNOTSUPP) { // before Linux 5.8 for eventfds, 6.4 for pipes
		if n, _, err = unix.Recvfrom(fd, w.into[0], unix.MSG_DONTWAIT); errors.Is(err, unix.ENOTSOCK) {
			n, err = unix.Read(fd, w.into[0])
		}
	}
	return n, err
}

// Wakeup implements Waiter.
func (w *pollWaiter) Wakeup() { w.mail.Notify() }

// Watch implements Waiter.
func (w *pollWaiter) Watch(fd int, fired *bool) Watch {
	ev := unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(fd)}
	if err := unix.EpollCtl(w.epoll, unix.EPOLL_CTL_ADD, fd, &ev); err == nil {
		w.watches[int32(fd)] = fired
	} else {
		*fired = true // it cannot be waited for: check the queue once
	}
	return int32(fd)
}

// Unwatch implements Waiter.
func (w *pollWaiter) Unwatch(x Watch, done func()) {
	fd := x.(int32)
	if w.watches[fd] != nil {
		delete(w.watches, fd)
		_ = unix.EpollCtl(w.epoll, unix.EPOLL_CTL_DEL, int(fd), nil)
	}
	if done != nil {
		done()
	}
}

// Signal implements Waiter. If the counter is full, the write could block, as the other
// side may have cleared O_NONBLOCK; and that side is woken anyway.
func (w *pollWaiter) Signal(fd *eventfd.FD) {
	p := [1]unix.PollFd{{Fd: int32(fd.Raw()), Events: unix.POLLOUT}}
	if n, err := unix.Poll(p[:], 0); err == nil && n == 1 && p[0].Revents&unix.POLLOUT != 0 {
		fd.Notify()
	}
}

// Flush implements Waiter. Signal does not defer anything.
func (w *pollWaiter) Flush() {}

// Close implements Waiter.
func (w *pollWaiter) Close() error {
	w.mail.Close()
	return unix.Close(w.epoll)
}

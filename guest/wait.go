package guest

import (
	"errors"
	"fmt"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"github.com/elevisor/elevisor/blk"
	"github.com/elevisor/elevisor/sys/clock"
	"github.com/elevisor/elevisor/sys/shm"
)

// Errors of Wait.
var (
	ErrTimeout = errors.New("no request came back in time")
	ErrGone    = errors.New("the server has closed the connection")
)

// waiter waits until the device has returned something on one of some queues of
// one guest. What it hands to the kernel is its own, so that waiting allocates
// nothing.
type waiter struct {
	guest  *Guest
	queues []*Queue
	clock  clock.Monotonic
	calls  []unix.PollFd
	pause  unix.Timespec
}

func newWaiter(g *Guest, clk clock.Monotonic, queues ...*Queue) waiter {
	w := waiter{guest: g, queues: queues, clock: clk}
	for _, q := range queues {
		w.calls = append(w.calls, unix.PollFd{Fd: int32(q.call.Raw()), Events: unix.POLLIN})
	}
	return w
}

// goneCheck is how often a wait without a call looks whether the server is there.
const goneCheck = 100 * time.Millisecond

// wait returns nil when there is something to reap, ErrTimeout at the deadline, and
// ErrGone soon after the connection was closed by either side.
func (w *waiter) wait(deadline blk.Instant) error {
	if w.guest.opt.Poll {
		return w.spin(deadline)
	}
	for {
		if w.arm() {
			return nil
		}
		left := w.clock.Until(deadline)
		called, err := w.sleep(min(left, goneCheck))
		switch {
		case err != nil:
			return err
		case called || w.pending():
		case !w.guest.Connected() && !w.pending():
			return ErrGone
		case left == 0:
			return ErrTimeout
		}
	}
}

// arm asks for calls on every queue, unless one has something already.
func (w *waiter) arm() (pending bool) {
	for i, q := range w.queues {
		if q.drv.EnableCalls() {
			for _, armed := range w.queues[:i+1] {
				armed.drv.DisableCalls()
			}
			return true
		}
	}
	return false
}

// sleep waits for a call.
func (w *waiter) sleep(d time.Duration) (called bool, err error) {
	w.pause = unix.NsecToTimespec(int64(d))
	n, err := unix.Ppoll(w.calls, &w.pause, nil)
	if err == unix.EINTR {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("wait for queue %d: %w", w.queues[0].index, err)
	}
	for i := range w.calls {
		if n > 0 && w.calls[i].Revents != 0 {
			w.queues[i].call.Take()
			w.queues[i].stats.Calls++
		}
	}
	return n > 0, nil
}

// spinCheck is how many looks a spin takes between two readings of the clock.
const spinCheck = 256

func (w *waiter) spin(deadline blk.Instant) error {
	check := w.clock.Now() + blk.Instant(goneCheck)
	for i := 1; !w.pending(); i++ {
		if i%spinCheck != 0 {
			continue
		}
		runtime.Gosched()
		now := w.clock.Now()
		if now < deadline && now < check {
			continue
		}
		check = now + blk.Instant(goneCheck)
		switch {
		case !w.guest.Connected() && !w.pending():
			return ErrGone
		case now >= deadline && !w.pending():
			return ErrTimeout
		}
	}
	return nil
}

// pending says whether the device has returned something.
func (w *waiter) pending() bool {
	for _, q := range w.queues {
		if _, used := q.drv.Indices(); shm.Load16(q.ring.Used.Bytes, 2) != used {
			return true
		}
	}
	return false
}

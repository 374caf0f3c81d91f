package uring

import (
	"fmt"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

const (
	enterGetEvents      = 1 << 0
	enterExtArg         = 1 << 3
	enterRegisteredRing = 1 << 4

	sqCQOverflow = 1 << 1 // completions wait inside the kernel for room in the ring
	sqTaskrun    = 1 << 2 // completions wait for the thread to enter the kernel
)

// getEventsArg is struct io_uring_getevents_arg.
type getEventsArg struct {
	sigmask     uint64
	sigmaskSize uint32
	minWaitUsec uint32
	ts          uint64
}

// timespec is struct __kernel_timespec, 64 bits everywhere.
type timespec struct{ sec, nsec int64 }

// Enter submits all queued operations and waits for a completion that Poll has
// not seen: timeout is in nanoseconds, 0 does not wait, a negative one waits
// without limit. It is one system call, or none if there is nothing to submit and
// no reason to wait. It may return early, with nothing to Poll: a signal (Go's
// preemption is one) and the end of the time are no errors.
func (r *Ring) Enter(timeout int64) error {
	queued := r.Queued()
	flags := atomic.LoadUint32(r.sqFlags)
	wait := timeout != 0 && !r.ready() && flags&sqCQOverflow == 0
	if queued == 0 && !wait && flags&(sqCQOverflow|sqTaskrun) == 0 {
		return nil
	}
	errno := r.enter(queued, wait, timeout)
	switch errno {
	case 0, unix.ETIME:
		r.polite = r.polite && !wait
	case unix.EINTR:
		r.polite = r.polite || wait
	case unix.EAGAIN, unix.EBUSY:
		// The kernel lacks memory, or wants completions taken first: after a Poll,
		// the next Enter submits again what is still queued.
	default:
		return fmt.Errorf("io_uring_enter: %w", errno)
	}
	return nil
}

// enter is the system call.
//
// A wait that Go's scheduler does not know of is the cheapest by far on a
// goroutine locked to its thread: told of each, sysmon takes the processor away
// every 20 us, and a wake-up costs 2 to 5 times as much. But it also interrupts
// an unknown one every 10 ms, which an idle disk should not suffer: so the wait
// after an interrupted one is announced, and then lasts as long as it lasts. The
// collector's stop-the-world works with both, through that same signal.
func (r *Ring) enter(queued int, wait bool, timeout int64) unix.Errno {
	atomic.StoreUint32(r.sqTail, r.tail)
	r.releaseHead()
	r.enters.Add(1)
	flags := r.enterFl | enterGetEvents
	if !wait {
		return sysEnter(r.enterFD, queued, 0, flags, nil)
	}
	var arg *getEventsArg
	if timeout > 0 {
		*r.limit = timespec{timeout / 1e9, timeout % 1e9}
		flags |= enterExtArg
		arg = r.arg
	}
	if r.polite {
		return sysEnterKnown(r.enterFD, queued, 1, flags, arg)
	}
	return sysEnter(r.enterFD, queued, 1, flags, arg)
}

// Submit hands all queued operations to the kernel, without waiting for any. Where
// Enter leaves what the kernel cannot take yet to the next call, Submit goes on
// until there is nothing left: after it, descriptors that were named may be closed.
// Completions that are in the kernel's way are put aside for Poll.
func (r *Ring) Submit() {
	for r.Queued() > 0 {
		switch errno := r.enter(r.Queued(), false, 0); errno {
		case 0, unix.EINTR:
		case unix.EAGAIN, unix.EBUSY:
			r.putAside()
		default:
			panic(fmt.Sprintf("uring: submit %d operations: %v", r.Queued(), errno)) // the ring itself is wrong
		}
	}
}

// putAside empties the completion ring into memory of ours.
func (r *Ring) putAside() {
	for tail := atomic.LoadUint32(r.cqTail); r.head != tail; r.head++ {
		r.stash = append(r.stash, r.cqes[r.head&uint32(len(r.cqes)-1)])
	}
}

// ready says whether Poll would find a completion.
func (r *Ring) ready() bool {
	return r.head != atomic.LoadUint32(r.cqTail) || r.stashed < len(r.stash)
}

// Poll gives the completions that are there to their Completers, and returns how
// many those were. Completions that arrive meanwhile are left to the next Poll,
// so that it ends. It makes no system call, unless so many completed that the
// kernel holds some back.
func (r *Ring) Poll() int {
	if atomic.LoadUint32(r.sqFlags)&sqCQOverflow != 0 && !r.ready() {
		_ = r.enter(0, false, 0) // no error matters: what is not fetched now stays with the kernel
	}
	n := len(r.stash) - r.stashed + int(atomic.LoadUint32(r.cqTail)-r.head)
	told := 0
	for range n {
		c := r.take()
		if t := c.userData >> 32; t != 0 {
			r.completers[t].Completed(uint32(c.userData), c.res, c.flags)
			told++
		}
	}
	r.releaseHead()
	return told
}

// drainRounds of drainWait nanoseconds bound how long Close waits.
const (
	drainRounds = 50
	drainWait   = 100e6
)

// drain cancels all that is in flight and waits for it; it returns how many
// operations did not end.
func (r *Ring) drain() uint32 {
	if r.sqes == nil || r.tail == r.taken { // set-up failed, or nothing to do
		return 0
	}
	e := r.next(0, 0)
	e.opcode, e.fd, e.opFlags = opAsyncCancel, -1, cancelAll|cancelAny
	for range drainRounds {
		if r.Enter(drainWait) != nil {
			break
		}
		for r.ready() {
			if c := r.take(); c.userData == 0 && c.res == -int32(unix.EINVAL) {
				return r.tail - r.taken // before 5.19 one cannot cancel all
			}
		}
		if r.tail == r.taken {
			return 0
		}
	}
	return r.tail - r.taken
}

// take removes the oldest completion; there is one.
func (r *Ring) take() (c cqe) {
	if r.stashed < len(r.stash) {
		c = r.stash[r.stashed]
		if r.stashed++; r.stashed == len(r.stash) {
			r.stash, r.stashed = r.stash[:0], 0
		}
	} else {
		c = r.cqes[r.head&uint32(len(r.cqes)-1)]
		r.head++
	}
	if !r.canSkip || c.userData != userData(0, signalIndex) {
		r.taken++
	}
	return c
}

// releaseHead gives the kernel the places of completions already taken.
func (r *Ring) releaseHead() {
	if atomic.LoadUint32(r.cqHead) != r.head {
		atomic.StoreUint32(r.cqHead, r.head)
	}
}

// Package uring is the io_uring ring and nothing else: set-up, submission,
// completion, registered files. It knows no disk and no guest.
//
// A [Ring] belongs to one goroutine that is locked to its thread
// (runtime.LockOSThread): [New], every method and [Ring.Close] are called there
// and nowhere else. The kernel holds that rule (IORING_SETUP_SINGLE_ISSUER, and
// the registered ring descriptor, which is a property of the thread).
//
// Operations are queued by methods that make no system call and cannot fail;
// [Ring.Enter] hands all of them to the kernel and waits, in one call, and
// [Ring.Poll] gives every completion to the [Completer] that the operation named.
//
// What an operation points at (buffers, iovecs) is the caller's; it stays where
// it is, and alive, until the completion. Iovecs and small buffers therefore live
// off the Go heap: [Ring.Alloc], [Iovecs].
package uring

import (
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// ErrUnavailable says that the system has no io_uring for this process: a kernel
// without it, kernel.io_uring_disabled, a seccomp filter (container runtimes), no
// locked memory left, or a kernel older than what a ring of ours needs.
var ErrUnavailable = errors.New("io_uring is not available")

// Tag names a Completer in an operation. The zero Tag is nobody.
type Tag uint32

// Completer is told what became of the operations it started.
type Completer interface {
	// Completed is called by Poll: index is what the operation was given, res its
	// result (a negative error number if it failed), flags the CQE's. It may queue
	// operations; it must not call Poll or Enter.
	Completed(index uint32, res int32, flags uint32)
}

// Ring is one io_uring instance.
type Ring struct {
	fd      int // the descriptor
	enterFD int // its index among the thread's registered rings, or fd
	enterFl uint32

	// The submission queue. tail is ours and ahead of the shared one until Enter.
	sqHead, sqTail, sqFlags *uint32
	sqes                    []sqe
	tail                    uint32

	// The completion queue. head is ours and ahead of the shared one until the
	// next system call or the end of Poll.
	cqHead, cqTail *uint32
	cqes           []cqe
	head           uint32
	one            []byte // the number 1, off the heap, for Signal
	canSkip        bool   // completions of successful operations can be left out (5.17)
	stash          []cqe  // completions taken out of the way, older than those in the ring
	stashed        int    // of stash, already dispatched
	taken          uint32 // completions seen: each operation has exactly one, so tail - taken are in flight

	completers []Completer // by Tag; 0 is nobody
	freeTags   []Tag

	arg    *getEventsArg // off-heap: what a wait with a limit passes
	limit  *timespec     // off-heap
	polite bool          // the last wait was interrupted: tell Go's scheduler of the next

	files   fileTable
	maps    [][]byte // what Close unmaps
	enters  atomic.Uint64
	setupFl uint32
}

// New makes a ring for at least entries operations between two submissions
// (rounded up to a power of two, capped by the kernel at 32768). It uses what the
// kernel has of COOP_TASKRUN, SINGLE_ISSUER and NO_SQARRAY. The error wraps
// ErrUnavailable where io_uring is refused.
func New(entries uint32) (*Ring, error) {
	if entries == 0 {
		return nil, errors.New("make io_uring: 0 entries, want at least 1")
	}
	r := &Ring{fd: -1, completers: make([]Completer, 1, 16)}
	if err := r.setup(entries); err != nil {
		_ = r.Close()
		return nil, err
	}
	return r, nil
}

// Probe says whether this process can have a usable ring, by making one and
// sending it through the kernel. Any goroutine.
func Probe() error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	r, err := New(4)
	if err != nil {
		return err
	}
	defer func() { _ = r.Close() }()
	// A seccomp filter may allow the setup and refuse the rest.
	r.Nop(0, 0)
	if err := r.Enter(0); err != nil {
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	return nil
}

// Close gives the ring up. What is still in flight is cancelled and waited for,
// without telling its Completer; an operation on a disk that does not answer is
// not waited for long, but then the ring's memory is not unmapped either: the
// kernel could write to what somebody else has mapped there by then.
func (r *Ring) Close() error {
	var errs []error
	if n := r.drain(); n > 0 {
		errs = append(errs, fmt.Errorf("close io_uring: %d operations did not end, their memory stays", n))
		r.maps = nil
	}
	if r.enterFl&enterRegisteredRing != 0 {
		r.unregisterRing() // a slot that is not given back is lost to the thread: there are 16
	}
	if r.fd >= 0 {
		errs = append(errs, unix.Close(r.fd))
	}
	for _, m := range r.maps {
		errs = append(errs, unix.Munmap(m))
	}
	r.fd, r.enterFl, r.maps, r.sqes = -1, 0, nil, nil
	return errors.Join(errs...)
}

// Register gives c a tag to start operations with.
func (r *Ring) Register(c Completer) Tag {
	if n := len(r.freeTags); n > 0 {
		t := r.freeTags[n-1]
		r.freeTags = r.freeTags[:n-1]
		r.completers[t] = c
		return t
	}
	r.completers = append(r.completers, c)
	return Tag(len(r.completers) - 1)
}

// Unregister takes t back. None of its operations is in flight.
func (r *Ring) Unregister(t Tag) {
	if t == 0 || int(t) >= len(r.completers) || r.completers[t] == nil {
		panic(fmt.Sprintf("uring: tag %d is not registered", t))
	}
	r.completers[t] = nil
	r.freeTags = append(r.freeTags, t)
}

// Alloc makes n bytes of zeroed, page-aligned memory off the Go heap. It is there
// until Close.
func (r *Ring) Alloc(n int) []byte {
	m, err := unix.Mmap(-1, 0, max(n, 1), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_POPULATE)
	if err != nil {
		panic(fmt.Sprintf("uring: map %d anonymous bytes: %v", n, err)) // as the Go heap does
	}
	r.maps = append(r.maps, m)
	return m[:n:n]
}

// AllocIovecs makes n iovecs off the Go heap. They are there until Close.
func (r *Ring) AllocIovecs(n int) []Iovec { return Iovecs(r.Alloc(n * IovecSize)) }

// Queued is how many operations wait for the next Enter.
func (r *Ring) Queued() int { return int(r.tail - atomic.LoadUint32(r.sqHead)) }

// Enters is how often io_uring_enter was called. Any goroutine.
func (r *Ring) Enters() uint64 { return r.enters.Load() }

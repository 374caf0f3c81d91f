package device

import (
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"sync"

	"github.com/elevisor/elevisor/backend"
	"github.com/elevisor/elevisor/backend/uring"
	"github.com/elevisor/elevisor/blk"
	"github.com/elevisor/elevisor/sys/eventfd"
	"github.com/elevisor/elevisor/virtqueue"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"
)

// Waiter is where a loop blocks, and nothing else of it does. Wakeup may be called from any
// goroutine, the other methods only from the loop's.
type Waiter interface {
	// Wait submits what is queued on the waiter's ring, if it has one, and returns when
	// there may be something to do or d nanoseconds have passed; 0: it does not block, <0:
	// there is no limit.
	Wait(d int64) error
	// Wakeup ends the current Wait, or the next one. After Close it does nothing.
	Wakeup()
	// Watch sets *fired whenever descriptor fd was readable, and reads it empty, until
	// Unwatch. After that it may still happen until done, if it is not nil, is called, on
	// the loop's goroutine.
	Watch(fd int, fired *bool) Watch
	Unwatch(w Watch, done func())
	// Signal writes to the eventfd fd, at the latest with the next Wait. It does not
	// block, whatever the other side does with its end.
	Signal(fd *eventfd.FD)
	// Flush makes sure that no earlier Signal still needs the number of its descriptor,
	// which may be closed then.
	Flush()
	// Close ends the waiter. Nothing is watched.
	Close() error
}

// Watch is a Waiter's handle for one watched descriptor.
type Watch any

// Engine says how a loop waits, and so what its backends may use.
type Engine uint8

// The engines. EngineAuto takes io_uring where the system allows it.
const (
	EngineAuto Engine = iota
	EngineURing
	EnginePoll
)

// ringEntries is the size of a loop's submission ring; a step that submits more enters the
// kernel once more.
const ringEntries = 512

// mailbox is how many calls may wait for a loop at a time; more wait in their
// own goroutines.
const mailbox = 64

// errEnded is the error of Do on a loop that no longer runs.
var errEnded = errors.New("the loop has ended")

// live is what a loop has only in real time. Its zero value is for a loop that is stepped
// by its caller.
type live struct {
	waiter Waiter
	mail   chan func()
	quit   chan struct{}
	once   sync.Once // closes quit
	ended  chan struct{}
	log    *zap.Logger
	lost   error // why the loop can no longer reach its disks
}

// Start runs l on a goroutine and thread of its own until Stop. setup, if not nil,
// runs there before the first step, with what the loop lends to its backends; its
// error ends the loop and is returned. now is the loop's clock.
func (l *Loop) Start(engine Engine, now func() blk.Instant, log *zap.Logger, setup func(backend.Host) error) error {
	l.mail, l.quit, l.ended, l.log = make(chan func(), mailbox), make(chan struct{}), make(chan struct{}), log
	ready := make(chan error)
	go l.run(engine, now, setup, ready)
	return <-ready
}

func (l *Loop) run(engine Engine, now func() blk.Instant, setup func(backend.Host) error, ready chan<- error) {
	defer close(l.ended)
	// The ring belongs to one thread, and a thread that spends its life waiting in system
	// calls is of no use to other goroutines.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	// By default the kernel lets a thread's timers be up to 50 us late, to expire several
	// at once. If it refuses to change that, time slices and simulated drives are that
	// coarse.
	_ = unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0)
	defer func() { _ = unix.Prctl(unix.PR_SET_TIMERSLACK, 0, 0, 0, 0) }() // back to the default: the thread may live on
	w, ring, err := newWaiter(engine, log(l.log))
	if err != nil {
		ready <- err
		return
	}
	l.waiter = w
	if setup != nil {
		err = setup(backend.Host{Ring: ring, Wakeup: w.Wakeup})
	}
	ready <- err
	if err == nil {
		l.steps(now)
	}
	if err := l.close(); err != nil {
		log(l.log).Warn("loop did not end cleanly", zap.Error(err))
	}
}

// steps calls Step until the loop is stopped or lost.
func (l *Loop) steps(now func() blk.Instant) {
	for {
		at := now()
		wake := l.Step(at)
		if err := l.waiter.Wait(l.nap(at, wake)); err != nil && l.lost == nil {
			l.lost = err
		}
		if l.lost != nil {
			l.runWithoutDisks()
			return
		}
		if !l.readMail() {
			return
		}
	}
}

// spin is how long the loop polls before a simulated drive is done, or a scheduler in front
// of one has waited long enough, in nanoseconds. From the expiry of a timer to the thread's
// next step it takes some tens of microseconds, and 110 in a virtual machine whose
// processor was asleep: as long as several commands that hit the drive's cache, though
// nothing compared with a seek.
const spin = 150_000

// nap is the argument for Waiter.Wait after a step that started at at and wants the next
// one at wake.
func (l *Loop) nap(at, wake blk.Instant) int64 {
	if wake == blk.Never {
		return -1
	}
	if l.exact != blk.Never {
		wake = min(wake, l.exact-spin)
	}
	return max(0, int64(wake-at))
}

// runWithoutDisks is what a loop does that can no longer reach its disks: its queues are
// broken, and it runs what is posted with Do until it is stopped. What is in flight stays
// in the in-flight records.
func (l *Loop) runWithoutDisks() {
	log(l.log).Error("loop can no longer reach its disks", zap.Error(l.lost))
	for _, q := range l.queues {
		if q.ring != nil {
			q.broke(q.ring.Break("its disk cannot be reached"))
		}
	}
	for {
		select {
		case fn := <-l.mail:
			fn()
		case <-l.quit:
			return
		}
	}
}

// readMail runs what was posted with Do; false when the loop is to end.
func (l *Loop) readMail() bool {
	for {
		select {
		case fn := <-l.mail:
			fn()
			continue
		default:
		}
		select {
		case <-l.quit:
			return len(l.mail) > 0 && l.readMail()
		default:
			return true
		}
	}
}

// Do runs fn on the loop's goroutine, between two steps, and returns when it has run. On a
// loop that was never started it runs fn at once, on the caller's goroutine.
func (l *Loop) Do(fn func()) error {
	if l.mail == nil {
		fn()
		return nil
	}
	done := make(chan struct{})
	select {
	case l.mail <- func() { fn(); close(done) }:
	case <-l.ended:
		return errEnded
	}
	l.waiter.Wakeup()
	select {
	case <-done:
		return nil
	case <-l.ended:
		select {
		case <-done: // fn was the last thing that the loop ran
			return nil
		default:
			return errEnded
		}
	}
}

// Stop ends the loop's goroutine. The devices' queues are stopped already; requests that a
// disk still has are abandoned (see Close of backend.Backend).
func (l *Loop) Stop() {
	if l.mail == nil {
		return
	}
	l.once.Do(func() { close(l.quit) })
	if l.waiter != nil { // nil: Start failed to make one
		l.waiter.Wakeup()
	}
	<-l.ended
}

// Close ends a loop that was never started: it detaches its images. For one that was
// started Stop does that. Its queues are stopped already.
func (l *Loop) Close() error {
	var all []error
	for _, d := range l.disks {
		all = append(all, d.Close())
	}
	l.disks = nil
	return errors.Join(all...)
}

func (l *Loop) close() error { return errors.Join(l.Close(), l.waiter.Close()) }

// notify wakes the other side of a queue.
func (l *Loop) notify(n virtqueue.Notifier) {
	if n == nil {
		return
	}
	if fd, ok := n.(*eventfd.FD); ok && l.waiter != nil {
		l.waiter.Signal(fd)
		return
	}
	n.Notify()
}

// flush is called before a notifier is given back to its owner.
func (l *Loop) flush() {
	if l.waiter != nil {
		l.waiter.Flush()
	}
}

func (l *Loop) watch(fd int, fired *bool) Watch {
	if l.waiter == nil {
		return nil
	}
	return l.waiter.Watch(fd, fired)
}

func (l *Loop) unwatch(w Watch, done func()) {
	switch {
	case l.waiter != nil:
		l.waiter.Unwatch(w, done)
	case done != nil:
		done()
	}
}

func log(l *zap.Logger) *zap.Logger {
	if l == nil {
		return zap.NewNop()
	}
	return l
}

// newWaiter makes the waiter, and the ring if it has one.
func newWaiter(e Engine, log *zap.Logger) (Waiter, *uring.Ring, error) {
	if e != EnginePoll {
		w, err := newRingWaiter()
		switch {
		case err == nil:
			return w, w.ring, nil
		case e == EngineURing:
			return nil, nil, fmt.Errorf("aio=io_uring: %w", err)
		}
		log.Info("io_uring is not available; using epoll and threads", zap.Error(err))
	}
	w, err := newPollWaiter()
	return w, nil, err
}

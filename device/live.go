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

// Waiter is the only thing that blocks. Wakeup may be called from any goroutine,
// the rest belongs to the loop's.
type Waiter interface {
	// Wait submits what is queued on the waiter's ring, if it has one, and returns
	// when there may be something to do, or d nanoseconds have passed: 0 looks and
	// returns at once, negative sets no limit.
	Wait(d int64) error
	// Wakeup ends the current Wait, or the next one. After Close it does nothing.
	Wakeup()
	// Watch sets *fired when descriptor fd was readable, and reads it empty, until
	// the watch is given to Unwatch; it may still be, and descriptor read, until done,
	// if not nil, is called on the loop's goroutine.
	Watch(fd int, fired *bool) Watch
	Unwatch(w Watch, done func())
	// Signal notifies whoever waits at fd, at the latest with the next Wait. It does
	// not block, whatever the other side does with its end of the descriptor.
	Signal(fd *eventfd.FD)
	// Flush has every Signal so far look at its descriptor's number, which may be
	// closed then.
	Flush()
	// Close ends the waiter. Nothing is watched.
	Close() error
}

// Watch is a Waiter's name for one watched descriptor.
type Watch any

// Engine says how a loop waits, and so what its backends may use.
type Engine uint8

// The engines. EngineAuto takes io_uring where the system allows it.
const (
	EngineAuto Engine = iota
	EngineURing
	EnginePoll
)

// ringEntries is the size of a loop's submission ring; a step that has more to
// say enters the kernel once more.
const ringEntries = 512

// mailbox is how many calls may wait for a loop at a time; more wait in their
// own goroutines.
const mailbox = 64

// errEnded is the answer of a loop that does not run any more.
var errEnded = errors.New("the loop has ended")

// live is what a loop has only in real time. Its zero value is a loop that is
// stepped by hand.
type live struct {
	waiter Waiter
	mail   chan func()
	quit   chan struct{}
	once   sync.Once // closes quit
	ended  chan struct{}
	log    *zap.Logger
	lost   error // why the loop can reach its disks no longer
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
	// The ring belongs to one thread, and a thread that waits in a system call for
	// its whole life is no use to other goroutines anyhow.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	// Timers of a thread are up to 50 us late by default, so that some fall together. A
	// system that refuses is one whose slices and simulated drives are as coarse.
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

// steps is the loop's life.
func (l *Loop) steps(now func() blk.Instant) {
	for {
		at := now()
		wake := l.Step(at)
		if err := l.waiter.Wait(l.nap(at, wake)); err != nil && l.lost == nil {
			l.lost = err
		}
		if l.lost != nil {
			l.mourn()
			return
		}
		if !l.readMail() {
			return
		}
	}
}

// spin is how long before a simulated drive is done, or a scheduler in front of one has
// waited for long enough, in nanoseconds, the loop is awake already, and looks again and
// again. From a timer's end to the thread's first step it is
// some tens of microseconds, and 110 in a virtual machine whose processor was asleep: as
// long as several commands that hit the drive's cache. Beside a head move this is nothing.
const spin = 150_000

// nap is how long to wait at most, in the words of Waiter, after a step that was begun at
// and wants the next one at wake.
func (l *Loop) nap(at, wake blk.Instant) int64 {
	if wake == blk.Never {
		return -1
	}
	if l.exact != blk.Never {
		wake = min(wake, l.exact-spin)
	}
	return max(0, int64(wake-at))
}

// mourn is what is left to a loop that can reach its disks no longer, the world's
// fault at the worst place: its queues are broken, and it answers until it is
// stopped. What is in flight stays in the in-flight records.
func (l *Loop) mourn() {
	log(l.log).Error("loop cannot reach its disks any more", zap.Error(l.lost))
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

// readMail runs what others posted; false when the loop is to end.
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

// Do runs fn on the loop's goroutine, between two steps, and returns when it has
// run. On a loop that was never started it runs at once, on the caller's.
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
		case <-done: // it ran in the loop's last moments
			return nil
		default:
			return errEnded
		}
	}
}

// Stop ends the loop's goroutine. The devices' queues are stopped already; requests
// that a disk has kept in spite of that are abandoned (backend.Backend, Close).
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

// Close ends a loop that was never started, as Stop ends one that was: it lets go of
// its images. Its queues are stopped already.
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

// flush comes before a notifier is given back to its owner.
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
		log.Info("io_uring is not to be had here; using threads", zap.Error(err))
	}
	w, err := newPollWaiter()
	return w, nil, err
}

package device

import (
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/elevisor/elevisor/backend"
	"github.com/elevisor/elevisor/blk"
	"github.com/elevisor/elevisor/sched"
	"github.com/elevisor/elevisor/sys/clock"
	"github.com/elevisor/elevisor/sys/eventfd"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// liveRig is a rig whose loop runs on its own goroutine, kicked by eventfds.
type liveRig struct {
	*rig
	kickFD *eventfd.FD
}

func newLiveRig(t *testing.T, e Engine) *liveRig {
	r := &liveRig{rig: &rig{t: t, disk: newFakeDisk(2048)}}
	r.loop = NewLoop(&sched.None{}, &sched.Config{}, 8)
	var index int
	err := r.loop.Start(e, clock.Start().Now, nil, func(h backend.Host) (err error) {
		require.Equal(t, e == EngineURing, h.Ring != nil)
		index, err = r.loop.Attach(r.disk, h)
		return err
	})
	if e == EngineURing && err != nil {
		t.Skipf("io_uring: %v", err)
	}
	require.NoError(t, err)
	t.Cleanup(r.loop.Stop)
	r.dev, err = New(Options{ID: "d", Disk: &blk.Disk{Index: index}, Info: r.disk.Info(), Loops: []*Loop{r.loop}})
	require.NoError(t, err)
	return r
}

// descriptors makes a kick descriptor: the driver's end stays ours, the other is
// returned.
func (r *liveRig) descriptors(blocking bool) *eventfd.FD {
	fd, err := eventfd.New()
	require.NoError(r.t, err)
	require.NoError(r.t, unix.SetNonblock(fd.Raw(), !blocking))
	dup, err := unix.Dup(fd.Raw())
	require.NoError(r.t, err)
	own, err := eventfd.Own(dup)
	require.NoError(r.t, err)
	r.kickFD = fd
	r.t.Cleanup(fd.Close)
	return own
}

func engines(t *testing.T, f func(t *testing.T, e Engine)) {
	t.Run("io_uring", func(t *testing.T) { f(t, EngineURing) })
	t.Run("epoll", func(t *testing.T) { f(t, EnginePoll) })
}

// A live loop serves requests by kicks alone, with a kick descriptor that blocks
// and with one that does not, replaced while the ring runs, and after a stop.
func TestLive_kicks(t *testing.T) {
	engines(t, func(t *testing.T, e Engine) {
		for _, blocking := range []bool{false, true} {
			r := newLiveRig(t, e)
			r.attachMemory()
			call, err := eventfd.New()
			require.NoError(t, err)
			defer call.Close()
			r.dev.SetCall(0, call)
			turn := func() {
				for range 50 {
					r.request(blk.TypeIn, 1, 1)
					if r.driver.Publish() {
						r.kickFD.Notify()
					}
					for {
						_, _, ok, err := r.driver.Reap()
						require.NoError(t, err)
						if ok {
							break
						}
						if !r.driver.EnableCalls() {
							require.True(t, call.Wait(10*time.Second), "no call")
							call.Take()
						}
					}
				}
			}
			for round := range 3 {
				r.layout()
				r.params.Kick = r.descriptors(blocking)
				r.start()
				turn()
				r.dev.SetKick(0, r.descriptors(blocking))
				turn()
				stopped := make(chan uint32, 1)
				r.dev.Stop(0, func(base uint32) { stopped <- base })
				require.EqualValues(t, 100, <-stopped, "round %d", round)
			}
			_ = r.dev.SetMemory(nil)
		}
	})
}

// A kick descriptor whose other end is closed, or that nobody can wait for, harms
// nobody and costs nothing.
func TestLive_deadKick(t *testing.T) {
	engines(t, func(t *testing.T, e Engine) {
		r := newLiveRig(t, e)
		r.attachMemory()
		var p [2]int
		require.NoError(t, unix.Pipe2(p[:], unix.O_CLOEXEC))
		kick, err := eventfd.Own(p[0])
		require.NoError(t, err)
		r.layout()
		r.params.Kick = kick
		r.start()
		require.NoError(t, unix.Close(p[1]))
		r.request(blk.TypeIn, 0, 1)
		r.driver.Publish()
		requireIdle(t, func() { _ = r.loop.Do(func() {}) })
		stopped := make(chan uint32, 1)
		r.dev.Stop(0, func(base uint32) { stopped <- base })
		<-stopped
		_ = r.dev.SetMemory(nil)
	})
}

// A kick descriptor that another queue, or the front-end, reads empty first does
// not hold up the loop.
func TestLive_sharedKick(t *testing.T) {
	engines(t, func(t *testing.T, e Engine) {
		r := newLiveRig(t, e)
		first := r.descriptors(true)
		fd, err := unix.Dup(first.Raw())
		require.NoError(t, err)
		second, err := eventfd.Own(fd)
		require.NoError(t, err)
		var fired [2]bool
		var watches [2]Watch
		require.NoError(t, r.loop.Do(func() {
			watches[0], watches[1] = r.loop.watch(first.Raw(), &fired[0]), r.loop.watch(second.Raw(), &fired[1])
		}))
		for range 20 {
			r.kickFD.Notify()
			require.NoError(t, r.loop.Do(func() {}))
		}
		require.NoError(t, r.loop.Do(func() {
			r.loop.unwatch(watches[0], nil)
			r.loop.unwatch(watches[1], nil)
		}))
		first.Close()
		second.Close()
	})
}

// requireIdle asserts that the process, after settle, uses next to no processor
// time: a loop that spins would use all of it.
func requireIdle(t *testing.T, settle func()) {
	t.Helper()
	settle()
	runtime.GC()
	before := cpu(t)
	time.Sleep(300 * time.Millisecond)
	require.Less(t, cpu(t)-before, 150*time.Millisecond, "the loop does not rest")
}

func cpu(t *testing.T) time.Duration {
	var u syscall.Rusage
	require.NoError(t, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// Do runs in the loop, one call after the other, from any number of goroutines;
// after Stop it says so.
func TestLive_do(t *testing.T) {
	engines(t, func(t *testing.T, e Engine) {
		r := newLiveRig(t, e)
		n, done := 0, make(chan struct{})
		for range 200 {
			go func() {
				_ = r.loop.Do(func() { n++ })
				done <- struct{}{}
			}()
		}
		for range 200 {
			<-done
		}
		require.NoError(t, r.loop.Do(func() { require.Equal(t, 200, n) }))
		r.loop.Stop()
		require.ErrorIs(t, r.loop.Do(func() {}), errEnded)
	})
}

// A loop that could not even make its waiter may be stopped like any other.
func TestLive_noWaiter(t *testing.T) {
	l := NewLoop(&sched.None{}, &sched.Config{}, 1)
	l.mail, l.quit, l.ended = make(chan func()), make(chan struct{}), make(chan struct{})
	close(l.ended)
	l.Stop()
	require.ErrorIs(t, l.Do(func() {}), errEnded)
}

func TestLive_setupFails(t *testing.T) {
	l := NewLoop(&sched.None{}, &sched.Config{}, 1)
	err := l.Start(EngineAuto, clock.Start().Now, nil, func(backend.Host) error { return unix.EIO })
	require.ErrorIs(t, err, unix.EIO)
	l.Stop()
}

// A front-end clears O_NONBLOCK of its call descriptor, which is shared, and fills
// its counter: a write(2) would block the loop for ever.
func TestLive_callThatBlocks(t *testing.T) {
	engines(t, func(t *testing.T, e Engine) {
		r := newLiveRig(t, e)
		r.attachMemory()
		r.layout()
		r.params.Kick = r.descriptors(false)
		call, err := eventfd.New()
		require.NoError(t, err)
		defer call.Close()
		r.dev.SetCall(0, call)
		require.True(t, call.Wait(10*time.Second)) // SetCall's own
		call.Take()
		full := [8]byte{0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
		_, err = unix.Write(call.Raw(), full[:])
		require.NoError(t, err)
		require.NoError(t, unix.SetNonblock(call.Raw(), false))
		r.start()
		r.request(blk.TypeIn, 1, 1)
		r.driver.Publish()
		r.kickFD.Notify()
		stopped := make(chan uint32, 1)
		require.Eventually(t, func() bool {
			_, _, ok, err := r.driver.Reap()
			require.NoError(t, err)
			return ok
		}, time.Minute, time.Millisecond)
		r.dev.Stop(0, func(base uint32) { stopped <- base })
		select {
		case <-stopped:
		case <-time.After(time.Minute):
			t.Fatal("the loop hangs in its call")
		}
		r.dev.SetCall(0, nil)
		_ = r.dev.SetMemory(nil)
	})
}

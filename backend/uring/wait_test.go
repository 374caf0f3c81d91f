package uring

import (
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func eventfd(t *testing.T, flags int) int {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|flags)
	require.NoError(t, err)
	t.Cleanup(func() { _ = unix.Close(fd) })
	return fd
}

func signal(t *testing.T, fd int) {
	_, err := unix.Write(fd, []byte{1, 0, 0, 0, 0, 0, 0, 0})
	require.NoError(t, err)
}

func TestEventfdsAreRead(t *testing.T) {
	for name, flags := range map[string]int{"blocking": 0, "O_NONBLOCK": unix.EFD_NONBLOCK} {
		t.Run(name, func(t *testing.T) {
			r, c, tag := newRing(t, 8)
			fd := eventfd(t, flags)
			mem := r.Alloc(8)
			r.Read(tag, 1, fd, mem, -1)
			require.NoError(t, r.Enter(1e6))
			require.Zero(t, r.Poll(), "completed although nobody signalled: %v", c.res)
			signal(t, fd)
			signal(t, fd)
			await(t, r, c, 1)
			require.Equal(t, int32(8), c.res[1])
			require.Contains(t, []byte{1, 2}, mem[0])
		})
	}
}

func TestPollInEndsWithASignal(t *testing.T) {
	r, c, tag := newRing(t, 8)
	fd := eventfd(t, unix.EFD_NONBLOCK)
	r.PollIn(tag, 1, fd)
	require.NoError(t, r.Enter(1e6))
	require.Zero(t, r.Poll())
	signal(t, fd)
	await(t, r, c, 1)
	require.NotZero(t, c.res[1]&unix.POLLIN)
}

func TestCancelEndsWhatItNames(t *testing.T) {
	r, c, tag := newRing(t, 8)
	fd := eventfd(t, 0)
	mem := r.Alloc(16)
	r.Read(tag, 1, fd, mem[:8], -1)
	r.Read(tag, 2, fd, mem[8:], -1)
	require.NoError(t, r.Enter(0))
	r.Cancel(tag, 1)
	r.Cancel(tag, 99) // names nothing: nobody hears of it
	await(t, r, c, 1)
	require.Equal(t, map[uint32]int32{1: -int32(unix.ECANCELED)}, c.res)
	signal(t, fd)
	await(t, r, c, 2)
	require.Equal(t, int32(8), c.res[2])
}

func TestCloseEndsWhatIsInFlight(t *testing.T) {
	_, _, _ = newRing(t, 1) // skips where there is no io_uring
	fd := eventfd(t, unix.EFD_NONBLOCK)
	r, err := New(8)
	require.NoError(t, err)
	tag := r.Register(&record{then: func(uint32, int32) { t.Error("told of a completion in Close") }})
	mem := r.Alloc(24)
	r.Read(tag, 1, fd, mem[:8], -1)
	r.PollIn(tag, 2, fd)
	require.NoError(t, r.Enter(0))
	r.Read(tag, 3, fd, mem[16:], -1) // queued, not submitted
	require.NoError(t, r.Close())
	require.Equal(t, r.tail, r.taken)
	signal(t, fd)
	var got [8]byte
	n, err := unix.Read(fd, got[:])
	require.NoError(t, err)
	require.Equal(t, 8, n, "the signal went to a ring that is closed")
}

func TestAWaitSurvivesTheCollector(t *testing.T) {
	r, c, tag := newRing(t, 8)
	fd := eventfd(t, 0)
	r.PollIn(tag, 1, fd)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range 5 {
			runtime.GC() // stops the world: it must not wait for the signal below
		}
		signal(t, fd)
	}()
	await(t, r, c, 1)
	<-done
}

func TestAnInterruptedWaitIsFollowedByAnAnnouncedOne(t *testing.T) {
	r, c, tag := newRing(t, 8)
	fd := eventfd(t, 0)
	r.PollIn(tag, 1, fd)
	require.NoError(t, r.Enter(0))
	require.False(t, r.polite)
	ended, thread := make(chan struct{}), unix.Gettid()
	go func() {
		for { // at least one of them comes while the thread waits
			select {
			case <-ended:
				signal(t, fd)
				close(ended)
				return
			default:
				_ = unix.Tgkill(unix.Getpid(), thread, unix.SIGURG) // Go's own preemption signal
				runtime.Gosched()
			}
		}
	}()
	for tries := 0; !r.polite; tries++ {
		require.Less(t, tries, 1000)
		require.NoError(t, r.Enter(hang))
	}
	require.Zero(t, c.told)
	ended <- struct{}{}
	await(t, r, c, 1)
	<-ended
	require.NoError(t, r.Enter(0))
	r.Nop(tag, 2)
	require.NoError(t, r.Enter(hang))
	require.False(t, r.polite, "it never went back to the cheap way")
}

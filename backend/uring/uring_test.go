package uring

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

const hang = int64(10e9) // ns: long enough that only a hang reaches it

// record is a Completer that remembers.
type record struct {
	res  map[uint32]int32
	told int
	then func(index uint32, res int32)
}

func (c *record) Completed(index uint32, res int32, _ uint32) {
	c.told++
	if c.res != nil {
		c.res[index] = res
	}
	if c.then != nil {
		c.then(index, res)
	}
}

// newRing makes a ring on the test's goroutine, locked to its thread until the
// test has ended.
func newRing(t testing.TB, entries uint32) (*Ring, *record, Tag) {
	t.Helper()
	runtime.LockOSThread()
	t.Cleanup(runtime.UnlockOSThread)
	r, err := New(entries)
	if errors.Is(err, ErrUnavailable) {
		t.Skipf("needs io_uring: %v", err)
	}
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, r.Close()) })
	c := &record{res: map[uint32]int32{}}
	return r, c, r.Register(c)
}

// await enters and polls until n completions were told.
func await(t testing.TB, r *Ring, c *record, n int) {
	t.Helper()
	for tries := 0; c.told < n; tries++ {
		require.Less(t, tries, 100000, "told of %d of %d completions", c.told, n)
		require.NoError(t, r.Enter(hang))
		r.Poll()
	}
}

func TestProbeSaysWhetherARingCanBeMade(t *testing.T) {
	r, err := New(8)
	if err == nil {
		require.NoError(t, r.Close())
		require.NoError(t, Probe())
		return
	}
	require.ErrorIs(t, err, ErrUnavailable)
	require.ErrorIs(t, Probe(), ErrUnavailable)
}

func TestNewRefusesARingWithoutEntries(t *testing.T) {
	_, err := New(0)
	require.ErrorContains(t, err, "0 entries")
	require.NotErrorIs(t, err, ErrUnavailable)
}

func TestABatchIsOneSystemCall(t *testing.T) {
	r, c, tag := newRing(t, 64)
	for round := range 3 {
		before := r.Enters()
		for i := range uint32(64) {
			r.Nop(tag, i)
		}
		require.Equal(t, 64, r.Queued())
		require.NoError(t, r.Enter(hang))
		require.Zero(t, r.Queued())
		require.Equal(t, 64, r.Poll())
		require.Equal(t, uint64(1), r.Enters()-before)
		require.Len(t, c.res, 64)
		require.Equal(t, 64*(round+1), c.told)
	}
	require.NoError(t, r.Enter(0))
	require.Equal(t, uint64(3), r.Enters(), "nothing to submit and nothing to wait for needs no system call")
}

func TestEnterDoesNotWaitForWhatIsAlreadyThere(t *testing.T) {
	r, c, tag := newRing(t, 8)
	r.Nop(tag, 1)
	require.NoError(t, r.Enter(0))
	enters := r.Enters()
	require.NoError(t, r.Enter(-1)) // would hang
	require.Equal(t, enters, r.Enters())
	require.Equal(t, 1, r.Poll())
	require.Equal(t, map[uint32]int32{1: 0}, c.res)
}

func TestEnterEndsWithItsTime(t *testing.T) {
	r, _, _ := newRing(t, 8)
	require.NoError(t, r.Enter(1e6))
	require.Zero(t, r.Poll())
	require.Equal(t, uint64(1), r.Enters())
}

func TestAFullQueueSubmitsItself(t *testing.T) {
	r, c, tag := newRing(t, 4)
	for i := range uint32(11) {
		r.Nop(tag, i)
	}
	require.Equal(t, 3, r.Queued())
	await(t, r, c, 11)
	require.Len(t, c.res, 11)
}

func TestNoCompletionIsLostWhenTheRingOverflows(t *testing.T) {
	r, c, tag := newRing(t, 4)
	const n = 1000 // the completion ring has 16 places
	for i := range uint32(n) {
		r.Nop(tag, i)
	}
	await(t, r, c, n)
	require.Len(t, c.res, n)
}

func TestCompletionsPutAsideComeFirst(t *testing.T) {
	r, c, tag := newRing(t, 4)
	var order []uint32
	c.then = func(i uint32, _ int32) { order = append(order, i) }
	for i := range uint32(3) {
		r.Nop(tag, i)
	}
	require.NoError(t, r.Enter(0))
	r.putAside()
	r.Nop(tag, 3)
	require.True(t, r.ready())
	require.NoError(t, r.Enter(-1)) // does not wait: some are there
	require.Equal(t, 4, r.Poll())
	require.Equal(t, []uint32{0, 1, 2, 3}, order)
	require.False(t, r.ready())
}

func TestACompleterMayQueueMoreThanFits(t *testing.T) {
	r, c, tag := newRing(t, 4)
	left := 500
	c.then = func(i uint32, _ int32) {
		for range 2 {
			if left > 0 {
				left--
				r.Nop(tag, i)
			}
		}
	}
	r.Nop(tag, 7)
	await(t, r, c, 501)
	require.NoError(t, r.Enter(0))
	require.Zero(t, r.Poll())
}

func TestTagsKeepCompletersApart(t *testing.T) {
	r, a, ta := newRing(t, 8)
	b := &record{res: map[uint32]int32{}}
	tb := r.Register(b)
	r.Nop(ta, 1)
	r.Nop(tb, 2)
	require.NoError(t, r.Enter(0))
	require.Equal(t, 2, r.Poll())
	require.Equal(t, map[uint32]int32{1: 0}, a.res)
	require.Equal(t, map[uint32]int32{2: 0}, b.res)
	r.Unregister(tb)
	require.Panics(t, func() { r.Unregister(tb) })
	require.Equal(t, tb, r.Register(a))
}

func tempFile(t testing.TB, content string) *os.File {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "disk"))
	require.NoError(t, err)
	t.Cleanup(func() { _ = f.Close() })
	_, err = f.WriteString(content)
	require.NoError(t, err)
	return f
}

func TestFilesAreReadAndWritten(t *testing.T) {
	for _, fixed := range []bool{false, true} {
		r, c, tag := newRing(t, 8)
		osf := tempFile(t, "the quick brown fox")
		f := File{fd: int32(osf.Fd())}
		if fixed {
			var err error
			f, err = r.RegisterFile(int(osf.Fd()))
			require.NoError(t, err)
			require.True(t, f.fixed)
		}
		mem := r.Alloc(16)
		iov := r.AllocIovecs(2)
		iov[0].Set(mem[:3])
		iov[1].Set(mem[8:10])
		require.Equal(t, 3, iov[0].Len())
		r.Readv(tag, 1, f, iov, 4, 0)
		await(t, r, c, 1)
		require.Equal(t, "qui", string(mem[:3]))
		require.Equal(t, "ck", string(mem[8:10]))

		copy(mem, "QUI")
		r.Writev(tag, 2, f, iov[:1], 4, unix.RWF_DSYNC)
		await(t, r, c, 2)
		r.Fsync(tag, 3, f, true)
		await(t, r, c, 3)
		r.Fallocate(tag, 4, f, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 10, 5)
		await(t, r, c, 4)
		got, err := os.ReadFile(osf.Name())
		require.NoError(t, err)
		require.Equal(t, "the QUIck \x00\x00\x00\x00\x00 fox", string(got))
		require.Equal(t, map[uint32]int32{1: 5, 2: 3, 3: 0, 4: 0}, c.res)
		r.UnregisterFile(f)
	}
}

func TestAnErrorIsTheResult(t *testing.T) {
	r, c, tag := newRing(t, 8)
	mem := r.Alloc(8)
	r.Read(tag, 1, 1<<20, mem, 0)
	r.Nop(tag, 2) // comes through although the one before fails at once
	await(t, r, c, 2)
	require.Equal(t, map[uint32]int32{1: -int32(unix.EBADF), 2: 0}, c.res)
}

func TestRegisteredFilesRunOutGently(t *testing.T) {
	r, _, _ := newRing(t, 8)
	osf := tempFile(t, "x")
	var all []File
	for range maxFiles {
		f, err := r.RegisterFile(int(osf.Fd()))
		require.NoError(t, err)
		require.True(t, f.fixed)
		all = append(all, f)
	}
	f, err := r.RegisterFile(int(osf.Fd()))
	require.NoError(t, err)
	require.Equal(t, File{fd: int32(osf.Fd())}, f)
	r.UnregisterFile(f)
	r.UnregisterFile(all[17])
	f, err = r.RegisterFile(int(osf.Fd()))
	require.NoError(t, err)
	require.Equal(t, all[17], f)
	_, err = r.RegisterFile(-1)
	require.ErrorIs(t, err, unix.EBADF)
	r.UnregisterFile(f)
	_, err = r.RegisterFile(1 << 20)
	require.ErrorIs(t, err, unix.EBADF)
}

func TestClosedRingsGiveTheirSlotBack(t *testing.T) {
	_, _, _ = newRing(t, 1) // skips where there is no io_uring
	for range 40 {          // a thread has 16 slots for registered rings
		r, err := New(1)
		require.NoError(t, err)
		require.NotZero(t, r.enterFl&enterRegisteredRing)
		require.NoError(t, r.Close())
	}
}

type silent struct{}

func (silent) Completed(uint32, int32, uint32) {}

func TestABatchAllocatesNothing(t *testing.T) {
	r, _, _ := newRing(t, 32)
	tag := r.Register(silent{})
	require.Zero(t, testing.AllocsPerRun(100, func() {
		for i := range uint32(40) {
			r.Nop(tag, i)
		}
		_ = r.Enter(hang)
		_ = r.Poll()
	}))
}

func BenchmarkNop32(b *testing.B) {
	r, _, _ := newRing(b, 32)
	tag := r.Register(silent{})
	b.ReportAllocs()
	for b.Loop() {
		for i := range uint32(32) {
			r.Nop(tag, i)
		}
		_ = r.Enter(hang)
		_ = r.Poll()
	}
}

package load

import (
	"context"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/elevisor/elevisor/blk"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestVerifyPassesOnAGoodDisk(t *testing.T) {
	for _, rw := range []RW{Read, Write, RandRead, RandWrite, ReadWrite, RandReadWrite} {
		t.Run(rw.String(), func(t *testing.T) {
			f := newFake(make([]byte, 1<<20), 16, 8192)
			res := run(t, Options{RW: rw, MixRead: 50, BlockSize: 8192, Depth: 16, Verify: true, Seed: 3, IOSize: 4 << 20, Segments: 2}, f)
			total := res.Total()
			assert.Empty(t, total.Failures)
			assert.Equal(t, uint64(4<<20), total.Reads().Bytes+total.Writes().Bytes)
			assert.Equal(t, rw.Reads(), total.Reads().IOs > 0)
			assert.Equal(t, rw.Writes(), total.Writes().IOs > 0)
			assert.Equal(t, rw.Writes(), total.Verified > 0)
			if rw.Writes() {
				assert.False(t, f.overlap)
			}
			if rw.mixed() {
				assert.Greater(t, total.Verified, uint64(128), "reads of the load were compared too, not only those of the last pass")
			}
		})
	}
}

// TestVerifyFindsFaults has a disk lose, misplace, tear and age writes.
func TestVerifyFindsFaults(t *testing.T) {
	f := newFake(nil, 4, 4096)
	old := make([]byte, 1<<20)
	faults := map[string]func(n int, w want) (bool, blk.Status){
		"lost": func(n int, w want) (bool, blk.Status) { return n == 400 && w.op == blk.OpWrite, blk.StatusOK },
		"misplaced": func(n int, w want) (bool, blk.Status) {
			if n == 400 {
				copy(f.disk[w.sector.Bytes()^4096:], w.data[0].Bytes)
			}
			return n == 400, blk.StatusOK
		},
		"torn": func(n int, w want) (bool, blk.Status) {
			if n == 400 {
				copy(f.disk[w.sector.Bytes():], w.data[0].Bytes[:4096-1])
				f.disk[w.sector.Bytes()+4095] ^= 1
			}
			return n == 400, blk.StatusOK
		},
		"old": func(n int, w want) (bool, blk.Status) {
			if n == 256 {
				copy(old, f.disk)
			}
			if n == 500 {
				copy(f.disk, old)
			}
			return n == 500, blk.StatusOK
		},
	}
	for name, spoil := range faults {
		t.Run(name, func(t *testing.T) {
			*f = *newFake(make([]byte, 1<<20), 4, 4096)
			f.spoil = spoil
			res := run(t, Options{RW: RandWrite, BlockSize: 4096, Depth: 4, Verify: true, IOSize: 2 << 20, ContinueOnError: true}, f)
			assert.Equal(t, unix.EILSEQ, res.Jobs[0].Errno)
			assert.NotZero(t, res.Jobs[0].Mismatches)
			assert.LessOrEqual(t, len(res.Jobs[0].Failures), failuresKept)
		})
	}
}

func TestFailedRequests(t *testing.T) {
	for _, goOn := range []bool{false, true} {
		f := newFake(make([]byte, 1<<20), 4, 4096)
		f.spoil = func(n int, w want) (bool, blk.Status) {
			if n%50 == 0 && w.op == blk.OpWrite {
				return false, blk.StatusIOErr
			}
			return false, blk.StatusOK
		}
		res := run(t, Options{RW: Write, BlockSize: 4096, Depth: 4, Verify: true, ContinueOnError: goOn}, f)
		j := res.Jobs[0]
		assert.Equal(t, unix.EIO, j.Errno)
		assert.ErrorContains(t, j.Failures[0], "write of 4096 bytes at sector")
		assert.Zero(t, j.Mismatches, "the contents of a block whose write failed are unknown")
		if goOn {
			assert.Equal(t, uint64(5), j.Writes().Errors)
			assert.Equal(t, uint64(251), j.Writes().IOs)
			assert.Equal(t, uint64(251), j.Verified)
		} else {
			assert.Equal(t, uint64(1), j.Writes().Errors)
			assert.Less(t, j.Writes().IOs, uint64(60))
		}
	}
}

func TestStalledDisk(t *testing.T) {
	f := newFake(make([]byte, 1<<20), 4, 4096)
	f.silent = true
	res := run(t, Options{RW: Read, Depth: 4, Stall: 20 * time.Millisecond}, f)
	assert.ErrorContains(t, res.Jobs[0].Failures[0], "4 requests in flight, none came back for 20ms")
}

func TestCancelAndRuntime(t *testing.T) {
	f := newFake(make([]byte, 1<<20), 4, 4096)
	ctx, cancel := context.WithCancel(context.Background())
	f.spoil = func(n int, _ want) (bool, blk.Status) {
		if n == 1000 {
			cancel()
		}
		return false, blk.StatusOK
	}
	res, err := Run(ctx, 2048, []Queue{f}, Options{RW: Read, Depth: 4, TimeBased: true, Runtime: time.Hour})
	require.NoError(t, err)
	assert.Less(t, res.Jobs[0].Reads().IOs, uint64(1010))
	f.spoil = nil
	res = run(t, Options{RW: Read, Depth: 4, TimeBased: true, Runtime: 30 * time.Millisecond}, f)
	assert.GreaterOrEqual(t, res.Jobs[0].Runtime, 30*time.Millisecond)
	assert.Greater(t, res.Jobs[0].Reads().IOs, uint64(256), "it went round the disk")
	assert.Zero(t, f.InFlight())
}

func TestSequentialOrder(t *testing.T) {
	f := newFake(make([]byte, 1<<20), 2, 4096)
	f.keepLog = true
	run(t, Options{RW: ReadWrite, MixRead: 50, Depth: 1, Offset: 65536, Size: 65536, IOSize: 65536 * 3}, f)
	next := map[blk.Op]blk.Sector{}
	for _, w := range f.log {
		require.Equal(t, 128+next[w.op], w.sector, "each direction goes on from its own place")
		next[w.op] = (next[w.op] + 8) % 128
	}
	require.Len(t, f.log, 48)
}

func TestRandomTouchesEveryBlockOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.Uint64Range(1, 3000).Draw(t, "blocks")
		s := newShuffle(n, rapid.Uint64().Draw(t, "key"))
		seen := make([]bool, n)
		for i := range n {
			b := s.at(i)
			if b >= n || seen[b] {
				t.Fatalf("block %d of %d at %d", b, n, i)
			}
			seen[b] = true
		}
	})
}

func TestRandomIsNotSequential(t *testing.T) {
	s := newShuffle(4096, 9)
	near := 0
	for i := uint64(1); i < 4096; i++ {
		if d := int64(s.at(i)) - int64(s.at(i-1)); d >= -8 && d <= 8 {
			near++
		}
	}
	assert.Less(t, near, 60, "16 of 4096 blocks are within 8 of another: about 16 neighbours by chance")
}

func TestSeedRepeatsARun(t *testing.T) {
	runs := make([][]want, 3)
	for i := range runs {
		f := newFake(make([]byte, 1<<20), 8, 4096)
		f.keepLog = true
		run(t, Options{RW: RandReadWrite, MixRead: 70, Depth: 8, Seed: uint64(5 + i/2)}, f)
		for _, w := range f.log {
			runs[i] = append(runs[i], want{op: w.op, sector: w.sector})
		}
	}
	assert.Equal(t, runs[0], runs[1])
	assert.NotEqual(t, runs[0], runs[2])
}

func TestJobsThatVerifyShareTheRegion(t *testing.T) {
	disk := make([]byte, 1<<20)
	a, b := newFake(disk, 4, 4096), newFake(disk, 4, 4096)
	a.keepLog, b.keepLog = true, true
	res := run(t, Options{RW: RandWrite, Depth: 4, Jobs: 2, Verify: true}, a, b)
	assert.Empty(t, res.Total().Failures)
	for _, w := range a.log {
		require.Less(t, w.sector, blk.Sector(1024))
	}
	for _, w := range b.log {
		require.GreaterOrEqual(t, w.sector, blk.Sector(1024))
	}
}

func TestOptionsRefused(t *testing.T) {
	for text, o := range map[string]Options{
		"bs=1000":           {BlockSize: 1000},
		"bs=-512":           {BlockSize: -512},
		"bs=8192":           {BlockSize: 8192},
		"rwmixread=101":     {MixRead: 101},
		"numjobs=2":         {Jobs: 2},
		"iodepth=5":         {Depth: 5},
		"segments=3":        {Segments: 3},
		"time_based":        {TimeBased: true},
		"offset=4096":       {Offset: 4096, Size: 1 << 20},
		"offset=100":        {Offset: 100, Size: 4096},
		"size=2097152":      {Size: 2 << 20},
		"size=512: less":    {Size: 512},
		"io_size":           {IOSize: -1},
		"offset_increment=": {Increment: 2 << 20},
	} {
		_, err := Run(context.Background(), 2048, []Queue{newFake(nil, 4, 4096)}, o)
		assert.ErrorContains(t, err, text)
	}
	_, err := ParseRW("trim")
	assert.EqualError(t, err, "rw=trim: not one of read, write, randread, randwrite, rw, randrw")
	rw, err := ParseRW("readwrite")
	assert.NoError(t, err)
	assert.Equal(t, ReadWrite, rw)
}

// TestLoopAllocatesNothing compares a short and a long run.
func TestLoopAllocatesNothing(t *testing.T) {
	mallocs := func(bytes int64) uint64 {
		f := newFake(make([]byte, 1<<20), 8, 4096)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		run(t, Options{RW: RandReadWrite, MixRead: 50, Depth: 8, Verify: true, IOSize: bytes}, f)
		runtime.ReadMemStats(&after)
		return after.Mallocs - before.Mallocs
	}
	mallocs(1 << 20)
	few, many := mallocs(1<<20), mallocs(40<<20)
	assert.Less(t, many, few+500, "10000 requests more")
}

func TestLatencyMerge(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		all, parts := Latency{}, [2]Latency{}
		for _, v := range rapid.SliceOf(rapid.Int64Range(0, 1<<40)).Draw(t, "ns") {
			all.record(v)
			parts[v%2].record(v)
		}
		parts[0].merge(&parts[1])
		if parts[0].N != all.N || parts[0].Min != all.Min || parts[0].Max != all.Max {
			t.Fatalf("%+v, want %+v", parts[0], all)
		}
		near := func(a, b float64) bool { return a == b || (a-b)*(a-b) <= 1e-18*(a*a+b*b)+1e-12 }
		if !near(parts[0].Mean(), all.Mean()) || !near(parts[0].StdDev(), all.StdDev()) {
			t.Fatalf("mean %v, stddev %v, want %v, %v", parts[0].Mean(), parts[0].StdDev(), all.Mean(), all.StdDev())
		}
	})
}

package load

import (
	"context"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/elevisor/elevisor/blk"
)

// What is picked lies in the region, has one of the sizes, and begins where a block does.
func TestPicksAreInTheRegion(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		o := Options{RW: RW(rapid.IntRange(0, 5).Draw(t, "rw")), MixRead: rapid.IntRange(0, 100).Draw(t, "mix"), Seed: rapid.Uint64().Draw(t, "seed")}
		if rapid.Bool().Draw(t, "split") {
			o.Split = []Split{{16384, 50}, {4096, 20}, {12288, 30}}
		} else {
			o.BlockSize = 4096 * rapid.IntRange(1, 4).Draw(t, "bs")
		}
		if len(o.Split) == 0 && !o.RW.random() {
			o.Stride = 4096 * int64(rapid.IntRange(-3, 3).Draw(t, "stride"))
		}
		blocks := uint64(rapid.IntRange(8, 100).Draw(t, "blocks"))
		require.NoError(t, o.Check(blk.Sector(blocks*uint64(max(o.BlockSize, 4096))/blk.SectorSize)))
		p := NewPicker(&o, 0, blocks)
		size := int64(blocks) * int64(o.BlockSize)
		for range 300 {
			n := p.Next()
			if n.Offset < 0 || n.Offset+int64(n.Length) > size || n.Offset%4096 != 0 || n.Length < o.BlockSize || n.Length > o.MaxBlock() {
				t.Fatalf("%+v of %d bytes", n, size)
			}
			if n.Dir == Reading && !o.RW.Reads() || n.Dir == Writing && !o.RW.Writes() {
				t.Fatalf("%+v with rw=%v", n, o.RW)
			}
		}
	})
}

func TestStride(t *testing.T) {
	offsets := func(stride int64) (all []int64) {
		p := NewPicker(&Options{RW: Write, BlockSize: 4096, Stride: stride}, 0, 6)
		for range 8 {
			all = append(all, p.Next().Offset/4096)
		}
		return all
	}
	assert.Equal(t, []int64{0, 2, 4, 0, 2, 4, 0, 2}, offsets(8192))
	assert.Equal(t, []int64{5, 4, 3, 2, 1, 0, 5, 4}, offsets(-4096))
	assert.Equal(t, []int64{0, 1, 2, 3, 4, 5, 0, 1}, offsets(4096))
}

func TestSplit(t *testing.T) {
	o := Options{RW: Read, Split: []Split{{65536, 70}, {4096, 30}}, Seed: 2}
	require.NoError(t, o.Check(1<<21))
	p := NewPicker(&o, 0, 1<<18)
	large, next := 0, int64(0)
	for range 10_000 {
		n := p.Next()
		require.Equal(t, next, n.Offset, "one request goes on where the last one ended")
		next += int64(n.Length)
		if n.Length == 65536 {
			large++
		}
	}
	assert.InDelta(t, 7000, large, 300)
}

// kicks runs o and says how many requests each kick handed over.
func kicks(t *testing.T, o Options, f *fake) (sizes []int) {
	last := 0
	f.onKick = func() {
		sizes = append(sizes, len(f.log)-last)
		last = len(f.log)
	}
	f.keepLog = true
	require.Empty(t, run(t, o, f).Total().Failures)
	return sizes
}

func TestBatch(t *testing.T) {
	f := newFake(make([]byte, 1<<20), 8, 4096)
	sizes := kicks(t, Options{RW: Write, Depth: 8, Batch: 3, IOSize: 20 * 4096}, f)
	assert.Equal(t, []int{3, 3, 3, 3, 3, 3, 2}, sizes)
	f = newFake(make([]byte, 1<<20), 8, 4096)
	for _, n := range kicks(t, Options{RW: Write, Depth: 8, Batch: 1, IOSize: 20 * 4096}, f) {
		assert.Equal(t, 1, n)
	}
	f = newFake(make([]byte, 1<<20), 8, 4096)
	f.room = 2 // a device that is full takes a part of a batch
	for _, n := range kicks(t, Options{RW: Write, Depth: 8, Batch: 4, IOSize: 20 * 4096}, f) {
		assert.LessOrEqual(t, n, 2)
	}
}

// A flush follows every four writes, with nothing else in flight.
func TestFsync(t *testing.T) {
	f := newFake(make([]byte, 1<<20), 8, 4096)
	flushing := false
	f.onSubmit = func(w want) {
		require.False(t, flushing)
		if flushing = w.op == blk.OpFlush; flushing {
			require.Zero(t, f.InFlight())
		}
	}
	f.spoil = func(_ int, w want) (bool, blk.Status) {
		flushing = flushing && w.op != blk.OpFlush
		return false, blk.StatusOK
	}
	f.keepLog = true
	res := run(t, Options{RW: Write, Depth: 3, Fsync: 4, IOSize: 40 * 4096}, f)
	assert.EqualValues(t, 40, res.Jobs[0].Writes().IOs)
	require.Len(t, f.log, 49, "the last four need none: nothing follows")
	for i, w := range f.log {
		assert.Equal(t, i%5 == 4, w.op == blk.OpFlush, "request %d", i)
	}
}

// Times are lower bounds: a busy machine takes longer.
func TestPace(t *testing.T) {
	disk := make([]byte, 1<<20)
	res := run(t, Options{RW: Read, Depth: 2, ThinkTime: 4 * time.Millisecond, IOSize: 12 * 4096}, newFake(disk, 4, 4096))
	assert.EqualValues(t, 12, res.Jobs[0].Reads().IOs)
	assert.GreaterOrEqual(t, res.Jobs[0].Runtime, 5*4*time.Millisecond, "five rests between six pairs")

	f := newFake(disk, 4, 4096)
	began, counts := time.Now(), [2]int{}
	f.onSubmit = func(w want) {
		assert.GreaterOrEqual(t, time.Since(began), time.Duration(counts[w.op])*2*time.Millisecond)
		counts[w.op]++
	}
	res = run(t, Options{RW: RandReadWrite, MixRead: 50, Depth: 4, RateIOPS: 500, IOSize: 30 * 4096}, f)
	assert.Equal(t, 30, counts[0]+counts[1])
	assert.EqualValues(t, 30, res.Jobs[0].Reads().IOs+res.Jobs[0].Writes().IOs)
}

func TestRamp(t *testing.T) {
	f := newFake(make([]byte, 1<<20), 4, 4096)
	began, before := time.Now(), uint64(0)
	f.onSubmit = func(want) {
		if time.Since(began) < 20*time.Millisecond {
			before++
		}
	}
	res := run(t, Options{RW: Read, Depth: 4, RampTime: 20 * time.Millisecond, IOSize: 10 * 4096}, f)
	assert.NotZero(t, before, "the ramp has requests")
	assert.GreaterOrEqual(t, res.Jobs[0].Reads().IOs, uint64(10))
	assert.LessOrEqual(t, res.Jobs[0].Reads().IOs, uint64(14), "bytes count from its end, with what is in flight then")
	assert.Less(t, res.Jobs[0].Runtime, time.Since(began)-19*time.Millisecond)
}

func TestRunShared(t *testing.T) {
	f := newFake(make([]byte, 1<<20), 8, 8192) // two rings of four slots
	ramped := 0
	used := map[int]blk.Op{}
	f.onSubmit = func(w want) { used[w.slot] = w.op }
	jobs := []Options{
		{RW: Write, BlockSize: 8192, Depth: 2, Jobs: 2, IOSize: 1 << 20},
		{RW: RandRead, Depth: 2, IOSize: 1 << 20, RampTime: 10 * time.Millisecond},
	}
	results, options, err := RunShared(context.Background(), 2048, Shared{Queue: f, Rings: 2, First: 5, Ramped: func() { ramped++ }}, jobs)
	require.NoError(t, err)
	require.Equal(t, 1, ramped)
	require.Len(t, results, 3)
	require.Len(t, options, 3)
	for i, r := range results {
		require.Empty(t, r.Failures)
		require.Equal(t, 5+i, r.Index)
	}
	require.EqualValues(t, 128, results[0].Writes().IOs)
	require.EqualValues(t, 128, results[1].Writes().IOs)
	require.Equal(t, 4096, options[2].BlockSize)
	w, r := blk.OpWrite, blk.OpRead // clones take turns at the rings
	require.Equal(t, map[int]blk.Op{0: w, 1: w, 2: r, 3: r, 4: w, 5: w}, used)

	slots, buffer := Room(2, options[:2])
	require.Equal(t, []int{4, 8192}, []int{slots, buffer}, "each clone's options stand for two clones")

	_, _, err = RunShared(context.Background(), 2048, Shared{Queue: f, Rings: 1}, []Options{{Depth: 9}})
	require.ErrorContains(t, err, "9 slots of 4096 bytes are wanted of each ring, it has 8 of 8192")
	_, _, err = RunShared(context.Background(), 2048, Shared{Queue: f, Rings: 3}, []Options{{}})
	require.ErrorContains(t, err, "not at least 1 of each, equally large")
	_, _, err = RunShared(context.Background(), 2048, Shared{Queue: f, Rings: 1}, []Options{{}, {Fsync: -1}})
	require.ErrorContains(t, err, "job 1: fsync=-1")
}

// A job that has to wait for its turn ends at once when it is told to.
func TestCancelWhileResting(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	time.AfterFunc(10*time.Millisecond, cancel)
	res, err := Run(ctx, 2048, []Queue{newFake(make([]byte, 1<<20), 4, 4096)}, Options{RW: Read, ThinkTime: time.Hour, TimeBased: true, Runtime: 10 * time.Hour})
	require.NoError(t, err)
	assert.EqualValues(t, 1, res.Jobs[0].Reads().IOs)
}

func TestWordsRefused(t *testing.T) {
	for text, o := range map[string]Options{
		"thinktime=-1ns":      {ThinkTime: -1},
		"ramp_time=-1ns":      {RampTime: -1},
		"rate_iops=-1":        {RateIOPS: -1},
		"fsync=-1":            {Fsync: -1},
		"iodepth_batch=2":     {Batch: 2},
		"a batch has no rate": {Depth: 4, Batch: 2, RateIOPS: 1},
		"stride=100":          {RW: Read, Stride: 100},
		"stride=4096":         {RW: RandRead, Stride: 4096},
		"stride=1048576":      {RW: Read, Stride: 1 << 20},
		"bssplit=4096/0":      {Split: []Split{{4096, 0}}},
		"bssplit: 90 per":     {Split: []Split{{4096, 90}}},
		"with bssplit":        {Split: []Split{{4096, 100}}, Verify: true},
		"bs=8192: above":      {Split: []Split{{4096, 50}, {8192, 50}}},
		"segments=2 with":     {Split: []Split{{4096, 100}}, Segments: 2},
	} {
		_, err := Run(context.Background(), 2048, []Queue{newFake(nil, 4, 4096)}, o)
		assert.ErrorContains(t, err, text)
	}
}

// TestWordsAllocateNothing compares a short and a long run, with all words that go
// together.
func TestWordsAllocateNothing(t *testing.T) {
	mallocs := func(bytes int64) uint64 {
		f := newFake(make([]byte, 1<<20), 8, 8192)
		o := Options{
			RW: RandReadWrite, MixRead: 50, Depth: 8, Batch: 4, Split: []Split{{4096, 50}, {8192, 50}},
			Fsync: 4, ThinkTime: 1, RampTime: 1, IOSize: bytes,
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		run(t, o, f)
		runtime.ReadMemStats(&after)
		return after.Mallocs - before.Mallocs
	}
	mallocs(1 << 20)
	few, many := mallocs(1<<20), mallocs(40<<20)
	assert.Less(t, many, few+500, "5000 requests more")
}

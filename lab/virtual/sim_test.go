package virtual

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/elevisor/elevisor/backend"
	"github.com/elevisor/elevisor/blk"
	"github.com/elevisor/elevisor/guest"
	"github.com/elevisor/elevisor/guest/load"
	"github.com/elevisor/elevisor/sched"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	us = time.Microsecond
	ms = time.Millisecond
)

// looping is a job that goes round its region for d.
func looping(rw load.RW, depth int, d time.Duration) Job {
	return Job{Options: load.Options{RW: rw, BlockSize: 4096, Depth: depth, Runtime: d, TimeBased: true, MixRead: 50}}
}

// one is a run of one VM.
func one(img backend.Image, jobs ...Job) Options {
	return Options{Image: img, Seed: 1, VMs: []VM{{Jobs: jobs}}}
}

func mustRun(t *testing.T, o Options) *Result {
	t.Helper()
	r, err := Run(o)
	require.NoError(t, err)
	total := r.Total()
	require.Empty(t, total.Failures)
	return r
}

// A job at depth 1 on a disk that takes d, with a cost of h: a request each d + h.
func TestClosedLoop(t *testing.T) {
	for _, c := range []struct {
		rw    load.RW
		costs Costs
		ios   uint64 // in a second
	}{
		{load.Read, Costs{PerRead: 20 * us, PerWrite: 70 * us}, 10_000},
		{load.RandRead, Costs{PerRead: 20 * us, PerWrite: 70 * us}, 10_000},
		{load.Write, Costs{PerRead: 70 * us, PerWrite: 20 * us}, 10_000},
		{load.Read, Costs{PerRead: 20 * us, PerRequest: 25 * us}, 8_000},
		{load.Read, Costs{}, 12_500},
	} {
		o := one(delayed(t, "null:size=1g", 80*us), looping(c.rw, 1, time.Second))
		o.Costs = c.costs
		r := mustRun(t, o)
		all := r.Results[0].All()
		assert.Equal(t, c.ios, all.IOs, "%v %+v", c.rw, c.costs)
		assert.Equal(t, time.Second, r.Results[0].Runtime)
		assert.Equal(t, time.Second, r.Elapsed)
		assert.Equal(t, c.ios*4096, all.Bytes)
		assert.EqualValues(t, 80_000, all.Lat.Min)
		assert.EqualValues(t, 80_000, all.Lat.Max)
		assert.Equal(t, c.ios, r.Host.Op[blk.OpRead].IOs+r.Host.Op[blk.OpWrite].IOs)
	}
}

// Jitter spreads the costs evenly: the mean stays, and each cost stays within.
func TestJitter(t *testing.T) {
	o := one(delayed(t, "null:size=1g", 50*us), looping(load.Read, 1, time.Second))
	o.Costs = Costs{PerRead: 50 * us, Jitter: 0.2}
	var last blk.Instant
	least, most := blk.Never, blk.Instant(0)
	o.Trace = func(now blk.Instant, r *blk.Request) {
		if last > 0 {
			least, most = min(least, now-last), max(most, now-last)
		}
		last = now
	}
	assert.InDelta(t, 10_000, mustRun(t, o).Results[0].Reads().IOs, 50)
	assert.InDelta(t, 90_000, int64(least), 200)
	assert.GreaterOrEqual(t, least, blk.Instant(90_000))
	assert.InDelta(t, 110_000, int64(most), 200)
	assert.LessOrEqual(t, most, blk.Instant(110_000))
}

// A processor does one thing after the other, so that a deep job is bounded by its own;
// another job has another one.
func TestProcessorBoundsADeepJob(t *testing.T) {
	deep := looping(load.RandRead, 32, time.Second)
	for jobs := 1; jobs <= 3; jobs++ {
		deep.Jobs = jobs
		o := one(delayed(t, "null:size=1g", 80*us), deep)
		o.Costs = Costs{PerRead: 100 * us}
		r := mustRun(t, o)
		for _, j := range r.Results {
			assert.InDelta(t, 10_000, j.Reads().IOs, 1)
		}
		assert.Len(t, r.Results, jobs)
	}
}

func TestJobsShareADisk(t *testing.T) {
	img, err := backend.Open("null:size=1g", backend.Options{})
	require.NoError(t, err)
	j := looping(load.RandRead, 1, 4*time.Second)
	j.Jobs = 4
	o := one(backend.NewRate(img, backend.RateOptions{IOPS: 1000}), j)
	o.VMs[0].NumQueues = 2
	o.Costs = Costs{PerRead: 10 * us, Jitter: DefaultJitter}
	r := mustRun(t, o)
	assert.InDelta(t, 4000, r.Total().Stats[load.Reading].IOs, 4)
	for _, j := range r.Results {
		assert.InDelta(t, 1000, j.Reads().IOs, 2)
	}
	for _, q := range r.VMs[0].Queues {
		assert.InDelta(t, 2000, q.Op[blk.OpRead].IOs, 4, "job i drives queue i mod 2")
	}
}

func TestThinkTime(t *testing.T) {
	for depth, per := range map[int]time.Duration{1: 100 * us, 4: 100 * us} {
		j := looping(load.Read, depth, time.Second)
		j.ThinkTime = 70 * us
		o := one(delayed(t, "null:size=1g", 30*us), j)
		assert.EqualValues(t, time.Second/per*time.Duration(depth), mustRun(t, o).Results[0].Reads().IOs,
			"depth %d: so many at a time, and then a rest", depth)
	}
}

func TestRateIOPS(t *testing.T) {
	j := looping(load.Read, 1, 2*time.Second)
	j.RateIOPS = 300
	r := mustRun(t, one(delayed(t, "null:size=1g", 30*us), j))
	assert.EqualValues(t, 600, r.Results[0].Reads().IOs)
	assert.Equal(t, 2*time.Second, r.Results[0].Runtime)

	j.RW = load.RandReadWrite
	r = mustRun(t, one(delayed(t, "null:size=1g", 30*us), j))
	assert.InDelta(t, 600, r.Results[0].Reads().IOs, 40, "of each direction")
	assert.InDelta(t, 600, r.Results[0].Writes().IOs, 40)
}

// What happens in the ramp is not counted, by nobody.
func TestRampIsDropped(t *testing.T) {
	j := looping(load.Read, 1, time.Second)
	j.RampTime = 500 * ms
	o := one(delayed(t, "null:size=1g", 100*us), j)
	n := 0
	o.Trace = func(blk.Instant, *blk.Request) { n++ }
	r := mustRun(t, o)
	assert.Equal(t, 15_000, n)
	assert.InDelta(t, 10_000, r.Results[0].Reads().IOs, 1)
	assert.InDelta(t, 10_000, r.Host.Op[blk.OpRead].IOs, 1)
	assert.InDelta(t, 10_000, r.VMs[0].Device.Op[blk.OpRead].IOs, 1)
	assert.InDelta(t, 10_000, r.VMs[0].Queues[0].Op[blk.OpRead].IOs, 1)
	assert.Equal(t, time.Second, r.Elapsed)
	assert.Equal(t, time.Second, r.Results[0].Runtime)

	j.Runtime, j.TimeBased, j.IOSize = 0, false, 1000*4096
	r = mustRun(t, one(delayed(t, "null:size=1g", 100*us), j))
	assert.InDelta(t, 1000, r.Results[0].Reads().IOs, 1, "bytes count from the ramp's end")
	assert.Equal(t, 100*ms, r.Elapsed)
}

// What reaches the disk is recorded without the ramp, and changes nothing of the run.
func TestRecord(t *testing.T) {
	const spec = "sim:hdd,preset=generic7200,file=null:size=16t,seed=3"
	j := looping(load.Read, 1, 300*ms)
	j.RampTime, j.Jobs, j.Size, j.Increment = 100*ms, 2, 1<<30, 1<<30
	run := func(record bool) *Result {
		return mustRun(t, Options{
			Disk: spec, Seed: 1, Record: record, Keep: 10, Costs: Costs{PerRead: 20 * us},
			VMs: []VM{{NumQueues: 2, Jobs: []Job{j}}},
		})
	}
	r, plain := run(true), run(false)
	require.NotNil(t, r.Record)
	require.Nil(t, plain.Record)
	assert.Equal(t, plain.Results, r.Results)
	assert.Equal(t, plain.Host, r.Host)
	assert.Equal(t, plain.Drive, r.Drive)

	commands := r.Drive.Model.Commands[blk.OpRead]
	assert.InDelta(t, r.Host.Op[blk.OpRead].IOs, r.Record.Requests, 2, "of two jobs, what is in flight at the end of the ramp")
	assert.Equal(t, commands, r.Record.Requests)
	assert.Equal(t, 8*commands, r.Record.Sectors)

	assert.InDelta(t, r.Record.Requests, r.Record.Seeks, 5, "two jobs take turns")
	assert.InDelta(t, r.Record.Requests, r.Record.LostSameQueue, 1, "sequential at depth 1: each follows one of its own queue")
	assert.Equal(t, r.Record.Lost(), r.Record.LostLate, "which was done before it came")
	require.Len(t, r.Kept, 10)
	assert.GreaterOrEqual(t, r.Kept[0].At, blk.Instant(100*ms))
	assert.Less(t, r.Kept[9].At, blk.Instant(150*ms))
}

// A copy runs until its bytes are done, and says how long that took.
func TestBytesLimit(t *testing.T) {
	for _, c := range []struct {
		size, ioSize int64
		loops        int
		ios          uint64
	}{{1 << 20, 0, 0, 256}, {1 << 20, 0, 3, 768}, {1 << 20, 3 << 19, 0, 384}} {
		j := Job{Options: load.Options{RW: load.Write, BlockSize: 4096, Size: c.size, IOSize: c.ioSize}, Loops: c.loops}
		o := one(delayed(t, "null:size=1g", 90*us), j)
		o.Costs.PerWrite = 10 * us
		r := mustRun(t, o)
		assert.Equal(t, c.ios, r.Results[0].Writes().IOs)
		assert.Equal(t, time.Duration(c.ios)*100*us, r.Elapsed)
		assert.Equal(t, r.Elapsed, r.Results[0].Runtime)
	}
}

func TestFsync(t *testing.T) {
	j := looping(load.Write, 4, time.Second)
	j.Fsync = 8
	o := one(delayed(t, "null:size=1g", 100*us), j)
	r := mustRun(t, o)
	writes, flushes := r.Host.Op[blk.OpWrite], r.Host.Op[blk.OpFlush]
	assert.Equal(t, writes.Requests()/8, flushes.IOs)
	assert.InDelta(t, 8*10_000/3, writes.Requests(), 10, "two rounds of four, and a flush alone")
	assert.Equal(t, writes.Requests(), r.Results[0].Writes().IOs, "flushes are not counted as writes")
}

// Sequential readers and writers have a position each; directions are drawn.
func TestMixedPositions(t *testing.T) {
	j := looping(load.ReadWrite, 1, 100*ms)
	j.MixRead, j.Size = 70, 1<<24
	o := one(delayed(t, "null:size=1g", 100*us), j)
	var next [2]blk.Sector
	o.Trace = func(_ blk.Instant, r *blk.Request) {
		assert.Equal(t, next[r.Op], r.Sector)
		next[r.Op] = r.End()
	}
	r := mustRun(t, o)
	assert.InDelta(t, 700, r.Results[0].Reads().IOs, 50)
	assert.InDelta(t, 300, r.Results[0].Writes().IOs, 50)
}

// With fewer tags than a deep job has requests, the others wait in the guest and merge
// there; the host sees fewer and larger ones.
func TestGuestSchedulerMerges(t *testing.T) {
	for _, c := range []struct {
		scheduler string
		tags      int
		merges    bool
	}{{"deadline", 2, true}, {"none", 2, false}, {"deadline", 128, false}} {
		j := looping(load.Write, 32, time.Second)
		o := one(delayed(t, "null:size=1g", 100*us), j)
		o.Costs = Costs{PerWrite: 5 * us, Jitter: DefaultJitter} // one after the other: nothing meets in the plug list
		o.VMs[0].Guest = &guest.BlockOptions{Scheduler: c.scheduler, Tags: c.tags}
		r := mustRun(t, o)
		g := r.VMs[0].Guest
		assert.Equal(t, c.merges, g.Merged() > 0, "%+v", c)
		assert.Equal(t, g.Submitted-g.Merged(), g.Issued)
		assert.Equal(t, g.Issued, r.VMs[0].Device.Op[blk.OpWrite].Requests())
		assert.Equal(t, r.Results[0].Writes().Bytes, uint64(g.Sectors)*blk.SectorSize)
	}
}

// Two VMs have a window each, and one scheduler.
func TestTwoVMs(t *testing.T) {
	const window = 1 << 28
	o := Options{Image: delayed(t, "null:size=1g", 100*us), Scheduler: "timeslice", QueueDepth: 1, Seed: 1}
	for i := range 2 {
		j := looping(load.Read, 4, time.Second)
		j.Offset, j.Jobs, j.Increment, j.Size = 1<<20, 2, 1<<22, 1<<22
		o.VMs = append(o.VMs, VM{Offset: int64(i) * window, Size: window, NumQueues: 2, Jobs: []Job{j}})
	}
	seen := map[blk.Source][2]int64{}
	o.Trace = func(_ blk.Instant, r *blk.Request) {
		at, ok := seen[r.Source]
		if !ok {
			at = [2]int64{1 << 40, 0}
		}
		seen[r.Source] = [2]int64{min(at[0], r.Sector.Bytes()), max(at[1], r.End().Bytes())}
	}
	r := mustRun(t, o)
	assert.Len(t, seen, 4)
	for s, at := range seen {
		begin := int64(s.Device)*window + 1<<20 + int64(s.Queue)<<22
		assert.Equal(t, begin, at[0], "%+v", s)
		assert.LessOrEqual(t, at[1], begin+1<<22, "%+v", s)
	}
	assert.NotZero(t, r.Host.Counters.Slices)
	for i, v := range r.VMs {
		assert.Equal(t, []int{2 * i, 2*i + 1}, v.Jobs)
		assert.InDelta(t, 0.5, float64(v.Device.Op[blk.OpRead].Sectors)/float64(r.Host.Op[blk.OpRead].Sectors), 0.1)
	}
}

// What begins a slice that it has waited for is late, and so is what follows at once.
func TestPerSwitch(t *testing.T) {
	for _, c := range []struct {
		after time.Duration
		late  bool
	}{{0, true}, {time.Hour, false}} {
		j := looping(load.Read, 1, 100*ms)
		j.Jobs, j.Increment, j.Size = 2, 1<<28, 1<<28
		o := one(delayed(t, "null:size=1g", 100*us), j)
		o.Scheduler, o.QueueDepth, o.VMs[0].NumQueues = "timeslice", 1, 2
		o.Knobs = []sched.Knob{{Key: "time_slice_us", Value: "1000"}, {Key: "slice_by", Value: "queue"}}
		o.Costs = Costs{PerSwitch: 30 * us, SwitchAfter: c.after}
		late := uint64(0)
		o.Trace = func(now blk.Instant, r *blk.Request) {
			switch now - r.Issue {
			case 0:
			case blk.Instant(30 * us):
				late++
			default:
				t.Errorf("%v late", now-r.Issue)
			}
		}
		r := mustRun(t, o)
		require.Greater(t, r.Host.Counters.Slices, uint64(20))
		if c.late {
			assert.InDelta(t, r.Host.Counters.Slices, late, 1, "the first had not waited, but 0 is enough")
		} else {
			assert.Zero(t, late)
		}
	}
}

// What is held back holds back what comes behind it.
func TestGateKeepsTheOrder(t *testing.T) {
	j := looping(load.RandRead, 8, 100*ms)
	j.Jobs = 2
	o := one(delayed(t, "null:size=1g", 100*us), j)
	o.Scheduler, o.QueueDepth, o.VMs[0].NumQueues = "timeslice", 4, 2
	o.Knobs = []sched.Knob{{Key: "time_slice_us", Value: "1000"}, {Key: "slice_by", Value: "queue"}}
	o.Costs = Costs{PerSwitch: 300 * us, PerRead: 7 * us, Jitter: 1}
	var last blk.Instant
	held := 0
	o.Trace = func(now blk.Instant, r *blk.Request) {
		assert.GreaterOrEqual(t, r.Issue, last, "as they were dispatched, so they arrive")
		last = r.Issue
		if d := now - r.Issue; d > 0 && d < blk.Instant(300*us) {
			held++
		}
	}
	mustRun(t, o)
	assert.NotZero(t, held)
}

// Data that was written through virtual rings is on the image, and is read back
// through them.
func TestDataArrives(t *testing.T) {
	img, err := backend.Open("mem:size=8m", backend.Options{})
	require.NoError(t, err)
	defer img.Close()
	put := func(first blk.Sector, data []byte, check bool) error {
		for at := 0; at < len(data); at += blk.SectorSize {
			want := fmt.Appendf(nil, "sector %08d", int(first)+at/blk.SectorSize)
			if !check {
				copy(data[at:], want)
			} else if string(data[at:at+len(want)]) != string(want) {
				return errors.New("wrong data")
			}
		}
		return nil
	}
	for _, g := range []*guest.BlockOptions{nil, {Scheduler: "deadline", Tags: 2}} {
		w := Job{Options: load.Options{RW: load.RandWrite, BlockSize: 8192, Depth: 8, Segments: 2, Jobs: 2, Size: 2 << 20, Increment: 2 << 20}}
		o := Options{Image: img, Scheduler: "deadline", QueueDepth: 2, Seed: 3, VMs: []VM{{Offset: 4 << 20, NumQueues: 2, Guest: g, Jobs: []Job{w}}}}
		o.Fill = func(_ int, first blk.Sector, data []byte) { _ = put(first, data, false) }
		mustRun(t, o)
		w.RW = load.Read
		o.VMs[0].Jobs = []Job{w}
		checked := 0
		o.Check = func(_ int, first blk.Sector, data []byte) error { checked++; return put(first, data, true) }
		mustRun(t, o)
		assert.Equal(t, 4<<20/8192, checked)
		o.VMs[0].Offset = 0
		r, err := Run(o)
		require.NoError(t, err)
		assert.Equal(t, unix.EILSEQ, r.Results[0].Errno, "nothing was written there")
		assert.ErrorContains(t, r.Results[0].Failures[0], "wrong data")
	}
}

// More requests than the block layer takes wait for room, and none is lost.
func TestFullBlockLayer(t *testing.T) {
	j := looping(load.RandRead, 16, 100*ms)
	j.Jobs = 3
	o := one(delayed(t, "null:size=1g", 100*us), j)
	o.Costs = Costs{PerRead: us, Jitter: DefaultJitter}
	o.VMs[0].Guest = &guest.BlockOptions{Scheduler: "deadline", Tags: 2, Requests: 4}
	r := mustRun(t, o)
	assert.InDelta(t, 2000, r.Total().Stats[load.Reading].IOs, 4)
	for _, j := range r.Results {
		assert.InDelta(t, 2000/3, j.Reads().IOs, 40, "who waits longest is next")
	}
	o.VMs[0].Guest = nil
	o.VMs[0].QueueSize, o.QueueDepth = 4, 2
	r = mustRun(t, o)
	assert.InDelta(t, 2000, r.Total().Stats[load.Reading].IOs, 4)
}

// A disk that fails ends the job, or is counted.
func TestFailures(t *testing.T) {
	for _, goOn := range []bool{false, true} {
		img, err := backend.Open("null:size=1g", backend.Options{})
		require.NoError(t, err)
		img = backend.NewFaults(img, backend.Fault{Range: blk.Range{Sector: 80, Sectors: 16}})
		j := Job{Options: load.Options{RW: load.Read, BlockSize: 4096, Size: 1 << 20, ContinueOnError: goOn}}
		r, err := Run(one(img, j))
		require.NoError(t, err)
		res := &r.Results[0]
		assert.Equal(t, unix.EIO, res.Errno)
		assert.ErrorContains(t, res.Failures[0], "read of 4096 bytes at sector 80: IOERR")
		if goOn {
			assert.EqualValues(t, 254, res.Reads().IOs)
			assert.EqualValues(t, 2, res.Reads().Errors)
		} else {
			assert.EqualValues(t, 10, res.Reads().IOs)
		}
	}
}

func TestJitterIsANumber(t *testing.T) {
	o := one(delayed(t, "null:size=1g", 100*us), looping(load.Read, 1, ms))
	o.Costs = Costs{PerRead: us, Jitter: math.NaN()}
	_, err := Run(o)
	require.ErrorContains(t, err, "jitter=NaN is out of range 0 to 1")
}

// Times through a region that no number of bytes can hold are many, not none.
func TestLoopsWithoutEnd(t *testing.T) {
	j := Job{Options: load.Options{RW: load.Read, Size: 1 << 30, Runtime: ms}, Loops: math.MaxInt}
	r := mustRun(t, one(delayed(t, "null:size=1g", 100*us), j))
	require.EqualValues(t, 10, r.Results[0].Reads().IOs)
}

// A job that fails before the end of its ramp has run for no time, not for less.
func TestFailsWithinTheRamp(t *testing.T) {
	img := backend.NewFaults(delayed(t, "null:size=1g", 100*us), backend.Fault{})
	j := looping(load.Read, 1, ms)
	j.RampTime = 100 * ms
	r, err := Run(one(img, j))
	require.NoError(t, err)
	require.Equal(t, unix.EIO, r.Results[0].Errno)
	require.Zero(t, r.Elapsed)
	require.NoError(t, r.WriteJSON(io.Discard, "test"))
	require.NoError(t, r.WriteText(io.Discard))
}

// mixture is a run in which much happens at random.
func mixture(img backend.Image, seed uint64, scheduler string) Options {
	a, b := looping(load.RandReadWrite, 8, 200*ms), looping(load.ReadWrite, 4, 200*ms)
	a.Jobs, b.ThinkTime, b.Fsync, a.RampTime = 3, 50*us, 16, 20*ms
	return Options{
		Image: img, Scheduler: scheduler, QueueDepth: 3, Seed: seed,
		Costs: Costs{PerRead: 20 * us, PerWrite: 25 * us, Jitter: DefaultJitter, PerSwitch: 40 * us},
		VMs: []VM{
			{Size: 1 << 28, NumQueues: 2, Jobs: []Job{a, b}},
			{Offset: 1 << 28, Size: 1 << 28, Guest: &guest.BlockOptions{Scheduler: "deadline", Tags: 4}, Jobs: []Job{a, b}},
		},
	}
}

func TestOneSeedOneResult(t *testing.T) {
	var runs []Options
	for _, scheduler := range sched.Names {
		for _, seed := range []uint64{1, 1, 2} {
			img := delayed(t, "null:size=1g", 60*us)
			runs = append(runs, mixture(img, seed, scheduler))
		}
	}
	alone, together, errs := make([]*Result, len(runs)), make([]*Result, len(runs)), make([]error, len(runs))
	for i := range runs {
		alone[i], errs[i] = Run(runs[i])
		require.NoError(t, errs[i])
		runs[i].Image = delayed(t, "null:size=1g", 60*us)
	}
	var wg sync.WaitGroup
	for i := range runs {
		wg.Go(func() { together[i], errs[i] = Run(runs[i]) })
	}
	wg.Wait()
	require.NoError(t, errors.Join(errs...))
	text := func(r *Result) string {
		var b bytes.Buffer
		require.NoError(t, r.WriteJSON(&b, "test"))
		require.NoError(t, r.WriteText(&b))
		return b.String()
	}
	for i := range runs {
		assert.Equal(t, text(alone[i]), text(together[i]), "run %d", i)
	}
	for i := 0; i < len(runs); i += 3 {
		assert.Equal(t, text(alone[i]), text(alone[i+1]))
		assert.NotEqual(t, alone[i].Results, alone[i+2].Results, "another seed is another run")
	}
}

func TestRefusals(t *testing.T) {
	ok := func() Options {
		return Options{Disk: "null:size=1g", VMs: []VM{{Jobs: []Job{looping(load.Read, 1, ms)}}}}
	}
	_, err := Run(ok())
	require.ErrorContains(t, err, "time stands still at 0 ns")
	for want, spoil := range map[string]func(o *Options){
		"no VM":                            func(o *Options) { o.VMs = nil },
		"no job":                           func(o *Options) { o.VMs[0].Jobs = nil },
		`scheduler "x" is unknown`:         func(o *Options) { o.Scheduler = "x" },
		`VM 0: scheduler "y" is unknown`:   func(o *Options) { o.VMs[0].Guest = &guest.BlockOptions{Scheduler: "y"} },
		"queue-depth=-1 is out of range":   func(o *Options) { o.QueueDepth = -1 },
		"queue-depth=9999 is out of range": func(o *Options) { o.QueueDepth = 9999 },
		`there is no knob "z"`:             func(o *Options) { o.Knobs = []sched.Knob{{Key: "z", Value: "1"}} },
		"jitter=2 is out of range 0 to 1":  func(o *Options) { o.Costs.Jitter = 2 },
		"a cost is below 0":                func(o *Options) { o.Costs.PerSwitch = -1 },
		"VM 0: job 0: bs=100":              func(o *Options) { o.VMs[0].Jobs[0].BlockSize = 100 },
		"VM 0: num-queues=300":             func(o *Options) { o.VMs[0].NumQueues = 300 },
		"VM 0: queue-size=3":               func(o *Options) { o.VMs[0].QueueSize = 3 },
		"VM 0: offset=1, size=0":           func(o *Options) { o.VMs[0].Offset = 1 },
		"rate_iops=-1":                     func(o *Options) { o.VMs[0].Jobs[0].RateIOPS = -1 },
		"thinktime=-1ns":                   func(o *Options) { o.VMs[0].Jobs[0].ThinkTime = -1 },
		"verify":                           func(o *Options) { o.VMs[0].Jobs[0].Verify = true },
		"more than 65536":                  func(o *Options) { o.VMs[0].Jobs[0].Jobs = 1 << 17 },
		"open disk nil:":                   func(o *Options) { o.Disk = "nil:" },
	} {
		o := ok()
		spoil(&o)
		_, err := Run(o)
		assert.ErrorContains(t, err, want)
	}
}

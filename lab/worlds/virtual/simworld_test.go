package virtual

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/elevisor/elevisor/guest/fio"
	"github.com/elevisor/elevisor/lab/plan"
	"github.com/elevisor/elevisor/sched"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const disk = "sim:hdd?preset=hd155ui"

// loadOf is a workload of one job, by fio's words.
func loadOf(t *testing.T, name string, words ...string) plan.Load {
	j, _, err := fio.ParseWords(words)
	require.NoError(t, err)
	return plan.Load{Workload: fio.Workload{Name: name, Jobs: []fio.Job{j}}}
}

func planOf(t *testing.T, disk string, loads ...plan.Load) *plan.Plan {
	p, err := plan.NewPlan(plan.Matrix{
		World: "virtual", Disk: disk, Guests: []plan.Scheduler{{Name: "none"}}, Hosts: []plan.Scheduler{{Name: "none"}},
		Loads: loads, Repeats: 3, Seed: 1,
	})
	require.NoError(t, err)
	return p
}

func one(t *testing.T, s plan.Spec) *plan.Outcome {
	w := New(Options{Costs: DefaultCosts(), Version: "test", Fio: true})
	o, err := w.Run(t.Context(), s)
	require.NoError(t, err)
	require.NoError(t, w.Close())
	return o
}

// Two VMs with two jobs each: what the jobs count, the guests, the host and the disk, in
// one run without its ramp, is one story.
func TestOutcome(t *testing.T) {
	l := loadOf(t, "a", "rw=randrw", "bs=8k", "iodepth=8", "numjobs=2", "runtime=1", "time_based", "ramp_time=200ms", "size=1g")
	p := planOf(t, disk, l)
	s := plan.Spec{Cell: p.Cells[0], Disk: disk, Seed: 5, Trace: 100}
	s.VMs, s.Queues, s.Guest.Name, s.Host.Name = 2, 2, "deadline", "deadline"
	o := one(t, s)

	require.Len(t, o.Jobs, 4)
	assert.Equal(t, []plan.Share{{VM: 0, Job: 0}, {VM: 0, Job: 1}, {VM: 1, Job: 0}, {VM: 1, Job: 1}},
		[]plan.Share{bare(o.Jobs[0]), bare(o.Jobs[1]), bare(o.Jobs[2]), bare(o.Jobs[3])})
	sum := 0.0
	for _, j := range o.Jobs {
		sum += j.IOPS
	}
	assert.InDelta(t, o.IOPS(), sum, 1e-6)
	assert.Equal(t, 1.0, o.Seconds)
	assert.InDelta(t, float64(o.Read.IOs+o.Write.IOs), o.IOPS(), 1e-6)
	assert.Equal(t, 8192*o.Read.IOs, o.Read.Bytes)

	inFlight := 2.0 * 2 * 2 * 8 // at either end
	assert.True(t, o.Guest.Known && o.Host.Known)
	assert.InDelta(t, o.Read.IOs+o.Write.IOs, o.Guest.Submitted, inFlight)
	assert.InDelta(t, o.Guest.Submitted-o.Guest.Merged, o.Guest.Issued, inFlight)
	assert.InDelta(t, o.Guest.Issued, o.Host.Submitted, inFlight)
	assert.Equal(t, o.Host.Submitted, o.Host.Merged+o.Host.Issued)
	assert.Equal(t, o.Host.Merged, o.Host.SameQueue+o.Host.CrossQueue+o.Host.CrossVM)
	assert.InDelta(t, o.Host.Issued, o.Disk.Requests, inFlight)
	assert.InDelta(t, 16*o.Guest.Submitted, o.Disk.Sectors, 16*inFlight)
	assert.Greater(t, o.Disk.Seeks, o.Disk.Requests/2)
	assert.NotZero(t, o.Disk.HeadMoves)
	assert.InDelta(t, 1, o.Disk.HeadSeconds, 0.5)

	require.Len(t, o.Trace, 100)
	vms := map[uint16]int{}
	for i, a := range o.Trace {
		vms[a.VM]++
		require.True(t, a.Seconds >= 0 && a.Seconds < 1 && (i == 0 || a.Seconds >= o.Trace[i-1].Seconds))
	}
	assert.Len(t, vms, 2)
	for _, d := range []plan.Direction{o.Read, o.Write} {
		require.NotEmpty(t, d.CDF)
		for i := range d.CDF[1:] {
			require.LessOrEqual(t, d.CDF[i].US, d.CDF[i+1].US)
			require.Less(t, d.CDF[i].Q, d.CDF[i+1].Q)
		}
		assert.Equal(t, plan.Quantile{Q: 1, US: d.Max}, d.CDF[len(d.CDF)-1])
		assert.True(t, d.P50 < d.P99 && d.P99 <= d.Max && d.Mean > 0)
	}
	var fio struct{ Jobs []any }
	require.NoError(t, json.Unmarshal(o.Fio, &fio))
	assert.Len(t, fio.Jobs, 4)
}

func bare(s plan.Share) plan.Share { return plan.Share{VM: s.VM, Job: s.Job} }

// A guest without a scheduler has a block layer all the same, which merges what comes at
// once; nomerges and a knob's limit change that, and a slower disk is slower.
func TestSettings(t *testing.T) {
	l := loadOf(t, "a", "rw=write", "iodepth=32", "iodepth_batch=16", "runtime=500ms", "time_based", "size=64m")
	s := plan.Spec{Cell: planOf(t, "null:size=1g", l).Cells[0], Disk: "null:size=1g", IOPS: 500, Seed: 5}
	s.QSize = 8
	merged := func(change func(s *plan.Spec)) float64 {
		c := s
		change(&c)
		o := one(t, c)
		return float64(o.Guest.Submitted) / float64(o.Guest.Issued)
	}
	assert.Greater(t, merged(func(*plan.Spec) {}), 4.0)
	assert.InDelta(t, 1, merged(func(s *plan.Spec) { s.NoMerges = 2 }), 0.3)
	limited := merged(func(s *plan.Spec) { s.Guest.Knobs = []sched.Knob{{Key: "max_sectors_kb", Value: "8"}} })
	assert.InDelta(t, 2, limited, 0.2)
	o := one(t, s)
	assert.InDelta(t, 250, o.Disk.Requests, 10, "in half a second")
}

// Another seed is another run, also of a workload in which nothing is random but the
// processor's time and where the platter stands.
func TestSeeds(t *testing.T) {
	l := loadOf(t, "a", "rw=read", "numjobs=2", "runtime=300ms", "time_based", "size=1g", "offset_increment=1g")
	s := plan.Spec{Cell: planOf(t, disk, l).Cells[0], Disk: disk, Seed: 5}
	text := func() string {
		b, err := json.Marshal(one(t, s))
		require.NoError(t, err)
		return string(b)
	}
	first := text()
	assert.Equal(t, first, text())
	s.Seed = 6
	assert.NotEqual(t, first, text())
}

// A cancelled run ends at once, wherever it is.
func TestCancel(t *testing.T) {
	l := loadOf(t, "a", "rw=randread", "runtime=600000", "time_based")
	s := plan.Spec{Cell: planOf(t, disk, l).Cells[0], Disk: disk, Seed: 5}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	_, err := New(Options{Costs: DefaultCosts()}).Run(ctx, s)
	require.ErrorIs(t, err, context.DeadlineExceeded)
}

// Equal things are not found to differ: 20 workloads, each in two cells of one and the
// same configuration whose runs have seeds of their own, 10 pairs. By chance, 1 of 20 is
// significant before correction; after it hardly any.
func TestEqualThingsAreEqual(t *testing.T) {
	var loads []plan.Load
	for i := range 20 {
		words := []string{
			"rw=" + []string{"read", "write", "randread", "randrw"}[i%4], fmt.Sprint("numjobs=", 1+i%3), fmt.Sprint("iodepth=", 1+i%5),
			"runtime=100ms", "ramp_time=20ms", "time_based", "size=1g", "offset_increment=1g",
		}
		loads = append(loads, loadOf(t, fmt.Sprint("aa-", i), words...))
	}
	p := planOf(t, disk, loads...)
	p.Repeats = 10
	p.Cells = append(p.Cells, p.Cells...)
	runs, err := p.Order()
	require.NoError(t, err)
	w := New(Options{Costs: DefaultCosts()})
	for i := range runs {
		r := &runs[i]
		if r.Cell >= 20 {
			r.Seed += 1 << 40 // not its pair's
		}
		r.Outcome, err = w.Run(t.Context(), plan.Spec{Cell: p.Cells[r.Cell], Disk: p.Disk, Seed: r.Seed})
		require.NoError(t, err)
	}
	s, err := plan.Summarize(p, runs)
	require.NoError(t, err)
	for _, metric := range []string{plan.MetricIOPS, plan.MetricP99} {
		n, same, before, after := 0, 0, 0, 0
		for _, c := range s.Comparisons {
			switch {
			case c.Metric != metric:
				continue
			case c.Mark == "**":
				after++
				before++
			case c.Mark == "*":
				before++
			}
			n++
			require.Equal(t, 10, c.Pairs)
			if c.Low == c.High {
				same++
			}
		}
		assert.Equal(t, 20, n)
		assert.LessOrEqual(t, same, 4, "%s: the seeds are different ones, and a drive that fills its write cache may hide that", metric)
		assert.LessOrEqual(t, after, 1, metric)
		assert.LessOrEqual(t, before, 4, "%s: more than 4 of 20 have a chance of 1 in 400", metric)
		t.Logf("%s: of %d, %d do not vary, %d are significant before correction, %d after", metric, n, same, before, after)
	}
}

func TestNotes(t *testing.T) {
	w := New(Options{Costs: DefaultCosts()})
	p := planOf(t, disk, loadOf(t, "a", "rw=read", "runtime=1"))
	require.NoError(t, w.Check(p))
	assert.Contains(t, w.Notes(p)[1], "20µs of processor time to read and 20µs to write, within 10 %")
	p.IOPS = 100
	assert.Contains(t, w.Notes(p)[3], "100 requests a second")
	assert.Equal(t, "virtual", w.Environment()["time"])
}

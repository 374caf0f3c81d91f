package loopback

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/elevisor/elevisor/guest/fio"
	"github.com/elevisor/elevisor/lab/plan"
	virtualworld "github.com/elevisor/elevisor/lab/worlds/virtual"
	"github.com/elevisor/elevisor/sched"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// job is a short load.
func job(t *testing.T, words ...string) fio.Job {
	j, _, err := fio.ParseWords(append([]string{"time_based", "runtime=300ms", "ramp_time=50ms"}, words...))
	require.NoError(t, err)
	return j
}

func planOf(t *testing.T, m plan.Matrix) *plan.Plan {
	m.World, m.Repeats, m.Seed = "loopback", 1, 1
	p, err := plan.NewPlan(m)
	require.NoError(t, err)
	return p
}

func schedulers(t *testing.T, names ...string) (list []plan.Scheduler) {
	for _, n := range names {
		s, err := plan.ParseScheduler(n)
		require.NoError(t, err)
		list = append(list, s)
	}
	return list
}

func open(t *testing.T) plan.World {
	w := New("test")
	t.Cleanup(func() { require.NoError(t, w.Close()) })
	return w
}

// With few entries in the ring, requests meet in the guest's scheduler, and with many in
// the host's; without a scheduler in the guest and with one request at a time on its way,
// there are none in the guest.
func TestMatrix(t *testing.T) {
	w := open(t)
	p := planOf(t, plan.Matrix{
		Disk: "null:size=1g", IOPS: 1000, Guests: schedulers(t, "none", "deadline"), Hosts: schedulers(t, "none", "deadline"),
		Loads: []plan.Load{{
			Workload: fio.Workload{Name: "write", Jobs: []fio.Job{job(t, "rw=write", "iodepth=32")}},
			QSizes:   []int{4, 64}, Depths: []int{2},
		}},
	})
	require.NoError(t, w.Check(p))
	runs, err := (&plan.Runner{World: w, Plan: p}).Run(t.Context())
	require.NoError(t, err)
	require.Len(t, runs, 8)
	for _, r := range runs {
		c, o := &p.Cells[r.Cell], r.Outcome
		t.Logf("%v: %.0f IOPS, guest %+v, host %+v, disk %+v", c, o.IOPS(), o.Guest, o.Host, o.Disk)
		require.NotZero(t, o.Write.IOs)
		require.Zero(t, o.Read.IOs)
		require.LessOrEqual(t, o.Write.P50, o.Write.P99)
		require.LessOrEqual(t, o.Write.P99, o.Write.Max)
		require.Equal(t, 0.3, o.Seconds)
		require.NotZero(t, o.Disk.Requests)
		require.True(t, json.Valid(o.Fio))
		small, scheduled := c.QSize == 4, c.Guest.Name == "deadline"
		require.Equal(t, small && scheduled, o.Guest.Merged > 0, "merges in the guest of %v", c)
		if !small && c.Host.Name == "deadline" {
			require.NotZero(t, o.Host.Merged)
			require.Equal(t, o.Host.Merged, o.Host.SameQueue)
		}
		require.InDelta(t, o.Guest.Submitted-o.Guest.Merged, o.Guest.Issued, 64, "but for what was under way")
	}
}

// Two VMs are windows of one disk, in which their requests meet.
func TestTwoVMs(t *testing.T) {
	w := open(t)
	reader, writer := job(t, "rw=read", "iodepth=4"), job(t, "rw=randwrite", "iodepth=4", "numjobs=2", "iodepth_batch=2")
	p := planOf(t, plan.Matrix{
		Disk: "sim:hdd?preset=hd155ui&size=1g", Guests: schedulers(t, "deadline:read_expire=100"), Hosts: schedulers(t, "deadline"),
		Loads: []plan.Load{{
			Workload: fio.Workload{Name: "two", PerVM: true, Jobs: []fio.Job{reader, writer}}, VMs: []int{2}, Queues: []int{2},
		}},
	})
	require.NoError(t, w.Check(p))
	o, err := w.Run(t.Context(), plan.Spec{Cell: p.Cells[0], Disk: p.Disk, Seed: 5, Trace: 10})
	require.NoError(t, err)
	require.Len(t, o.Jobs, 3)
	require.Equal(t, []int{0, 1, 1}, []int{o.Jobs[0].VM, o.Jobs[1].VM, o.Jobs[2].VM})
	require.Equal(t, []int{0, 0, 1}, []int{o.Jobs[0].Job, o.Jobs[1].Job, o.Jobs[2].Job})
	require.NotZero(t, o.Read.IOs)
	require.NotZero(t, o.Write.IOs)
	require.NotZero(t, o.Disk.Seeks)
	require.NotZero(t, o.Disk.HeadMoves)
	require.NotZero(t, o.Disk.HeadSeconds)
	require.NotEmpty(t, o.Trace)
	require.LessOrEqual(t, len(o.Trace), 10)
	low := o.Disk.Sectors // a VM's requests stay in its half
	for _, a := range o.Trace {
		require.Equal(t, a.VM == 1, a.Sector >= 1<<20, "%+v", a)
		require.Equal(t, a.VM == 1, a.Write)
		low = min(low, a.Sector)
	}
	require.Contains(t, string(o.Fio), `"iodepth_batch":"2"`)
	require.Equal(t, "test", w.Environment()["version"])
	require.NotEmpty(t, w.Environment()["kernel"])
	require.NotEmpty(t, w.Notes(p))
}

// What a job writes is verified where the disk keeps it.
func TestVerify(t *testing.T) {
	w := open(t)
	j, _, err := fio.ParseWords([]string{"rw=randwrite", "size=1m", "verify=pattern", "iodepth=8", "fsync=16"})
	require.NoError(t, err)
	cell := plan.Cell{
		Guest: plan.Scheduler{Name: "deadline"}, Host: plan.Scheduler{Name: "bfq"}, VMs: 1,
		Workload: fio.Workload{Name: "v", Jobs: []fio.Job{j}},
	}
	file := t.TempDir() + "/disk"
	require.NoError(t, os.WriteFile(file, make([]byte, 2<<20), 0o600))
	for _, disk := range []string{"mem:size=2m", file} {
		o, err := w.Run(t.Context(), plan.Spec{Cell: cell, Disk: disk, Seed: 1})
		require.NoError(t, err)
		require.EqualValues(t, 256, o.Write.IOs)
		require.Contains(t, string(o.Fio), `"verify":{"blocks":256,"errors":0}`)
	}
	_, err = w.Run(t.Context(), plan.Spec{Cell: cell, Disk: "null:size=2m", Seed: 1})
	require.ErrorContains(t, err, "job randwrite: verify on disk null:size=2m, which keeps nothing")
}

// A job makes the same requests as in virtual time.
func TestSameRequestsAsInVirtualTime(t *testing.T) {
	for _, words := range [][]string{
		{"rw=randrw", "bssplit=4k/30:8k/30:64k/40", "rwmixread=30"},
		{"rw=write:4k", "bs=8k"},
		{"rw=read:-8k"},
		{"rw=randread", "bs=16k", "offset=1m"},
		{"rw=rw", "fsync=3", "randseed=77"},
		{"rw=randwrite", "thinktime=10", "rate_iops=20000"},
	} {
		j, _, err := fio.ParseWords(append([]string{"size=1m"}, words...))
		require.NoError(t, err)
		spec := plan.Spec{
			Cell: plan.Cell{
				Guest: plan.Scheduler{Name: "none"}, Host: plan.Scheduler{Name: "none"}, VMs: 1, Queues: 1, QSize: 128,
				Workload: fio.Workload{Name: "same", Jobs: []fio.Job{j}},
			},
			Disk: "null:size=4m", Seed: 9, Trace: 1000,
		}
		var traces [2][]plan.Access
		for i, w := range []plan.World{open(t), virtualworld.New(virtualworld.Options{Costs: virtualworld.DefaultCosts()})} {
			o, err := w.Run(t.Context(), spec)
			require.NoError(t, err)
			require.NoError(t, w.Close())
			for _, a := range o.Trace {
				a.Seconds = 0
				traces[i] = append(traces[i], a)
			}
		}
		require.NotEmpty(t, traces[0])
		require.Equal(t, traces[1], traces[0], "%v", words)
	}
}

func TestCancelled(t *testing.T) {
	w := open(t)
	ctx, cancel := context.WithCancel(t.Context())
	cell := plan.Cell{
		Guest: plan.Scheduler{Name: "none"}, Host: plan.Scheduler{Name: "none"}, VMs: 1,
		Workload: fio.Workload{Name: "long", Jobs: []fio.Job{job(t, "runtime=1h", "ramp_time=10m", "thinktime=1h")}},
	}
	time.AfterFunc(50*time.Millisecond, cancel)
	_, err := w.Run(ctx, plan.Spec{Cell: cell, Disk: "null:size=1g", Seed: 1})
	require.ErrorIs(t, err, context.Canceled)
}

func TestRefused(t *testing.T) {
	w := open(t)
	for want, change := range map[string]func(*plan.Plan, *plan.Cell){
		"direct=0":                       func(_ *plan.Plan, c *plan.Cell) { c.Workload.Jobs[0].Direct = false },
		"size=2147483648":                func(_ *plan.Plan, c *plan.Cell) { c.Workload.Jobs[0].Size = 2 << 30 },
		"is too small for 1000000 VMs":   func(_ *plan.Plan, c *plan.Cell) { c.VMs = 1000000 },
		"0 VMs, 1 jobs":                  func(_ *plan.Plan, c *plan.Cell) { c.VMs = 0 },
		"by a lower iodepth, bs":         func(_ *plan.Plan, c *plan.Cell) { c.Workload.Jobs[0].BS, c.Workload.Jobs[0].IODepth = 16<<20, 1024 },
		"no such file":                   func(p *plan.Plan, _ *plan.Cell) { p.Disk = "/nowhere/disk" },
		`no knob "fast"`:                 func(_ *plan.Plan, c *plan.Cell) { c.Guest.Knobs = []sched.Knob{{Key: "fast", Value: "1"}} },
		"rate_iops=5: a batch has no":    func(_ *plan.Plan, c *plan.Cell) { j := &c.Workload.Jobs[0]; j.IODepth, j.Batch, j.RateIOPS = 4, 4, 5 },
		"stride=2147483648: above size=": func(_ *plan.Plan, c *plan.Cell) { c.Workload.Jobs[0].Stride = 2 << 30 },
	} {
		p := planOf(t, plan.Matrix{
			Disk: "null:size=1g", Guests: schedulers(t, "none"), Hosts: schedulers(t, "none"),
			Loads: []plan.Load{{Workload: fio.Workload{Name: "read", Jobs: []fio.Job{job(t)}}}},
		})
		change(p, &p.Cells[0])
		require.ErrorContains(t, w.Check(p), want, fmt.Sprint(want))
	}
}

// What the presets ask for can be run, in both worlds with a built-in guest.
func TestPresets(t *testing.T) {
	for _, preset := range fio.Presets() {
		var loads []plan.Load
		for _, l := range preset.Loads {
			loads = append(loads, plan.Load{
				Workload: l.Workload, VMs: []int{max(l.VMs, 1)}, Queues: l.Queues, QSizes: l.QueueSizes, Depths: l.Depths, MaxSectorsKB: l.MaxSectorsKB,
			})
		}
		for name, w := range map[string]plan.World{"loopback": open(t), "virtual": virtualworld.New(virtualworld.Options{Costs: virtualworld.DefaultCosts()})} {
			disk := preset.Disks[name]
			p := planOf(t, plan.Matrix{Disk: disk.Path, IOPS: disk.IOPS, Guests: schedulers(t, "none", "bfq"), Hosts: schedulers(t, "timeslice"), Loads: loads})
			require.NoError(t, w.Check(p), "%s in %s", preset.Name, name)
		}
	}
}

package qemu

import (
	"strings"
	"testing"
	"time"

	"github.com/elevisor/elevisor/backend"
	"github.com/elevisor/elevisor/guest/fio"
	"github.com/elevisor/elevisor/lab/plan"
	world "github.com/elevisor/elevisor/lab/worlds/qemu"
	"github.com/elevisor/elevisor/sched"
	"github.com/stretchr/testify/require"
)

// TestCompare carries out a matrix of 1 x 2 x 1 x 1 on a slow disk with a short queue,
// where the guest's scheduler has something to merge: deadline in the guest, none and
// deadline in the host. Then one with flushes, which the guest's kernel counts as writes,
// and one with none in the guest, of two VMs on one image.
func TestCompare(t *testing.T) {
	needGuest(t)
	if peer {
		t.Skip("qemu-storage-daemon has no schedulers to compare")
	}
	host, err := situation()
	require.NoError(t, err)
	w, err := world.New(world.Options{Program: host.program, Probe: host.probe, Slow: backend.RateOptions{IOPS: 400}})
	require.NoError(t, err)
	defer func() { require.NoError(t, w.Close()) }()
	cell := plan.Cell{
		Guest: plan.Scheduler{Name: "deadline", Knobs: []sched.Knob{{Key: "read_expire", Value: "700"}}}, Host: plan.Scheduler{Name: "none"},
		VMs: 1, Queues: 2, QSize: 8,
		Workload: fio.Workload{Name: "sequential", Jobs: []fio.Job{
			{Name: "seq", RW: "read", BS: 4096, IODepth: 32, Size: 32 << 20, Runtime: time.Second, TimeBased: true, Direct: true},
		}},
	}
	other := cell
	other.Host.Name = "deadline"
	p := &plan.Plan{World: "qemu", Disk: "mem:?size=64M", Cells: []plan.Cell{cell, other}, Repeats: 1}
	require.NoError(t, w.Check(p))
	for _, c := range p.Cells {
		o := compared(t, w, p, c)
		if !ignoresQueueSize(w.Notes(p)) {
			require.Positive(t, o.Guest.Merged, "a full queue, and a scheduler in the guest")
		}
	}
	env := w.Environment()
	require.Contains(t, env["guest_fio"], "fio-3")
	require.NotEmpty(t, env["guest_kernel"])

	flushes := cell
	flushes.Workload.Jobs = []fio.Job{flushes.Workload.Jobs[0]}
	flushes.Workload.Jobs[0].RW, flushes.Workload.Jobs[0].Fsync = "write", 4
	compared(t, w, p, flushes)

	two := cell
	two.Guest, two.VMs = plan.Scheduler{Name: "none"}, 2
	two.Workload.Jobs = []fio.Job{two.Workload.Jobs[0]}
	two.Workload.Jobs[0].Ramp = 500 * time.Millisecond
	two.Workload.Jobs[0].Size = 16 << 20
	o := compared(t, w, p, two)
	require.Len(t, o.Jobs, 2)
	require.Equal(t, 1, o.Jobs[1].VM)
	require.Zero(t, o.Guest.Merged, "no scheduler, and no batches")
}

// compared runs a cell once, and wants all counts to agree.
func compared(t *testing.T, w plan.World, p *plan.Plan, c plan.Cell) *plan.Outcome {
	t.Helper()
	start := time.Now()
	o, err := w.Run(t.Context(), plan.Spec{Cell: c, Disk: p.Disk, Seed: 7, Stream: func(line string) { t.Log(line) }})
	require.NoError(t, err)
	t.Logf("[%.1f s] guest %+v, host %+v, disk %+v, read %.0f IOPS, p50 %.0f us, p99 %.0f us; %v",
		time.Since(start).Seconds(), o.Guest, o.Host, o.Disk, o.Read.IOPS, o.Read.P50, o.Read.P99, o.Warnings)
	require.Positive(t, o.Read.IOs+o.Write.IOs)
	if c.Workload.Jobs[0].Ramp == 0 { // its end is seen late on a busy machine
		for _, warning := range o.Warnings {
			require.Contains(t, warning, "requests in a queue", "any other is a fault")
		}
		require.Equal(t, o.Guest.Submitted-o.Guest.Issued, o.Guest.Merged, "guest merges = submitted - completed")
		require.Equal(t, o.Guest.Issued, o.Host.Submitted, "what completes in the guest was submitted to the host")
		require.Equal(t, (o.Read.Bytes+o.Write.Bytes)/512, o.Disk.Sectors)
	}
	require.InDelta(t, o.Read.IOPS, float64(o.Read.IOs)/o.Seconds, 1)
	require.LessOrEqual(t, o.Read.P50, o.Read.P99)
	require.LessOrEqual(t, o.Read.P99, o.Read.Max)
	require.Contains(t, string(o.Fio), `"jobname":"seq"`)
	return o
}

func ignoresQueueSize(notes []string) bool {
	return strings.Contains(strings.Join(notes, "\n"), "ignores queue-size and gives")
}

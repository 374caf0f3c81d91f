// Package sim lays the two lives of a simulated drive side by side: served to a guest
// in real time, and in virtual time.
package sim

import (
	"context"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/elevisor/elevisor/backend"
	"github.com/elevisor/elevisor/blk"
	"github.com/elevisor/elevisor/daemon"
	"github.com/elevisor/elevisor/guest"
	"github.com/elevisor/elevisor/guest/load"
	"github.com/elevisor/elevisor/lab/virtual"
	"github.com/elevisor/elevisor/sched"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
)

const (
	drive  = "sim:hdd,preset=hd155ui,size=48G,seed=1,file=null:size=48G"
	file   = 5 << 30 // bytes of each reader's region
	depth  = 31      // requests on the drive, as with Linux' SATA driver
	traced = 20_000  // commands that are looked at one by one
)

// counts are the numbers of readers.
var counts = []int{1, 2, 8}

// setups are the schedulers, with a flow for each reader's queue.
var setups = []struct {
	scheduler string
	knobs     []sched.Knob
}{
	{"none", nil},
	{"timeslice", []sched.Knob{{Key: "slice_by", Value: "queue"}}},
	{"cfq", nil},
}

// readers is n sequential readers at depth 1.
func readers(n int, length time.Duration) load.Options {
	return load.Options{
		RW: load.Read, BlockSize: 4096, Depth: 1, Jobs: n, Size: file, Increment: file, TimeBased: true,
		RampTime: 300 * time.Millisecond, Runtime: length, Seed: 1,
	}
}

// iops is of all jobs together, by the time that was asked for.
func iops(jobs []load.JobResult, length time.Duration) float64 {
	total := load.Total(jobs)
	return float64(total.Stats[load.Reading].IOs) / length.Seconds()
}

// outcome is what n readers reached.
type outcome struct {
	iops     float64
	switches float64       // how often the drive changed streams for a command
	late     float64       // us, the 99th percentile
	host     time.Duration // from a command's end to the same reader's next one
}

// live serves the drive to the built-in guest.
func live(t *testing.T, scheduler string, knobs []sched.Knob, n int, length time.Duration) outcome {
	domain := daemon.Domain{ID: "d", Scheduler: scheduler, QueueDepth: depth}
	domain.Knobs = append(domain.Knobs, knobs...)
	disk := daemon.Disk{ID: "d", Path: drive, Socket: filepath.Join(t.TempDir(), "d.sock"), NumQueues: n, Domain: "d", Record: true}
	daemon, err := daemon.Open([]daemon.Disk{disk}, []daemon.Domain{domain}, zap.NewNop())
	require.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- daemon.Run(ctx) }()
	defer func() {
		stop()
		require.NoError(t, <-ended)
	}()
	g, err := guest.Start(disk.Socket, guest.Options{Queues: n, Depth: 1})
	require.NoError(t, err)
	defer g.Close()
	var queues []load.Queue
	for _, q := range g.Queues() {
		queues = append(queues, q)
	}
	require.NoError(t, daemon.Trace("d", traced))
	res, err := load.Run(t.Context(), g.Config().Capacity, queues, readers(n, length))
	require.NoError(t, err)
	kept, err := daemon.Traced("d")
	require.NoError(t, err)
	model := daemon.Stat()[0].Simulated
	return outcome{
		iops:     iops(res.Jobs, length),
		switches: float64(model.Model.Switches) / float64(model.Model.Commands[blk.OpRead]),
		late:     float64(model.Deviation.ValueAtQuantile(99)) / 1000,
		host:     hostTime(kept),
	}
}

// hostTime is what guest, loopback and loop take between a command's end and the same
// reader's next command: the mean time between two commands in a row, less the drive's
// own. What moves the head takes longer than a millisecond and is left out.
func hostTime(kept []backend.Access) time.Duration {
	const drive = 30 * time.Microsecond // read_us
	var sum time.Duration
	n := 0
	for i := 1; i < len(kept); i++ {
		gap := time.Duration(kept[i].At - kept[i-1].At)
		if kept[i].Source == kept[i-1].Source && gap < time.Millisecond {
			sum += gap - drive
			n++
		}
	}
	return sum / time.Duration(max(n, 1))
}

// inVirtualTime runs the same in virtual time, where the host takes so long between a
// completion and the next request.
func inVirtualTime(t *testing.T, scheduler string, knobs []sched.Knob, n int, length, host time.Duration) float64 {
	img, err := backend.Open(drive, backend.Options{})
	require.NoError(t, err)
	defer img.Close()
	res, err := virtual.Run(virtual.Options{
		Image: img, Scheduler: scheduler, Knobs: knobs, QueueDepth: depth, Seed: 1,
		VMs:   []virtual.VM{{NumQueues: n, Jobs: []virtual.Job{{Options: readers(n, length)}}}},
		Costs: virtual.Costs{PerRead: host, Jitter: virtual.DefaultJitter},
	})
	require.NoError(t, err)
	return iops(res.Results, length)
}

// What schedulers do on a drive that is served in real time is what they do in virtual
// time. How often the drive changes streams does not depend on how fast the machine is;
// the rates do, and are compared on a machine that does nothing else, which ELEVISOR_QUIET=1
// says it does: then they are, with the host's own time taken into account, within 15 %, and
// so are their ratios, by medians of longer runs.
func TestLiveFollowsVirtualTime(t *testing.T) {
	quiet := os.Getenv("ELEVISOR_QUIET") == "1"
	// A loop keeps its processor while it waits; as the program does, leave some to the others.
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(max(4, runtime.GOMAXPROCS(0))))
	rounds, length := 1, 400*time.Millisecond
	if quiet {
		rounds, length = 3, 4*time.Second
	}
	reached := map[string][]outcome{}
	key := func(scheduler string, n int) string { return fmt.Sprint(scheduler, " ", n) }
	for range rounds {
		for _, n := range counts {
			for _, s := range setups {
				o := live(t, s.scheduler, s.knobs, n, length)
				k := key(s.scheduler, n)
				reached[k] = append(reached[k], o)
				t.Logf("%s, %d readers: %.0f IOPS, %.3f changes of stream a command, p99 %.1f us late, host %v", s.scheduler, n, o.iops, o.switches, o.late, o.host)
				if n == 8 && s.scheduler == "none" {
					require.Greater(t, o.switches, 0.5, "readers take turns")
				}
				if n == 8 && s.scheduler == "cfq" {
					require.Less(t, o.switches, 0.1, "readers come in runs")
				}
			}
		}
	}
	if !quiet {
		return
	}
	// Of the three, cfq has the long runs of one reader in which the host's time can be
	// measured. It is shorter the more readers there are, as the processors do not rest: so
	// IOPS are compared by that of the same number of readers, and ratios by one for all.
	hosts, all := map[int]time.Duration{}, time.Duration(0)
	for _, n := range counts {
		hosts[n] = time.Duration(median(reached[key("cfq", n)], func(o outcome) float64 { return float64(o.host) }))
		all += hosts[n] / time.Duration(len(counts))
	}
	for _, n := range counts {
		var base, baseLive float64
		for _, s := range setups {
			l := median(reached[key(s.scheduler, n)], func(o outcome) float64 { return o.iops })
			v, by := inVirtualTime(t, s.scheduler, s.knobs, n, length, hosts[n]), inVirtualTime(t, s.scheduler, s.knobs, n, length, all)
			if s.scheduler == "none" {
				base, baseLive = by, l
			}
			t.Logf("%d readers, %-9s live %6.0f IOPS, virtual %6.0f (%+5.1f %%, host %v); by none: live %.3f, virtual %.3f (%+5.1f %%, host %v)",
				n, s.scheduler, l, v, 100*(l/v-1), hosts[n], l/baseLive, by/base, 100*(l/baseLive/(by/base)-1), all)
			within(t, l, v, "%s with %d readers: IOPS", s.scheduler, n)
			within(t, l/baseLive, by/base, "%s by none with %d readers", s.scheduler, n)
		}
	}
}

func within(t *testing.T, got, want float64, what string, args ...any) {
	t.Helper()
	if math.Abs(got/want-1) > 0.15 {
		t.Errorf("%s: live %.4g, virtual %.4g", fmt.Sprintf(what, args...), got, want)
	}
}

func median(runs []outcome, of func(outcome) float64) float64 {
	var v []float64
	for _, o := range runs {
		v = append(v, of(o))
	}
	slices.Sort(v)
	return v[len(v)/2]
}

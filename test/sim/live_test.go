// Package sim lays the two lives of a simulated drive side by side: served to a guest
// in real time, and in virtual time.
package sim

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/elevisor/elevisor/backend"
	"github.com/elevisor/elevisor/internal/bench"
	"github.com/elevisor/elevisor/internal/ctl"
	"github.com/elevisor/elevisor/internal/guest"
	"github.com/elevisor/elevisor/internal/serve"
	"github.com/elevisor/elevisor/internal/sim"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
)

const (
	drive = "sim:hdd,preset=hd155ui,size=48G,seed=1,file=null:size=48G"
	file  = 5 << 30 // bytes of each reader's region
	depth = 31      // requests on the drive, as with Linux' SATA driver
)

// counts are the numbers of readers.
var counts = []int{1, 2, 8}

// setups are the schedulers, with a flow for each reader's queue.
var setups = []struct {
	scheduler string
	knobs     []sim.Knob
}{
	{"none", nil},
	{"timeslice", []sim.Knob{{Key: "slice_by", Value: "queue"}}},
	{"cfq", nil},
}

// readers is n sequential readers at depth 1.
func readers(n int, runtime time.Duration) bench.Options {
	return bench.Options{
		RW: bench.Read, BlockSize: 4096, Depth: 1, Jobs: n, Size: file, Increment: file, TimeBased: true, Runtime: runtime, Seed: 1,
	}
}

// iops is of all jobs together, by the time that was asked for.
func iops(jobs []bench.JobResult, runtime time.Duration) float64 {
	total := bench.Total(jobs)
	return float64(total.Stats[bench.Reading].IOs) / runtime.Seconds()
}

// outcome is what n readers reached, and how often the drive had to change streams for a
// command.
type outcome struct{ iops, switches, late float64 }

// live serves the drive to the built-in guest.
func live(t *testing.T, scheduler string, knobs []sim.Knob, n int, runtime time.Duration) outcome {
	domain := serve.Domain{ID: "d", Scheduler: scheduler, QueueDepth: depth}
	for _, k := range knobs {
		domain.Knobs = append(domain.Knobs, serve.Knob(k))
	}
	disk := serve.Disk{ID: "d", Path: drive, Socket: filepath.Join(t.TempDir(), "d.sock"), NumQueues: n, Domain: "d"}
	daemon, err := serve.Open([]serve.Disk{disk}, []serve.Domain{domain}, zap.NewNop())
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
	var queues []bench.Queue
	for _, q := range g.Queues() {
		queues = append(queues, q)
	}
	res, err := bench.Run(t.Context(), g.Config().Capacity, queues, readers(n, runtime))
	require.NoError(t, err)
	model := ctl.NewStat(0, daemon.Stat()).Disks[0].Simulated
	return outcome{
		iops: iops(res.Jobs, runtime), switches: float64(model.Switches) / float64(model.Commands["read"]),
		late: model.Deviation.P99,
	}
}

// virtual runs the same in virtual time, where the host takes so long between a
// completion and the next request.
func virtual(t *testing.T, scheduler string, knobs []sim.Knob, n int, runtime, host time.Duration) float64 {
	img, err := backend.Open(drive, backend.Options{})
	require.NoError(t, err)
	defer img.Close()
	res, err := sim.Run(sim.Options{
		Image: img, Scheduler: scheduler, Knobs: knobs, QueueDepth: depth, Seed: 1,
		VMs:   []sim.VM{{NumQueues: n, Jobs: []sim.Job{{Options: readers(n, runtime)}}}},
		Costs: sim.Costs{PerRead: host, Jitter: sim.DefaultJitter},
	})
	require.NoError(t, err)
	return iops(res.Results, runtime)
}

// hostTime is what the host takes, by what one reader reaches without a scheduler.
func hostTime(t *testing.T, reached float64, runtime time.Duration) time.Duration {
	lo, hi := time.Duration(0), 10*time.Millisecond
	for hi-lo > 100 {
		mid := (lo + hi) / 2
		if virtual(t, "none", nil, 1, runtime, mid) > reached {
			lo = mid
		} else {
			hi = mid
		}
	}
	return hi
}

// What schedulers do on a drive that is served in real time is what they do in virtual
// time. How often the drive changes streams does not depend on how fast the machine is;
// the rates do, and are compared on a machine that does nothing else, which ELEVISOR_QUIET=1
// says it does: then they are, with the host's own time taken into account, within 15 %, and
// so are their ratios, by medians of longer runs.
func TestLiveFollowsVirtualTime(t *testing.T) {
	quiet := os.Getenv("ELEVISOR_QUIET") == "1"
	rounds, runtime := 1, 400*time.Millisecond
	if quiet {
		rounds, runtime = 5, 2*time.Second
	}
	reached := map[string][]float64{}
	key := func(scheduler string, n int) string { return fmt.Sprint(scheduler, " ", n) }
	for range rounds {
		for _, n := range counts {
			for _, s := range setups {
				o := live(t, s.scheduler, s.knobs, n, runtime)
				k := key(s.scheduler, n)
				reached[k] = append(reached[k], o.iops)
				t.Logf("%s, %d readers: %.0f IOPS, %.3f changes of stream a command, p99 %.1f us late", s.scheduler, n, o.iops, o.switches, o.late)
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
	host := hostTime(t, median(reached[key("none", 1)]), runtime)
	t.Logf("the host takes %v between a completion and the next request", host)
	for _, n := range counts {
		var base, baseLive float64
		for _, s := range setups {
			v, l := virtual(t, s.scheduler, s.knobs, n, runtime, host), median(reached[key(s.scheduler, n)])
			if s.scheduler == "none" {
				base, baseLive = v, l
			}
			t.Logf("%d readers, %-9s live %6.0f IOPS, virtual %6.0f (%+5.1f %%); by none: live %.3f, virtual %.3f (%+5.1f %%)",
				n, s.scheduler, l, v, 100*(l/v-1), l/baseLive, v/base, 100*(l/baseLive/(v/base)-1))
			within(t, l, v, "%s with %d readers: IOPS", s.scheduler, n)
			within(t, l/baseLive, v/base, "%s by none with %d readers", s.scheduler, n)
		}
	}
}

func within(t *testing.T, got, want float64, what string, args ...any) {
	t.Helper()
	if math.Abs(got/want-1) > 0.15 {
		t.Errorf("%s: live %.4g, virtual %.4g", fmt.Sprintf(what, args...), got, want)
	}
}

func median(v []float64) float64 {
	v = slices.Clone(v)
	slices.SortFunc(v, cmp.Compare[float64])
	return v[len(v)/2]
}

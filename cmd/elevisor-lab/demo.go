package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"text/tabwriter"

	"github.com/elevisor/elevisor/backend"
	"github.com/elevisor/elevisor/cmd/cli"
	"github.com/elevisor/elevisor/daemon"
	"github.com/elevisor/elevisor/guest"
	"github.com/elevisor/elevisor/guest/load"
	"github.com/elevisor/elevisor/sched"
	"github.com/spf13/cobra"
	"go.uber.org/zap"
)

// The demonstration's disk is as slow at single requests as a good rotational one,
// so that requests wait and a scheduler has something to choose from.
const (
	demoIOPS    = 2000
	demoDepth   = 4   // requests on the disk at a time
	demoStreams = 8   // writers, and as many readers: more than the 8 newest requests that none looks at
	demoBlocks  = 384 // of each
	demoBlock   = 4096
	demoQueue   = 128 // requests in flight in the guest
)

// demoRow is what one scheduler made of the load. Latencies are the guest's, from the
// kick to the used ring.
type demoRow struct {
	Scheduler   string  `json:"scheduler"`
	IOPS        float64 `json:"iops"`
	P50         float64 `json:"p50_us"`
	P99         float64 `json:"p99_us"`
	RequestsIn  uint64  `json:"requests_in"`
	RequestsOut uint64  `json:"requests_out"`
	MergeRate   float64 `json:"merge_rate"`
	Bytes       uint64  `json:"bytes"`
	Verified    uint64  `json:"verified_blocks"`
	Errors      uint64  `json:"errors"`
}

func newDemo() *cobra.Command {
	var format string
	c := &cobra.Command{
		Use:   "demo",
		Short: "serve a slow scratch disk to the built-in guest through each scheduler",
		Long: `Needs no VM, no root and no preparation: serves a scratch disk in memory, slowed
down to that of a rotational one, over a real vhost-user socket to the built-in
guest, through one scheduler after the other. In one queue, sequential writers and
readers are interleaved at random; all that is read, and all that was written, is
checked.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := cli.OneOf("format", format, "text", "json"); err != nil {
				return err
			}
			rows, err := demo(c.Context())
			if err != nil {
				return err
			}
			return printDemo(c.OutOrStdout(), format, rows)
		},
	}
	c.Flags().StringVar(&format, "format", "text", "text or json")
	return c
}

// demo runs the load through each scheduler.
func demo(ctx context.Context) (rows []demoRow, err error) {
	cli.TuneRuntime()
	dir, err := os.MkdirTemp("", "elevisor-demo-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	for _, name := range sched.Names {
		row, err := demoOne(ctx, filepath.Join(dir, name+".sock"), name)
		if err != nil {
			return nil, fmt.Errorf("scheduler %s: %w", name, err)
		}
		rows = append(rows, row)
	}
	return rows, nil
}

// demoOne serves a fresh disk through one scheduler and loads it.
func demoOne(ctx context.Context, socket, scheduler string) (row demoRow, err error) {
	size := 2 * demoStreams * demoBlocks * demoBlock
	d, err := daemon.Open([]daemon.Disk{{
		ID: "scratch", Path: fmt.Sprintf("mem:?size=%d", size), Socket: socket, Domain: "slow", Slow: backend.RateOptions{IOPS: demoIOPS},
	}}, []daemon.Domain{{ID: "slow", Scheduler: scheduler, QueueDepth: demoDepth}}, zap.NewNop())
	if err != nil {
		return row, err
	}
	ctx, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- d.Run(ctx) }()
	defer func() {
		stop()
		if e := <-ended; err == nil {
			err = e
		}
	}()
	vm, err := guest.Start(socket, guest.Options{Queues: 1, Depth: demoQueue, MaxIO: 128 << 10})
	if err != nil {
		return row, err
	}
	defer vm.Close()
	row.Scheduler = scheduler
	count := func(sign uint64) { // of what the disk's domain has counted
		stats, e := d.DomainStats("scratch")
		if e != nil {
			err = e
		}
		for i := range stats.Op {
			row.RequestsIn += sign * stats.Op[i].Requests()
			row.RequestsOut += sign * stats.Op[i].IOs
		}
	}
	res, failed := load.RunStreams(ctx, vm.Queues()[0], load.StreamOptions{
		Streams: demoStreams, Blocks: demoBlocks, BlockSize: demoBlock, Seed: 1,
		Measured: func(begins bool) {
			if begins {
				count(^uint64(0)) // minus what was before
			} else {
				count(1)
			}
		},
	})
	if failed != nil || err != nil {
		return row, errors.Join(failed, err)
	}
	row.IOPS, row.Bytes = float64(res.Stats.IOs)/res.Runtime.Seconds(), res.Stats.Bytes
	row.P50, row.P99 = us(res.Stats.Percentile(50)), us(res.Stats.Percentile(99))
	row.Verified, row.Errors = res.Verified, uint64(len(res.Failures))
	if row.RequestsIn > 0 {
		row.MergeRate = 1 - float64(row.RequestsOut)/float64(row.RequestsIn)
	}
	return row, nil
}

func us(ns int64) float64 { return float64(ns) / 1000 }

func printDemo(w io.Writer, format string, rows []demoRow) error {
	var failed uint64
	for _, r := range rows {
		failed += r.Errors
	}
	if format == "json" {
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		if err := e.Encode(map[string]any{"rows": rows}); err != nil {
			return err
		}
	} else if err := demoTable(w, rows); err != nil {
		return err
	}
	if failed > 0 {
		return fmt.Errorf("%d requests failed or returned wrong data", failed)
	}
	return nil
}

func demoTable(w io.Writer, rows []demoRow) error {
	fmt.Fprintf(w, "disk in memory, %d requests/s, %d at a time; %d writers and %d readers of %d KiB blocks, interleaved in one queue\n\n",
		demoIOPS, demoDepth, demoStreams, demoStreams, demoBlock>>10)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "scheduler\tIOPS\tMiB\tp50 us\tp99 us\trequests in\tto disk\tmerge rate\tverified blocks\terrors\t")
	for _, r := range rows {
		fmt.Fprintf(t, "%s\t%.0f\t%.0f\t%.0f\t%.0f\t%d\t%d\t%.1f%%\t%d\t%d\t\n", r.Scheduler, r.IOPS, float64(r.Bytes)/(1<<20),
			r.P50, r.P99, r.RequestsIn, r.RequestsOut, 100*r.MergeRate, r.Verified, r.Errors)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintln(w, "\nmerge rate = merged / (merged + dispatched) = 1 - to disk / requests in")
	return err
}

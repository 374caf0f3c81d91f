package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"text/tabwriter"
	"time"

	"github.com/elevisor/elevisor/internal/bench"
	"github.com/elevisor/elevisor/internal/guest"
	"github.com/elevisor/elevisor/internal/serve"
	"github.com/spf13/cobra"
	"go.uber.org/zap"
)

const (
	demoDisk   = 256 << 20       // bytes
	demoQueues = 2               // and one job for each
	demoTime   = 3 * time.Second // for each load, its reading back not counted
)

// demoLoads are run in turn on the same disk.
var demoLoads = []bench.Options{
	{RW: bench.Write, BlockSize: 128 << 10, Depth: 8},
	{RW: bench.Read, BlockSize: 128 << 10, Depth: 8},
	{RW: bench.RandWrite, BlockSize: 4 << 10, Depth: 32},
	{RW: bench.RandRead, BlockSize: 4 << 10, Depth: 32},
	{RW: bench.RandReadWrite, MixRead: 70, BlockSize: 16 << 10, Depth: 16},
}

// demoRow is what one load came to. Latencies are
// completion latencies: from the kick to the used ring, as the guest sees them.
type demoRow struct {
	Load       string  `json:"load"`
	Operations uint64  `json:"operations"`
	Bytes      uint64  `json:"bytes"`
	IOPS       float64 `json:"iops"`
	P50        float64 `json:"p50_us"`
	P99        float64 `json:"p99_us"`
	P999       float64 `json:"p99_9_us"`
	Verified   uint64  `json:"verified_blocks"`
	Errors     uint64  `json:"errors"`
}

func newDemo() *cobra.Command {
	var format string
	c := &cobra.Command{
		Use:   "demo",
		Short: "serve a scratch disk to the built-in guest and print what was served",
		Long: `Needs no VM, no root and no preparation: serves a scratch file over a real
vhost-user socket to the built-in guest, which writes patterns, reads them back
and checks them.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if format != "text" && format != "json" {
				return fmt.Errorf("--format=%s is neither text nor json", format)
			}
			rows, served, err := demo(c.Context())
			if err != nil {
				return err
			}
			return printDemo(c.OutOrStdout(), format, rows, served)
		},
	}
	c.Flags().StringVar(&format, "format", "text", "text or json")
	return c
}

// demo serves a scratch disk and runs the loads; served says how.
func demo(ctx context.Context) (rows []demoRow, served string, err error) {
	dir, err := os.MkdirTemp("", "elevisor-demo-")
	if err != nil {
		return nil, "", err
	}
	defer os.RemoveAll(dir)
	disk := serve.Disk{ID: "scratch", Path: filepath.Join(dir, "scratch.img"), Socket: filepath.Join(dir, "scratch.sock"), NumQueues: demoQueues}
	if err = makeImage(disk.Path, demoDisk); err != nil {
		return nil, "", err
	}
	tune()
	d, err := serve.Open([]serve.Disk{disk}, nil, zap.NewNop())
	if err != nil {
		return nil, "", err
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
	for _, o := range demoLoads {
		o.Jobs, o.Runtime, o.TimeBased, o.Verify, o.Seed = demoQueues, demoTime, true, o.RW != bench.Read && o.RW != bench.RandRead, 1
		row, err := demoLoad(ctx, disk.Socket, o)
		if err != nil {
			return nil, "", err
		}
		rows = append(rows, row)
	}
	return rows, fmt.Sprintf("%d MiB file, %d queues, scheduler none, over a vhost-user socket", demoDisk>>20, demoQueues), nil
}

func makeImage(path string, size int64) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	return f.Truncate(size)
}

func demoLoad(ctx context.Context, socket string, o bench.Options) (demoRow, error) {
	res, err := measure(ctx, socket, guest.Options{Depth: o.Depth, MaxIO: o.BlockSize}, o)
	if err != nil {
		return demoRow{}, err
	}
	t := res.Total()
	all := t.All()
	row := demoRow{
		Load:       fmt.Sprintf("%v bs=%dk iodepth=%d x %d", o.RW, o.BlockSize>>10, o.Depth, o.Jobs),
		Operations: all.IOs, Bytes: all.Bytes, IOPS: float64(all.IOs) / t.Runtime.Seconds(),
		P50: us(all.Percentile(50)), P99: us(all.Percentile(99)), P999: us(all.Percentile(99.9)),
		Verified: t.Verified, Errors: all.Errors + t.Mismatches,
	}
	return row, nil
}

func us(ns int64) float64 { return float64(ns) / 1000 }

func printDemo(w io.Writer, format string, rows []demoRow, served string) error {
	var failed uint64
	for _, r := range rows {
		failed += r.Errors
	}
	if format == "json" {
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		if err := e.Encode(map[string]any{"served": served, "rows": rows}); err != nil {
			return err
		}
	} else {
		fmt.Fprintf(w, "%s\n\n", served)
		t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
		fmt.Fprintln(t, "load\toperations\tMiB\tIOPS\tp50 us\tp99 us\tp99.9 us\tverified blocks\terrors\t")
		for _, r := range rows {
			fmt.Fprintf(t, "%s\t%d\t%.0f\t%.0f\t%.0f\t%.0f\t%.0f\t%d\t%d\t\n", r.Load, r.Operations,
				float64(r.Bytes)/(1<<20), r.IOPS, r.P50, r.P99, r.P999, r.Verified, r.Errors)
		}
		if err := t.Flush(); err != nil {
			return err
		}
	}
	if failed > 0 {
		return fmt.Errorf("%d requests failed or returned wrong data", failed)
	}
	return nil
}

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/elevisor/elevisor/blk"
	"github.com/elevisor/elevisor/internal/bench"
	"github.com/elevisor/elevisor/internal/guest"
	"github.com/spf13/cobra"
)

type benchFlags struct {
	socket    string
	rw        string
	size      string
	offset    string
	bs        string
	ioSize    string
	runtime   string
	timeBased bool
	queueSize int
	poll      bool
	format    string
	o         bench.Options
}

func newBench() *cobra.Command {
	var f benchFlags
	c := &cobra.Command{
		Use:   "bench",
		Short: "put a fio-like load on any vhost-user-blk socket and measure it",
		Long: `Connects to a vhost-user-blk server, ours or any other, as a guest would, and
drives it with a fio-like load. One job drives one queue. The words are a part of
fio's; underscores and hyphens are the same.`,
		Example: "  elevisor bench --socket-path /run/vm.sock --rw randread --bs 4k --iodepth 32 --runtime 10s",
		Args:    cobra.NoArgs,
		RunE:    func(c *cobra.Command, _ []string) error { return f.run(c) },
	}
	fl := c.Flags()
	fl.StringVarP(&f.socket, "socket-path", "s", "", "the server's UNIX socket")
	fl.StringVar(&f.rw, "rw", "read", "read, write, randread, randwrite, rw or randrw")
	fl.StringVar(&f.bs, "bs", "4k", "bytes of a request")
	fl.IntVar(&f.o.Depth, "iodepth", 1, "requests in flight per job")
	fl.IntVar(&f.o.Jobs, "numjobs", 1, "jobs; job i drives queue i")
	fl.IntVar(&f.o.MixRead, "rwmixread", 50, "percent of reads in rw and randrw")
	fl.StringVar(&f.runtime, "runtime", "0", "end after this time (10, 10s, 1m); alone it goes round the region until then")
	fl.BoolVar(&f.timeBased, "time-based", false, "go round the region until the runtime is over, whatever io-size says")
	fl.StringVar(&f.size, "size", "0", "bytes of the region; 0: to the end of the disk")
	fl.StringVar(&f.offset, "offset", "0", "bytes in front of the region")
	fl.StringVar(&f.ioSize, "io-size", "0", "bytes each job moves; 0: once through its region")
	fl.BoolVar(&f.o.Verify, "verify", false, "write patterns, check what is read, read all of it back in the end")
	fl.Uint64Var(&f.o.Seed, "randseed", 1, "seed of blocks, directions and contents")
	fl.IntVar(&f.queueSize, "queue-size", 128, "entries of each ring")
	fl.BoolVar(&f.poll, "poll", false, "watch the ring instead of sleeping until called")
	fl.BoolVar(&f.o.ContinueOnError, "continue-on-error", false, "count failed requests and go on")
	fl.StringVar(&f.format, "output-format", "normal", "normal or json (fio's field names)")
	return c
}

func (f *benchFlags) run(c *cobra.Command) error {
	if err := f.parse(); err != nil {
		return err
	}
	res, err := measure(c.Context(), f.socket, guest.Options{
		Queues: f.o.Jobs, QueueSize: f.queueSize, Depth: f.o.Depth, MaxIO: f.o.BlockSize, Poll: f.poll,
	}, f.o)
	if err != nil {
		return err
	}
	if f.format == "json" {
		err = res.WriteJSON(c.OutOrStdout(), bench.Origin{Version: "elevisor-" + version(), Time: time.Now()})
	} else {
		err = res.WriteText(c.OutOrStdout())
	}
	if err == nil && res.Total().Errno != 0 {
		err = exitCode(1) // the result says what failed
	}
	return err
}

func (f *benchFlags) parse() (err error) {
	if f.socket == "" {
		return errors.New("--socket-path is missing")
	}
	if f.format != "normal" && f.format != "json" {
		return fmt.Errorf("--output-format=%s is neither normal nor json", f.format)
	}
	if f.o.RW, err = bench.ParseRW(f.rw); err != nil {
		return err
	}
	for _, v := range []struct {
		flag, text string
		to         *int64
	}{{"size", f.size, &f.o.Size}, {"offset", f.offset, &f.o.Offset}, {"io-size", f.ioSize, &f.o.IOSize}} {
		if *v.to, err = blk.ParseBytes(v.text); err != nil {
			return fmt.Errorf("--%s: %w", v.flag, err)
		}
	}
	bs, err := blk.ParseBytes(f.bs)
	if err != nil {
		return fmt.Errorf("--bs: %w", err)
	}
	if bs < 1 || bs > maxBlock {
		return fmt.Errorf("--bs=%s is out of range 512 to %d", f.bs, maxBlock)
	}
	if f.o.Depth < 1 || f.o.Jobs < 1 {
		return fmt.Errorf("--iodepth=%d and --numjobs=%d must be at least 1", f.o.Depth, f.o.Jobs)
	}
	if f.o.Runtime, err = parseRuntime(f.runtime); err != nil {
		return err
	}
	f.o.BlockSize = int(bs)
	f.o.TimeBased = f.timeBased || f.o.Runtime > 0 && f.o.IOSize == 0
	return nil
}

// parseRuntime reads a time; a bare number is seconds, as in fio.
func parseRuntime(s string) (time.Duration, error) {
	if n, err := strconv.ParseUint(s, 10, 31); err == nil {
		return time.Duration(n) * time.Second, nil
	}
	d, err := time.ParseDuration(s)
	if err != nil || d < 0 {
		return 0, fmt.Errorf("--runtime=%s is not a time (such as 10, 10s, 500ms, 1m)", s)
	}
	return d, nil
}

// maxBlock is the largest request of bench: 16 MiB, far above every disk's limits.
const maxBlock = 16 << 20

// measure runs one load against the server on socket.
func measure(ctx context.Context, socket string, g guest.Options, o bench.Options) (*bench.Result, error) {
	vm, err := guest.Start(socket, g)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return nil, fmt.Errorf("%w (a server serves one client at a time: is another one connected?)", err)
	}
	if err != nil {
		return nil, err
	}
	defer vm.Close()
	queues := make([]bench.Queue, len(vm.Queues()))
	for i, q := range vm.Queues() {
		queues[i] = q
	}
	return bench.Run(ctx, vm.Config().Capacity, queues, o)
}

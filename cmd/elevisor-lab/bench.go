package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/elevisor/elevisor/cmd/cli"
	"github.com/elevisor/elevisor/guest"
	"github.com/elevisor/elevisor/guest/load"
	"github.com/spf13/cobra"
)

// maxBlock is the largest request of a load, in bytes: far above every disk's limits.
const maxBlock = 16 << 20

// blockSize checks --bs; how it fits the disk's sectors is checked by the load.
func blockSize(bytes int64) (int, error) {
	if bytes < 1 || bytes > maxBlock {
		return 0, fmt.Errorf("--bs=%d is out of range 512 to %d", bytes, maxBlock)
	}
	return int(bytes), nil
}

type benchFlags struct {
	socket    string
	rw        string
	bs        int64
	timeBased bool
	queueSize int
	poll      bool
	format    string
	o         load.Options
}

func newBench() *cobra.Command {
	var f benchFlags
	c := &cobra.Command{
		Use:   "bench",
		Short: "put a fio-like load on any vhost-user-blk socket and measure it",
		Long: `Connects to a vhost-user-blk server, ours or any other, as a guest would, and
drives it with a fio-like load. One job drives one queue. The words are a part of
fio's; underscores and hyphens are the same.`,
		Example: "  elevisor-lab bench --socket-path /run/vm.sock --rw randread --bs 4k --iodepth 32 --runtime 10s",
		Args:    cobra.NoArgs,
		RunE:    func(c *cobra.Command, _ []string) error { return f.run(c) },
	}
	fl := c.Flags()
	fl.StringVarP(&f.socket, "socket-path", "s", "", "the server's UNIX socket")
	fl.StringVar(&f.rw, "rw", "read", "read, write, randread, randwrite, rw or randrw")
	cli.BytesVar(fl, &f.bs, "bs", "4k", "bytes of a request")
	fl.IntVar(&f.o.Depth, "iodepth", 1, "requests in flight per job")
	fl.IntVar(&f.o.Jobs, "numjobs", 1, "jobs; job i drives queue i")
	fl.IntVar(&f.o.MixRead, "rwmixread", 50, "percent of reads in rw and randrw")
	cli.TimeVar(fl, &f.o.Runtime, time.Second, "runtime", "end after this time (10, 10s, 1m); alone it goes round the region until then")
	fl.BoolVar(&f.timeBased, "time-based", false, "go round the region until the runtime is over, whatever io-size says")
	cli.BytesVar(fl, &f.o.Size, "size", "0", "bytes of the region; 0: to the end of the disk")
	cli.BytesVar(fl, &f.o.Offset, "offset", "0", "bytes in front of the region")
	cli.BytesVar(fl, &f.o.IOSize, "io-size", "0", "bytes each job moves; 0: once through its region")
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
		err = res.WriteJSON(c.OutOrStdout(), load.Origin{Version: "elevisor-" + cli.Version(), Time: time.Now()})
	} else {
		err = res.WriteText(c.OutOrStdout())
	}
	if err == nil && res.Total().Errno != 0 {
		err = cli.ExitCode(1) // the result says what failed
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
	if f.o.RW, err = load.ParseRW(f.rw); err != nil {
		return err
	}
	if f.o.BlockSize, err = blockSize(f.bs); err != nil {
		return err
	}
	if f.o.Depth < 1 || f.o.Jobs < 1 {
		return fmt.Errorf("--iodepth=%d and --numjobs=%d must be at least 1", f.o.Depth, f.o.Jobs)
	}
	f.o.TimeBased = f.timeBased || f.o.Runtime > 0 && f.o.IOSize == 0
	return nil
}

// measure runs one load against the server on socket.
func measure(ctx context.Context, socket string, g guest.Options, o load.Options) (*load.Result, error) {
	vm, err := guest.Start(socket, g)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return nil, fmt.Errorf("%w (a server serves one client at a time: is another one connected?)", err)
	}
	if err != nil {
		return nil, err
	}
	defer vm.Close()
	queues := make([]load.Queue, len(vm.Queues()))
	for i, q := range vm.Queues() {
		queues[i] = q
	}
	return load.Run(ctx, vm.Config().Capacity, queues, o)
}

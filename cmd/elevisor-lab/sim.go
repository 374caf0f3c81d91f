package main

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/elevisor/elevisor/backend"
	"github.com/elevisor/elevisor/cmd/cli"
	"github.com/elevisor/elevisor/device"
	"github.com/elevisor/elevisor/guest"
	"github.com/elevisor/elevisor/guest/load"
	"github.com/elevisor/elevisor/lab/virtual"
	"github.com/elevisor/elevisor/sched"
	"github.com/elevisor/elevisor/virtqueue"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// simFlags are those of one run; what is read from text is kept as text until then.
type simFlags struct {
	o     virtual.Options
	vm    virtual.VM
	job   virtual.Job
	guest guest.BlockOptions

	disk   string
	vms    int
	set    []string
	rw     string
	direct bool
	sync   bool
	format string
	bs     int64
	timed  bool
}

func newSim() *cobra.Command {
	f := &simFlags{}
	c := &cobra.Command{
		Use:   "sim",
		Short: "run VMs, a scheduler and a disk in virtual time",
		Long: `Runs fio-like jobs in one or more VMs through the real virtqueues, the real loop and
the real scheduler onto a disk, in virtual time: a simulated drive by default. One seed
gives one result. The words of jobs are fio's, underscores and hyphens are the same;
everything is as with direct=1. A bare number is seconds in --runtime and --ramp-time,
and microseconds elsewhere.`,
		Example: "  elevisor-lab sim --scheduler timeslice --vms 2 --rw read --bs 4k --runtime 10s",
		Args:    cobra.NoArgs,
		RunE:    func(c *cobra.Command, _ []string) error { return f.run(c) },
	}
	fl := c.Flags()
	f.worldFlags(fl)
	f.jobFlags(fl)
	c.AddCommand(newSimTables(), newSimFit(), newSimPresets())
	return c
}

func (f *simFlags) worldFlags(fl *pflag.FlagSet) {
	fl.StringVar(&f.disk, "disk", "sim:hdd,preset=generic7200,file=null:size=16t", "the disk, as in serve --disk path=")
	fl.StringVar(&f.o.Scheduler, "scheduler", "none", "scheduler in the host: "+strings.Join(sched.Names, ", "))
	fl.StringArrayVar(&f.set, "set", nil, "KNOB=VALUE of the host's scheduler or its domain; repeatable")
	fl.IntVar(&f.o.QueueDepth, "queue-depth", 0, "requests on the disk at a time (default: as serve)")
	fl.StringVar(&f.guest.Scheduler, "guest-scheduler", "", "a block layer in the guest, with this scheduler (default: jobs drive the virtqueues themselves)")
	fl.IntVar(&f.guest.Tags, "guest-tags", 0, "requests of a guest's block layer at its device (default: the entries of the rings)")
	fl.IntVar(&f.vms, "vms", 1, "VMs; each has an equal part of the disk, and all jobs")
	fl.IntVar(&f.vm.NumQueues, "num-queues", 1, "of each VM; its job i drives queue i modulo that")
	fl.IntVar(&f.vm.QueueSize, "queue-size", 128, "entries of each ring")
	fl.Uint64Var(&f.o.Seed, "seed", 1, "of everything that is random, but the disk")
	fl.Float64Var(&f.o.Costs.Jitter, "cost-jitter", virtual.DefaultJitter, "fraction by which each cost varies, 0 to 1")
	cli.TimeVar(fl, &f.o.Costs.PerRead, time.Microsecond, "cost-read", "processor time for a read, before it is submitted")
	cli.TimeVar(fl, &f.o.Costs.PerWrite, time.Microsecond, "cost-write", "the same for a write")
	cli.TimeVar(fl, &f.o.Costs.PerRequest, time.Microsecond, "cost-request", "added to both, for a scheduler that costs more than another")
	cli.TimeVar(fl, &f.o.Costs.PerSwitch, time.Microsecond, "cost-switch", "how much later a request reaches the disk that begins a new slice")
	cli.TimeVar(fl, &f.o.Costs.SwitchAfter, time.Microsecond, "cost-switch-after", "if it has waited in the host for so long")
	fl.StringVar(&f.format, "format", "text", "text or json (fio's field names, and what only a simulation knows)")
}

func (f *simFlags) jobFlags(fl *pflag.FlagSet) {
	j := &f.job
	fl.StringVar(&f.rw, "rw", "read", "read, write, randread, randwrite, rw (readwrite) or randrw")
	fl.IntVar(&j.MixRead, "rwmixread", 50, "percent of reads in rw and randrw")
	fl.IntVar(&j.Depth, "iodepth", 1, "requests in flight per job")
	fl.IntVar(&j.Jobs, "numjobs", 1, "jobs in each VM")
	fl.IntVar(&j.RateIOPS, "rate-iops", 0, "most requests a second of a job in either direction; 0: no limit")
	fl.IntVar(&j.Fsync, "fsync", 0, "a flush after every so many writes")
	fl.IntVar(&j.Loops, "loops", 0, "times through the region")
	fl.BoolVar(&f.direct, "direct", true, "past the guest's page cache; there is none")
	fl.BoolVar(&f.sync, "sync", false, "a flush after every write")
	fl.BoolVar(&f.timed, "time-based", false, "go round the region until the runtime is over, whatever io-size says")
	fl.BoolVar(&j.NoRandMap, "norandommap", false, "random blocks may repeat before all were touched")
	fl.Uint64Var(&j.Seed, "randseed", 0, "seed of blocks and directions (default: --seed)")
	cli.BytesVar(fl, &f.bs, "bs", "4k", "bytes of a request")
	cli.BytesVar(fl, &j.Offset, "offset", "0", "bytes in front of the first job's region")
	cli.BytesVar(fl, &j.Increment, "offset-increment", "0", "bytes from one job's region to the next")
	cli.BytesVar(fl, &j.Size, "size", "0", "bytes of a job's region; 0: to the end of the VM's disk")
	cli.BytesVar(fl, &j.IOSize, "io-size", "0", "bytes each job moves; 0: once through its region")
	cli.TimeVar(fl, &j.ThinkTime, time.Microsecond, "thinktime", "rest before the next requests, when those in flight have come back")
	cli.TimeVar(fl, &j.Runtime, time.Second, "runtime", "end after this time; alone it goes round the region until then")
	cli.TimeVar(fl, &j.RampTime, time.Second, "ramp-time", "run for so long before anything is counted")
}

func (f *simFlags) run(c *cobra.Command) error {
	if err := f.parse(); err != nil {
		return err
	}
	img, err := backend.Open(f.disk, backend.Options{Discard: true})
	if err != nil {
		return err
	}
	defer img.Close()
	if err := f.machines(img); err != nil {
		return err
	}
	res, err := virtual.RunContext(c.Context(), f.o)
	if err != nil {
		return interrupted(c, err)
	}
	if f.format == "json" {
		err = res.WriteJSON(c.OutOrStdout(), "elevisor-"+cli.Version())
	} else {
		err = res.WriteText(c.OutOrStdout())
	}
	if err == nil && res.Total().Errno != 0 {
		err = cli.ExitCode(1) // the result says what failed
	}
	return err
}

// interrupted is err, or only says so if a signal was the reason.
func interrupted(c *cobra.Command, err error) error {
	if c.Context().Err() != nil {
		return errors.New("interrupted")
	}
	return err
}

// parse makes f.o of the flags.
func (f *simFlags) parse() (err error) {
	j := &f.job
	if err := cli.OneOf("format", f.format, "text", "json"); err != nil {
		return err
	}
	if j.RW, err = load.ParseRW(f.rw); err != nil {
		return fmt.Errorf("--%w", err)
	}
	if !f.direct {
		return fmt.Errorf("--direct=false: there is no page cache in these guests; valid: true")
	}
	if j.BlockSize, err = blockSize(f.bs); err != nil {
		return err
	}
	for _, n := range []struct {
		flag           string
		v, least, most int
	}{
		{"iodepth", j.Depth, 1, device.DepthMax}, {"numjobs", j.Jobs, 1, jobsMost}, {"vms", f.vms, 1, vmsMost},
		{"num-queues", f.vm.NumQueues, 1, device.MaxQueues}, {"queue-size", f.vm.QueueSize, 1, virtqueue.MaxSize},
	} {
		if n.v < n.least || n.v > n.most {
			return fmt.Errorf("--%s=%d is out of range %d to %d", n.flag, n.v, n.least, n.most)
		}
	}
	if f.sync {
		j.Fsync = 1
	}
	j.TimeBased = f.timed || j.Runtime > 0 && j.IOSize == 0 && j.Loops == 0
	return f.knobs()
}

// The most jobs and VMs of one run on the command line: memory is the limit.
const (
	jobsMost = 1024
	vmsMost  = 256
)

func (f *simFlags) knobs() error {
	for _, s := range f.set {
		key, value, ok := strings.Cut(s, "=")
		if !ok {
			return fmt.Errorf("--set=%s is not KNOB=VALUE", s)
		}
		f.o.Knobs = append(f.o.Knobs, sched.Knob{Key: key, Value: value})
	}
	return nil
}

// machines gives each VM its part of the disk.
func (f *simFlags) machines(img backend.Image) error {
	f.o.Image = img
	size := img.Info().Sectors.Bytes() / int64(f.vms) / windowAlign * windowAlign
	if size == 0 {
		return fmt.Errorf("--vms=%d: the disk has less than %d bytes for each", f.vms, windowAlign)
	}
	f.vm.Size, f.vm.Jobs = size, []virtual.Job{f.job}
	if f.guest.Scheduler != "" {
		f.vm.Guest = &f.guest
	} else if f.guest.Tags != 0 {
		return fmt.Errorf("--guest-tags=%d without a --guest-scheduler", f.guest.Tags)
	}
	for i := range f.vms {
		vm := f.vm
		vm.Offset = int64(i) * size
		f.o.VMs = append(f.o.VMs, vm)
	}
	return nil
}

// windowAlign is what the VMs' parts of a disk are whole multiples of: what every disk
// has as its block.
const windowAlign = 4096

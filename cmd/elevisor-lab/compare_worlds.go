package main

import (
	"fmt"
	"io"
	"os"
	"time"

	"github.com/elevisor/elevisor/cmd/cli"
	"github.com/elevisor/elevisor/lab/plan"
	"github.com/elevisor/elevisor/lab/virtual"
	"github.com/elevisor/elevisor/lab/worlds/loopback"
	"github.com/elevisor/elevisor/lab/worlds/qemu"
	virtualworld "github.com/elevisor/elevisor/lab/worlds/virtual"
	"github.com/elevisor/elevisor/qemu/vm"
	"github.com/spf13/pflag"
)

// worldNames are where an experiment can be.
var worldNames = []string{"sim", "loopback", "qemu"}

// worldFlags are what the worlds want to know beside the plan.
type worldFlags struct {
	costs virtual.Costs
	qemu  qemu.Options
	set   *pflag.FlagSet
}

func (f *worldFlags) flags(fl *pflag.FlagSet) {
	f.set = fl
	d := virtualworld.DefaultCosts()
	f.costs = d
	cost := func(to *time.Duration, name, usage string) {
		cli.TimeVar(fl, to, time.Microsecond, name, "sim: "+usage)
	}
	cost(&f.costs.PerRead, "cost-read", "processor time of guest and host for a read; bare numbers are µs")
	cost(&f.costs.PerWrite, "cost-write", "the same for a write")
	cost(&f.costs.PerRequest, "cost-request", "added to both")
	cost(&f.costs.PerSwitch, "cost-switch", "how much later a request reaches the disk that begins a new slice")
	cost(&f.costs.SwitchAfter, "cost-switch-after", "if it has waited in the host for so long")
	fl.Float64Var(&f.costs.Jitter, "cost-jitter", d.Jitter, "sim: fraction by which each cost varies, 0 to 1")

	q := &f.qemu
	fl.StringVar(&q.Program, "qemu", "", "qemu: the program (default: what QEMU installs)")
	fl.StringVar(&q.Kernel, "kernel", "", "qemu: a kernel to boot, with --initrd or --modules (default: an installed one)")
	fl.StringVar(&q.Initrd, "initrd", "", "qemu: a whole guest for --kernel")
	fl.StringVar(&q.Modules, "modules", "", "qemu: the directory of the modules of --kernel")
	fl.StringVar(&q.Accel, "accel", "", "qemu: kvm, tcg or auto (default: $"+vm.AccelVariable+", else auto: kvm if a probe can boot the guest with it)")
	fl.IntVar(&q.MemoryMiB, "memory", 0, "qemu: MiB of each VM")
	fl.IntVar(&q.CPUs, "cpus", 0, "qemu: CPUs of each VM (default: as many as it has virtqueues, at least 2)")
	fl.StringVar(&q.Attach, "attach", "", "qemu: use the VM with this QMP socket, which runs already")
	fl.StringVar(&q.GuestAgent, "guest-agent", "", "qemu: the socket of its guest agent")
}

// worldOptions are the flags that only one world has, and whose values its figures depend
// on. The costs of the sim world are always part of the plan, by simworld.CostNames.
var worldOptions = map[string][]string{
	"sim":  {"cost-read", "cost-write", "cost-request", "cost-jitter", "cost-switch", "cost-switch-after"},
	"qemu": {"qemu", "kernel", "initrd", "modules", "accel", "memory", "cpus", "attach", "guest-agent"},
}

// options are what the figures of a world depend on, for the plan. A flag of another world
// is refused, as it would do nothing.
func (f *worldFlags) options(world string) (map[string]string, error) {
	all := map[string]string{}
	for of, names := range worldOptions {
		for _, name := range names {
			switch {
			case !f.set.Changed(name):
			case of != world:
				return nil, fmt.Errorf("--%s is of --world %s, and this is %s", name, of, world)
			default:
				all[name] = f.set.Lookup(name).Value.String()
			}
		}
	}
	if world == "sim" {
		return virtualworld.CostNames(&f.costs), nil
	}
	if accel := os.Getenv(vm.AccelVariable); world == "qemu" && accel != "" && all["accel"] == "" && all["attach"] == "" {
		all["accel"] = accel // as the flag would be, so that --resume keeps it
	}
	return all, nil
}

// open makes a world; keep says whether the runs' own output is wanted. What a world finds
// out about the machine goes to notices, a line at a time.
func (f *worldFlags) open(world string, keep bool, notices io.Writer) (plan.World, error) {
	switch world {
	case "sim":
		return virtualworld.New(virtualworld.Options{Costs: f.costs, Version: cli.Version(), Fio: keep}), nil
	case "loopback":
		return loopback.New(cli.Version()), nil
	case "qemu":
		f.qemu.Say = func(line string) { fmt.Fprintln(notices, line) }
		return qemu.New(f.qemu)
	}
	return nil, cli.OneOf("world", world, worldNames...)
}

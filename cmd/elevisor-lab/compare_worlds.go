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

// worldNames are the worlds in which an experiment can run; the first is the default.
var worldNames = []string{virtualName, "loopback", "qemu"}

// virtualName is the world of virtual time.
const virtualName = "virtual"

// worldFlags are the options of single worlds.
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
		cli.TimeVar(fl, to, time.Microsecond, name, virtualName+": "+usage)
	}
	cost(&f.costs.PerRead, "cost-read", "processor time of guest and host for a read; plain numbers are µs")
	cost(&f.costs.PerWrite, "cost-write", "processor time of guest and host for a write")
	cost(&f.costs.PerRequest, "cost-request", "added to both")
	cost(&f.costs.PerSwitch, "cost-switch", "extra time before a request that starts a new slice reaches the disk")
	cost(&f.costs.SwitchAfter, "cost-switch-after", "cost-switch applies to requests that have waited in the host this long")
	fl.Float64Var(&f.costs.Jitter, "cost-jitter", d.Jitter, virtualName+": fraction by which each cost varies, 0 to 1")

	q := &f.qemu
	fl.StringVar(&q.Program, "qemu", "", "qemu: QEMU program (default: the installed one)")
	fl.StringVar(&q.Kernel, "kernel", "", "qemu: kernel to boot, with --initrd or --modules (default: an installed one)")
	fl.StringVar(&q.Initrd, "initrd", "", "qemu: initrd with a complete guest for --kernel")
	fl.StringVar(&q.Modules, "modules", "", "qemu: directory of the modules of --kernel")
	fl.StringVar(&q.Accel, "accel", "", "qemu: kvm, tcg or auto (default: $"+vm.AccelVariable+", else auto: kvm if a probe can boot the guest with it)")
	fl.IntVar(&q.MemoryMiB, "memory", 0, "qemu: memory of each VM in MiB")
	fl.IntVar(&q.CPUs, "cpus", 0, "qemu: CPUs of each VM (default: one per virtqueue, at least 2)")
	fl.StringVar(&q.Attach, "attach", "", "qemu: QMP socket of a running VM to use")
	fl.StringVar(&q.GuestAgent, "guest-agent", "", "qemu: socket of that VM's guest agent")
}

// worldOptions are the flags that only one world has, and that its figures depend on. The
// costs of virtual time are always part of the plan.
var worldOptions = map[string][]string{
	virtualName: {"cost-read", "cost-write", "cost-request", "cost-jitter", "cost-switch", "cost-switch-after"},
	"qemu":      {"qemu", "kernel", "initrd", "modules", "accel", "memory", "cpus", "attach", "guest-agent"},
}

// options returns the flags that a world's figures depend on, for the plan. Flags of other
// worlds are refused, since they would have no effect.
func (f *worldFlags) options(world string) (map[string]string, error) {
	all := map[string]string{}
	for of, names := range worldOptions {
		for _, name := range names {
			switch {
			case !f.set.Changed(name):
			case of != world:
				return nil, fmt.Errorf("--%s is for --world %s; this is %s", name, of, world)
			default:
				all[name] = f.set.Lookup(name).Value.String()
			}
		}
	}
	if world == virtualName {
		return virtualworld.CostNames(&f.costs), nil
	}
	if accel := os.Getenv(vm.AccelVariable); world == "qemu" && accel != "" && all["accel"] == "" && all["attach"] == "" {
		all["accel"] = accel // as the flag would be, so that --resume keeps it
	}
	return all, nil
}

// open makes a world. keep says whether the runs' fio output is wanted. What a world finds
// out about the machine goes to notices, one line each.
func (f *worldFlags) open(world string, keep bool, notices io.Writer) (plan.World, error) {
	switch world {
	case virtualName:
		return virtualworld.New(virtualworld.Options{Costs: f.costs, Version: cli.Version(), Fio: keep}), nil
	case "loopback":
		return loopback.New(cli.Version()), nil
	case "qemu":
		f.qemu.Say = func(line string) { fmt.Fprintln(notices, line) }
		return qemu.New(f.qemu)
	}
	return nil, cli.OneOf("world", world, worldNames...)
}

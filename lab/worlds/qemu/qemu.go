// Package qemu is the world of real virtual machines: fio runs in a guest under QEMU, on
// disks that this process serves. What the guest's block layer and the host's scheduler
// merged is taken from their own counters.
//
// Each run has a server of its own, so that all begin in the same state, and plugs its disk
// into a machine that stays up between runs: a boot takes seconds under emulation, a plug
// less than one. The machines are ours, or one that runs already ([Options.Attach]).
//
// A guest that stops ends its run with an error within seconds ([qmp.Monitor.Watch]), and
// the other guests' part of the run with it.
package qemu

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"strconv"
	"time"

	"github.com/elevisor/elevisor/backend"
	"github.com/elevisor/elevisor/lab/plan"
	"github.com/elevisor/elevisor/qemu/vm"
	"go.uber.org/zap"
)

const (
	// stepTime bounds all that is short: a boot, a plug, a command. On two busy cores an
	// emulated boot of 3 s has taken 12.
	stepTime = 5 * time.Minute
	// unboundedTime bounds a load that ends with its size.
	unboundedTime = 6 * time.Hour
	// quitTime is how long a machine may take to quit before it is killed.
	quitTime = 10 * time.Second
)

// Options say what machines there are. The zero value boots the guest that package vm
// builds, in QEMU as it is installed.
type Options struct {
	Program   string // QEMU's; qemu-system-x86_64
	Kernel    string // a kernel to boot with Initrd, or to make the guest of with Modules
	Initrd    string // its agent speaks vm's protocol
	Modules   string // directory of Kernel's modules
	Accel     string // one of vm.Accels; empty: what vm.AccelVariable says, or auto
	MemoryMiB int    // of each machine; 512
	CPUs      int    // of each machine; default: as many as the disk has queues, at least 2

	Attach     string // QMP socket of a machine that runs; excludes all of the above
	GuestAgent string // socket of its guest agent

	CacheDir string // where the guest is kept
	Log      *zap.Logger
	// Say is told why the accelerator is not KVM, when that is found out; may be nil.
	Say   func(line string)
	Probe vm.Probe // of KVM

	// Slow makes every disk as slow as that; counts are then reproducible on a busy machine.
	Slow backend.RateOptions
}

// world is the [plan.World].
type world struct {
	o       Options
	log     *zap.Logger
	dir     string // of all sockets; made with the first machine or server
	guest   vm.Guest
	version vm.Version // QEMU's, of our own machines
	accel   vm.Accel   // of our own machines; AccelAuto before there is a guest
	cpus    int        // of our own machines
	serial  int        // of runs
	vms     []machine
	open    func(ctx context.Context) (machine, error)
	env     map[string]string
	sizes   map[string]image // by the disk's words
}

// New is the world. It starts nothing.
func New(o Options) (plan.World, error) {
	w, err := newWorld(o)
	if err != nil {
		return nil, err // not a nil *world in an interface
	}
	return w, nil
}

func newWorld(o Options) (*world, error) {
	own := o.Program != "" || o.Kernel != "" || o.Initrd != "" || o.Modules != "" || o.Accel != "" || o.MemoryMiB != 0 || o.CPUs != 0
	switch {
	case (o.Attach == "") != (o.GuestAgent == ""):
		return nil, errors.New("a running VM needs both, its QMP socket (--attach) and its guest agent's (--guest-agent)")
	case o.Attach != "" && own:
		return nil, errors.New("a VM that runs already (--attach) has its own kernel, accelerator, CPUs and memory")
	case o.Initrd != "" && o.Modules != "":
		return nil, errors.New("--initrd is a whole guest, and --modules are to make one of: want one of them")
	case o.Kernel != "" && o.Initrd == "" && o.Modules == "", o.Kernel == "" && (o.Initrd != "" || o.Modules != ""):
		return nil, errors.New("want --kernel together with --initrd, or with --modules")
	case o.CPUs < 0 || o.CPUs > maxCPUs:
		return nil, fmt.Errorf("%d CPUs: want 1 to %d", o.CPUs, maxCPUs)
	case o.MemoryMiB != 0 && o.MemoryMiB < minMemory:
		return nil, fmt.Errorf("%d MiB of memory: want %d or more", o.MemoryMiB, minMemory)
	}
	o.Program = cmp.Or(o.Program, vm.DefaultProgram)
	w := &world{o: o, log: cmp.Or(o.Log, zap.NewNop()), cpus: cmp.Or(o.CPUs, 2), env: map[string]string{}, sizes: map[string]image{}}
	if o.Attach != "" {
		w.open = w.join
		return w, nil
	}
	w.open = w.boot
	var err error
	if w.accel, err = vm.ParseAccel(o.Accel); err != nil && o.Accel != "" {
		err = fmt.Errorf("--accel: %w", err)
	}
	return w, err
}

// Environment implements plan.World.
func (w *world) Environment() map[string]string {
	env := maps.Clone(w.env)
	maps.Copy(env, plan.Environment())
	if w.o.Attach != "" {
		env["guest"] = "a running VM: " + w.o.Attach
		return env
	}
	env["qemu"] = w.version.String()
	env["qemu_accelerator"], env["qemu_accelerator_reason"] = w.accel.Name, w.accel.Reason
	env["guest_cpus"] = strconv.Itoa(w.cpus)
	env["guest_memory_mib"] = strconv.Itoa(cmp.Or(w.o.MemoryMiB, defaultMemory))
	return env
}

// Close implements plan.World.
func (w *world) Close() error {
	ctx, stop := context.WithTimeout(context.Background(), quitTime)
	defer stop()
	err := w.release(ctx, 0)
	if w.dir != "" {
		err = errors.Join(err, os.RemoveAll(w.dir))
		w.dir = ""
	}
	return err
}

// release ends the machines but the first n.
func (w *world) release(ctx context.Context, n int) error {
	var errs []error
	for _, m := range w.vms[n:] {
		errs = append(errs, m.Close(ctx))
	}
	w.vms = w.vms[:n]
	return errors.Join(errs...)
}

// machines has n machines ready.
func (w *world) machines(ctx context.Context, n, queues int) error {
	if w.o.Attach == "" && w.o.CPUs == 0 && queues > w.cpus {
		w.cpus = min(queues, maxCPUs)
		if err := w.release(ctx, 0); err != nil { // they have fewer CPUs
			return err
		}
	}
	if n < len(w.vms) { // an idle machine still takes time on the CPUs
		return w.release(ctx, n)
	}
	ctx, stop := context.WithTimeout(ctx, stepTime)
	defer stop()
	fresh := make([]machine, n-len(w.vms))
	if len(fresh) == 0 {
		return nil
	}
	if w.o.Attach == "" {
		if err := w.makeGuest(ctx); err != nil {
			return err
		}
	}
	err := each(ctx, len(fresh), func(ctx context.Context, i int) (err error) {
		fresh[i], err = w.open(ctx)
		return err
	})
	for _, m := range fresh {
		if m != nil {
			w.vms = append(w.vms, m)
		}
	}
	return err
}

// makeGuest has the guest's files ready, and finds out QEMU's version and the accelerator.
func (w *world) makeGuest(ctx context.Context) (err error) {
	if w.guest != (vm.Guest{}) {
		return nil
	}
	guest := vm.Guest{Kernel: w.o.Kernel, Initrd: w.o.Initrd}
	if w.o.Initrd != "" {
		err = guest.Check()
	} else {
		guest, err = vm.Build(ctx, vm.BuildOptions{
			CacheDir: w.o.CacheDir, Kernel: w.o.Kernel, Modules: w.o.Modules,
			Log: func(line string) { w.log.Info(line) },
		})
	}
	if err != nil {
		return err
	}
	if w.version, err = vm.QEMUVersion(ctx, w.o.Program); err != nil {
		return err
	}
	if w.accel.Name == vm.AccelAuto {
		c := vm.Config{Program: w.o.Program, Guest: guest, Accel: vm.AccelAuto, Probe: w.o.Probe, Log: w.o.Say}
		if w.accel, err = vm.ChooseAccel(ctx, c); err != nil {
			w.accel = vm.Accel{Name: vm.AccelAuto}
			return err
		}
	}
	w.guest = guest
	return nil
}

// scratch is the directory of sockets.
func (w *world) scratch() (string, error) {
	if w.dir == "" {
		dir, err := os.MkdirTemp("", "elevisor-qemu-")
		if err != nil {
			return "", fmt.Errorf("directory of sockets: %w", err)
		}
		w.dir = dir
	}
	return w.dir, nil
}

// each does n things at once and returns when all have ended, with the first error. That
// ends the context of the others: they would wait for a result that is of no use.
func each(ctx context.Context, n int, do func(ctx context.Context, i int) error) (first error) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan error)
	for i := range n {
		go func() { ended <- do(ctx, i) }()
	}
	for range n {
		if err := <-ended; err != nil && first == nil {
			first = err
			stop()
		}
	}
	return first
}

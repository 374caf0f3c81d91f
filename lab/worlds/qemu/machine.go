package qemu

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/elevisor/elevisor/qemu/attach"
	"github.com/elevisor/elevisor/qemu/vm"
)

const (
	maxCPUs       = 64
	minMemory     = 128 // MiB
	defaultMemory = 512 // MiB
	// diskID is what a plugged disk is called in QEMU.
	diskID = "elevisor-compare"
)

// machine is a VM that disks are plugged into, one at a time.
type machine interface {
	// Sh runs a script of one line in the guest, as root, and returns what it prints. A
	// status other than 0 is an error.
	Sh(ctx context.Context, script string) (printed string, err error)
	// Plug returns when the guest has the disk, whose name there it tells: vda.
	Plug(ctx context.Context, socket string, queues, queueSize int) (name string, err error)
	// Unplug returns when the guest has let go of the disk.
	Unplug(ctx context.Context) error
	// Ours says whether the machine may be thrown away after an error.
	Ours() bool
	// Close ends the machine if it is ours, or leaves it.
	Close(ctx context.Context) error
}

// booted is a machine of ours.
type booted struct {
	*vm.Machine
	dir string
}

// boot starts a machine without a disk.
func (w *world) boot(ctx context.Context) (machine, error) {
	dir, err := os.MkdirTemp("", "elevisor-vm-")
	if err != nil {
		return nil, fmt.Errorf("directory of a machine: %w", err)
	}
	m, err := vm.Boot(ctx, vm.Config{
		Program: w.o.Program, Guest: w.guest, Accel: w.accel.Name, CPUs: w.cpus, MemoryMiB: cmp.Or(w.o.MemoryMiB, defaultMemory), Dir: dir,
	})
	if err != nil {
		return nil, err // the directory stays, with the console in it, whose name the error tells
	}
	return &booted{m, dir}, nil
}

func (b *booted) Sh(ctx context.Context, script string) (string, error) {
	printed, status, err := b.Ask(ctx, script)
	if err != nil {
		return "", err
	}
	return printed, failed(script, printed, status)
}

// failed is a script's error.
func failed(script, printed string, status int) error {
	if status == 0 {
		return nil
	}
	return fmt.Errorf("in the guest: %.200s: status %d: %s", script, status, strings.TrimSpace(printed))
}

// options are those of attach.
func (b *booted) options() attach.Options {
	return attach.Options{Monitor: b.MonitorSocket(), Timeout: stepTime}
}

// ourDisk is what the only disk of a machine of ours is called there.
const ourDisk = "vda"

func (b *booted) Plug(ctx context.Context, socket string, queues, queueSize int) (string, error) {
	// The device file goes, and comes, a moment after QEMU's device.
	if _, err := b.Sh(ctx, "while [ -e /sys/block/"+ourDisk+" ]; do sleep 0.05; done"); err != nil {
		return "", err
	}
	if _, err := attach.Attach(ctx, attach.Disk{ID: diskID, Socket: socket, NumQueues: queues, QueueSize: queueSize}, b.options()); err != nil {
		return "", fmt.Errorf("%w%s", err, b.Diagnosis())
	}
	_, err := b.Sh(ctx, "until [ -b /dev/"+ourDisk+" ]; do sleep 0.05; done")
	return ourDisk, err
}

func (b *booted) Unplug(ctx context.Context) error {
	if err := attach.Detach(ctx, diskID, b.options()); err != nil {
		return fmt.Errorf("%w%s", err, b.Diagnosis())
	}
	return nil
}

func (b *booted) Ours() bool { return true }

func (b *booted) Close(ctx context.Context) error {
	err := b.Quit(ctx)
	if err == nil {
		return os.RemoveAll(b.dir)
	}
	return err // with the console's name
}

// pause waits for d; an error is why ctx has ended.
func pause(ctx context.Context, d time.Duration) error {
	t, stop := context.WithTimeout(ctx, d)
	defer stop()
	<-t.Done()
	return context.Cause(ctx)
}

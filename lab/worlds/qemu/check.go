package qemu

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/elevisor/elevisor/daemon"
	"github.com/elevisor/elevisor/guest/fio"
	"github.com/elevisor/elevisor/lab/plan"
	"github.com/elevisor/elevisor/qemu/vm"
	"github.com/elevisor/elevisor/sched"
)

// What QEMU takes for the length of a virtqueue (hw/block/vhost-user-blk.c).
const (
	queueSizeMin = 4
	queueSizeMax = 1024
)

// Check implements plan.World.
func (w *world) Check(p *plan.Plan) error {
	for i := range p.Cells {
		if err := w.checkCell(&p.Cells[i]); err != nil {
			return fmt.Errorf("cell %d: %w", i, err)
		}
	}
	i, err := w.look(p.Disk)
	if err != nil {
		return err
	}
	for n := range p.Cells {
		if err := fits(&p.Cells[n], window(i.bytes, p.Cells[n].VMs)); err != nil {
			return fmt.Errorf("cell %d: disk %s: %w", n, p.Disk, err)
		}
	}
	ctx, stop := context.WithTimeout(context.Background(), stepTime)
	defer stop()
	if w.o.Attach != "" {
		return (&running{w.o.Attach, w.o.GuestAgent}).check(ctx)
	}
	return w.checkPrograms(ctx, p)
}

// checkPrograms wants QEMU and a guest, which is made now if it never was.
func (w *world) checkPrograms(ctx context.Context, p *plan.Plan) error {
	if err := vm.MissingError(vm.Missing(w.o.Program, w.o.Initrd == "")); err != nil {
		return err
	}
	if err := w.makeGuest(ctx); err != nil {
		return err
	}
	for i := range p.Cells {
		if q := p.Cells[i].Queues; w.o.CPUs == 0 {
			w.cpus = max(w.cpus, q) // so that no machine is booted twice
		}
	}
	return nil
}

// checkCell refuses what this world cannot do.
func (w *world) checkCell(c *plan.Cell) error {
	if _, err := guestScheduler(c.Guest.Name); err != nil {
		return err
	}
	if c.Host.Name != "" && c.Host.Name != daemon.Auto {
		if _, err := sched.Resolve(c.Host.Name); err != nil {
			return err
		}
	}
	for _, k := range c.Guest.Knobs {
		if err := checkKnob(k); err != nil {
			return err
		}
	}
	cpus := w.o.CPUs
	if cpus == 0 {
		cpus = maxCPUs
	}
	size := queueSize(c)
	switch {
	case c.VMs < 1:
		return fmt.Errorf("%d VMs: want at least 1", c.VMs)
	case c.VMs > 1 && w.o.Attach != "":
		return errors.New("several VMs, and one that runs already (--attach): want --vms 1")
	case c.Queues < 0 || c.Queues > cpus:
		return fmt.Errorf("%d queues: want 1 to %d, one for each CPU of the guest", c.Queues, cpus)
	case size < queueSizeMin || size > queueSizeMax || size&(size-1) != 0:
		return fmt.Errorf("queue-size %d: want a power of two, %d to %d", size, queueSizeMin, queueSizeMax)
	case c.NoMerges < 0 || c.NoMerges > 2:
		return fmt.Errorf("nomerges %d: want 0, 1 or 2", c.NoMerges)
	case len(c.Workload.Jobs) == 0:
		return fmt.Errorf("workload %q has no jobs", c.Workload.Name)
	}
	return nil
}

// fits says whether a cell's jobs stay within a disk of that many bytes; fio would
// end with an error late.
func fits(c *plan.Cell, bytes int64) error {
	for _, j := range c.Workload.Jobs {
		if end := j.Offset + int64(max(j.NumJobs, 1)-1)*j.OffsetIncrement + j.Size; end > bytes {
			return fmt.Errorf("workload %s, job %q: it reaches to byte %d, and each of %d VMs has %d", c.Workload.Name, j.Name, end, c.VMs, bytes)
		}
	}
	return nil
}

// Notes implements plan.World.
func (w *world) Notes(p *plan.Plan) (notes []string) {
	add := func(when bool, format string, args ...any) {
		if when {
			notes = append(notes, fmt.Sprintf(format, args...))
		}
	}
	own := w.o.Attach == ""
	add(true, "Latencies are fio's completion latencies in the guest; quantiles are taken over all requests of one run.")
	add(true, "Each run has a server of its own: its disk is plugged into the VM before the run and unplugged after it.")
	add(own && w.accel.Name == vm.AccelTCG, "The VMs are emulated (TCG: %s): the guest's CPU is the limit, so rates say little and counts say much; compare on a slow disk.", w.accel.Reason)
	add(own && w.version.IgnoresQueueSize() && some(p, func(c *plan.Cell) bool { return queueSize(c) != queueSizeMax }),
		"QEMU %s ignores queue-size and gives every queue %d entries (7.2, or 11.1 and later, obey): a full queue, and what a guest's scheduler does then, is not seen.", w.version, queueSizeMax)
	add(!own && some(p, func(c *plan.Cell) bool { return queueSize(c) != queueSizeMax }),
		"QEMU 10.0 to 11.0 ignores queue-size: a run whose queue is longer than asked for carries a warning.")
	add(some(p, func(c *plan.Cell) bool { return scheduled(c) && queueSize(c) < scheduledRequests }),
		"Where the guest has a scheduler and a queue shorter than %d, its nr_requests is %d, so that requests wait in the scheduler.", scheduledRequests, scheduledRequests)
	add(some(p, func(c *plan.Cell) bool { return scheduled(c) && queueSize(c) >= scheduledRequests }),
		"With a queue of %d entries or more the guest's requests go to the device at once: its scheduler merges next to nothing, only batches meet, before it.", scheduledRequests)
	add(some(p, func(c *plan.Cell) bool {
		return slices.ContainsFunc(c.Workload.Jobs, func(j fio.Job) bool { return !j.Direct })
	}), "Some jobs are not direct=1: the guest's page cache answers them, and merges and latencies are its own.")
	notes = append(notes, "Seeks and lost merges are counted in the order in which requests are issued to the disk.")
	add(some(p, func(c *plan.Cell) bool { return ramped(c) }),
		"fio begins to count at the end of its ramp, and the guest's and the host's counts at nearly the same moment: sums may differ by what was in flight.")
	return notes
}

// some says whether a cell is like that.
func some(p *plan.Plan, is func(*plan.Cell) bool) bool {
	for i := range p.Cells {
		if is(&p.Cells[i]) {
			return true
		}
	}
	return false
}

// scheduled says whether a cell's guest has a scheduler.
func scheduled(c *plan.Cell) bool {
	k, _ := guestScheduler(c.Guest.Name)
	return k.Meets
}

func ramped(c *plan.Cell) bool {
	ramp, _ := times(&c.Workload)
	return ramp > 0
}

package virtual

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/elevisor/elevisor/backend"
	"github.com/elevisor/elevisor/blk"
	"github.com/elevisor/elevisor/device"
	"github.com/elevisor/elevisor/guest"
	"github.com/elevisor/elevisor/sched"
)

// vm is a virtual machine: a device on the loop, a guest that drives it, and the jobs
// in the guest.
type vm struct {
	world *world
	dev   *device.Device
	guest *guest.Guest
	block *guest.Block // nil: jobs drive the queues

	lines  []line
	called bool        // one of lines is
	wake   blk.Instant // of the block layer
	full   []*job      // wait for room, the longest waiting first
	retry  []*job      // the same while they are tried once more
}

// line is one queue that jobs drive: a virtqueue, or the whole block layer.
type line struct {
	queue  queue
	onDone func(guest.Done)
	rings  []*guest.Queue // behind it
	jobs   []*job         // by slot
	kick   bool           // something was submitted
	called bool           // something may have come back
}

func (w *world) addVM(i int, o *VM, disk *blk.Disk, info backend.Info) error {
	o.NumQueues, o.QueueSize = cmp.Or(o.NumQueues, 1), cmp.Or(o.QueueSize, 128)
	if o.Offset < 0 || o.Size < 0 || o.Offset%blk.SectorSize != 0 || o.Size%blk.SectorSize != 0 {
		return fmt.Errorf("offset=%d, size=%d: not whole sectors", o.Offset, o.Size)
	}
	dev, err := device.New(device.Options{
		ID: fmt.Sprintf("vm%d", i), Index: uint16(i), Disk: disk, Info: info, Loops: []*device.Loop{w.loop},
		NumQueues: o.NumQueues, QueueSize: o.QueueSize, SegMax: o.SegMax, Prio: o.Prio, WriteCache: !o.WriteThrough,
		Offset: blk.Sector(o.Offset / blk.SectorSize), Size: blk.Sector(o.Size / blk.SectorSize),
	})
	if err != nil {
		return err
	}
	v := &vm{world: w, dev: dev, wake: blk.Never}
	own, err := w.addJobs(o, v)
	if err != nil {
		return err
	}
	g := guestFor(o, own)
	v.guest, err = guest.Attach(dev, g, guest.Wires{
		Clock: w, Kicked: func(int) { w.again = true }, Called: v.call,
	})
	if err != nil {
		return err
	}
	w.vms = append(w.vms, v)
	return v.connect(o, own)
}

// addJobs makes the clones of all jobs of a VM.
func (w *world) addJobs(o *VM, v *vm) ([]*job, error) {
	had := len(w.jobs)
	o.Jobs = slices.Clone(o.Jobs)
	for i := range o.Jobs {
		o := &o.Jobs[i]
		if err := o.check(v.dev.Capacity(), w.o.Seed); err != nil {
			return nil, fmt.Errorf("job %d: %w", i, err)
		}
		if len(w.jobs)+o.Jobs > jobsMax {
			return nil, fmt.Errorf("job %d: numjobs=%d: more than %d in all", i, o.Jobs, jobsMax)
		}
		for clone := range o.Jobs {
			w.jobs = append(w.jobs, w.newJob(o, v, clone))
		}
		w.ramp = max(w.ramp, blk.Instant(o.RampTime))
	}
	return w.jobs[had:], nil
}

// guestFor is a guest with a slot for each request that jobs have in flight.
func guestFor(o *VM, jobs []*job) guest.Options {
	g := guest.Options{Queues: o.NumQueues, QueueSize: o.QueueSize, Depth: 1, MaxIO: blk.SectorSize, Segments: 1}
	depths := make([]int, o.NumQueues)
	for i, j := range jobs {
		depths[i%o.NumQueues] += j.o.Depth
		g.MaxIO = max(g.MaxIO, j.o.MaxBlock())
		g.Segments = max(g.Segments, j.o.Segments)
	}
	g.Depth = slices.Max(append(depths, 1))
	if o.Guest != nil { // room for what is merged: a driver's seg_max
		g.Segments = max(g.Segments, cmp.Or(o.SegMax, o.QueueSize-2))
	}
	return g
}

// connect gives the jobs their queues and their slots.
func (v *vm) connect(o *VM, jobs []*job) (err error) {
	rings := v.guest.Queues()
	if o.Guest != nil {
		if v.block, err = guest.NewBlock(rings, *o.Guest); err != nil {
			return err
		}
		for _, k := range o.GuestKnobs {
			if err := sched.Set(v.block.Scheduler(), k.Key, k.Value); err != nil {
				return fmt.Errorf("guest: %w", err)
			}
		}
		v.lines = []line{{queue: v.block, rings: rings, jobs: make([]*job, v.block.Depth())}}
	} else {
		v.lines = make([]line, len(rings))
		for i := range rings {
			v.lines[i] = line{queue: rings[i], rings: rings[i : i+1], jobs: make([]*job, rings[i].Depth())}
		}
	}
	for i := range v.lines {
		l := &v.lines[i]
		l.onDone = func(d guest.Done) { l.jobs[d.Slot].done(v.world.now, d) }
	}
	taken := make([]int, len(rings)) // slots of each ring
	for i, j := range jobs {
		ring := i % len(rings)
		base, at := taken[ring], ring
		taken[ring] += j.o.Depth
		if v.block != nil { // its slots are those of its rings, one's behind the other's
			base, at = base+ring*rings[0].Depth(), 0
		}
		l := &v.lines[at]
		for slot := range j.o.Depth {
			l.jobs[base+slot] = j
		}
		j.line = l
		j.drive(l.queue, base)
	}
	return nil
}

// call is the device's, in the midst of a step.
func (v *vm) call(ring int) {
	v.called = true
	v.lines[min(ring, len(v.lines)-1)].called = true
}

// reap takes what the device has returned.
func (v *vm) reap() error {
	v.called = false
	n := 0
	for i := range v.lines {
		l := &v.lines[i]
		for pending := l.called; pending; {
			l.called = false
			k, err := l.queue.Reap(l.onDone)
			if err != nil {
				return fmt.Errorf("the device broke the ring's rules: %w", err)
			}
			n += k
			pending = false
			for _, r := range l.rings {
				pending = r.EnableCalls() || pending
			}
		}
	}
	v.sleep()
	if n > 0 && len(v.full) > 0 {
		v.tryFull()
	}
	return nil
}

// tryFull has the jobs that found no room try again, in the order in which they came.
func (v *vm) tryFull() {
	v.full, v.retry = v.retry[:0], v.full
	for _, j := range v.retry {
		j.waits = false
		if v.world.now >= j.end {
			j.timeUp()
			continue
		}
		v.submit(j)
	}
	v.kick()
}

// submit submits what j has planned.
func (v *vm) submit(j *job) {
	had := len(j.next)
	done := j.submit(v.world.now)
	j.line.kick = j.line.kick || len(j.next) < had
	if j.o.Batch > 0 { // a batch is its submitter's: nobody adds to it
		v.kick()
	}
	if done {
		j.plan(v.world.now)
		return
	}
	j.waits = true
	v.full = append(v.full, j)
}

// kick hands over what was submitted.
func (v *vm) kick() {
	for i := range v.lines {
		if l := &v.lines[i]; l.kick {
			l.kick = false
			l.queue.Kick()
			v.sleep()
		}
	}
}

// sleep sets when the block layer goes on by time alone. An instant that has come is
// none: it would have gone on.
func (v *vm) sleep() {
	if v.block == nil {
		return
	}
	if v.wake = v.block.Wake(); v.wake <= v.world.now {
		v.wake = v.world.now + 1
	}
}

// Package sim runs virtual machines, an I/O scheduler and a disk in virtual time.
//
// All that is measured is the real thing: a job's request goes through the guest's
// block layer (if the VM has one), a virtqueue in guest memory, device.Loop with its
// scheduler, and an image, and back. Only three things are not real: the clock, which
// stands still while anything is computed and jumps to the next instant at which
// something happens; the eventfds, which are function calls; and the processors. What
// a program and the two systems need for a request is [Costs], charged to the job: each
// job has a processor of its own, which does one thing after the other, and nobody
// waits for anybody else's.
//
// A run is one goroutine. It reads no clock, iterates over no map and draws all that is
// random from seeds: the same [Options] give the same [Result], byte for byte.
package virtual

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/elevisor/elevisor/backend"
	"github.com/elevisor/elevisor/blk"
	"github.com/elevisor/elevisor/guest"
	"github.com/elevisor/elevisor/guest/load"
	"github.com/elevisor/elevisor/sched"
)

// Options are one run's. Zero values stand for the defaults.
type Options struct {
	// Disk is opened for the run, in backend.Open's words; Image, if it is not nil, is
	// used instead and stays the caller's, and then serves one run.
	Disk  string
	Image backend.Image

	Scheduler  string       // of the host, one of sched.Names; default none
	Knobs      []sched.Knob // of that scheduler and its domain, in this order
	QueueDepth int          // requests on the disk at a time; default sched.Kind.Depth

	VMs   []VM
	Costs Costs
	Seed  uint64 // of all that is random; a job with a seed of its own uses that

	// Record counts what reaches the disk, and keeps the first Keep reads and writes of it
	// after the ramp.
	Record bool
	Keep   int
	// Trace is called for every request, or head of a group, that reaches the disk. r is
	// lent.
	Trace func(now blk.Instant, r *blk.Request)
	// Fill is called for each write before it is submitted, with the number of its job and
	// its first sector on the VM's disk; Check for each read that has come back. Without
	// them nobody looks at data, and buffers stay zero.
	Fill  func(job int, first blk.Sector, data []byte)
	Check func(job int, first blk.Sector, data []byte) error
}

// VM is a virtual machine with one disk and its jobs.
type VM struct {
	Offset int64 // bytes; where its window in the image begins
	Size   int64 // bytes of that window; 0: the rest of the image

	NumQueues int // default 1
	QueueSize int // default 128
	SegMax    int // data segments of a request; default: QueueSize less 2, as the device's
	Prio      blk.Prio
	// WriteThrough starts the disk with its write cache off: every write is durable before
	// it is acknowledged, and such writes are never merged.
	WriteThrough bool

	// Guest is the block layer in the guest; nil: jobs drive the virtqueues themselves.
	Guest *guest.BlockOptions
	// GuestKnobs are of that block layer's scheduler, in this order.
	GuestKnobs []sched.Knob
	// Jobs run at once. Of all their clones (numjobs), counted through, the i-th drives
	// queue i % NumQueues.
	Jobs []Job
}

// Job is a fio-like load, or several that differ in nothing but their offset
// (bench.Options.Jobs). The names in brackets are fio's. There is no page cache in the
// guest: everything is as with direct=1. Of the bench.Options, Verify and Stall do not
// go with virtual time.
type Job struct {
	load.Options

	// Loops (loops) is how often a job goes through its region, unless it has an IOSize;
	// default 1.
	Loops int
}

// Costs are what a request takes of processor time, beside the disk's. Each is drawn
// anew within ±Jitter.
type Costs struct {
	// PerRead and PerWrite pass between a completion and the same job's next submission,
	// or between two submissions; PerRequest is added to either, for what a scheduler
	// costs more than another. A flush costs as much as a write.
	PerRead, PerWrite, PerRequest time.Duration
	Jitter                        float64 // a fraction, evenly distributed; 0: none

	// PerSwitch is how much later a request reaches the disk, and all behind it, with
	// which the host's scheduler begins a new slice (sched.Counters.Slices) when it had
	// waited in the host for SwitchAfter or longer: what the change from one guest to
	// another costs.
	PerSwitch, SwitchAfter time.Duration
}

// DefaultJitter is what Jitter is where nobody says: enough that jobs which start at
// the same instant do not stay in step.
const DefaultJitter = 0.1

// jobsMax bounds the clones of all jobs, for their numbers and for memory.
const jobsMax = 1 << 16

// Run runs o to its end: until all jobs have ended and nothing is in flight. The error
// is about o, or says that the world stands still; what went wrong at the disk is in the
// result.
func Run(o Options) (*Result, error) { return RunContext(context.Background(), o) }

// RunContext is Run; a cancelled ctx ends it early, with ctx's error.
func RunContext(ctx context.Context, o Options) (*Result, error) {
	img := o.Image
	if img == nil {
		opened, err := backend.Open(o.Disk, backend.Options{Discard: true})
		if err != nil {
			return nil, err
		}
		defer opened.Close()
		img = opened
	}
	w, err := newWorld(o, img)
	if err != nil {
		return nil, err
	}
	defer w.close()
	if err := w.run(ctx); err != nil {
		return nil, err
	}
	return w.result(), nil
}

// check fills defaults in and says what cannot be.
func (o *Options) check() error {
	o.Scheduler = cmp.Or(o.Scheduler, "none")
	c := &o.Costs
	switch {
	case len(o.VMs) == 0:
		return fmt.Errorf("no VM: want at least 1")
	case c.PerRead < 0 || c.PerWrite < 0 || c.PerRequest < 0 || c.PerSwitch < 0 || c.SwitchAfter < 0:
		return fmt.Errorf("a cost is below 0")
	case !(c.Jitter >= 0 && c.Jitter <= 1): // also what is not a number
		return fmt.Errorf("jitter=%v is out of range 0 to 1", c.Jitter)
	}
	return nil
}

// check fills defaults in and checks j against the VM's disk.
func (j *Job) check(capacity blk.Sector, seed uint64) error {
	j.Seed = cmp.Or(j.Seed, seed)
	if err := j.Options.Check(capacity); err != nil {
		return err
	}
	switch {
	case j.Verify:
		return fmt.Errorf("verify does not go with virtual time")
	case j.Loops < 0:
		return fmt.Errorf("loops=%d: not 0 or more", j.Loops)
	}
	return nil
}

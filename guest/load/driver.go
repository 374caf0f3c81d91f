package load

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/elevisor/elevisor/blk"
	"github.com/elevisor/elevisor/guest"
	"github.com/elevisor/elevisor/sys/clock"
)

// Queue is what a job drives: one queue of a guest, or what stands in front of
// it. Slots are tags from 0 to Depth-1, each with a data buffer.
type Queue interface {
	Depth() int
	Buffer(slot int) guest.Buf
	// Submit takes a request, not yet told to the device; false where it has no room.
	Submit(slot int, op blk.Op, sector blk.Sector, data []guest.Buf) bool
	// Kick hands over what was submitted.
	Kick()
	// Reap calls fn for each request that came back.
	Reap(fn func(guest.Done)) (int, error)
	// Wait until there is something to reap; guest.ErrTimeout after d.
	Wait(d time.Duration) error
	InFlight() int
}

// waitStep is how long a driver sleeps at most before it looks at its context again.
const waitStep = 100 * time.Millisecond

// driver is the one goroutine that owns a queue and the jobs on it.
type driver struct {
	q     Queue
	clock clock.Monotonic
	stall time.Duration
	jobs  []*job
	slots []*job // by slot: whose it is

	now      blk.Instant
	moved    blk.Instant // when something last came back
	first    int         // the job whose turn it is first
	left     int         // jobs that have not ended
	inflight int

	ramp   blk.Instant // the longest job's
	ramped func()      // called once, when that is over; may be nil
	onDone func(guest.Done)
}

func newDriver(q Queue, clk clock.Monotonic) *driver {
	d := &driver{q: q, clock: clk, slots: make([]*job, q.Depth())}
	d.onDone = func(done guest.Done) { d.slots[done.Slot].done(done) }
	return d
}

// add gives d one more job, the clone-th of o, number in the run.
func (d *driver) add(o *Options, clone, number, base int) *job {
	j := newJob(o, d, clone, number, base)
	d.jobs = append(d.jobs, j)
	for slot := range o.Depth {
		d.slots[base+slot] = j
	}
	d.stall = max(d.stall, o.Stall)
	return j
}

// run is the whole of it: until all jobs have ended. What went wrong is in their results.
func (d *driver) run(ctx context.Context) {
	d.now = d.clock.Now()
	d.moved, d.left = d.now, len(d.jobs)
	for _, j := range d.jobs {
		j.begin(d.now)
		d.ramp = max(d.ramp, j.ramp)
	}
	if err := d.load(ctx); err != nil {
		for _, j := range d.jobs {
			if !j.ended {
				j.res.Runtime = time.Duration(max(0, d.clock.Now()-j.ramp))
				j.fail(unix.EIO, err)
			}
		}
	}
}

// load keeps the queue filled until all jobs have ended.
func (d *driver) load(ctx context.Context) error {
	for {
		wake := d.submit(ctx.Err() != nil)
		if d.left == 0 {
			return nil
		}
		if err := d.await(wake); err != nil {
			return err
		}
		d.now = d.clock.Now()
		n, err := d.q.Reap(d.onDone)
		switch {
		case err != nil:
			return fmt.Errorf("the device broke the ring's rules: %w", err)
		case n > 0 || d.inflight == 0:
			d.moved = d.now
		case d.now-d.moved > blk.Instant(d.stall):
			return fmt.Errorf("%d requests in flight, none came back for %v", d.q.InFlight(), d.stall)
		}
	}
}

// submit has each job submit what it can, another one first each time, and says when one
// goes on by time alone.
func (d *driver) submit(cancelled bool) blk.Instant {
	if d.ramped != nil && d.now >= d.ramp {
		d.ramped()
		d.ramped = nil
	}
	wake := blk.Never
	for i := range d.jobs {
		j := d.jobs[(d.first+i)%len(d.jobs)]
		if cancelled {
			j.give()
		}
		wake = min(wake, j.advance())
	}
	d.first = (d.first + 1) % len(d.jobs)
	return wake
}

// await returns when there is something to reap, or at wake.
func (d *driver) await(wake blk.Instant) error {
	pause := min(d.clock.Until(wake), waitStep)
	if d.inflight == 0 {
		clock.Sleep(pause)
		return nil
	}
	if err := d.q.Wait(pause); err != nil && !errors.Is(err, guest.ErrTimeout) {
		return fmt.Errorf("%d requests in flight: %w", d.q.InFlight(), err)
	}
	return nil
}

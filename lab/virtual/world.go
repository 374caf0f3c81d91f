package virtual

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/elevisor/elevisor/backend"
	"github.com/elevisor/elevisor/blk"
	"github.com/elevisor/elevisor/device"
	"github.com/elevisor/elevisor/sched"
)

// world is one run. One goroutine owns it and all that it reaches.
type world struct {
	o    *Options
	loop *device.Loop
	disk backend.Backend
	vms  []*vm
	jobs []*job

	now   blk.Instant
	due   events
	wake  blk.Instant // of the loop
	again bool        // a queue was kicked since the loop's last step
	left  int         // jobs that have not ended
	ended blk.Instant // of those that have, the last one's end

	ramp   blk.Instant // the longest of the jobs
	ramped bool
	before counts // at its end
}

// Now implements guest.Clock.
func (w *world) Now() blk.Instant { return w.now }

func newWorld(o Options, img backend.Image) (_ *world, err error) {
	w := &world{o: &o}
	if err := o.check(); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			w.close()
		}
	}()
	if err = w.makeLoop(img); err != nil {
		return nil, err
	}
	o.VMs = slices.Clone(o.VMs) // defaults are filled in
	disk := &blk.Disk{Name: "disk", Sectors: img.Info().Sectors}
	for i := range o.VMs {
		if err = w.addVM(i, &o.VMs[i], disk, img.Info()); err != nil {
			return nil, fmt.Errorf("VM %d: %w", i, err)
		}
	}
	w.due = make(events, 0, len(w.jobs))
	w.left = len(w.jobs)
	if w.left == 0 {
		return nil, fmt.Errorf("no job: want at least 1")
	}
	return w, nil
}

func (w *world) makeLoop(img backend.Image) error {
	c := device.DefaultConfig(img.Info().Rotational)
	kind, err := sched.Find(w.o.Scheduler)
	if err != nil {
		return err
	}
	depth := cmp.Or(w.o.QueueDepth, kind.Depth)
	w.loop = device.NewLoop(kind.New(c), c, min(max(depth, 1), device.DepthMax))
	if err := w.loop.SetDepth(depth); err != nil {
		return err
	}
	for _, k := range w.o.Knobs {
		if err := w.loop.Set(k.Key, k.Value); err != nil {
			return err
		}
	}
	_, err = w.loop.Attach(&gate{Image: img, world: w}, backend.Host{Wakeup: func() {}})
	return err
}

// run is the run. At one instant, first the disk and the loop do what they have to, then
// the block layers in the guests, then the jobs, by number, and then the loop again.
func (w *world) run(ctx context.Context) error {
	if err := w.step(); err != nil {
		return err
	}
	for _, j := range w.jobs {
		j.plan(0)
	}
	for same, n := 0, uint64(0); w.left > 0; same, n = same+1, n+1 {
		if n%instantsAsk == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
		t := min(w.wake, w.due.first())
		for _, v := range w.vms {
			t = min(t, v.wake)
		}
		if t == blk.Never {
			return fmt.Errorf("the world stands still at %d ns: %d jobs have not ended, and nothing would happen any more", w.now, w.left)
		}
		if t >= w.ramp && !w.ramped {
			w.rampEnds()
		}
		if t > w.now {
			w.now, same = t, 0
		}
		if same > instantsMax {
			return fmt.Errorf("time stands still at %d ns: neither the disk nor the jobs take any (give the disk a delay, or the jobs a cost)", w.now)
		}
		if err := w.instant(); err != nil {
			return err
		}
	}
	return nil
}

// rampEnds begins what is counted.
func (w *world) rampEnds() {
	w.ramped, w.before = true, w.count()
	if r, ok := backend.As[backend.Recorder](w.disk); ok {
		r.Trace(w.o.Keep)
	}
}

// instant is all that happens now.
func (w *world) instant() error {
	if w.wake <= w.now {
		if err := w.step(); err != nil {
			return err
		}
	}
	for _, v := range w.vms {
		if v.wake <= w.now {
			v.block.Kick()
			v.sleep()
		}
	}
	for w.due.first() <= w.now {
		j := w.jobs[w.due.pop().job]
		j.planned = false
		j.vm.submit(j)
	}
	for _, v := range w.vms {
		v.kick()
	}
	if w.again {
		return w.step()
	}
	return nil
}

// instantsAsk is after how many instants a run asks whether it is still wanted.
const instantsAsk = 1 << 12

// stepsMax is how often a loop may want to be stepped at one instant, and instantsMax how
// often something may happen at one: beyond that, time stands still.
const (
	stepsMax    = 1 << 20
	instantsMax = 1 << 21
)

// step has the loop do all that it can now, and the guests take what it returns.
func (w *world) step() error {
	for range stepsMax {
		w.again = false
		w.wake = w.loop.Step(w.now)
		for _, v := range w.vms {
			if v.called {
				if err := v.reap(); err != nil {
					return err
				}
			}
		}
		if w.wake > w.now && !w.again {
			return nil
		}
	}
	return fmt.Errorf("the loop does not come to rest at %d ns", w.now)
}

// close lets go of everything.
func (w *world) close() {
	for _, v := range w.vms {
		v.guest.Close()
	}
	if w.loop != nil {
		_ = w.loop.Close() // nothing is in flight, or the run has failed anyhow
	}
}

// event is a planned submission.
type event struct {
	at  blk.Instant
	job int32
}

func (e event) before(f event) bool { return e.at < f.at || e.at == f.at && e.job < f.job }

// events is a binary heap: the earliest, of equal ones that of the first job, is at 0.
type events []event

// first is when the first one is due; Never: there is none.
func (h events) first() blk.Instant {
	if len(h) == 0 {
		return blk.Never
	}
	return h[0].at
}

func (h *events) push(e event) {
	*h = append(*h, e)
	s := *h
	for i := len(s) - 1; i > 0; {
		up := (i - 1) / 2
		if !s[i].before(s[up]) {
			return
		}
		s[i], s[up] = s[up], s[i]
		i = up
	}
}

// pop takes the first one out; there is one.
func (h *events) pop() event {
	s := *h
	first, n := s[0], len(s)-1
	s[0] = s[n]
	s = s[:n]
	*h = s
	for i := 0; ; {
		down := 2*i + 1
		if down >= n {
			return first
		}
		if down+1 < n && s[down+1].before(s[down]) {
			down++
		}
		if !s[down].before(s[i]) {
			return first
		}
		s[i], s[down] = s[down], s[i]
		i = down
	}
}

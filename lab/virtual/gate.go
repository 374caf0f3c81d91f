package virtual

import (
	"github.com/elevisor/elevisor/backend"
	"github.com/elevisor/elevisor/blk"
	"github.com/elevisor/elevisor/sched"
)

// gate is the way to an image: where the cost of a change of slices is charged, and
// where what goes to the disk is traced.
type gate struct {
	backend.Image
	world *world
}

// Attach implements backend.Image.
func (g *gate) Attach(h backend.Host) (backend.Backend, error) {
	img, o := g.Image, g.world.o
	if o.Record {
		img = backend.NewRecorder(img)
	}
	b, err := img.Attach(h)
	if err != nil {
		return nil, err
	}
	g.world.disk = b
	if o.Trace != nil {
		b = &tracer{backend.Wrapper{Backend: b}, o.Trace}
	}
	if o.Costs.PerSwitch > 0 {
		b = backend.NewHold(b, h.Depth, (&switches{world: g.world}).due)
	}
	return b, nil
}

// tracer shows what the disk takes.
type tracer struct {
	backend.Wrapper
	trace func(now blk.Instant, r *blk.Request)
}

// Submit implements backend.Backend.
func (t *tracer) Submit(now blk.Instant, r *blk.Request) bool {
	if !t.Backend.Submit(now, r) {
		return false
	}
	t.trace(now, r)
	return true
}

// switches charge for changes of slices: what is late holds up all behind it.
type switches struct {
	world  *world
	last   blk.Instant    // when the newest request is let go
	slices uint64         // begun so far
	counts sched.Counters // the scheduler's, when it was last asked
}

// due is when the disk may have r.
func (s *switches) due(now blk.Instant, r *blk.Request) blk.Instant {
	at := now
	if s.changes(now, r) {
		at += blk.Instant(s.world.o.Costs.PerSwitch)
	}
	s.last = max(s.last, at)
	return s.last
}

// changes is whether r begins a slice that it had to wait for.
func (s *switches) changes(now blk.Instant, r *blk.Request) bool {
	s.counts = sched.Counters{}
	sched.Count(s.world.loop.Scheduler(), &s.counts)
	if s.counts.Slices == s.slices {
		return false
	}
	s.slices = s.counts.Slices
	since := r.Arrive
	for ; r != nil; r = r.Merged {
		since = min(since, r.Arrive)
	}
	return now-since >= blk.Instant(s.world.o.Costs.SwitchAfter)
}

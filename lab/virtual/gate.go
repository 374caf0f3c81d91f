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
	img := g.Image
	if g.world.o.Record {
		img = backend.NewRecord(img)
	}
	inner, err := img.Attach(h)
	if err != nil {
		return nil, err
	}
	g.world.disk = inner
	if g.world.o.Trace == nil && g.world.o.Costs.PerSwitch == 0 {
		return inner, nil
	}
	return &gateway{Backend: inner, world: g.world, held: make([]late, h.Depth)}, nil
}

// gateway keeps what is late, and all behind it, until its time.
type gateway struct {
	backend.Backend
	world  *world
	held   []late // a ring of n, from first on
	first  int
	n      int
	last   blk.Instant    // when the newest is let go
	slices uint64         // begun so far
	counts sched.Counters // the scheduler's, when it was last asked
	stuck  bool           // the image is full: only a completion helps
}

type late struct {
	due blk.Instant
	r   *blk.Request
}

// Submit implements backend.Backend.
func (g *gateway) Submit(now blk.Instant, r *blk.Request) bool {
	if g.n == len(g.held) {
		return false
	}
	at := now
	if g.changes(now, r) {
		at += blk.Instant(g.world.o.Costs.PerSwitch)
	}
	if g.n > 0 {
		at = max(at, g.last)
	} else if at == now {
		return g.pass(now, r)
	}
	r.Move(blk.StateQueued, blk.StateIssued)
	g.held[(g.first+g.n)%len(g.held)] = late{at, r}
	g.n++
	g.last = at
	return true
}

// changes is whether r begins a slice that it had to wait for.
func (g *gateway) changes(now blk.Instant, r *blk.Request) bool {
	c := &g.world.o.Costs
	if c.PerSwitch == 0 {
		return false
	}
	g.counts = sched.Counters{}
	sched.Count(g.world.loop.Scheduler(), &g.counts)
	if g.counts.Slices == g.slices {
		return false
	}
	g.slices = g.counts.Slices
	since := r.Arrive
	for ; r != nil; r = r.Merged {
		since = min(since, r.Arrive)
	}
	return now-since >= blk.Instant(c.SwitchAfter)
}

// pass gives r to the image.
func (g *gateway) pass(now blk.Instant, r *blk.Request) bool {
	if !g.Backend.Submit(now, r) {
		return false
	}
	if g.world.o.Trace != nil {
		g.world.o.Trace(now, r)
	}
	return true
}

// Reap implements backend.Backend.
func (g *gateway) Reap(now blk.Instant, done []*blk.Request) []*blk.Request {
	for {
		g.letGo(now)
		n := len(done)
		done = g.Backend.Reap(now, done)
		if !g.stuck || len(done) == n {
			return done
		}
	}
}

// letGo gives the image what is due, until it is full.
func (g *gateway) letGo(now blk.Instant) {
	g.stuck = false
	for g.n > 0 && g.held[g.first].due <= now {
		r := g.held[g.first].r
		r.Move(blk.StateIssued, blk.StateQueued)
		if !g.pass(now, r) {
			r.Move(blk.StateQueued, blk.StateIssued)
			g.stuck = true
			return
		}
		g.held[g.first].r = nil
		g.first = (g.first + 1) % len(g.held)
		g.n--
	}
}

// Wake implements backend.Backend.
func (g *gateway) Wake() blk.Instant {
	wake := g.Backend.Wake()
	if g.n > 0 && !g.stuck {
		wake = min(wake, g.held[g.first].due)
	}
	return wake
}

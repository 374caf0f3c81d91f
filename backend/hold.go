package backend

import (
	"math/bits"

	"github.com/elevisor/elevisor/blk"
)

// decorated is an image whose backends are wrapped: what a decorator returns. All
// decorators follow one rule, so that any stack of them keeps the contracts of
// [Backend]: a request that one holds back is issued, and is queued again only for
// the moment in which it is offered to the inner backend.
type decorated struct {
	Image
	wrap func(inner Backend, h Host) Backend
}

// Attach implements Image.
func (d *decorated) Attach(h Host) (Backend, error) {
	inner, err := d.Image.Attach(h)
	if err != nil {
		return nil, err
	}
	return d.wrap(inner, h), nil
}

// gate is the part of a decorator that lets requests go on to the inner backend when
// their time has come. Requests move their data in the order in which they are let
// go, so that a slow disk's contents change as slowly as it answers. It knows the
// time from the now of its calls alone.
type gate struct {
	Wrapper
	line  line
	stuck bool // the inner backend is full: only a completion of its own helps
}

// line is what waits at a gate. The requests in it are issued.
type line interface {
	// next is when the first one is due; Never: there is none.
	next() blk.Instant
	// first is that one, nil if it is not due at now; the same one until pop.
	first(now blk.Instant) *blk.Request
	// pop takes it out: it has gone on.
	pop()
}

// Reap implements Backend.
func (g *gate) Reap(now blk.Instant, done []*blk.Request) []*blk.Request {
	for {
		g.letGo(now)
		n := len(done)
		done = g.Backend.Reap(now, done)
		if !g.stuck || len(done) == n {
			return done
		}
	}
}

// letGo offers the inner backend all whose time has come, until it is full.
func (g *gate) letGo(now blk.Instant) {
	g.stuck = false
	for r := g.line.first(now); r != nil; r = g.line.first(now) {
		r.Move(blk.StateIssued, blk.StateQueued)
		if !g.Backend.Submit(now, r) {
			r.Move(blk.StateQueued, blk.StateIssued)
			g.stuck = true
			return
		}
		g.line.pop()
	}
}

// Wake implements Backend. While the inner backend is full, an instant that has come
// is none to wake for: the loop would run in circles.
func (g *gate) Wake() blk.Instant {
	wake := g.Backend.Wake()
	if !g.stuck {
		wake = min(wake, g.line.next())
	}
	return wake
}

// NewHold keeps each request back until the instant that due says, and lets inner
// carry it out then; those of one instant go in the order of submission. At most depth
// are held at a time. due is asked once for each call of Submit that finds room; a
// request that is due at once, with none before it, goes straight on, and if inner is
// full, it is asked again when the request comes again.
func NewHold(inner Backend, depth int, due func(now blk.Instant, r *blk.Request) blk.Instant) Backend {
	b := &holding{due: due, depth: max(depth, 1)}
	b.gate = gate{Wrapper: Wrapper{inner}, line: b}
	b.held.Grow(b.depth)
	return b
}

// holding is a gate, and the line before it.
type holding struct {
	gate
	due   func(now blk.Instant, r *blk.Request) blk.Instant
	held  blk.Heap[*blk.Request]
	depth int
	seq   uint64
}

// Submit implements Backend.
func (b *holding) Submit(now blk.Instant, r *blk.Request) bool {
	if b.held.Len() == b.depth {
		return false
	}
	at := b.due(now, r)
	if at <= now && b.held.Len() == 0 {
		return b.Backend.Submit(now, r)
	}
	r.Move(blk.StateQueued, blk.StateIssued)
	b.held.Push(at, b.seq, r)
	b.seq++
	return true
}

func (b *holding) next() blk.Instant { return b.held.Next() }

func (b *holding) first(now blk.Instant) *blk.Request {
	if b.held.Next() > now || b.held.Len() == 0 {
		return nil
	}
	return b.held.First()
}

func (b *holding) pop() { b.held.Pop() }

// later is d after t, and before Never in any case: whatever waits, waits for an
// instant that comes.
func later(t, d blk.Instant) blk.Instant {
	if d >= blk.Never-t {
		return blk.Never - 1
	}
	return t + d
}

// mulDivUp is a*b/c, rounded up, at most the last instant. c is not 0.
func mulDivUp(a, b, c uint64) blk.Instant {
	hi, lo := bits.Mul64(a, b)
	lo, carry := bits.Add64(lo, c-1, 0)
	if hi += carry; hi >= c {
		return blk.Never - 1
	}
	q, _ := bits.Div64(hi, lo, c)
	return blk.Instant(min(q, uint64(blk.Never-1)))
}

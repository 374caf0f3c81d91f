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

// holding keeps every request back until its time has come, and lets the inner
// backend carry it out then: requests move their data in the order in which they
// are let go, so that a slow disk's contents change as slowly as it answers. It
// knows the time from the now of its calls alone.
type holding struct {
	Wrapper
	due   func(now blk.Instant, r *blk.Request) blk.Instant // asked once a request
	held  turns
	seq   uint64
	stuck bool // the inner backend is full: only a completion of its own helps
}

func newHolding(inner Backend, h Host, due func(blk.Instant, *blk.Request) blk.Instant) Backend {
	return &holding{Wrapper: Wrapper{inner}, due: due, held: make(turns, 0, max(h.Depth, 1))}
}

// Submit implements Backend.
func (b *holding) Submit(now blk.Instant, r *blk.Request) bool {
	if len(b.held) == cap(b.held) {
		return false
	}
	r.Move(blk.StateQueued, blk.StateIssued)
	b.held.push(turn{due: b.due(now, r), seq: b.seq, r: r})
	b.seq++
	return true
}

// Reap implements Backend.
func (b *holding) Reap(now blk.Instant, done []*blk.Request) []*blk.Request {
	for {
		b.letGo(now)
		n := len(done)
		done = b.Backend.Reap(now, done)
		if !b.stuck || len(done) == n {
			return done
		}
	}
}

// letGo offers the inner backend all whose time has come, until it is full.
func (b *holding) letGo(now blk.Instant) {
	b.stuck = false
	for len(b.held) > 0 && b.held[0].due <= now {
		r := b.held[0].r
		r.Move(blk.StateIssued, blk.StateQueued)
		if !b.Backend.Submit(now, r) {
			r.Move(blk.StateQueued, blk.StateIssued)
			b.stuck = true
			return
		}
		b.held.pop()
	}
}

// Wake implements Backend. While the inner backend is full, a time that has come
// is none to wake for: the loop would run in circles.
func (b *holding) Wake() blk.Instant {
	wake := b.Backend.Wake()
	if len(b.held) > 0 && !b.stuck {
		wake = min(wake, b.held[0].due)
	}
	return wake
}

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

// turns is a binary heap: the earliest turn, of equal ones the oldest, is at 0. It
// does not grow beyond the capacity it was made with.
type turns []turn

type turn struct {
	due blk.Instant
	seq uint64
	r   *blk.Request
}

func (t turn) before(u turn) bool {
	return t.due < u.due || t.due == u.due && t.seq < u.seq
}

func (h *turns) push(t turn) {
	*h = append(*h, t)
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

// pop takes the first turn out; there is one.
func (h *turns) pop() {
	s := *h
	n := len(s) - 1
	s[0], s[n] = s[n], turn{}
	s = s[:n]
	*h = s
	for i := 0; ; {
		down := 2*i + 1
		if down >= n {
			return
		}
		if down+1 < n && s[down+1].before(s[down]) {
			down++
		}
		if !s[down].before(s[i]) {
			return
		}
		s[i], s[down] = s[down], s[i]
		i = down
	}
}

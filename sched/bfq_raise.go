package sched

import "github.com/elevisor/elevisor/blk"

// bfqRaise is the state of weight raising: a queue's weight is raised for a while if it is
// interactive (new, or back after a pause) or soft real-time (asks for little at a time,
// and in batches).
type bfqRaise struct {
	kind    bfqKind
	coeff   int64       // 1: not raised
	changed blk.Instant // when raising started or ended, or of the last request
	length  blk.Instant // how long it is raised
	before  blk.Instant // when it was raised as interactive, before it became bfqSoft
	service int64       // sectors since it was raised

	since     blk.Instant // when it last became busy
	sinceIdle int64       // sectors since then
	nextSoft  blk.Instant // a request that comes later makes it soft real-time
	softLater bool        // nextSoft is computed when nothing is on the disk any more
	inBurst   bool        // it is part of a large burst: it is not raised
}

type bfqKind uint8

const (
	bfqPlain bfqKind = iota
	bfqInteractive
	bfqSoft
)

var bfqKindNames = [...]string{bfqPlain: "plain", bfqInteractive: "interactive", bfqSoft: "soft real-time"}

const (
	bfqSoftFactor   = 100
	bfqSoftLength   = 300 * millisecond
	bfqSoftRate     = 7000                // sectors/s: compressed high-definition video
	bfqSoftMargin   = 16 * millisecond    // 4 jiffies at 250 Hz
	bfqPause        = 2000 * millisecond  // without requests, after which a queue is interactive again
	bfqBurstOver    = 10000 * millisecond // without requests, after which its burst is forgotten
	bfqAsyncGap     = 500 * millisecond   // between requests of an asynchronous queue, for the same
	bfqInTimeEnough = 120                 // requests in a row that came soon make a queue I/O-bound
	bfqRaiseMin     = 3000 * millisecond
	bfqRaiseMax     = 25000 * millisecond
)

// awake makes q busy: it has got a request after having had none. It reports whether q is
// interactive now.
func (b *BFQ) awake(q *bfqQueue) (interactive bool) {
	w := &q.raise
	was, paused := w.coeff, q.dispatched == 0 && q.empty+bfqPause < b.now
	soon := b.now <= q.completed+3*b.tune.sliceIdle
	soft := q.history != bfqAllSeeks && !w.inBurst && w.nextSoft < b.now && q.dispatched == 0 &&
		q.completed+b.tune.sliceIdle+bfqSoftMargin < b.now // nextSoft implies it, but not while interactive
	interactive = !w.inBurst && paused
	deserves := b.tune.lowLatency && (was > 1 || q.sync && (interactive || soft))

	resumes := b.budgetFor(q, soon)
	if !q.created && paused && q.empty+bfqBurstOver < b.now {
		w.inBurst = false
		b.burst.remove(q)
	}
	q.created = false
	b.noteInTime(q, soon)
	if b.tune.lowLatency {
		b.arrivalRaise(q, deserves, interactive, soft)
	}
	w.since, w.sinceIdle, w.softLater = b.now, 0, false

	b.activate(q)
	q.awaited, q.busy = false, true
	b.busy[q.class]++
	if w.coeff > 1 {
		b.raised++
	}
	b.weigh(q)
	if s := b.serving; s != nil && (resumes && w.coeff >= s.raise.coeff || q.class < s.class || q.weight > s.weight) {
		b.expire(s, bfqPreempted, false)
	}
	return interactive
}

// budgetFor sets q's budget for its next turn. If q had lost the disk only because it was
// empty, and not for long, that is the rest of the last one, and q resumes its place.
func (b *BFQ) budgetFor(q *bfqQueue, soon bool) (resumes bool) {
	left := q.budget - q.service
	resumes = q.awaited && soon && left > 0
	q.service = 0
	if resumes {
		q.budget = min(left, q.maxBudget)
	} else {
		q.budget = max(q.maxBudget, b.cost(q, q.next))
		q.awaited = false
	}
	return resumes
}

// noteInTime counts requests that come soon after the last completion.
func (b *BFQ) noteInTime(q *bfqQueue, soon bool) {
	switch {
	case q.ioBound:
	case !soon:
		q.inTime = 0
	default:
		q.inTime++
		q.ioBound = q.inTime >= bfqInTimeEnough
	}
}

// arrivalRaise starts, continues or ends the raising of q's weight.
func (b *BFQ) arrivalRaise(q *bfqQueue, deserves, interactive, soft bool) {
	w := &q.raise
	switch {
	case w.coeff == 1 && deserves:
		if interactive {
			w.service = 0
			b.raiseInteractive(q)
		} else {
			w.before = bfqLongAgo
			b.raiseSoft(q)
		}
		q.budget = min(q.budget, 2*b.budgetMin())
		q.budget = max(q.budget, b.cost(q, q.next))
	case w.coeff == 1:
	case interactive:
		b.raiseInteractive(q)
	case w.inBurst:
		b.setRaise(q, bfqPlain, 1, 0)
	case soft:
		if w.kind != bfqSoft {
			w.before = w.changed
			b.raiseSoft(q)
		}
		w.changed = b.now
	}
}

func (b *BFQ) raiseInteractive(q *bfqQueue) {
	b.setRaise(q, bfqInteractive, b.tune.raiseTo, b.raiseLength())
}

func (b *BFQ) raiseSoft(q *bfqQueue) {
	b.setRaise(q, bfqSoft, b.tune.raiseTo*bfqSoftFactor, bfqSoftLength)
}

// setRaise changes q's coefficient, but not yet the weight in use.
func (b *BFQ) setRaise(q *bfqQueue, kind bfqKind, coeff int64, length blk.Instant) {
	w := &q.raise
	if q.busy {
		b.raised += asInt(coeff > 1) - asInt(w.coeff > 1)
	}
	w.kind, w.coeff, w.length = kind, coeff, length
}

// raiseLength is how long an interactive queue is raised: the time in which the disk loads
// a large program.
func (b *BFQ) raiseLength() blk.Instant {
	if b.tune.raiseTime > 0 {
		return b.tune.raiseTime
	}
	return min(max(blk.Instant(b.rate.loading/b.rate.peak)*millisecond, bfqRaiseMin), bfqRaiseMax)
}

// endRaise ends the raising of q's weight.
func (b *BFQ) endRaise(q *bfqQueue) {
	b.setRaise(q, bfqPlain, 1, 0)
	q.raise.changed = b.now
}

// reviewRaise is called after each request that q has sent.
func (b *BFQ) reviewRaise(q *bfqQueue) {
	w := &q.raise
	if w.coeff > 1 {
		over := w.changed+w.length < b.now
		switch {
		case w.inBurst:
			b.endRaise(q)
		case over && w.kind == bfqSoft && w.before+b.raiseLength() >= b.now:
			w.changed = w.before
			b.raiseInteractive(q)
			b.reweigh(q)
		case over:
			b.endRaise(q)
		case w.kind != bfqSoft && b.tune.raiseService > 0 && w.service > b.tune.raiseService:
			b.endRaise(q)
		}
	}
	if (q.weight > q.ownWeight) != (w.coeff > 1) {
		b.reweigh(q)
	}
}

// raiseExpired is called when q loses the disk.
func (b *BFQ) raiseExpired(q *bfqQueue) {
	w := &q.raise
	if !b.tune.lowLatency {
		return
	}
	if w.coeff == 1 {
		w.changed = b.now
	}
	switch {
	case q.next != nil:
	case q.dispatched > 0:
		w.softLater = true
	case w.coeff != b.tune.raiseTo:
		b.setNextSoft(q)
	}
}

// setNextSoft computes when q's next request may come at the earliest if q is soft
// real-time: not faster than by its rate, and not as soon as a greedy queue's.
func (b *BFQ) setNextSoft(q *bfqQueue) {
	w := &q.raise
	byRate := w.since + blk.Instant(w.sinceIdle)*(1000*millisecond/bfqSoftRate)
	w.nextSoft = max(w.nextSoft, byRate, b.now+b.tune.sliceIdle+bfqSoftMargin)
}

const (
	bfqBurstLarge = 8
	bfqBurstGap   = 180 * millisecond // between two creations of one burst, at most
)

// bfqBurst is a number of queues that were created shortly one after the other while
// nobody else was busy. If there are many, they do one job together, and none of them is
// interactive.
type bfqBurst struct {
	list  [bfqBurstLarge]*bfqQueue // those of a burst that is not large yet
	n     int
	size  int // including those that have left the list
	large bool
	last  blk.Instant // of the last creation that counted
}

func (u *bfqBurst) has(q *bfqQueue) bool {
	for _, x := range u.list[:u.n] {
		if x == q {
			return true
		}
	}
	return false
}

func (u *bfqBurst) add(q *bfqQueue) {
	u.list[u.n] = q
	u.n++
}

// remove takes q off the list, if it is on it.
func (u *bfqBurst) remove(q *bfqQueue) bool {
	for i, x := range u.list[:u.n] {
		if x == q {
			u.n--
			u.list[i], u.list[u.n] = u.list[u.n], nil
			return true
		}
	}
	return false
}

// joinBurst makes a new queue part of the burst, or starts a new burst.
func (b *BFQ) joinBurst(q *bfqQueue) {
	u := &b.burst
	if u.has(q) || q.raise.inBurst {
		return
	}
	switch {
	case u.last+bfqBurstGap < b.now || u.last > b.now:
		*u = bfqBurst{}
		if b.busyQueues() == 0 {
			u.add(q)
			u.size = 1
		}
	case u.large:
		q.raise.inBurst = true
	default:
		u.size++
		if u.size < bfqBurstLarge {
			u.add(q)
			break
		}
		u.large, q.raise.inBurst = true, true
		for _, x := range u.list[:u.n] {
			x.raise.inBurst = true
		}
		clear(u.list[:])
		u.n = 0
	}
	u.last = b.now
}

// leaveBurst is called when q is forgotten.
func (b *BFQ) leaveBurst(q *bfqQueue) {
	if b.burst.remove(q) && b.burst.size > 0 {
		b.burst.size--
	}
}

package sched

import (
	"math/bits"

	"github.com/elevisor/elevisor/blk"
)

// bfqLongAgo is earlier than all other times, and far enough from the end of the range that
// durations can be added to it.
const bfqLongAgo = -blk.Never / 2

// bfqQueue holds the requests of one flow in one priority class, or the asynchronous writes
// of a class. It is reused and never goes away.
type bfqQueue struct {
	place  int32 // 1 + index in BFQ.queues
	class  int   // levelRT, levelBE, levelIdle
	sync   bool
	source blk.Source // a pattern for the sources of its requests; see Drain
	gone   bool       // that source was drained

	// Leaders, not yet dispatched.
	sorted  tree
	fifo    blk.List     // the oldest first
	next    *blk.Request // the one to serve next; nil: empty
	overdue *blk.Request // next, if it was chosen for its age; else nil

	dispatched int // heads on the disk
	bfqEntity
	maxBudget int64 // for the next turn, sectors

	busy      bool        // it has something queued, or the disk, or keeps its place in the tree
	awaited   bool        // it lost the disk only because it was empty
	aged      bool        // the age of its oldest request was checked in this turn
	timeout   blk.Instant // of the present budget, or of the last one
	empty     blk.Instant // since when nothing was queued or on the disk
	lost      blk.Instant // when it last lost the disk
	completed blk.Instant // when its last request was completed

	created bool // it is new: nothing has been queued yet
	ioBound bool
	inTime  int // requests in a row that came soon, while it was not ioBound
	history uint32
	lastPos blk.Sector // end of the last request that came
	think   thinkTime
	quick   bool // its think time is at most slice_idle, as far as is known

	raise bfqRaise
}

// Tests of history, which has a bit for each of the last 32 requests, set for a seek.
const (
	bfqSeekyAbove = 19
	bfqAllSeeks   = 1<<32 - 1
)

func (q *bfqQueue) seeky() bool { return bits.OnesCount32(q.history) > bfqSeekyAbove }

// queueFor returns the queue of r, which is being inserted, and makes it if it is new.
func (b *BFQ) queueFor(r *blk.Request) *bfqQueue {
	n, fresh := b.flows.of(r)
	for n >= len(b.byFlow) {
		b.byFlow = append(b.byFlow, bfqFlow{})
	}
	class := levelOf(r.Prio)
	at, sync := &b.byFlow[n][class], true
	if b.tune.asyncWrites && r.Op.Changes() {
		at, sync = &b.async[class], false
	}
	q := *at
	switch {
	case q == nil:
		q = &bfqQueue{place: int32(len(b.queues) + 1)}
		b.queues = append(b.queues, q)
		*at = q
		b.create(q, class, sync, r.Source)
	case (q.gone || fresh && sync) && !q.busy && q.dispatched == 0:
		b.forgetQueue(q)
		b.create(q, class, sync, r.Source)
	}
	q.gone = false
	if q.created && (b.burst.size > 0 || b.busyQueues() == 0) {
		// Otherwise others were busy already, and it is not part of a burst.
		b.joinBurst(q)
	}
	return q
}

// queueOf returns the queue of a leader.
func (b *BFQ) queueOf(g *blk.Request) *bfqQueue { return b.queues[g.Links.Place-1] }

// create initializes q.
func (b *BFQ) create(q *bfqQueue, class int, sync bool, s blk.Source) {
	source := blk.Source{Device: s.Device, Queue: s.Queue}
	switch {
	case !sync:
		source = blk.Source{Device: blk.AnyDevice, Queue: blk.AnyQueue}
	case b.flows.by == flowDevice:
		source.Queue = blk.AnyQueue
	}
	weight := bfqWeights[class]
	*q = bfqQueue{
		place: q.place, class: class, sync: sync, source: source,
		bfqEntity: bfqEntity{weight: weight, ownWeight: weight},
		maxBudget: b.budgetMax() * 2 / 3,
		empty:     bfqLongAgo, lost: bfqLongAgo, timeout: bfqLongAgo, completed: b.now,
		created: sync, ioBound: true, history: 1,
		quick: sync && class != levelIdle,
		raise: bfqRaise{coeff: 1, changed: b.now, before: bfqLongAgo, nextSoft: b.now},
	}
}

// busyQueues is the number of busy queues.
func (b *BFQ) busyQueues() int { return b.busy[levelRT] + b.busy[levelBE] + b.busy[levelIdle] }

// enqueue adds r, which is not merged and the youngest of q.
func (b *BFQ) enqueue(q *bfqQueue, r *blk.Request) {
	b.thought(q)
	b.moved(q, r)
	before := q.next
	q.sorted.insert(r)
	q.fifo.PushBack(r)
	b.consider(q, r)
	b.arrived(q, r, before)
	q.lastPos = r.Pos + r.Sectors
	b.unwait(q, r)
}

// arrived updates turns and weights after r was added to q, whose next was before.
func (b *BFQ) arrived(q *bfqQueue, r, before *blk.Request) {
	was, interactive := q.raise.coeff, false
	if !q.busy {
		interactive = b.awake(q)
	} else {
		if b.tune.lowLatency && was == 1 && !q.sync && q.raise.changed+bfqAsyncGap < b.now {
			b.raiseInteractive(q)
		}
		if q.next != before {
			b.nextChanged(q)
		}
	}
	if b.tune.lowLatency && (was == 1 || q.raise.coeff == 1 || interactive) {
		q.raise.changed = b.now
	}
}

// unwait ends the wait for a request of q, except that a small one that comes alone where
// idling is for throughput may still be merged with the next one. It goes with the next
// Dispatch.
func (b *BFQ) unwait(q *bfqQueue, r *blk.Request) {
	if q != b.serving || !b.waiting {
		return
	}
	over := b.timedOut(q)
	if q.fifo.Len() == 1 && r.Sectors < bfqSmall && !over && b.boosts(q) {
		return
	}
	b.waiting = false
	if over {
		b.expire(q, bfqTimeout, false)
	}
}

// bfqSmall is the size from which on a request is not small.
const bfqSmall blk.Sector = 32

// thought takes a sample of q's think time.
func (b *BFQ) thought(q *bfqQueue) {
	took := b.now - q.completed
	if q.created {
		took = blk.Never
	}
	q.think.note(took, 2*b.tune.sliceIdle)
	if q.sync && q.class != levelIdle && b.tune.sliceIdle > 0 {
		q.quick = !q.think.known() || q.think.mean <= b.tune.sliceIdle
	}
}

// moved notes whether r is a seek.
func (b *BFQ) moved(q *bfqQueue, r *blk.Request) {
	q.history <<= 1
	if b.seek(q.lastPos, r.Pos, r.Sectors) {
		q.history |= 1
	}
	if q.raise.kind == bfqSoft && q.history == bfqAllSeeks {
		b.endRaise(q)
	}
}

// seek reports whether a request is a seek from last, where the one before it ended; 0:
// there was none.
func (b *BFQ) seek(last, pos, sectors blk.Sector) bool {
	return last > 0 && distance(last, pos) > seekFar && (b.merger.cfg.Rotational || sectors < seekSmall)
}

// joined removes gone from q: its group is now part of kept's.
func (b *BFQ) joined(q *bfqQueue, kept, gone *blk.Request) {
	q.remove(gone)
	if q.next == gone {
		q.next = kept
	}
	if q.overdue == gone {
		q.overdue = kept
	}
}

// consider makes g, which is new or has moved, the next one of q if it is nearer, but not
// before one that has waited too long.
func (b *BFQ) consider(q *bfqQueue, g *blk.Request) {
	if q.next == nil || q.next != q.overdue {
		q.next = b.tune.back.nearest(q.next, g, b.rate.lastPos)
	}
}

// grown is called after r was merged into g.
func (b *BFQ) grown(q *bfqQueue, g, r *blk.Request) {
	q.lastPos = r.Pos + r.Sectors
	before := q.next
	if q.sorted.moved(g) {
		b.consider(q, g)
	}
	if q.next != before {
		b.nextChanged(q)
	}
}

// remove removes a leader from q.
func (q *bfqQueue) remove(g *blk.Request) {
	q.sorted.remove(g)
	q.fifo.Remove(g)
}

// follow chooses what q serves after g, which is still in it: once in a turn the oldest
// request, if it has expired, otherwise the nearer of g's neighbours.
func (b *BFQ) follow(q *bfqQueue, g *blk.Request) {
	q.next = nil
	if !q.aged {
		q.aged = true
		if oldest := q.fifo.Front(); oldest != g && oldest.Arrive+b.tune.fifoExpire[asInt(q.sync)] <= b.now {
			q.next, q.overdue = oldest, oldest
			return
		}
	}
	q.next = b.tune.back.after(&q.sorted, g)
}

// lookAnew chooses what q serves next after requests were removed from it.
func (b *BFQ) lookAnew(q *bfqQueue) {
	q.overdue = nil
	q.next = b.tune.back.anew(&q.sorted, b.rate.lastPos)
	if q.next != nil {
		b.nextChanged(q)
	} else if q.busy && q != b.serving {
		b.idle(q, false)
		q.budget, q.service = 0, 0
	}
}

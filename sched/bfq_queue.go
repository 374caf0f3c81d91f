package sched

import (
	"math/bits"

	"github.com/elevisor/elevisor/blk"
)

// bfqLongAgo stands for a time before all others, far enough from the end of the
// range that durations can be added to it.
const bfqLongAgo = -blk.Never / 2

// bfqQueue is one flow's, of one priority class; or what all asynchronous writes of a
// class share. It is used again and again, and never goes away.
type bfqQueue struct {
	place  int32 // 1 + index in BFQ.queues
	class  int   // levelRT, levelBE, levelIdle
	sync   bool
	source blk.Source // of its first request, as a pattern for what stops it
	gone   bool       // that source was stopped

	// Leaders, not yet dispatched.
	sorted  tree
	fifo    blk.List     // the oldest first
	next    *blk.Request // the one to serve next; nil: empty
	overdue *blk.Request // next, if its age has made it so; else nil

	dispatched int // heads on the disk
	bfqEntity
	maxBudget int64 // for the next turn, sectors

	busy      bool        // has something queued, or the disk, or a place in the tree to keep
	awaited   bool        // lost the disk only because it was empty
	aged      bool        // the oldest request was looked at in this turn
	timeout   blk.Instant // of the budget in use, or of the last
	empty     blk.Instant // since when nothing was queued or on the disk
	lost      blk.Instant // the disk, last
	completed blk.Instant // the last one

	created bool // nothing has been queued yet
	ioBound bool
	inTime  int // requests in a row that came soon, while not ioBound
	history uint32
	lastPos blk.Sector // end of the last request that came
	think   thinkTime
	quick   bool // it thinks for slice_idle at most, as far as is known

	raise bfqRaise
}

// The tests on the last 32 requests. A bit is set for each that was a seek.
const (
	bfqSeekyAbove = 19
	bfqAllSeeks   = 1<<32 - 1
)

func (q *bfqQueue) seeky() bool { return bits.OnesCount32(q.history) > bfqSeekyAbove }

// queueFor finds or makes the queue that r, which is being inserted, belongs to.
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
		// Else it comes to others that are at work already, and is no part of a burst.
		b.joinBurst(q)
	}
	return q
}

// queueOf finds the queue of a leader.
func (b *BFQ) queueOf(g *blk.Request) *bfqQueue { return b.queues[g.Links.Place-1] }

// create makes q what a queue is at first.
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

// busyQueues counts them.
func (b *BFQ) busyQueues() int { return b.busy[levelRT] + b.busy[levelBE] + b.busy[levelIdle] }

// enqueue takes in r, alone so far and the youngest of q.
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

// arrived sees to turns and weights when r has come to q, which had before to serve
// next.
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

// unwait ends the wait for a request of q. A small one that comes alone where idling
// is for throughput may still be merged with the next: it leaves by Dispatch, if that
// is asked.
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

// bfqSmall is where a request ceases to be a small one.
const bfqSmall blk.Sector = 32

// thought takes a sample of the time since q's last completion.
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

// seek says whether a request is far from last, where the one before it ended: 0 is
// the place of none.
func (b *BFQ) seek(last, pos, sectors blk.Sector) bool {
	return last > 0 && distance(last, pos) > seekFar && (b.merger.cfg.Rotational || sectors < seekSmall)
}

// joined takes gone out of q: its group is part of kept's now.
func (b *BFQ) joined(q *bfqQueue, kept, gone *blk.Request) {
	q.remove(gone)
	if q.next == gone {
		q.next = kept
	}
	if q.overdue == gone {
		q.overdue = kept
	}
}

// consider lets g, which is new or has moved, be the next of q if it is nearer; not
// before one that has waited for too long.
func (b *BFQ) consider(q *bfqQueue, g *blk.Request) {
	if q.next == nil || q.next != q.overdue {
		q.next = b.tune.back.nearest(q.next, g, b.rate.lastPos)
	}
}

// grown sees to g, which r was merged into, perhaps in front.
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

// remove takes a leader out of q.
func (q *bfqQueue) remove(g *blk.Request) {
	q.sorted.remove(g)
	q.fifo.Remove(g)
}

// follow chooses what q serves after g, which is still in it: once in a turn the
// oldest, if its time is over, else the nearer of g's neighbours.
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

// lookAnew chooses what q serves next after anything may have left it.
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

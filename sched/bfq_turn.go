package sched

import "github.com/elevisor/elevisor/blk"

// bfqReason is why a queue loses the disk.
type bfqReason uint8

const (
	bfqTooIdle   bfqReason = iota // was waited for in vain
	bfqTimeout                    // had the disk for long enough
	bfqExhausted                  // has not enough budget left for its next request
	bfqNoMore                     // has nothing, and is not waited for
	bfqPreempted                  // another one came
)

const (
	bfqBudget = 16384 // sectors: the largest, until enough is known of the disk
	// bfqBudgetsMin is how many turns, as smoothed, make enough: the eleventh.
	bfqBudgetsMin = 194
	// bfqAsyncCharge is what a sector of an asynchronous queue costs.
	bfqAsyncCharge = 3
	// bfqCharged is the longest time that is charged for as if it were service.
	bfqCharged = 125 * millisecond

	bfqWaitMin    = 2 * millisecond  // for a queue of seeks
	bfqWaitRaised = 20 * millisecond // at least, for one of raised weight
)

// choose returns the queue that may send its next request, nil if none may: nobody
// has one, or the one that has the disk is waited for.
func (b *BFQ) choose() *bfqQueue {
	if q := b.serving; q != nil && b.mayTimeOut(q) && !(q.next == nil && b.betterToIdle(q)) {
		b.expire(q, bfqTimeout, false)
	}
	for {
		q := b.serving
		if q == nil {
			if q = b.pick(); q == nil {
				return nil
			}
			b.begin(q)
		}
		switch {
		case q.next != nil && b.cost(q, q.next) <= q.budget-q.service:
			b.waiting = false
			return q
		case q.next != nil:
			b.expire(q, bfqExhausted, false)
		case b.waiting || q.dispatched > 0 && b.betterToIdle(q):
			return nil
		default:
			b.expire(q, bfqNoMore, false)
		}
	}
}

// begin gives q the disk.
func (b *BFQ) begin(q *bfqQueue) {
	b.counts.Slices++
	b.serving, b.start = q, b.now
	b.budgets = (7*b.budgets + 256) / 8
	q.aged = false
	coeff := blk.Instant(q.weight / q.ownWeight)
	if w := &q.raise; w.kind == bfqSoft {
		coeff = 1
		if w.changed < b.now && q.lost < b.now {
			// It is raised for a short time, in which it was to be served, and was not.
			w.changed = min(b.now, w.changed+b.now-max(q.lost, w.changed))
		}
	}
	q.timeout = b.now + b.tune.timeout*coeff
}

// serve sends q's next group on its way.
func (b *BFQ) serve(q *bfqQueue) *blk.Request {
	g := q.next
	if g == q.overdue {
		b.counts.Expired++
	}
	q.overdue = nil
	b.counts.LongestWait = max(b.counts.LongestWait, b.now-g.Arrive)
	b.served(q, b.cost(q, g))
	b.dispatched(g)
	b.follow(q, g)
	q.remove(g)
	head := b.give(q, g)
	b.reviewRaise(q)
	if q.class == levelIdle && b.busyQueues() > 1 {
		b.expire(q, bfqExhausted, false)
	}
	return head
}

// cost is what g costs q, in sectors.
func (b *BFQ) cost(q *bfqQueue, g *blk.Request) int64 {
	n := int64(g.Links.Total)
	if q.sync || q.raise.coeff > 1 || b.asymmetric(q) {
		return n
	}
	return n * bfqAsyncCharge
}

// nextChanged sees to it that q's budget is enough for what it serves next. The one
// that has the disk keeps what it was given.
func (b *BFQ) nextChanged(q *bfqQueue) {
	if q.next == nil || q == b.serving {
		return
	}
	if budget := max(q.maxBudget, b.cost(q, q.next), q.service); budget != q.budget {
		q.budget = budget
		b.requeue(q)
	}
}

// completed keeps account of a head of q that has left the disk.
func (b *BFQ) completed(q *bfqQueue) {
	b.sampleDepth()
	b.inDriver--
	q.dispatched--
	b.weigh(q)
	if q.dispatched == 0 && !q.busy {
		q.empty = b.now
	}
	q.completed = b.now
	b.rateCompleted()
	if w := &q.raise; w.softLater && q.dispatched == 0 && q.next == nil && w.coeff != b.tune.raiseTo {
		b.setNextSoft(q)
	}
	if q != b.serving {
		return
	}
	switch {
	case q.next == nil && b.betterToIdle(q):
		if q.dispatched == 0 {
			b.wait(q)
		}
	case b.mayTimeOut(q):
		b.expire(q, bfqTimeout, false)
	case q.next == nil:
		b.expire(q, bfqNoMore, false)
	}
}

// wait begins the wait for q's next request.
func (b *BFQ) wait(q *bfqQueue) {
	d := b.tune.sliceIdle
	switch {
	case q.raise.coeff > 1:
		d = max(d, bfqWaitRaised)
	case q.seeky() && !b.asymmetric(q):
		d = min(d, bfqWaitMin)
	}
	b.waiting, b.waitFrom, b.waitTo = true, b.now, b.now+d
}

// timedOut says whether q has had the disk for long enough. A clock that was put back
// ends the turn.
func (b *BFQ) timedOut(q *bfqQueue) bool { return b.now >= q.timeout || b.now < b.start }

// mayTimeOut says whether that is to end its turn. One that is waited for and has used
// most of its budget is let be: it would lose its place for nothing.
func (b *BFQ) mayTimeOut(q *bfqQueue) bool {
	return b.timedOut(q) && (!b.waiting || q.budget-q.service >= q.budget/3)
}

// betterToIdle says whether the disk should rather wait for q's next request than
// serve somebody else.
func (b *BFQ) betterToIdle(q *bfqQueue) bool {
	if b.tune.strict {
		return true
	}
	if b.tune.sliceIdle == 0 || !q.sync || q.class == levelIdle {
		return false
	}
	return b.boosts(q) || b.needed(q)
}

// boosts says whether idling makes the disk do more, and nobody with a raised weight
// would suffer.
func (b *BFQ) boosts(q *bfqQueue) bool {
	rotational, ncq := b.merger.cfg.Rotational, b.rate.ncq
	stream := !q.seeky() && q.ioBound && q.quick
	return (rotational && !ncq || (rotational || !ncq) && stream) && b.raised == 0
}

// needed says whether q would not get its share without idling.
func (b *BFQ) needed(q *bfqQueue) bool {
	return q.raise.coeff > 1 && (b.raised < b.busyQueues() || b.inDriver >= q.dispatched+4) || b.asymmetric(q)
}

// expire takes the disk from q, which has it. idled says that the time since the wait
// began is not q's.
func (b *BFQ) expire(q *bfqQueue, why bfqReason, idled bool) {
	if slow, length := b.slow(q, idled); q.raise.coeff == 1 &&
		(slow || why == bfqTimeout && q.budget-q.service >= q.budget/3) {
		b.chargeTime(q, length)
	}
	if why == bfqTooIdle && q.service <= 2*q.budget/10 {
		q.ioBound = false
	}
	b.raiseExpired(q)
	b.nextBudget(q, why)

	b.waiting = false
	if q.next == nil && !(why == bfqPreempted && b.needed(q)) {
		if q.dispatched == 0 {
			q.empty = b.now
		}
		b.idle(q, true)
	} else {
		b.requeue(q)
	}
	b.serving, q.lost = nil, b.now
	if !q.busy && why != bfqTimeout && why != bfqExhausted {
		q.awaited = true // with what is left of its budget, if it comes back soon
	} else {
		q.service = 0
	}
	if why == bfqTooIdle || why == bfqNoMore {
		b.counts.EarlyEnds++
	}
}

// idle takes q, which is empty, from the busy ones. serving: and from the disk.
func (b *BFQ) idle(q *bfqQueue, serving bool) {
	q.busy = false
	b.busy[q.class]--
	if q.raise.coeff > 1 {
		b.raised--
	}
	b.deactivate(q)
	if !serving {
		q.awaited = false
		if q.dispatched == 0 {
			q.empty = b.now
		}
	}
	b.weigh(q)
}

// slow says whether q makes so little of its time that it is the time that it should
// pay for, and what that is.
func (b *BFQ) slow(q *bfqQueue, idled bool) (slow bool, length blk.Instant) {
	if !q.sync {
		return false, 0
	}
	length = b.now - b.start
	if idled {
		length = b.waitFrom - b.start
	}
	switch {
	case length >= millisecond:
	case b.merger.cfg.Rotational:
		return q.seeky(), 8 * millisecond // one seek, at least
	default:
		return q.seeky(), bfqWaitMin
	}
	if length > 20*millisecond {
		return q.service < b.rate.budget/2, length
	}
	return q.seeky(), length
}

// chargeTime charges q for what the disk at its best would have done in that time.
func (b *BFQ) chargeTime(q *bfqQueue, length blk.Instant) {
	ms := int64(min(length, bfqCharged) / millisecond)
	charge := max(b.rate.budget*ms/int64(bfqCharged/millisecond), q.service)
	q.budget = max(q.budget, charge)
	b.served(q, charge-q.service)
}

// nextBudget adapts q's budget to how its turn ended.
func (b *BFQ) nextBudget(q *bfqQueue, why bfqReason) {
	least, most := b.budgetMin(), b.rate.budget
	switch {
	case !q.sync:
		q.maxBudget = most
	case q.raise.coeff > 1:
		q.maxBudget = 2 * least
	case why == bfqTimeout, why == bfqTooIdle && q.dispatched > 0:
		q.maxBudget = min(2*q.maxBudget, most)
	case why == bfqTooIdle && q.maxBudget > 5*least:
		q.maxBudget -= 4 * least
	case why == bfqTooIdle:
		q.maxBudget = least
	case why == bfqExhausted:
		q.maxBudget = min(4*q.maxBudget, most)
	case why == bfqNoMore:
		q.maxBudget = max(q.service, least)
	default:
		return // its turn goes on later, with the next budget as it was
	}
	if b.budgets >= bfqBudgetsMin && b.tune.maxBudget == 0 {
		q.maxBudget = min(q.maxBudget, most)
	}
	if q.next != nil {
		q.budget = max(q.maxBudget, b.cost(q, q.next))
	}
}

// budgetMax is the largest budget, budgetMin the smallest that adaption leads to.
func (b *BFQ) budgetMax() int64 {
	if b.budgets < bfqBudgetsMin {
		return bfqBudget
	}
	return b.rate.budget
}

func (b *BFQ) budgetMin() int64 { return b.budgetMax() / 32 }

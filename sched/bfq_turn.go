package sched

import "github.com/elevisor/elevisor/blk"

// bfqReason is why a queue loses the disk.
type bfqReason uint8

const (
	bfqTooIdle   bfqReason = iota // it was waited for in vain
	bfqTimeout                    // it has had the disk for long enough
	bfqExhausted                  // its budget is not enough for its next request
	bfqNoMore                     // it is empty and not waited for
	bfqPreempted                  // another one goes first
)

const (
	bfqBudget = 16384 // sectors: the largest budget until enough is known of the disk
	// bfqBudgetsMin is BFQ.budgets from when on enough is known: after eleven turns.
	bfqBudgetsMin = 194
	// bfqAsyncCharge is what a sector of an asynchronous queue costs.
	bfqAsyncCharge = 3
	// bfqCharged is the longest time that is charged.
	bfqCharged = 125 * millisecond

	bfqWaitMin    = 2 * millisecond  // for a seeky queue
	bfqWaitRaised = 20 * millisecond // at least, for a queue with a raised weight
)

// choose returns the queue that sends its next request, nil if nothing is queued or the
// queue that has the disk is waited for.
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
			// Its weight is raised for a short time only. The time in which it was not
			// served does not count.
			w.changed = min(b.now, w.changed+b.now-max(q.lost, w.changed))
		}
	}
	q.timeout = b.now + b.tune.timeout*coeff
}

// serve dispatches q's next group.
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

// cost is what g is charged to q, in sectors.
func (b *BFQ) cost(q *bfqQueue, g *blk.Request) int64 {
	n := int64(g.Links.Total)
	if q.sync || q.raise.coeff > 1 || b.asymmetric(q) {
		return n
	}
	return n * bfqAsyncCharge
}

// nextChanged makes q's budget large enough for its next request. The queue that has the
// disk keeps its budget.
func (b *BFQ) nextChanged(q *bfqQueue) {
	if q.next == nil || q == b.serving {
		return
	}
	if budget := max(q.maxBudget, b.cost(q, q.next), q.service); budget != q.budget {
		q.budget = budget
		b.requeue(q)
	}
}

// completed is called when a head of q is complete.
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

// wait starts the wait for q's next request.
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

// timedOut reports whether q has had the disk for long enough. A clock that was set back
// ends the turn.
func (b *BFQ) timedOut(q *bfqQueue) bool { return b.now >= q.timeout || b.now < b.start }

// mayTimeOut reports whether a timeout ends q's turn. A queue that is waited for and has
// used most of its budget keeps the disk: it would lose its place for nothing.
func (b *BFQ) mayTimeOut(q *bfqQueue) bool {
	return b.timedOut(q) && (!b.waiting || q.budget-q.service >= q.budget/3)
}

// betterToIdle reports whether the disk should wait for q's next request rather than serve
// another queue.
func (b *BFQ) betterToIdle(q *bfqQueue) bool {
	if b.tune.strict {
		return true
	}
	if b.tune.sliceIdle == 0 || !q.sync || q.class == levelIdle {
		return false
	}
	return b.boosts(q) || b.needed(q)
}

// boosts reports whether idling for q increases the throughput, and no queue with a raised
// weight would suffer.
func (b *BFQ) boosts(q *bfqQueue) bool {
	rotational, ncq := b.merger.cfg.Rotational, b.rate.ncq
	stream := !q.seeky() && q.ioBound && q.quick
	return (rotational && !ncq || (rotational || !ncq) && stream) && b.raised == 0
}

// needed reports whether q needs idling to get its share.
func (b *BFQ) needed(q *bfqQueue) bool {
	return q.raise.coeff > 1 && (b.raised < b.busyQueues() || b.inDriver >= q.dispatched+4) || b.asymmetric(q)
}

// expire takes the disk from q, which has it. idled says that the time since the start of
// the wait is not charged to q.
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
		q.awaited = true // it goes on with the rest of its budget if it comes back soon
	} else {
		q.service = 0
	}
	if why == bfqTooIdle || why == bfqNoMore {
		b.counts.EarlyEnds++
	}
}

// idle makes q, which is empty, not busy. serving says that it has the disk.
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

// slow reports whether q transfers so little in its time that it should be charged for the
// time, and how long that is.
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

// chargeTime charges q what the disk would have transferred at its peak rate in that time.
func (b *BFQ) chargeTime(q *bfqQueue, length blk.Instant) {
	ms := int64(min(length, bfqCharged) / millisecond)
	charge := max(b.rate.budget*ms/int64(bfqCharged/millisecond), q.service)
	q.budget = max(q.budget, charge)
	b.served(q, charge-q.service)
}

// nextBudget adapts q's budget to how its turn has ended.
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
		return // preempted: the next budget stays as it was
	}
	if b.budgets >= bfqBudgetsMin && b.tune.maxBudget == 0 {
		q.maxBudget = min(q.maxBudget, most)
	}
	if q.next != nil {
		q.budget = max(q.maxBudget, b.cost(q, q.next))
	}
}

// budgetMax is the largest budget, budgetMin the smallest that nextBudget leads to.
func (b *BFQ) budgetMax() int64 {
	if b.budgets < bfqBudgetsMin {
		return bfqBudget
	}
	return b.rate.budget
}

func (b *BFQ) budgetMin() int64 { return b.budgetMax() / 32 }

package sched

import "github.com/elevisor/elevisor/blk"

// BFQ gives the disk to one flow at a time, for a budget of sectors, and chooses the
// next flow by B-WF2Q+, so that each gets a share of the disk's throughput by its
// weight. A flow that reads one request after the other is waited for, where that
// pays; flows that look like somebody who waits at a keyboard, or like a player, have
// their weight raised for a while. It behaves as the kernel's BFQ does
// (block/bfq-iosched.c, block/bfq-wf2q.c, of 5.9; Documentation/block/
// bfq-iosched.rst), with flows for its processes and no groups. What is left out, or
// done otherwise, and why:
//
//   - Every request is taken as synchronous, as virtio-blk does not say: writes=async
//     treats writes as the kernel treats write-back, with one queue per class.
//   - Queues of flows that read close to each other are not merged (cooperators, with
//     what splits them again). The kernel does so for processes that share the work on
//     one stream, as the I/O threads of a VM's process; a flow here is the guest's
//     queue itself, or its whole device, and two guests that come close do so by
//     chance, or to get at each other's weight.
//   - No request of others is injected while a flow is waited for, and no waker is
//     looked for. Where idling is for throughput the kernel does not either; where it
//     is for a guarantee, how much may be injected follows from measured service times.
//   - Depth limits for writes: what is admitted is the guests' memory, not ours.
//   - Time is in nanoseconds, not in jiffies.
//   - The eligible queue with the smallest finish is found always. The kernel's search
//     misses it if its way there leads past a node that is not eligible itself.
//   - An interactive queue is not taken for a softly real-time one as well, which has a
//     hundred times the weight, when its next request follows at once. In the kernel
//     every reader is, from its second request on (of 4.11 it was not).
//   - A request that has become next by its age stays it until it is served. In the
//     kernel one that comes and is nearer takes its place, again and again where a
//     flow has several readers, as a whole device has.
//   - A request that is merged moves the place where its flow reads on, too: else the
//     next one would look like a seek.
type BFQ struct {
	merger merger
	knobs  knobs
	tune   bfqTune // the knobs' values, as the code needs them

	flows  flows
	byFlow []bfqFlow
	async  [levelCount]*bfqQueue
	queues []*bfqQueue // all, in the order in which they were made; Links.Place is 1 + index
	retry  blk.List    // served first
	n      int

	classes  [levelCount]bfqClass
	busy     [levelCount]int // queues that have a request or the disk
	raised   int             // of these, with raised weights
	weights  [levelCount]int // queues with something queued or on the disk, whose weight is not raised
	idleTurn blk.Instant     // when the idle class was last let in, or had no need

	serving  *bfqQueue
	start    blk.Instant // of its turn
	budgets  int64       // turns given, smoothed, up to 255
	waiting  bool        // for the next request of serving
	waitFrom blk.Instant
	waitTo   blk.Instant
	inDriver int

	rate  bfqRate
	burst bfqBurst

	now    blk.Instant // newest argument, or when a timer should have fired
	counts Counters
}

// bfqFlow are the queues of one flow, one for each priority class it has used.
type bfqFlow [levelCount]*bfqQueue

func newBFQ(c *Config) *BFQ {
	b := &BFQ{
		merger: merger{cfg: c, within: mergeWithinFlow[flowQueue]},
		knobs:  bfqKnobs(),
		burst:  bfqBurst{last: bfqLongAgo},
	}
	b.rate.init(c.Rotational)
	b.retune()
	return b
}

// Insert implements Scheduler.
func (b *BFQ) Insert(now blk.Instant, r *blk.Request) {
	b.enter(now)
	b.n++
	q := b.queueFor(r)
	g, front := b.merger.insert(r)
	r.Links.Place = q.place
	if g == nil {
		b.enqueue(q, r)
		return
	}
	for {
		kept, gone := b.merger.join(g, front)
		if gone == nil {
			break
		}
		b.joined(q, kept, gone)
		g = kept
	}
	b.grown(q, g, r)
}

// Dispatch implements Scheduler.
func (b *BFQ) Dispatch(now blk.Instant) *blk.Request {
	b.enter(now)
	if g := b.retry.PopFront(); g != nil {
		return b.give(b.queueOf(g), g)
	}
	if b.tune.strict && b.inDriver > 0 {
		// Only so does the disk keep to the order that is chosen here.
		return nil
	}
	q := b.choose()
	if q == nil {
		return nil
	}
	return b.serve(q)
}

// give sends the group that g leads on its way.
func (b *BFQ) give(q *bfqQueue, g *blk.Request) *blk.Request {
	b.n -= int(g.Links.Parts)
	b.inDriver++
	q.dispatched++
	b.weigh(q)
	return b.merger.give(g)
}

// Retry implements Scheduler.
func (b *BFQ) Retry(now blk.Instant, r *blk.Request) {
	b.enter(now)
	q := b.queueFor(r)
	aloneForGood(r)
	r.Links.Place = q.place
	b.n++
	b.retry.PushBack(r)
}

// Complete implements Scheduler.
func (b *BFQ) Complete(now blk.Instant, r *blk.Request) {
	b.enter(now)
	g := r.Links.Leader
	if g == nil {
		return
	}
	b.merger.complete(r)
	b.completed(b.queueOf(g))
}

// Drain implements Scheduler. A queue whose source is stopped is a new one if it
// comes back: nothing is remembered of the guest that was there.
func (b *BFQ) Drain(src blk.Source, out []*blk.Request) []*blk.Request {
	n := len(out)
	out = takeOut(&b.retry, src, out, nil, nil)
	for _, q := range b.queues {
		if q.fifo.Len() > 0 {
			out = b.takeOut(q, src, out)
		}
		if src.Covers(q.source) {
			q.gone = true
		}
	}
	for _, r := range out[n:] {
		r.Source.Stream = 0
	}
	b.n -= len(out) - n
	bySeq(out[n:])
	if q := b.serving; q != nil && q.gone && q.next == nil && q.dispatched == 0 {
		b.expire(q, bfqNoMore, false)
	}
	return out
}

// takeOut takes out what src covers of what q holds.
func (b *BFQ) takeOut(q *bfqQueue, src blk.Source, out []*blk.Request) []*blk.Request {
	gone := false
	out = takeOut(&q.fifo, src, out, func(g *blk.Request) {
		gone = true
		b.merger.forget(g)
		q.sorted.remove(g)
	}, func(r *blk.Request) {
		q.sorted.insert(r)
		b.merger.add(r)
	})
	if gone {
		b.lookAnew(q)
	}
	return out
}

// Wake implements Scheduler. Only the end of the wait for a flow's next request
// changes anything by itself: what a budget's time is for, is looked at whenever
// there is something to do.
func (b *BFQ) Wake() blk.Instant {
	if b.waiting && b.n > 0 {
		return b.waitTo
	}
	return blk.Never
}

// Len implements Scheduler.
func (b *BFQ) Len() int { return b.n }

// enter does what a timer would have done until now: end the wait for a request that
// did not come. A clock that was put back ends it as well.
func (b *BFQ) enter(now blk.Instant) {
	if b.waiting && (now >= b.waitTo || now < b.waitFrom) {
		b.now = min(now, b.waitTo)
		b.waiting = false
		switch q := b.serving; {
		case b.timedOut(q):
			b.expire(q, bfqTimeout, true)
		case q.next == nil:
			b.expire(q, bfqTooIdle, true)
		}
	}
	b.now = now
}

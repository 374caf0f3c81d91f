package sched

import "github.com/elevisor/elevisor/blk"

// BFQ gives the disk to one flow at a time, for a budget of sectors, and chooses the next
// flow by B-WF2Q+, so that each gets a share of the disk's throughput by its weight. A
// flow that sends one request after the other is waited for, where that pays. Flows that
// look interactive, or like soft real-time ones, have their weight raised for a while. It
// behaves like the kernel's BFQ (block/bfq-iosched.c and block/bfq-wf2q.c of 5.9;
// Documentation/block/bfq-iosched.rst), with flows in the place of processes and without
// groups. What is left out or different, and why:
//
//   - All requests are taken for synchronous, as virtio-blk does not tell. With
//     writes=async writes are treated as the kernel treats write-back, with one queue
//     per class.
//   - Queues of flows that read close to each other (cooperators) are not merged, nor
//     split again. The kernel does that for processes that share the work on one stream,
//     like the I/O threads of a VM's process. A flow is the guest's queue itself here, or
//     its whole device; two guests are close by chance, or to get at each other's weight.
//   - No requests of others are injected while a flow is waited for, and wakers are not
//     detected. Where idling is for throughput the kernel does not inject either; where
//     it is for a guarantee, how much may be injected follows from measured service
//     times.
//   - There are no depth limits for writes: what is queued takes the guests' memory,
//     not ours.
//   - Time is in nanoseconds, not in jiffies.
//   - The eligible queue with the smallest finish is always found. The kernel's search
//     misses it if the path to it goes through a node that is not eligible itself.
//   - An interactive queue is not also taken for a soft real-time one, which has a
//     hundred times the weight, when its next request follows at once. In the kernel
//     every reader is, from its second request on (in 4.11 it was not).
//   - A request that has become the next one by its age stays that until it is served.
//     In the kernel a nearer one that comes takes its place, again and again if a flow
//     has several readers, like a whole device.
//   - A request that is merged also moves the position at which its flow goes on;
//     otherwise the next one would look like a seek.
type BFQ struct {
	merger merger
	knobs  knobs
	tune   bfqTune // the knobs' values, as the code needs them

	flows  flows
	byFlow []bfqFlow
	async  [levelCount]*bfqQueue
	queues []*bfqQueue // all, in order of creation; Links.Place is 1 + index
	retry  blk.List    // served first
	n      int

	classes  [levelCount]bfqClass
	busy     [levelCount]int // queues that have a request or the disk
	raised   int             // those of them whose weight is raised
	weights  [levelCount]int // queues with something queued or on the disk whose weight is not raised
	idleTurn blk.Instant     // when the idle class was last served first, or had nothing

	serving  *bfqQueue
	start    blk.Instant // of its turn
	budgets  int64       // number of turns, smoothed, up to 255
	waiting  bool        // for the next request of serving
	waitFrom blk.Instant
	waitTo   blk.Instant
	inDriver int

	rate  bfqRate
	burst bfqBurst

	now    blk.Instant // latest time that was passed, or when a timer should have fired
	counts Counters
}

// bfqFlow are the queues of one flow, one for each priority class that it has used.
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
		// Otherwise the disk might change the order.
		return nil
	}
	q := b.choose()
	if q == nil {
		return nil
	}
	return b.serve(q)
}

// give dispatches the group that g leads.
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

// Drain implements Scheduler. A queue whose source is drained is a new one if it comes
// back: nothing is remembered of the guest that was there.
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

// takeOut removes what src covers from q.
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

// Wake implements Scheduler. By time alone only the wait for a flow's next request ends:
// timeouts of budgets are checked when there is something to do.
func (b *BFQ) Wake() blk.Instant {
	if b.waiting && b.n > 0 {
		return b.waitTo
	}
	return blk.Never
}

// Len implements Scheduler.
func (b *BFQ) Len() int { return b.n }

// enter is called first by all methods that are given the time: it does what a timer would
// have done, and ends the wait for a request that did not come. A clock that was set back
// ends it as well.
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

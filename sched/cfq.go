package sched

import "github.com/elevisor/elevisor/blk"

// CFQ gives each flow the disk for a slice of time in turn. Within a slice it keeps the
// disk idle if the flow's next request is expected soon. It behaves like the kernel's CFQ
// (block/cfq-iosched.c of 4.4; Documentation/block/cfq-iosched.txt), with flows in the
// place of processes (see flows and the knob source).
//
// Deliberate differences:
//
//   - virtio-blk does not say whether somebody waits for a write. All requests are
//     sync, like the kernel's reads and direct writes; writes=async puts the writes of
//     each class into one queue that all flows share.
//   - There are no cgroups, so there is one group. group_idle is left out: with one
//     group the kernel's only keeps a queue active for which it would not idle, and any
//     other request preempts such a queue.
//   - The I/O priority level within a class is always 4: a disk has only a class.
//   - Queues that work closely together on one image (cooperators) share a slice, by
//     handing on the rest of it; the kernel merges them into one queue, and may split
//     that again. Positions on two images are never close: where an image lies on the
//     disk is not always known, and all images start with sector 0.
//   - A new request that finds a slice used up, or its owner empty and not worth
//     waiting for, ends that slice, and its queue waits for its own turn. In the kernel
//     it goes to the front; with more flows than requests on the disk, the last ones to
//     come would be served for ever, and the others never.
//   - A request for a queue that is being waited for goes to the disk at once. The
//     kernel waits for more if it is small and alone, but the block layer above asks for
//     requests at once anyway.
//   - Nothing is merged across flows, shared queue or not.
//   - A disk that is not rotational is taken for one with a queue of its own (NCQ): it
//     is never kept idle.
type CFQ struct {
	cfg    *Config
	merger merger
	knobs  knobs
	flows  flows
	retry  blk.List // served first

	// queues are, by class, first the shared ones of async writes and then those of the
	// flows, at levelCount*(1+flow) + class. nil: not seen.
	queues []*cfqQueue
	trees  [levelCount][cfqKinds]serviceTree
	near   [levelCount]tree // the sync queues with requests, by the position of their next

	busy     int             // queues in trees
	busySync int             // those of flows
	average  [levelCount]int // of busy, smoothed

	// What is being served: one kind of queues for some time, and of these one queue for
	// a slice.
	class, kind int
	until       blk.Instant
	active      *cfqQueue
	slice       cfqSlice

	inflight [2]int     // heads on the disk; 1: sync
	head     blk.Sector // where the last one dispatched ends, on the disk
	headKey  blk.Sector // the same in its image, as placeKey
	headOn   *blk.Disk

	delayed blk.Instant // last completion of a sync request that took too long
	last    blk.Instant // latest time that was passed: Wake, Describe and Set are given none
	leaders int         // in the queues
	queued  int         // guest requests, including those to retry
	counts  Counters
}

// cfqSlice is the slice of the active queue.
type cfqSlice struct {
	fresh      bool // nothing of the queue has completed yet: its time does not run
	start, end blk.Instant
	served     int  // heads dispatched
	fifoAsked  bool // the oldest request was checked for its expiry, once in a slice
	must       bool // a small request has ended the idling: it is let through
	idling     bool
	idleSince  blk.Instant
}

func newCFQ(c *Config) *CFQ {
	s := &CFQ{
		cfg: c, merger: merger{cfg: c, within: mergeWithinFlow[flowQueue]}, knobs: cfqKnobs(c.Rotational),
		class: levelIdle, delayed: -1000 * millisecond,
	}
	for class := range levelCount {
		s.queues = append(s.queues, newCFQQueue(class, class, false))
	}
	return s
}

// Insert implements Scheduler.
func (c *CFQ) Insert(now blk.Instant, r *blk.Request) {
	c.last = now
	c.tick(now)
	q := c.queueFor(r, now)
	c.queued++
	g, front := c.merger.insert(r)
	r.Links.Place = int32(q.index) + 1
	if g != nil {
		c.grown(q, g, front)
		return
	}
	c.enqueue(q, r)
	if q.tree == nil {
		c.enterTree(q, now)
	}
	c.observe(now, q, r)
	switch {
	case q != c.active:
		c.challenge(now, q, r)
	case c.slice.idling:
		c.slice.idling = false
		c.slice.must = c.busy == 1 && r.Bytes() <= 4096
	}
}

// queueFor returns the queue of r, which is being inserted.
func (c *CFQ) queueFor(r *blk.Request, now blk.Instant) *cfqQueue {
	flow, fresh := c.flows.of(r)
	class := levelOf(r.Prio)
	if c.knobs[cfqWrites].value == writesAsync && r.Op.Changes() {
		return c.queues[class]
	}
	i := levelCount*(1+flow) + class
	for i >= len(c.queues) {
		c.queues = append(c.queues, nil)
	}
	q := c.queues[i]
	if q == nil {
		q = newCFQQueue(i, class, true)
		c.queues[i] = q
		fresh = true
	}
	if fresh {
		q.reset(now)
	}
	return q
}

// queueOf returns the queue that r was inserted into.
func (c *CFQ) queueOf(r *blk.Request) *cfqQueue { return c.queues[r.Links.Place-1] }

// Dispatch implements Scheduler.
func (c *CFQ) Dispatch(now blk.Instant) *blk.Request {
	c.last = now
	if g := c.retry.PopFront(); g != nil {
		return c.give(c.queueOf(g), g)
	}
	c.tick(now)
	q := c.choose(now)
	if q == nil || !c.may(q, now) {
		return nil
	}
	g := q.next
	if !c.slice.fifoAsked {
		c.slice.fifoAsked = true
		if oldest := q.fifo.Front(); oldest.Arrive+c.expiry(q.sync) <= now {
			g = oldest
			c.counts.Expired++
		}
	}
	c.counts.LongestWait = max(c.counts.LongestWait, now-g.Arrive)
	next := c.backSeek().after(&q.sorted, g)
	c.dequeue(q, g)
	q.next = next
	c.settle(q)
	head := c.give(q, g)
	c.slice.served++
	c.slice.must = false
	if c.busy > 1 && (q.class == levelIdle || !q.sync && c.slice.served >= asyncRounds*int(c.knobs[sliceAsyncRq].value)) {
		c.expire(now, false)
	}
	return head
}

// asyncRounds times slice_async_rq is how many requests a shared queue may send in one
// slice: 2 for each priority level from the lowest, 7, to ours, 4 (cfq_prio_to_maxrq).
const asyncRounds = 2 * (8 - 4)

// give dispatches the group that g leads.
func (c *CFQ) give(q *cfqQueue, g *blk.Request) *blk.Request {
	c.queued -= int(g.Links.Parts)
	q.inflight++
	c.inflight[asInt(q.sync)]++
	head := c.merger.give(g)
	c.head, c.headOn = head.Pos+g.Links.Total, head.Disk
	c.headKey = placeKey(head.Disk, groupEnd(g))
	return head
}

// Retry implements Scheduler.
func (c *CFQ) Retry(now blk.Instant, r *blk.Request) {
	q := c.queueFor(r, now)
	aloneForGood(r)
	r.Links.Place = int32(q.index) + 1
	c.queued++
	c.retry.PushBack(r)
}

// Complete implements Scheduler.
func (c *CFQ) Complete(now blk.Instant, r *blk.Request) {
	c.last = now
	g := r.Links.Leader
	if !c.merger.complete(r) {
		return
	}
	q := c.queueOf(r)
	q.inflight--
	c.inflight[asInt(q.sync)]--
	if q.sync {
		q.ended = now
		c.treeOf(q).ended = now
		if g.Arrive+c.expiry(true) <= now {
			c.delayed = now
		}
	}
	if q != c.active {
		return
	}
	if c.slice.fresh {
		c.slice.fresh, c.slice.start, c.slice.end = false, now, now+c.length(q)
	}
	switch {
	case c.used(now) || q.class == levelIdle:
		c.expire(now, true)
	case q.sync && q.next == nil && c.cooperator(q) == nil:
		c.idle(now, q)
	}
}

// Wake implements Scheduler: the end of the time for which the disk is kept idle, or of a
// slice, if something is queued.
func (c *CFQ) Wake() blk.Instant {
	if c.leaders == 0 || c.retry.Len() > 0 || c.active == nil {
		return blk.Never
	}
	wake := blk.Never
	soon := func(t blk.Instant) {
		if t > c.last {
			wake = min(wake, t)
		}
	}
	if !c.slice.fresh {
		soon(c.slice.end)
	}
	if c.slice.idling {
		soon(c.slice.idleSince + c.ms(sliceIdle))
	}
	if q := c.active; !q.sync && q.next != nil && c.knobs[lowLatency].value != 0 {
		soon(c.delayed + blk.Instant(q.inflight+1)*c.ms(sliceSync))
	}
	return wake
}

// Len implements Scheduler.
func (c *CFQ) Len() int { return c.queued }

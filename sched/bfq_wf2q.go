package sched

// B-WF2Q+ (block/bfq-wf2q.c; Valente and Avanzini, MST 2015): the queues of a class share
// a virtual time, which advances by the service they get, divided by the sum of their
// weights. A queue's virtual finish is its virtual start plus its budget divided by its
// weight. Of the queues that are eligible, because their start is not in the future, the
// one with the smallest finish is served.

const (
	// bfqShift keeps fractions of virtual time: one sector at weight 1 is 1 << bfqShift.
	// Virtual times wrap, and are compared by their difference.
	bfqShift = 22
	// bfqIdleEvery is how long the idle class may go without service.
	bfqIdleEvery = 200 * millisecond
)

// bfqWeights are those of I/O priority level 4, and of 7 in the idle class: 10 * (8 - level).
var bfqWeights = [levelCount]int64{levelRT: 40, levelBE: 40, levelIdle: 10}

// bfqEntity is the part of a queue that the service tree of its class uses.
type bfqEntity struct {
	start, finish uint64 // virtual
	weight        int64  // in use: ownWeight times a coefficient
	ownWeight     int64
	budget        int64 // sectors, of this turn
	service       int64 // of these, used

	on      *bfqTree // active or idle; nil: neither
	counted bool     // in the class's sum of weights: on a tree, or being served
	weighed bool     // counted in BFQ.weights

	// Node of the tree.
	child    [2]*bfqQueue
	earliest uint64 // start in the subtree
	order    uint64 // of insertion: sorts equal finishes
	rank     uint32 // larger ones are higher in the tree
}

// bfqClass is the service tree of a priority class (struct bfq_service_tree).
type bfqClass struct {
	active bfqTree // queues with requests, but not the one that has the disk
	idle   bfqTree // empty queues that are ahead of the virtual time: not forgotten yet
	time   uint64  // virtual
	sum    int64   // of the weights of all on the trees, and of the one that is served
}

// after reports whether virtual time a is after b.
func after(a, b uint64) bool { return int64(a-b) > 0 }

// virtual is the virtual time that service, in sectors, takes at that weight.
func virtual(service, weight int64) uint64 { return uint64(service) << bfqShift / uint64(weight) }

// activate makes q active, which has something queued after having had nothing. If it is
// awaited, its place is as if it had never been away.
func (b *BFQ) activate(q *bfqQueue) {
	c := &b.classes[q.class]
	from, shifted := c.time, q.awaited && after(c.time, q.finish)
	if shifted {
		from = q.finish
	}
	if q.on != nil {
		q.on.remove(q)
		if after(q.finish, from) {
			from = q.finish
		}
	} else {
		c.sum += q.weight
		q.counted = true
	}
	q.start = from
	b.place(q, shifted)
}

// place inserts q into the active tree by its start and its budget. If q was shifted back
// so far that its finish is in the past, it is shifted forward again, or it could lag
// behind for ever; with a raised weight only by a part of that.
func (b *BFQ) place(q *bfqQueue, shifted bool) {
	c := &b.classes[q.class]
	b.reweigh(q)
	q.finish = q.start + virtual(q.budget, q.weight)
	if shifted && after(c.time, q.finish) {
		d := (c.time - q.finish) / uint64(q.raise.coeff)
		q.start += d
		q.finish += d
	}
	c.active.insert(q)
}

// requeue puts q, which is not idle, where it belongs: it had the disk, or its budget has
// changed.
func (b *BFQ) requeue(q *bfqQueue) {
	if q == b.serving {
		q.finish = q.start + virtual(q.service, q.weight)
		q.start = q.finish
	} else {
		q.on.remove(q)
	}
	b.place(q, false)
}

// deactivate makes q idle, which was active or had the disk. It is remembered while it is
// ahead of its class.
func (b *BFQ) deactivate(q *bfqQueue) {
	c := &b.classes[q.class]
	if q.on != nil {
		q.on.remove(q) // first, as it is found there by finish
	}
	q.finish = q.start + virtual(q.service, q.weight)
	if q != b.serving {
		q.service = 0
	}
	if after(q.finish, c.time) {
		c.idle.insert(q)
	} else {
		c.forget(q)
	}
}

func (c *bfqClass) forget(q *bfqQueue) {
	c.sum -= q.weight
	q.counted = false
}

// forgetQueue forgets q, which is not busy, although it may be ahead of its class.
func (b *BFQ) forgetQueue(q *bfqQueue) {
	if q.on != nil {
		q.on.remove(q)
		b.classes[q.class].forget(q)
	}
	b.leaveBurst(q)
}

// served charges q for sectors of service.
func (b *BFQ) served(q *bfqQueue, sectors int64) {
	if q.raise.coeff > 1 {
		q.raise.service += sectors
	}
	q.raise.sinceIdle += sectors
	q.service += sectors
	c := &b.classes[q.class]
	c.time += virtual(sectors, c.sum)
	c.age()
}

// age forgets an idle queue that the class has caught up with. One at a time is enough.
func (c *bfqClass) age() {
	first := c.idle.edge(0)
	if first == nil {
		return
	}
	if c.active.root == nil {
		if last := c.idle.edge(1); !after(last.finish, c.time) {
			c.time = last.finish
		}
	}
	if !after(first.finish, c.time) {
		c.idle.remove(first)
		c.forget(first)
	}
}

// pick removes the queue to serve next from the active ones: of the first class that has
// any, or of the idle class if that has waited too long. nil: nothing is queued.
func (b *BFQ) pick() *bfqQueue {
	from := 0
	if b.idleTurn+bfqIdleEvery < b.now || b.idleTurn > b.now {
		if b.classes[levelIdle].active.root != nil {
			from = levelIdle
		}
		b.idleTurn = b.now
	}
	for i := from; i < levelCount; i++ {
		c := &b.classes[i]
		root := c.active.root
		if root == nil {
			continue
		}
		if after(root.earliest, c.time) { // nobody is eligible: advance to the first who will be
			c.time = root.earliest
			c.age()
		}
		q := c.active.first(c.time)
		c.active.remove(q)
		return q
	}
	return nil
}

// reweigh puts the weight that q should have now in use.
func (b *BFQ) reweigh(q *bfqQueue) {
	w := q.ownWeight * q.raise.coeff
	if w == q.weight {
		return
	}
	if q.counted {
		b.classes[q.class].sum += w - q.weight
	}
	q.weight = w
	b.weigh(q)
}

// weigh updates BFQ.weights for q.
func (b *BFQ) weigh(q *bfqQueue) {
	if is := (q.busy || q.dispatched > 0) && q.weight == q.ownWeight; is != q.weighed {
		q.weighed = is
		b.weights[q.class] += 2*asInt(is) - 1
	}
}

// asymmetric reports whether q may be due more than another queue, so that its share is
// safe only while nobody else has the disk.
func (b *BFQ) asymmetric(q *bfqQueue) bool {
	rt, be, idle := b.busy[levelRT] > 0, b.busy[levelBE] > 0, b.busy[levelIdle] > 0
	if rt && be || rt && idle || be && idle {
		return true
	}
	// Of the weights in use only the idle class's differs.
	light, heavy := b.weights[levelIdle] > 0, b.weights[levelRT]+b.weights[levelBE] > 0
	return light && heavy && !(q.weighed && q.class == levelIdle)
}

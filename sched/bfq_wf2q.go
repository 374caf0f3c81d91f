package sched

// B-WF2Q+ (block/bfq-wf2q.c; Valente and Avanzini, MST 2015): the queues of a class
// share a virtual time, which goes on with the service they get, divided by the sum of
// their weights. Of those whose virtual start is not in the future the one with the
// smallest virtual finish is served, the start and its budget divided by its weight.

const (
	// bfqShift keeps fractions of virtual time: one sector at weight 1 is 1 << bfqShift.
	// Times wrap, and are compared by their difference.
	bfqShift = 22
	// bfqIdleEvery is how long the idle class may go without service.
	bfqIdleEvery = 200 * millisecond
)

// bfqWeights are those of I/O priority 4, and 7 in the idle class: 10 * (8 - priority).
var bfqWeights = [levelCount]int64{levelRT: 40, levelBE: 40, levelIdle: 10}

// bfqEntity is what of a queue its class deals with.
type bfqEntity struct {
	start, finish uint64 // virtual
	weight        int64  // in use: ownWeight, times the coefficient that was raised to
	ownWeight     int64
	budget        int64 // sectors, of this turn
	service       int64 // of these, used

	on      *bfqTree // active or idle; nil: neither
	counted bool     // in the class's sum of weights: on a tree, or being served
	weighed bool     // in BFQ.weights

	// Its place in the tree.
	child    [2]*bfqQueue
	earliest uint64 // start in the subtree
	order    uint64 // of insertion: decides where finishes are equal
	rank     uint32 // larger ones are higher
}

// bfqClass is a service tree of the kernel.
type bfqClass struct {
	active bfqTree // have requests, and not the disk
	idle   bfqTree // have none, but are ahead of the virtual time: are not forgotten yet
	time   uint64
	sum    int64 // of the weights of all on the trees, and of the one that is served
}

// after compares virtual times.
func after(a, b uint64) bool { return int64(a-b) > 0 }

// virtual is the time that service, in sectors, takes at that weight.
func virtual(service, weight int64) uint64 { return uint64(service) << bfqShift / uint64(weight) }

// activate gives q, which has something queued after having had nothing, a place
// among the active: as if it had never left, if it is awaited.
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

// place puts q among the active, by its start and its budget. If they have been
// shifted back, they are not shifted to before what the class has reached already, or
// q would go on and on at its old time; where the weight is raised, by a part of that
// only.
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

// requeue puts q, which is not idle, where it belongs: it had the disk, or another
// budget.
func (b *BFQ) requeue(q *bfqQueue) {
	if q == b.serving {
		q.finish = q.start + virtual(q.service, q.weight)
		q.start = q.finish
	} else {
		q.on.remove(q)
	}
	b.place(q, false)
}

// deactivate takes q from the active, or from the disk. It is remembered while it is
// ahead of its class.
func (b *BFQ) deactivate(q *bfqQueue) {
	c := &b.classes[q.class]
	if q.on != nil {
		q.on.remove(q) // first: its place there follows from finish
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

// forgetQueue forgets q, which is not busy, whatever it is ahead of.
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

// age forgets an idle queue that the class has caught up with: one at a time, there
// come no more than that.
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

// pick takes the queue to serve next from the active ones: of the first class that
// has any, or of the idle class if it has waited for long. nil: nobody wants anything.
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
		if after(root.earliest, c.time) { // nobody is eligible: up to the first who will be
			c.time = root.earliest
			c.age()
		}
		q := c.active.first(c.time)
		c.active.remove(q)
		return q
	}
	return nil
}

// reweigh makes the weight that q has by now the one in use.
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

// weigh keeps account of the weights of those that have something to do and are not
// raised: whether they differ.
func (b *BFQ) weigh(q *bfqQueue) {
	if is := (q.busy || q.dispatched > 0) && q.weight == q.ownWeight; is != q.weighed {
		q.weighed = is
		b.weights[q.class] += 2*asInt(is) - 1
	}
}

// asymmetric says whether q is to get more than somebody else, so that its share is
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

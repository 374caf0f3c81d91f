package sched

// bfqTree holds queues sorted by finish, and those with equal ones in the order in which
// they came. It knows the earliest start of each subtree, so that the first eligible queue
// is found in as many steps as the tree is high. It is a treap (Seidel and Aragon 1996);
// its ranks come from a generator of its own, so that one history gives one tree. The zero
// value is empty.
type bfqTree struct {
	root *bfqQueue
	came uint64
}

func (t *bfqTree) insert(q *bfqQueue) {
	t.came++
	q.on, q.order, q.rank = t, t.came, uint32(t.came*0x9e3779b97f4a7c15>>32)
	q.rank = (q.rank ^ q.rank>>15) * 0x85ebca6b // to mix them better
	low, high := bfqSplit(t.root, q)
	q.child = [2]*bfqQueue{}
	q.pull()
	t.root = bfqJoin(bfqJoin(low, q), high)
}

// remove removes q, which is in t.
func (t *bfqTree) remove(q *bfqQueue) {
	t.root = bfqWithout(t.root, q)
	q.on, q.child = nil, [2]*bfqQueue{}
}

// edge returns the queue with the smallest (side 0) or the largest finish (side 1), nil if
// t is empty.
func (t *bfqTree) edge(side int) *bfqQueue {
	x := t.root
	for x != nil && x.child[side] != nil {
		x = x.child[side]
	}
	return x
}

// first returns the queue with the smallest finish among those with a start up to time.
func (t *bfqTree) first(time uint64) *bfqQueue {
	for x := t.root; x != nil; {
		switch l := x.child[0]; {
		case l != nil && !after(l.earliest, time):
			x = l
		case !after(x.start, time):
			return x
		default:
			x = x.child[1]
		}
	}
	return nil
}

// before reports whether q is sorted before x.
func (q *bfqQueue) before(x *bfqQueue) bool {
	if q.finish != x.finish {
		return after(x.finish, q.finish)
	}
	return q.order < x.order
}

// pull computes earliest from the children.
func (q *bfqQueue) pull() {
	q.earliest = q.start
	for _, c := range q.child {
		if c != nil && after(q.earliest, c.earliest) {
			q.earliest = c.earliest
		}
	}
}

// bfqSplit splits a tree into what is sorted before q and what is sorted after it.
func bfqSplit(x, q *bfqQueue) (low, high *bfqQueue) {
	if x == nil {
		return nil, nil
	}
	if x.before(q) {
		x.child[1], high = bfqSplit(x.child[1], q)
		low = x
	} else {
		low, x.child[0] = bfqSplit(x.child[0], q)
		high = x
	}
	x.pull()
	return low, high
}

// bfqJoin joins two trees, all of low being sorted before all of high.
func bfqJoin(low, high *bfqQueue) *bfqQueue {
	switch {
	case low == nil:
		return high
	case high == nil:
		return low
	case low.rank > high.rank:
		low.child[1] = bfqJoin(low.child[1], high)
		low.pull()
		return low
	}
	high.child[0] = bfqJoin(low, high.child[0])
	high.pull()
	return high
}

// bfqWithout returns x without q.
func bfqWithout(x, q *bfqQueue) *bfqQueue {
	if x == q {
		return bfqJoin(x.child[0], x.child[1])
	}
	side := asInt(x.before(q))
	x.child[side] = bfqWithout(x.child[side], q)
	x.pull()
	return x
}

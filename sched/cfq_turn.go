package sched

import (
	"math/bits"

	"github.com/elevisor/elevisor/blk"
)

// The kinds of queues of a class. Each has a service tree, and a share of the time.
const (
	kindSync   = iota // sync, and worth idling for
	kindNoIdle        // sync, but not worth it
	kindAsync
	cfqKinds
)

var cfqKindNames = [cfqKinds]string{"sync", "sync-noidle", "async"}

// serviceTree holds the queues of one kind that are busy: those with requests, and
// the active one. The first is served next.
type serviceTree struct {
	tree
	n     int
	ended blk.Instant // last completion of one of its queues
	think thinkTime   // of its queues together
}

func (t *serviceTree) first() *cfqQueue { return queueAt(t.end(0)) }

// queueAt returns the queue of a node.
func queueAt(node *blk.Request) *cfqQueue {
	if node == nil {
		return nil
	}
	return node.Slot.(*cfqQueue)
}

// The key of a queue in its tree is an Instant, which may be negative.
const keySign = 1 << 63

func treeKey(t blk.Instant) blk.Sector         { return blk.Sector(uint64(t) ^ keySign) }
func (q *cfqQueue) key() (t blk.Instant)       { return blk.Instant(uint64(q.turn.Links.Key) ^ keySign) }
func (c *CFQ) treeOf(q *cfqQueue) *serviceTree { return &c.trees[q.class][q.kind()] }
func (c *CFQ) ms(knob int) blk.Instant         { return blk.Instant(c.knobs[knob].value) * millisecond }
func (c *CFQ) used(now blk.Instant) bool       { return !c.slice.fresh && now >= c.slice.end }
func (c *CFQ) busyOf(class int) (n int) {
	for kind := range c.trees[class] {
		n += c.trees[class][kind].n
	}
	return n
}

// kind is the kind of q now. It may still be in the tree of another kind.
func (q *cfqQueue) kind() int {
	switch {
	case q.class == levelIdle: // which has one tree for all
		return kindSync
	case !q.sync:
		return kindAsync
	case !q.idles:
		return kindNoIdle
	}
	return kindSync
}

const (
	idleDelay  = 200 * millisecond  // between the turns of two queues of the idle class
	frontAhead = 1000 * millisecond // how much earlier than the first one's a preempting queue's turn is
	workMin    = 2 * millisecond    // of a kind's share of the time; two jiffies in the kernel
)

// enterTree makes q busy.
func (c *CFQ) enterTree(q *cfqQueue, now blk.Instant) {
	c.busy++
	c.busySync += asInt(q.sync)
	c.place(q, now)
}

// leaveTree makes q not busy.
func (c *CFQ) leaveTree(q *cfqQueue) {
	c.unplace(q)
	c.busy--
	c.busySync -= asInt(q.sync)
}

// place sorts q, which is busy, by when its turn is: sooner with longer slices and with
// more left of its last slice.
func (c *CFQ) place(q *cfqQueue, now blk.Instant) {
	var key blk.Instant
	if q.class == levelIdle {
		key = now + idleDelay
		if t := &c.trees[levelIdle][kindSync]; t.n > 0 && t.end(1) != &q.turn {
			key = queueAt(t.end(1)).key() + idleDelay
		}
	} else {
		most := c.ms(sliceSync) + c.ms(sliceSync)/5*4 // what a queue of level 0 would get
		key = now + blk.Instant(c.busy-1)*(most-c.base(q)) - q.left
		q.left = 0
	}
	c.placeAt(q, key)
}

func (c *CFQ) placeAt(q *cfqQueue, key blk.Instant) {
	c.unplace(q)
	q.tree = c.treeOf(q)
	q.turn.Links.Key = treeKey(key)
	q.tree.insert(&q.turn)
	q.tree.n++
}

func (c *CFQ) unplace(q *cfqQueue) {
	if q.tree != nil {
		q.tree.remove(&q.turn)
		q.tree.n--
		q.tree = nil
	}
}

// placeFirst gives q the next turn.
func (c *CFQ) placeFirst(q *cfqQueue, now blk.Instant) {
	key := now
	if first := c.treeOf(q).first(); first != nil {
		key = first.key()
	}
	c.placeAt(q, key-frontAhead)
}

// base is the length of q's slices without low_latency.
func (c *CFQ) base(q *cfqQueue) blk.Instant {
	if q.sync {
		return c.ms(sliceSync)
	}
	return c.ms(sliceAsync)
}

// length is the length of q's slice: with low_latency scaled down so that all busy queues
// get theirs within target_latency (cfq_scaled_cfqq_slice), but enough for idling twice.
func (c *CFQ) length(q *cfqQueue) blk.Instant {
	slice, sync := c.base(q), c.ms(sliceSync)
	if c.knobs[lowLatency].value == 0 {
		return slice
	}
	was, busy := c.average[q.class], c.busyOf(q.class)
	n := (3*max(was, busy) + min(was, busy) + 2) / 4
	c.average[q.class] = n
	if all, target := sync*blk.Instant(n), c.ms(targetLatency); all > target {
		least := min(slice, scale(2*c.ms(sliceIdle), slice, sync))
		slice = max(scale(slice, target, all), least)
	}
	return slice
}

// scale is t*by/of without overflow on the way; of > 0.
func scale(t, by, of blk.Instant) blk.Instant {
	high, low := bits.Mul64(uint64(t), uint64(by))
	if high >= uint64(of)/2 { // the result would not fit
		return blk.Never
	}
	q, _ := bits.Div64(high, low, uint64(of))
	return blk.Instant(q)
}

// enter makes the next queue active and returns it, nil if none is busy.
func (c *CFQ) enter(now blk.Instant) *cfqQueue {
	c.chooseKind(now)
	q := c.trees[c.class][c.kind].first()
	if q != nil {
		c.active, c.slice = q, cfqSlice{fresh: true}
		c.counts.Slices++
	}
	return q
}

// chooseKind sets class and kind: the highest busy class, and in it the present kind until
// its time is over, then the kind of the queue whose turn is first
// (choose_wl_class_and_type).
func (c *CFQ) chooseKind(now blk.Instant) {
	was := c.class
	for c.class = levelRT; c.class < levelIdle && c.busyOf(c.class) == 0; {
		c.class++
	}
	if c.class == levelIdle {
		c.kind = kindSync
		return
	}
	if c.class == was && c.trees[c.class][c.kind].n > 0 && now <= c.until {
		return
	}
	first := (*cfqQueue)(nil)
	for kind := range c.trees[c.class] {
		if q := c.trees[c.class][kind].first(); q != nil && (first == nil || q.key() < first.key()) {
			first, c.kind = q, kind
		}
	}
	c.until = now + c.share()
}

// share is how long the chosen kind is served.
func (c *CFQ) share() blk.Instant {
	target, n := c.ms(targetLatency), blk.Instant(c.trees[c.class][c.kind].n)
	t := target * n / blk.Instant(max(c.average[c.class], c.busyOf(c.class)))
	if c.kind == kindAsync {
		t = min(t, target*blk.Instant(c.busy-c.busySync)/blk.Instant(c.busy))
		t = scale(t, c.ms(sliceAsync), c.ms(sliceSync))
	} else {
		t = max(t, 2*c.ms(sliceIdle))
	}
	return max(t, workMin)
}

// expire ends the active queue's slice. If carry is set, the rest of it, or what it took
// too much, counts for its next turn.
func (c *CFQ) expire(now blk.Instant, carry bool) {
	q := c.active
	switch {
	case !carry:
	case c.slice.fresh:
		q.left = c.length(q)
	default:
		q.left = c.slice.end - now
	}
	if q.next == nil && (c.slice.fresh || now < c.slice.end) {
		c.counts.EarlyEnds++
	}
	c.active, c.slice = nil, cfqSlice{}
	c.resort(q, now)
}

// resort puts q, which is no longer active, where it belongs among the busy queues, or
// takes it from them if it is empty.
func (c *CFQ) resort(q *cfqQueue, now blk.Instant) {
	switch {
	case q.tree == nil:
	case q.next == nil:
		c.leaveTree(q)
	default:
		c.place(q, now)
	}
}

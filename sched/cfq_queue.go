package sched

import (
	"math/bits"

	"github.com/elevisor/elevisor/blk"
)

// cfqQueue holds what one flow wants in one class, or the async writes of all.
type cfqQueue struct {
	index, class int
	sync         bool // of a flow

	fifo   blk.List     // leaders, the oldest first
	sorted tree         // the same, by place on the disk
	next   *blk.Request // of them, what is served next; nil: there is none

	inflight int // heads on the disk

	// The queue's places in a service tree, by when it is served, and among the
	// near ones, by where next begins. A tree holds requests; these two are never
	// anything but nodes, and their Slot is the queue.
	turn, spot blk.Request
	tree       *serviceTree // nil: not busy
	spotted    bool         // spot is in a tree
	left       blk.Instant  // of its last slice; negative: it took more than that

	// What is known of the flow.
	idles bool // it may be worth idling for its next request
	deep  bool // it has had several requests at a time since idling last failed
	seeks uint32
	seen  bool
	end   blk.Sector // of its last request
	think thinkTime
}

func newCFQQueue(index, class int, sync bool) *cfqQueue {
	q := &cfqQueue{index: index, class: class, sync: sync}
	q.turn.Slot, q.spot.Slot = q, q
	return q
}

// meet forgets what is known of the flow: another one has its number now.
func (q *cfqQueue) meet(now blk.Instant) {
	q.idles, q.deep, q.seeks, q.seen = q.class != levelIdle, false, 0, false
	q.think = thinkTime{end: now}
}

func (q *cfqQueue) direction() int {
	if q.sync {
		return 1
	}
	return 0
}

// thinkTime is how long it takes from a completion to the next request, as a moving
// average over about eight of them (__cfq_update_io_thinktime), in fixed point.
type thinkTime struct {
	end         blk.Instant // last completion
	samples     int64
	total, mean blk.Instant
}

const thinkScale = 256

// note takes in that a request has come. More than twice slice_idle is as good as
// for ever.
func (t *thinkTime) note(now, idle blk.Instant) {
	took := max(0, min(now-t.end, 2*idle))
	t.samples = (7*t.samples + thinkScale) / 8
	t.total = (7*t.total + thinkScale*took) / 8
	t.mean = (t.total + thinkScale/2) / blk.Instant(t.samples)
}

// known says whether there have been requests enough to tell.
func (t *thinkTime) known() bool { return t.samples > 80 }

// The kernel's bounds.
const (
	seekFar   = 800  // sectors from the last request's end to the next: a seek
	seekSmall = 64   // without a head to move: what is smaller counts as one
	seeksMany = 4    // of the last 32 requests: seeky
	closeBy   = 8192 // sectors: as good as the next request of the active queue
	deepFrom  = 4    // requests queued
)

func (q *cfqQueue) seeky() bool { return bits.OnesCount32(q.seeks) > seeksMany }

// observe learns from r, which has been queued.
func (c *CFQ) observe(now blk.Instant, q *cfqQueue, r *blk.Request) {
	idle := c.ms(sliceIdle)
	if q.sync {
		q.think.note(now, idle)
		q.tree.think.note(now, idle)
	}
	seek := q.seen && distance(q.end, r.Pos) > seekFar
	if !c.cfg.Rotational {
		seek = r.Sectors < seekSmall
	}
	q.seeks <<= 1
	if seek {
		q.seeks |= 1
	}
	q.seen, q.end = true, r.Pos+r.Sectors
	if !q.sync || q.class == levelIdle {
		return
	}
	if q.fifo.Len() >= deepFrom {
		q.deep = true
	}
	switch {
	case idle == 0 || !q.deep && q.seeky():
		q.idles = false
	case q.think.known():
		q.idles = q.think.mean <= idle
	}
}

func distance(a, b blk.Sector) blk.Sector { return max(a, b) - min(a, b) }

// enqueue takes in a leader that is younger than all others of q.
func (c *CFQ) enqueue(q *cfqQueue, g *blk.Request) {
	q.fifo.PushBack(g)
	q.sorted.insert(g)
	c.leaders++
	q.next = nearest(q.next, g, c.head, c.knobs)
	c.settle(q)
}

// dequeue takes a leader out. The caller gives q another next and settles it.
func (c *CFQ) dequeue(q *cfqQueue, g *blk.Request) {
	q.fifo.Remove(g)
	q.sorted.remove(g)
	c.leaders--
}

// grown does what a merge into the group that g leads has made necessary.
func (c *CFQ) grown(q *cfqQueue, g *blk.Request, front bool) {
	for {
		kept, gone := c.merger.join(g, front)
		if gone == nil {
			break
		}
		c.dequeue(q, gone)
		if q.next == gone {
			q.next = kept
		}
		g = kept
	}
	if key := g.Links.First.Pos; key != g.Links.Key {
		q.sorted.remove(g)
		g.Links.Key = key
		q.sorted.insert(g)
		q.next = nearest(q.next, g, c.head, c.knobs)
	}
	c.settle(q)
}

// settle keeps q's place among the near queues: that of its next request.
func (c *CFQ) settle(q *cfqQueue) {
	if !q.sync || q.class == levelIdle {
		return
	}
	t := &c.near[q.class]
	if q.next == nil {
		if q.spotted {
			t.remove(&q.spot)
			q.spotted = false
		}
		return
	}
	key := placeKey(q.next.Disk, q.next.Links.Start)
	switch {
	case !q.spotted:
	case q.spot.Links.Key == key:
		return
	default:
		t.remove(&q.spot)
	}
	q.spot.Links.Key, q.spotted = key, true
	t.insert(&q.spot)
}

// placeKey sorts places by image, then by sector. Images so large that they overlap
// cost a cooperator, nothing more.
func placeKey(d *blk.Disk, at blk.Sector) blk.Sector { return blk.Sector(d.Index)<<48 + at }

// after is what is served next when g, which is still there, is gone: its neighbour
// on one side or the other.
func (q *cfqQueue) after(g *blk.Request, ks knobs) *blk.Request {
	next, prev := q.sorted.beside(g, 1), q.sorted.beside(g, 0)
	if next == nil {
		if next = q.sorted.end(0); next == g {
			next = nil
		}
	}
	return nearest(next, prev, g.Links.Key+g.Links.Total, ks)
}

// anew looks for q's next request when it is not known what has changed.
func (c *CFQ) anew(q *cfqQueue) {
	next, prev := q.sorted.from(c.head), q.sorted.end(1)
	if next == nil {
		next = q.sorted.end(0)
	} else {
		prev = q.sorted.beside(next, 0)
	}
	q.next = nearest(next, prev, c.head, c.knobs)
	c.settle(q)
}

// nearest is which of two, either of them nil perhaps, is the better one with the
// head there (cfq_choose_req): the one less far ahead; backward, up to a limit, counts
// as further; and beyond that, the one furthest back, to sweep from there.
func nearest(a, b *blk.Request, head blk.Sector, ks knobs) *blk.Request {
	switch {
	case a == nil || a == b:
		return b
	case b == nil:
		return a
	}
	da, backA := ahead(a.Links.Key, head, ks)
	db, backB := ahead(b.Links.Key, head, ks)
	switch {
	case backA && backB:
		if a.Links.Key <= b.Links.Key {
			return a
		}
		return b
	case backA:
		return b
	case backB || da < db || da == db && a.Links.Key >= b.Links.Key:
		return a
	}
	return b
}

// ahead is how far the head has to go, as it counts; wraps says that it is too far back.
func ahead(at, head blk.Sector, ks knobs) (d blk.Sector, wraps bool) {
	switch most := blk.Sector(ks[backSeekMax].value) * 2; {
	case at >= head:
		return at - head, false
	case head-at <= most:
		return (head - at) * blk.Sector(ks[backSeekPenalty].value), false
	}
	return 0, true
}

package sched

import (
	"math/bits"

	"github.com/elevisor/elevisor/blk"
)

// cfqQueue holds the requests of one flow in one class, or the async writes of all flows.
type cfqQueue struct {
	index, class int
	sync         bool // of a flow

	fifo   blk.List     // leaders, the oldest first
	sorted tree         // the same, by position on the disk
	next   *blk.Request // the one to serve next; nil: there is none

	inflight int // heads on the disk

	// The queue's nodes in a service tree, by when it is served, and in CFQ.near, by
	// where next starts. A tree holds requests; these two are only nodes, and their Slot
	// is the queue.
	turn, spot blk.Request
	tree       *serviceTree // nil: not busy
	spotted    bool         // spot is in a tree
	left       blk.Instant  // of its last slice; negative: it took more time than that

	// What is known of the flow.
	idles bool // it may be worth idling for its next request
	deep  bool // it has had several requests queued since idling last failed
	seeks uint32
	seen  bool
	end   blk.Sector  // of its last request
	ended blk.Instant // when one was completed last
	think thinkTime
}

func newCFQQueue(index, class int, sync bool) *cfqQueue {
	q := &cfqQueue{index: index, class: class, sync: sync}
	q.turn.Slot, q.spot.Slot = q, q
	return q
}

// reset forgets what is known of the flow, as another one has its number now.
func (q *cfqQueue) reset(now blk.Instant) {
	q.idles, q.deep, q.seeks, q.seen = q.class != levelIdle, false, 0, false
	q.think, q.ended = thinkTime{}, now
}

// The kernel's limits.
const (
	seeksMany = 4    // with more seeks among its last 32 requests a queue is seeky
	closeBy   = 8192 // sectors: as close as the next request of the active queue
	deepFrom  = 4    // requests that make a queue deep
)

func (q *cfqQueue) seeky() bool { return bits.OnesCount32(q.seeks) > seeksMany }

// observe learns from r, which has been queued.
func (c *CFQ) observe(now blk.Instant, q *cfqQueue, r *blk.Request) {
	idle := c.ms(sliceIdle)
	if q.sync {
		// More than twice slice_idle makes no difference.
		q.think.note(now-q.ended, 2*idle)
		q.tree.think.note(now-q.tree.ended, 2*idle)
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

// enqueue adds a leader that is younger than all others of q.
func (c *CFQ) enqueue(q *cfqQueue, g *blk.Request) {
	q.fifo.PushBack(g)
	q.sorted.insert(g)
	c.leaders++
	q.next = c.backSeek().nearest(q.next, g, c.head)
	c.settle(q)
}

// dequeue removes a leader. The caller sets q.next and calls settle.
func (c *CFQ) dequeue(q *cfqQueue, g *blk.Request) {
	q.fifo.Remove(g)
	q.sorted.remove(g)
	c.leaders--
}

// grown is called after a merge into the group that g leads.
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
	if q.sorted.moved(g) {
		q.next = c.backSeek().nearest(q.next, g, c.head)
	}
	c.settle(q)
}

// settle updates the position of q in CFQ.near: that of its next request.
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

// placeKey sorts positions by image, then by sector. If images are so large that they
// overlap, a cooperator is missed, nothing more.
func placeKey(d *blk.Disk, at blk.Sector) blk.Sector { return blk.Sector(d.Index)<<48 + at }

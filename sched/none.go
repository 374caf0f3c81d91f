package sched

import (
	"fmt"
	"io"

	"github.com/elevisor/elevisor/blk"
)

// None serves requests in the order of their arrival (the kernel's scheduler
// "none", blk-mq without an elevator). It merges as the kernel's software queues do
// (block/blk-merge.c, blk_bio_list_merge): a new request is tried against the
// newest few of its own queue. The zero value merges nothing and is ready for use.
type None struct {
	cfg    *Config
	back   blk.List // what was returned: served first
	fifo   blk.List // leaders
	n      int
	recent [][]newest // by device and queue
}

// newestMax is how many of its queue's newest groups a request is tried against.
const newestMax = 8

// newest are the groups of one queue that were queued last. Those that have been
// given up leave holes, and only at the old end, as they leave in the order in
// which they came.
type newest struct {
	groups [newestMax]*blk.Request
	count  int // groups put in so far
}

// Insert implements Scheduler.
func (n *None) Insert(_ blk.Instant, r *blk.Request) {
	n.n++
	alone(r)
	if n.cfg == nil || n.cfg.NoMerges > 1 {
		n.fifo.PushBack(r)
		return
	}
	q := n.queue(r.Source)
	if !r.Links.Closed && n.merge(q, r) {
		return
	}
	n.fifo.PushBack(r)
	at := q.count % newestMax
	if old := q.groups[at]; old != nil {
		old.Links.Place = 0
	}
	q.groups[at], r.Links.Place = r, int32(at+1)
	q.count++
}

// queue makes the table as large as the sources seen so far need.
func (n *None) queue(s blk.Source) *newest {
	for len(n.recent) <= int(s.Device) {
		n.recent = append(n.recent, nil)
	}
	d := &n.recent[s.Device]
	for len(*d) <= int(s.Queue) {
		*d = append(*d, newest{})
	}
	return &(*d)[s.Queue]
}

// merge tries r against the newest groups of its queue, the newest first, and says
// whether one has taken it in. A group that is full ends the search.
func (n *None) merge(q *newest, r *blk.Request) bool {
	tries := newestMax
	if n.cfg.NoMerges == 1 {
		tries = 1
	}
	for i := 1; i <= tries; i++ {
		g := q.groups[(q.count-i)&(newestMax-1)]
		if g == nil {
			return false
		}
		back, front := groupEnd(g) == r.Sector, g.Links.Start == r.End()
		if !back && !front || g.Links.Closed || g.Disk != r.Disk {
			continue
		}
		why, refused := n.cfg.refuses(g, r)
		if refused {
			n.cfg.Merges.Refused[why]++
			if why == OtherOp {
				continue
			}
			g.Links.Closed = true
			return false
		}
		lower, upper, place := g, r, Back
		if front {
			lower, upper, place = r, g, Front
		}
		if i == 1 {
			place = OneHit
			if latest(g) == r.Arrive {
				place = Batch
			}
		}
		n.cfg.unite(lower, upper, g, place)
		return true
	}
	return false
}

// latest is when the request came that the group g has grown by last: new ones
// come at either end.
func latest(g *blk.Request) blk.Instant {
	return max(g.Links.First.Arrive, g.Links.Last.Arrive)
}

// leave takes a leader out of the newest of its queue.
func (n *None) leave(g *blk.Request) {
	if at := g.Links.Place; at > 0 {
		n.recent[g.Source.Device][g.Source.Queue].groups[at-1] = nil
		g.Links.Place = 0
	}
}

// Dispatch implements Scheduler.
func (n *None) Dispatch(blk.Instant) *blk.Request {
	g := n.back.PopFront()
	if g == nil {
		if g = n.fifo.PopFront(); g == nil {
			return nil
		}
		n.leave(g)
	}
	n.n -= int(g.Links.Parts)
	return g.Links.First
}

// Requeue implements Scheduler.
func (n *None) Requeue(_ blk.Instant, r *blk.Request) {
	returned(r)
	n.n += int(r.Links.Parts)
	n.back.PushBack(r)
}

// Complete implements Scheduler.
func (n *None) Complete(blk.Instant, *blk.Request) {}

// Drain implements Scheduler.
func (n *None) Drain(src blk.Source, out []*blk.Request) []*blk.Request {
	old := len(out)
	for _, l := range []*blk.List{&n.back, &n.fifo} {
		var left []*blk.Request
		for g := l.Front(); g != nil; {
			next := g.Next
			if covered(g, src) {
				l.Remove(g)
				n.leave(g)
				out, left = takeApart(g, src, out, left)
			}
			g = next
		}
		putBack(l, left)
	}
	n.n -= len(out) - old
	bySeq(out[old:])
	return out
}

// Wake implements Scheduler.
func (n *None) Wake() blk.Instant { return blk.Never }

// Len implements Scheduler.
func (n *None) Len() int { return n.n }

// Describe implements Scheduler.
func (n *None) Describe(w io.Writer) {
	fmt.Fprintf(w, "none: %d queued\n", n.n)
	for _, l := range []*blk.List{&n.back, &n.fifo} {
		for g := l.Front(); g != nil; g = g.Next {
			describeGroup(w, g)
		}
	}
}

// Set implements Tunable.
func (n *None) Set(key, _ string) error {
	return fmt.Errorf("scheduler none has no knobs, so no %q", key)
}

// Tunables implements Tunable.
func (n *None) Tunables() []Info { return nil }

// Counters implements Tunable.
func (n *None) Counters(*Counters) {}

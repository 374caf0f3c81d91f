package sched

import (
	"fmt"
	"io"

	"github.com/elevisor/elevisor/blk"
)

// None serves requests in the order of their arrival, as blk-mq without an elevator
// (the kernel's "none"). A new request may merge with the newest few of its own queue.
// The zero value merges nothing and is ready for use.
type None struct {
	cfg    *Config
	retry  blk.List // served first
	fifo   blk.List // leaders
	n      int
	recent perSource[newest]
}

// Insert implements Scheduler.
func (n *None) Insert(_ blk.Instant, r *blk.Request) {
	n.n++
	alone(r)
	if n.cfg == nil || n.cfg.NoMerges > 1 {
		n.fifo.PushBack(r)
		return
	}
	if !n.recent.at(r.Source).insert(n.cfg, r) {
		n.fifo.PushBack(r)
	}
}

// leave removes a leader from the newest of its queue.
func (n *None) leave(g *blk.Request) {
	if g.Links.Place > 0 {
		n.recent.at(g.Source).leave(g)
	}
}

// Dispatch implements Scheduler.
func (n *None) Dispatch(blk.Instant) *blk.Request {
	g := n.retry.PopFront()
	if g == nil {
		if g = n.fifo.PopFront(); g == nil {
			return nil
		}
		n.leave(g)
	}
	n.n -= int(g.Links.Parts)
	return g.Links.First
}

// Retry implements Scheduler.
func (n *None) Retry(_ blk.Instant, r *blk.Request) {
	aloneForGood(r)
	n.n++
	n.retry.PushBack(r)
}

// Complete implements Scheduler.
func (n *None) Complete(blk.Instant, *blk.Request) {}

// Drain implements Scheduler.
func (n *None) Drain(src blk.Source, out []*blk.Request) []*blk.Request {
	old := len(out)
	out = takeOut(&n.retry, src, out, nil, nil)
	out = takeOut(&n.fifo, src, out, n.leave, nil)
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
	for _, l := range []*blk.List{&n.retry, &n.fifo} {
		describeList(w, l)
	}
}

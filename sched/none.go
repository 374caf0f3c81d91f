package sched

import (
	"fmt"
	"io"

	"github.com/elevisor/elevisor/blk"
)

// None serves requests in the order of their arrival (the kernel's scheduler
// "none", blk-mq without an elevator). The zero value is ready for use.
type None struct {
	fifo blk.List
}

// Insert implements Scheduler.
func (n *None) Insert(_ blk.Instant, r *blk.Request) {
	n.fifo.PushBack(r)
}

// Dispatch implements Scheduler.
func (n *None) Dispatch(blk.Instant) *blk.Request { return n.fifo.PopFront() }

// Requeue implements Scheduler.
func (n *None) Requeue(_ blk.Instant, r *blk.Request) {
	r.Flags |= blk.FlagNoMerge
	n.fifo.PushFront(r)
}

// Complete implements Scheduler.
func (n *None) Complete(blk.Instant, *blk.Request) {}

// Drain implements Scheduler.
func (n *None) Drain(src blk.Source, out []*blk.Request) []*blk.Request {
	for r := n.fifo.Front(); r != nil; {
		next := r.Next
		if src.Covers(r.Source) {
			n.fifo.Remove(r)
			out = append(out, r)
		}
		r = next
	}
	return out
}

// Wake implements Scheduler.
func (n *None) Wake() blk.Instant { return blk.Never }

// Len implements Scheduler.
func (n *None) Len() int { return n.fifo.Len() }

// Describe implements Scheduler.
func (n *None) Describe(w io.Writer) {
	fmt.Fprintf(w, "none: %d queued\n", n.fifo.Len())
	for r := n.fifo.Front(); r != nil; r = r.Next {
		fmt.Fprintf(w, "  %s %d+%d of %d/%d\n", r.Op, r.Sector, r.Sectors, r.Source.Device, r.Source.Queue)
	}
}

package sched

import (
	"fmt"
	"io"
	"slices"

	"github.com/elevisor/elevisor/blk"
)

// A group is what goes to the disk as one operation: one guest request, or several
// adjacent ones. While it is queued, it is represented by its leader, the part that was
// queued first, so that a front merge costs it neither its place in a queue nor its
// deadline. When it is dispatched, it is represented by its head, the part with the
// lowest sector.

// mergeable reports whether r can be merged at all. As in the kernel (block/blk-merge.c,
// rq_mergeable; block/blk-flush.c), FUA writes, write-zeroes and discards of several
// ranges cannot.
func mergeable(r *blk.Request) bool {
	if r.Flags&(blk.FlagNoMerge|blk.FlagFUA) != 0 || r.Sectors == 0 {
		return false
	}
	switch r.Op {
	case blk.OpRead, blk.OpWrite:
		return true
	case blk.OpDiscard:
		return len(r.Ranges) <= 1
	}
	return false
}

// alone makes r a group of one. It is in no other group any more.
func alone(r *blk.Request) {
	r.Merged = nil
	r.Links = blk.Links{
		Closed: !mergeable(r), Segments: int32(len(r.Segs)), Parts: 1,
		Start: r.Sector, Total: r.Sectors, First: r, Last: r, Key: r.Pos,
	}
}

// groupEnd is the first sector after the group that g leads.
func groupEnd(g *blk.Request) blk.Sector { return g.Links.Start + g.Links.Total }

// refuses says why the groups of g and r, which are adjacent, cannot be merged. g is
// queued or dispatched, r is queued or new.
func (c *Config) refuses(g, r *blk.Request) (why Reason, refused bool) {
	switch {
	case g.Op != r.Op || g.Flags != r.Flags || g.Prio != r.Prio:
		return OtherOp, true
	case g.Links.Given:
		return Started, true
	case c.MaxSectors > 0 && g.Op != blk.OpDiscard && g.Links.Total+r.Links.Total > c.MaxSectors:
		// max_sectors_kb limits data. What a discard may cover, the guest was told.
		return TooLong, true
	case c.MaxSegments > 0 && int(g.Links.Segments+r.Links.Segments) > c.MaxSegments:
		return TooManySegs, true
	}
	return 0, false
}

// unite merges two groups, the second starting where the first ends, and counts that.
// keep, one of the two, leads the result; the other is no longer a leader.
func (c *Config) unite(lower, upper, keep *blk.Request, place Place) {
	lo, up, k := &lower.Links, &upper.Links, &keep.Links
	gone := lower
	if keep == lower {
		gone = upper
	}
	c.Merges.Merged[place][relation(lo.Last.Source, up.First.Source)]++
	c.Merges.Sectors += uint64(gone.Sectors)

	lo.Last.Merged = up.First
	total, segs, parts := lo.Total+up.Total, lo.Segments+up.Segments, lo.Parts+up.Parts
	k.First, k.Last, k.Start = lo.First, up.Last, lo.Start
	k.Total, k.Segments, k.Parts = total, segs, parts
}

func relation(a, b blk.Source) Who {
	switch {
	case a.Device != b.Device:
		return OtherVM
	case a.Queue != b.Queue:
		return OtherQueue
	}
	return SameQueue
}

// aloneForGood makes r, a part of a group that failed, a group of one that nothing is
// merged into.
func aloneForGood(r *blk.Request) {
	r.Flags |= blk.FlagNoMerge
	alone(r)
}

// covered reports whether src covers a part of the group that g leads.
func covered(g *blk.Request, src blk.Source) bool {
	for r := g.Links.First; r != nil; r = r.Merged {
		if src.Covers(r.Source) {
			return true
		}
	}
	return false
}

// takeApart splits the group that g leads, which has left all queues and indexes, into
// its parts. Those that src covers are appended to out, the others, which keep the
// group's Place, to left.
func takeApart(g *blk.Request, src blk.Source, out, left []*blk.Request) (_, _ []*blk.Request) {
	place := g.Links.Place
	for r := g.Links.First; r != nil; {
		next := r.Merged
		alone(r)
		if src.Covers(r.Source) {
			out = append(out, r)
		} else {
			r.Links.Place = place
			left = append(left, r)
		}
		r = next
	}
	return out, left
}

// takeOut removes from l what src covers and appends it to out, each part alone. The rest
// of a split group stays on l, each part alone. leave, if not nil, is called for each
// leader that is removed, before its group is split; keep, if not nil, for each part that
// stays.
func takeOut(l *blk.List, src blk.Source, out []*blk.Request, leave, keep func(r *blk.Request)) []*blk.Request {
	var left []*blk.Request
	for g := l.Front(); g != nil; {
		next := g.Next
		if covered(g, src) {
			l.Remove(g)
			if leave != nil {
				leave(g)
			}
			out, left = takeApart(g, src, out, left)
		}
		g = next
	}
	putBack(l, left)
	if keep != nil {
		for _, r := range left {
			keep(r)
		}
	}
	return out
}

// putBack inserts the parts that are left of split groups into l, by age. It walks l only
// once, as guests choose how many parts there are.
func putBack(l *blk.List, left []*blk.Request) {
	bySeq(left)
	at := l.Back()
	for i := len(left) - 1; i >= 0; i-- {
		for at != nil && at.Seq > left[i].Seq {
			at = at.Prev
		}
		l.InsertAfter(left[i], at)
	}
}

// bySeq sorts by age, the oldest first.
func bySeq(out []*blk.Request) {
	slices.SortFunc(out, func(a, b *blk.Request) int {
		switch {
		case a.Seq < b.Seq:
			return -1
		case a.Seq > b.Seq:
			return 1
		}
		return 0
	})
}

// describeGroup prints the group that g leads, on one line.
func describeGroup(w io.Writer, g *blk.Request) {
	fmt.Fprintf(w, "  %s", g.Op)
	for r := g.Links.First; r != nil; r = r.Merged {
		fmt.Fprintf(w, " %d+%d of %d/%d", r.Sector, r.Sectors, r.Source.Device, r.Source.Queue)
	}
	fmt.Fprintln(w)
}

// describeList prints the groups on l.
func describeList(w io.Writer, l *blk.List) {
	for g := l.Front(); g != nil; g = g.Next {
		describeGroup(w, g)
	}
}

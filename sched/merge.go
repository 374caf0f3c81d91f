package sched

import "github.com/elevisor/elevisor/blk"

const (
	// bucketBits make 512 buckets: twice the usual depth, so that most are empty, and
	// 8 KiB, so that they stay in the first-level cache.
	bucketBits = 9
	// searchMax bounds the search of one bucket. Guests choose their sectors: one that
	// fills a bucket loses merges, but does not cost the others time.
	searchMax = 16
)

// The two indexes.
const (
	byStart = iota
	byEnd
)

// scope is what all parts of one group have in common.
type scope uint8

const (
	withinDomain scope = iota
	withinDevice
	withinSource
)

// merger finds the neighbours of a new request among the queued groups. A scheduler
// has one.
//
// It looks, in this order, at lastMerge, the group that was queued or grown last (the
// kernel's plug and its last_merge in one, where a request that is only queued does not
// change a last_merge that is set); in the index of ends, for a back merge; in the index
// of starts, for a front merge. Both are hashes: only exact matches count, and
// deadline's trees are of no use here, since they are sorted by position on the physical
// disk, while merging compares images and image sectors.
//
// A change of nomerges applies to what comes from then on. With 1 nothing is indexed, so
// that nothing is joined either; with 2 nothing is searched.
//
// The lists and trees of leaders are the scheduler's business: insert and join return
// what has changed.
type merger struct {
	cfg *Config
	// noFront skips the index of starts, like front_merges=0 in the kernel; lastMerge
	// may still get a front merge.
	noFront bool
	// within limits what may be merged.
	within scope

	// Groups by their start and by their end, newest first. Dispatched groups stay until
	// they are complete, so that a merge that came too late is counted as refused.
	buckets [1 << bucketBits][2]*blk.Request

	lastMerge  *blk.Request // a leader that is not complete, or nil
	lastArrive blk.Instant  // arrival and source of the request
	lastSource blk.Source   // that made it lastMerge
}

// insert merges r into the group that g leads, at its front if front is set, and the
// caller then calls join. If g is nil, r is a group of its own, which the caller queues.
func (m *merger) insert(r *blk.Request) (g *blk.Request, front bool) {
	alone(r)
	if r.Links.Closed {
		return nil, false
	}
	if m.cfg.NoMerges < 2 {
		var place Place
		if g, place, front = m.find(r); g != nil {
			if front {
				m.unchain(g, byStart)
				m.cfg.unite(r, g, g, place)
				m.chain(g, byStart)
			} else {
				m.unchain(g, byEnd)
				m.cfg.unite(g, r, g, place)
				m.chain(g, byEnd)
			}
			m.setLastMerge(g, r)
			return g, front
		}
	}
	m.index(r)
	m.setLastMerge(r, r)
	return nil, false
}

// setLastMerge notes that r was just queued as a part of g.
func (m *merger) setLastMerge(g, r *blk.Request) {
	m.lastMerge, m.lastArrive, m.lastSource = g, r.Arrive, r.Source
}

// find returns a group that r can be merged into, where it was found, and whether r goes
// to its front.
func (m *merger) find(r *blk.Request) (g *blk.Request, place Place, front bool) {
	last := m.lastMerge
	if last != nil && m.inScope(last, r) {
		place = OneHit
		if m.lastArrive == r.Arrive && relation(m.lastSource, r.Source) == SameQueue {
			place = Batch
		}
		if groupEnd(last) == r.Sector && m.permits(last, r, true) {
			return last, place, false
		}
		if last.Links.Start == r.End() && m.permits(last, r, true) {
			return last, place, true
		}
	}
	if m.cfg.NoMerges > 0 {
		return nil, 0, false
	}
	if g = m.search(r, r.Sector, byEnd, last, true); g != nil {
		return g, Back, false
	}
	if m.noFront {
		return nil, 0, false
	}
	return m.search(r, r.End(), byStart, last, true), Front, true
}

// search returns a group with this start or end that r's group can be merged into;
// except was tried already.
func (m *merger) search(r *blk.Request, at blk.Sector, by int, except *blk.Request, fresh bool) *blk.Request {
	g := m.bucket(r.Disk, at)[by]
	for n := 0; g != nil && n < searchMax; n++ {
		next := g.Links.Chain[by].Next
		if g != except && edge(g, by) == at && m.inScope(g, r) && m.permits(g, r, fresh) {
			return g
		}
		g = next
	}
	return nil
}

// inScope reports whether g and r are of the same image, and of the same device or queue
// where merges are limited to that.
func (m *merger) inScope(g, r *blk.Request) bool {
	if g.Disk != r.Disk {
		return false
	}
	switch m.within {
	case withinDevice:
		return g.Source.Device == r.Source.Device
	case withinSource:
		return g.Source == r.Source
	}
	return true
}

// permits reports whether r's group can be merged into g, which is adjacent, and counts a
// refusal. A group that has no room for a fresh request is not found again, as in the
// kernel (req_set_nomerge).
func (m *merger) permits(g, r *blk.Request, fresh bool) bool {
	why, refused := m.cfg.refuses(g, r)
	if !refused {
		return true
	}
	m.cfg.Merges.Refused[why]++
	if fresh && (why == TooLong || why == TooManySegs) {
		m.forget(g)
	}
	return false
}

// join merges g, which has grown at one end, with the group that it has become adjacent
// to. kept leads both; gone is no longer a leader, and the caller removes it from its
// queues and calls join again. gone is nil if there was nothing to join.
func (m *merger) join(g *blk.Request, front bool) (kept, gone *blk.Request) {
	if !g.Links.Indexed || m.cfg.NoMerges > 0 {
		return g, nil
	}
	lower, upper := g, g
	if front {
		lower = m.search(g, g.Links.Start, byEnd, g, false)
		gone = lower
	} else {
		upper = m.search(g, groupEnd(g), byStart, g, false)
		gone = upper
	}
	if gone == nil {
		return g, nil
	}
	kept = g
	if older(gone, g) {
		kept, gone = gone, g
	}
	m.unindex(lower)
	m.unindex(upper)
	m.cfg.unite(lower, upper, kept, Join)
	m.index(kept)
	m.lastMerge = kept
	return kept, gone
}

// older reports whether a was queued before b.
func older(a, b *blk.Request) bool {
	if a.Arrive != b.Arrive {
		return a.Arrive < b.Arrive
	}
	return a.Seq < b.Seq
}

// add takes in the group that g leads without a search for neighbours.
func (m *merger) add(g *blk.Request) {
	if !g.Links.Closed {
		m.index(g)
	}
}

// give is called when the scheduler dispatches the group that g leads; it returns the
// group's head. The group stays indexed until complete.
func (m *merger) give(g *blk.Request) (head *blk.Request) {
	head = g.Links.First
	g.Links.Given = true
	head.Links.Leader = g
	return head
}

// complete is called when a dispatched head is finished; false if r is not such a head.
func (m *merger) complete(r *blk.Request) bool {
	g := r.Links.Leader
	if g == nil {
		return false
	}
	m.forget(g)
	g.Links.Given, r.Links.Leader = false, nil
	return true
}

// forget makes sure that the group that g leads is not found again.
func (m *merger) forget(g *blk.Request) {
	if m.lastMerge == g {
		m.lastMerge = nil
	}
	if g.Links.Indexed {
		m.unindex(g)
	}
}

func (m *merger) index(g *blk.Request) {
	if m.cfg.NoMerges > 0 {
		return
	}
	g.Links.Indexed = true
	m.chain(g, byStart)
	m.chain(g, byEnd)
}

func (m *merger) unindex(g *blk.Request) {
	m.unchain(g, byStart)
	m.unchain(g, byEnd)
	g.Links.Indexed = false
}

// bucket hashes the image's index, not its address, so that one history gives one result.
func (m *merger) bucket(d *blk.Disk, at blk.Sector) *[2]*blk.Request {
	h := (uint64(at) + uint64(d.Index)<<56) * 0x9e3779b97f4a7c15 // 2^64 divided by the golden ratio: Knuth 3, 6.4
	return &m.buckets[h>>(64-bucketBits)]
}

func edge(g *blk.Request, by int) blk.Sector {
	if by == byStart {
		return g.Links.Start
	}
	return groupEnd(g)
}

// chain puts g, if it is indexed, on one of its two hash chains.
func (m *merger) chain(g *blk.Request, by int) {
	if !g.Links.Indexed {
		return
	}
	b := m.bucket(g.Disk, edge(g, by))
	g.Links.Chain[by] = blk.Chain{Next: b[by]}
	if b[by] != nil {
		b[by].Links.Chain[by].Prev = g
	}
	b[by] = g
}

// unchain takes g, if it is indexed, off one of its two hash chains, before that edge
// moves.
func (m *merger) unchain(g *blk.Request, by int) {
	if !g.Links.Indexed {
		return
	}
	c := g.Links.Chain[by]
	if c.Prev != nil {
		c.Prev.Links.Chain[by].Next = c.Next
	} else {
		m.bucket(g.Disk, edge(g, by))[by] = c.Next
	}
	if c.Next != nil {
		c.Next.Links.Chain[by].Prev = c.Prev
	}
}

package sched

import "github.com/elevisor/elevisor/blk"

const (
	// bucketBits make 512 chains: twice the usual depth, so that most are empty,
	// and 8 KiB, so that they stay in the first-level cache.
	bucketBits = 9
	// looks bounds a search on one chain. Guests choose their sectors: one that
	// fills a chain loses merges, but does not cost the others their time.
	looks = 16
)

// The two indexes.
const (
	byStart = iota
	byEnd
)

// scope is what the parts of one group have in common.
type scope uint8

const (
	withinDomain scope = iota
	withinDevice
	withinSource
)

// merger finds, among the queued groups, the neighbours of a new request. A
// scheduler has one for all its queues, or one for each.
//
// Where it looks, in this order: the hit, that is the group that was queued or
// grown last (the kernel's plug and last_merge in one: its last_merge stays where it
// is when a request is only queued); the index of ends, for a group to follow;
// the index of starts, for a group to precede. Only an exact start is ever asked
// for, so a hash serves there as well as the kernel's tree does and costs less; and
// deadline's trees could not serve, being sorted by the place on the physical disk,
// while merging compares image and image sector.
//
// nomerges counts for what comes from then on: with 1 there are no indexes, so that
// nothing is joined either; with 2 nothing is looked for.
//
// The leaders' lists and trees are the scheduler's: insert and join say what they
// did to whom.
type merger struct {
	cfg *Config
	// noFront skips the index of starts, as front_merges=0 does in the kernel; the
	// hit may still be preceded.
	noFront bool
	// within bounds what may meet in one group.
	within scope

	// Groups by their edges, newest first. Groups that were given up stay until
	// they are complete, to tell a merge that came too late from none.
	buckets [1 << bucketBits][2]*blk.Request

	hit   *blk.Request // a leader, queued or given up but not complete; or nil
	hitAt blk.Instant  // the arrival of the request that made it the hit
	hitBy blk.Source   // and whose that was
}

// insert makes r part of the group that g leads, in front of it if front is set,
// and the caller then calls join; or it takes r in as a group of its own, which
// the caller queues, and g is nil.
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
			m.struck(g, r)
			return g, front
		}
	}
	m.index(r)
	m.struck(r, r)
	return nil, false
}

// struck makes g the hit, because r was queued in it.
func (m *merger) struck(g, r *blk.Request) { m.hit, m.hitAt, m.hitBy = g, r.Arrive, r.Source }

// find looks for a group that may take in r, and says where that was and at which
// end.
func (m *merger) find(r *blk.Request) (g *blk.Request, place Place, front bool) {
	h := m.hit
	if h != nil && m.near(h, r) {
		place = OneHit
		if m.hitAt == r.Arrive && whoMet(m.hitBy, r.Source) == SameQueue {
			place = Batch
		}
		if groupEnd(h) == r.Sector && m.permits(h, r, true) {
			return h, place, false
		}
		if h.Links.Start == r.End() && m.permits(h, r, true) {
			return h, place, true
		}
	}
	if m.cfg.NoMerges > 0 {
		return nil, 0, false
	}
	if g = m.search(r, r.Sector, byEnd, h, true); g != nil {
		return g, Back, false
	}
	if m.noFront {
		return nil, 0, false
	}
	return m.search(r, r.End(), byStart, h, true), Front, true
}

// search looks for a group with this edge that may take in r's; except was asked
// already.
func (m *merger) search(r *blk.Request, at blk.Sector, by int, except *blk.Request, fresh bool) *blk.Request {
	g := m.bucket(r.Disk, at)[by]
	for n := 0; g != nil && n < looks; n++ {
		next := g.Links.Chain[by].Next
		if g != except && edge(g, by) == at && m.near(g, r) && m.permits(g, r, fresh) {
			return g
		}
		g = next
	}
	return nil
}

// near says whether g and r could be neighbours.
func (m *merger) near(g, r *blk.Request) bool {
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

// permits says whether g, which adjoins r's group, may take it in, and counts a
// refusal. A group that is too large for a fresh request is not found again, as in
// the kernel (req_set_nomerge): the next ones need not try.
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

// join is called after g has grown at one end, until it answers nil: it makes one
// group of g and another that g has now come to adjoin. kept leads both, gone
// leads no more and leaves the caller's queues.
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
	m.hit = kept
	return kept, gone
}

// older says which of two leaders was queued first.
func older(a, b *blk.Request) bool {
	if a.Arrive != b.Arrive {
		return a.Arrive < b.Arrive
	}
	return a.Seq < b.Seq
}

// add takes in the group that g leads without looking for neighbours.
func (m *merger) add(g *blk.Request) {
	if !g.Links.Closed {
		m.index(g)
	}
}

// give is called when the scheduler gives up the group that g leads; it returns
// the group's head. The group stays known until complete.
func (m *merger) give(g *blk.Request) (head *blk.Request) {
	head = g.Links.First
	g.Links.Given = true
	head.Links.Leader = g
	return head
}

// complete is called when a head that was given up is finished; it says false if r
// is not such a head.
func (m *merger) complete(r *blk.Request) bool {
	g := r.Links.Leader
	if g == nil {
		return false
	}
	m.forget(g)
	g.Links.Given, r.Links.Leader = false, nil
	return true
}

// forget takes the group that g leads out of the places where it could be found.
func (m *merger) forget(g *blk.Request) {
	if m.hit == g {
		m.hit = nil
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

// bucket is by the image's index, not its address: equal histories give equal
// chains.
func (m *merger) bucket(d *blk.Disk, at blk.Sector) *[2]*blk.Request {
	h := (uint64(at) + uint64(d.Index)<<56) * 0x9e3779b97f4a7c15 // 2^64 by the golden ratio: Knuth 3, 6.4
	return &m.buckets[h>>(64-bucketBits)]
}

func edge(g *blk.Request, by int) blk.Sector {
	if by == byStart {
		return g.Links.Start
	}
	return groupEnd(g)
}

// chain puts g, if it is indexed, on one of its two chains.
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

// unchain takes g off one of its two chains, before the edge moves.
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

package sched

import "github.com/elevisor/elevisor/blk"

// newestMax is how many of a queue's newest groups a new request may merge with.
const newestMax = 8

// newest are the groups of one queue that were queued last. Only with these may a new
// request merge, as in the kernel's software queues (block/blk-merge.c,
// blk_bio_list_merge). The zero value is empty. Groups leave in the order in which they
// came, or all at once.
type newest struct {
	groups [newestMax]*blk.Request
	count  int // groups added so far
}

// insert merges r, which is alone, into one of the groups, if it can. Otherwise r becomes
// the newest group, and the caller queues it.
func (q *newest) insert(c *Config, r *blk.Request) (merged bool) {
	if !r.Links.Closed && q.merge(c, r) {
		return true
	}
	at := q.count % newestMax
	if old := q.groups[at]; old != nil {
		old.Links.Place = 0
	}
	q.groups[at], r.Links.Place = r, int32(at+1)
	q.count++
	return false
}

// merge tries to merge r into one of the groups, the newest first. A group that is full
// ends the search.
func (q *newest) merge(c *Config, r *blk.Request) bool {
	tries := newestMax
	if c.NoMerges == 1 {
		tries = 1
	}
	for i := 1; i <= tries; i++ {
		g := q.groups[(q.count-i)&(newestMax-1)]
		if g == nil {
			return false // this one has left, and so have all older ones
		}
		back, front := groupEnd(g) == r.Sector, g.Links.Start == r.End()
		if !back && !front || g.Links.Closed || g.Disk != r.Disk {
			continue
		}
		why, refused := c.refuses(g, r)
		if refused {
			c.Merges.Refused[why]++
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
		c.unite(lower, upper, g, place)
		return true
	}
	return false
}

// leave removes the group that g leads, if it is still among the newest.
func (q *newest) leave(g *blk.Request) {
	if at := g.Links.Place; at > 0 {
		q.groups[at-1], g.Links.Place = nil, 0
	}
}

// latest is the arrival of the newest request in the group g: the newest is at one of its
// ends.
func latest(g *blk.Request) blk.Instant {
	return max(g.Links.First.Arrive, g.Links.Last.Arrive)
}

// perSource holds a T for each queue of each device.
type perSource[T any] [][]T

// at returns the T of s. The pointer is valid until a new source is seen.
func (p *perSource[T]) at(s blk.Source) *T {
	for len(*p) <= int(s.Device) {
		*p = append(*p, nil)
	}
	d := &(*p)[s.Device]
	for len(*d) <= int(s.Queue) {
		*d = append(*d, *new(T))
	}
	return &(*d)[s.Queue]
}

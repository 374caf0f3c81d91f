package sched

import "github.com/elevisor/elevisor/blk"

// What CFQ and BFQ share: think times, and distances of the disk's head.

// A request that is more than seekFar sectors from the flow's last one is a seek; on a
// disk that is not rotational, one that is smaller than seekSmall (CFQQ_SEEK_THR,
// CFQQ_SECT_THR_NONROT; BFQQ_SEEK_THR, BFQQ_SECT_THR_NONROT).
const (
	seekFar   blk.Sector = 800
	seekSmall blk.Sector = 64
)

func distance(a, b blk.Sector) blk.Sector { return max(a, b) - min(a, b) }

// thinkTime is the time from a completion to the next request, as a moving average over
// about eight samples in fixed point (__cfq_update_io_thinktime,
// bfq_update_io_thinktime).
type thinkTime struct {
	samples     int64
	total, mean blk.Instant
}

const thinkScale = 256

// note adds a sample. More than most, or less than 0 because a clock was set back, counts
// as most.
func (t *thinkTime) note(took, most blk.Instant) {
	if took < 0 || took > most {
		took = most
	}
	t.samples = (7*t.samples + thinkScale) / 8
	t.total = (7*t.total + thinkScale*took) / 8
	t.mean = (t.total + thinkScale/2) / blk.Instant(t.samples)
}

// known reports whether there were enough samples.
func (t *thinkTime) known() bool { return t.samples > 80 }

// backSeek says how distances backwards count: up to most, penalty times. What is further
// back belongs to the next sweep.
type backSeek struct{ most, penalty blk.Sector }

// nearest returns the better one of two leaders for that position of the head, either of
// which may be nil (cfq_choose_req, bfq_choose_req): the one at the shorter distance, or,
// if both belong to the next sweep, the one with the lower position.
func (s backSeek) nearest(a, b *blk.Request, head blk.Sector) *blk.Request {
	switch {
	case a == nil || a == b:
		return b
	case b == nil:
		return a
	}
	da, wrapsA := s.way(a.Links.Key, head)
	db, wrapsB := s.way(b.Links.Key, head)
	switch {
	case wrapsA && wrapsB:
		if a.Links.Key <= b.Links.Key {
			return a
		}
		return b
	case wrapsA:
		return b
	case wrapsB || da < db || da == db && a.Links.Key >= b.Links.Key:
		return a
	}
	return b
}

// way is the distance from the head, with the penalty; wraps says that it belongs to the
// next sweep.
func (s backSeek) way(at, head blk.Sector) (d blk.Sector, wraps bool) {
	switch {
	case at >= head:
		return at - head, false
	case head-at <= s.most:
		return (head - at) * s.penalty, false
	}
	return 0, true
}

// after returns what is served after g, which is still in t: one of its neighbours
// (cfq_find_next_rq, bfq_find_next_rq), or nil.
func (s backSeek) after(t *tree, g *blk.Request) *blk.Request {
	next, prev := t.beside(g, 1), t.beside(g, 0)
	if next == nil {
		if next = t.end(0); next == g {
			next = nil
		}
	}
	return s.nearest(next, prev, g.Links.Key)
}

// anew returns what is served next of t for that position of the head, or nil.
func (s backSeek) anew(t *tree, head blk.Sector) *blk.Request {
	next, prev := t.from(head), t.end(1)
	if next == nil {
		next = t.end(0)
	} else {
		prev = t.beside(next, 0)
	}
	return s.nearest(next, prev, head)
}

// The values of the knob "writes": what writes are taken for.
const (
	writesSync = iota
	writesAsync
)

var writesNames = []string{writesSync: "sync", writesAsync: "async"}

func asInt(x bool) int {
	if x {
		return 1
	}
	return 0
}

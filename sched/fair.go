package sched

import "github.com/elevisor/elevisor/blk"

// What CFQ and BFQ know alike: of a flow, and of the way that the head has to go.

// seekFar is how many sectors from a flow's last request make the next one a seek;
// seekSmall, below how many a request is one on a disk that has no head to move
// (CFQQ_SEEK_THR, CFQQ_SECT_THR_NONROT; BFQQ_SEEK_THR, BFQQ_SECT_THR_NONROT).
const (
	seekFar   blk.Sector = 800
	seekSmall blk.Sector = 64
)

func distance(a, b blk.Sector) blk.Sector { return max(a, b) - min(a, b) }

// thinkTime is how long it takes from a completion to the next request, as a moving
// average over about eight of them (__cfq_update_io_thinktime, bfq_update_io_thinktime),
// in fixed point.
type thinkTime struct {
	samples     int64
	total, mean blk.Instant
}

const thinkScale = 256

// note takes in that a request has come, and how long after the completion. Longer than
// most, or a clock that went back, is as good as for ever.
func (t *thinkTime) note(took, most blk.Instant) {
	if took < 0 || took > most {
		took = most
	}
	t.samples = (7*t.samples + thinkScale) / 8
	t.total = (7*t.total + thinkScale*took) / 8
	t.mean = (t.total + thinkScale/2) / blk.Instant(t.samples)
}

// known says whether there have been requests enough to tell.
func (t *thinkTime) known() bool { return t.samples > 80 }

// backSeek is the way back of the head: how far back a place may be at most, and how
// many times as far as one ahead it counts. Further back is where the next sweep begins.
type backSeek struct{ most, penalty blk.Sector }

// nearest is which of two leaders, either of them nil perhaps, is the better one with
// the head there (cfq_choose_req, bfq_choose_req): the one less far ahead; backward, up
// to a limit, counts as further; and beyond that, the one furthest back, to sweep from
// there.
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

// way is how far the head has to go, as it counts; wraps says that it is too far back.
func (s backSeek) way(at, head blk.Sector) (d blk.Sector, wraps bool) {
	switch {
	case at >= head:
		return at - head, false
	case head-at <= s.most:
		return (head - at) * s.penalty, false
	}
	return 0, true
}

// after is what is served next of t when g, which is still in it, is gone: its neighbour
// on one side or the other (cfq_find_next_rq, bfq_find_next_rq); nil: nothing is left.
func (s backSeek) after(t *tree, g *blk.Request) *blk.Request {
	next, prev := t.beside(g, 1), t.beside(g, 0)
	if next == nil {
		if next = t.end(0); next == g {
			next = nil
		}
	}
	return s.nearest(next, prev, g.Links.Key)
}

// anew is what is served next of t, whatever has left it.
func (s backSeek) anew(t *tree, head blk.Sector) *blk.Request {
	next, prev := t.from(head), t.end(1)
	if next == nil {
		next = t.end(0)
	} else {
		prev = t.beside(next, 0)
	}
	return s.nearest(next, prev, head)
}

// What writes are taken as: knob "writes".
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

package backend

import (
	"sync/atomic"

	"github.com/elevisor/elevisor/blk"
)

// second is 10^9 nanoseconds.
const second = 1_000_000_000

// RateOptions limit an image, over all loops that serve it. 0 is no limit; every
// other value is valid.
type RateOptions struct {
	IOPS uint64 // requests per second; a merged group is one
	BPS  uint64 // bytes per second that are read, written or zeroed
}

// NewRate makes inner as slow as a disk that serves one request after the other,
// each in 1/IOPS seconds or bytes/BPS, whichever is longer: request n is let go to
// inner at max(now, turn of n-1) + cost, in the order of submission. A request of
// any size passes, however small the limit, and the ones behind it wait that long.
// There is no burst. Discards and flushes move no data and cost a request only.
//
// Costs are rounded up to whole nanoseconds: the limit is never exceeded, and is
// 10^9 requests per second at most.
func NewRate(inner Image, o RateOptions) Image {
	if o == (RateOptions{}) {
		return inner
	}
	l := &limit{bps: o.BPS}
	if o.IOPS != 0 {
		l.request = mulDivUp(second, 1, o.IOPS)
	}
	return &decorated{inner, func(b Backend, h Host) Backend { return NewHold(b, h.Depth, l.due) }}
}

// limit is shared by all loops of the image.
type limit struct {
	request blk.Instant // what one costs at least
	bps     uint64
	last    atomic.Int64 // the turn of the newest request
}

func (l *limit) due(now blk.Instant, r *blk.Request) blk.Instant {
	cost := l.cost(r)
	for {
		last := l.last.Load()
		at := later(max(now, blk.Instant(last)), cost)
		if l.last.CompareAndSwap(last, int64(at)) {
			return at
		}
	}
}

func (l *limit) cost(r *blk.Request) blk.Instant {
	if l.bps == 0 || r.Op == blk.OpFlush || r.Op == blk.OpDiscard {
		return l.request
	}
	var sectors blk.Sector
	for ; r != nil; r = r.Merged {
		sectors += r.Sectors
	}
	return max(l.request, mulDivUp(uint64(sectors), blk.SectorSize*second, l.bps))
}

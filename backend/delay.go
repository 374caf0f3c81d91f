package backend

import (
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/elevisor/elevisor/blk"
)

// DelayOptions say how long requests are held back.
type DelayOptions struct {
	Fixed  time.Duration // each request, at least
	Jitter time.Duration // and up to so much more, evenly distributed
	Seed   uint64        // of the jitter
}

// NewDelay lets every request go to inner a while after it was submitted, all of
// them at the same time: latency, but no limit. With Jitter they overtake each
// other. The backend attached n-th draws from PCG(Seed, n), n counted from 0, so
// that a seed gives the same delays again.
func NewDelay(inner Image, o DelayOptions) (Image, error) {
	if o.Fixed < 0 || o.Jitter < 0 {
		return nil, fmt.Errorf("delay is %v with a jitter of %v; neither may be negative", o.Fixed, o.Jitter)
	}
	var attached atomic.Uint64
	return &decorated{inner, func(b Backend, h Host) Backend {
		random := rand.New(rand.NewPCG(o.Seed, attached.Add(1)-1))
		return NewHold(b, h.Depth, func(now blk.Instant, _ *blk.Request) blk.Instant {
			more := random.Uint64N(uint64(o.Jitter) + 1)
			return later(later(now, blk.Instant(o.Fixed)), blk.Instant(more))
		})
	}}, nil
}

// Package clock is where real time enters: everything below takes an Instant as
// an argument, and its callers that live in real time read it here.
package clock

import (
	"time"

	"github.com/elevisor/elevisor/blk"
)

// Monotonic counts nanoseconds since it was started. It never goes back, ignores changes
// of the calendar clock, and may be read by any goroutine.
type Monotonic struct {
	start time.Time
}

// Start starts a clock at 0.
func Start() Monotonic { return Monotonic{start: time.Now()} }

// Now reads the clock.
func (c Monotonic) Now() blk.Instant { return blk.Instant(time.Since(c.start)) }

// Until is the time left until t: 0 if t has passed, and the longest Duration for
// blk.Never.
func (c Monotonic) Until(t blk.Instant) time.Duration {
	if t == blk.Never {
		return time.Duration(blk.Never)
	}
	return max(0, time.Duration(t-c.Now()))
}

// Sleep waits for d of real time.
func Sleep(d time.Duration) { time.Sleep(d) }

// Wall is the calendar time, for timestamps only.
func Wall() time.Time { return time.Now() }

// Deadline is the moment d from now, as net wants deadlines.
func Deadline(d time.Duration) time.Time { return time.Now().Add(d) }

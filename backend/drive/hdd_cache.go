package drive

import (
	"math"

	"github.com/elevisor/elevisor/blk"
)

// segment is one sequential stream that the drive has noticed, with what it has of it
// in its cache. Places are in blocks, with a fraction.
type segment struct {
	next  blk.Sector // where its next command begins
	used  float64    // when it was last
	long  bool       // it has had two commands or more: it is sequential
	taken float64    // block up to which the host has read
	fill  float64    // block up to which the cache has data, from taken on
	run   run        // dirty blocks
}

// segments are the streams of one direction. Which of them a command belongs to, the
// drive tells by address.
type segments struct {
	all []segment
}

func (s *segments) init(n int) { s.all = make([]segment, n) }

// recent is how long a stream counts, after its last command, among those that share
// the read cache.
const recent = 1e9

// of finds the stream that a command continues; a command that continues none begins
// one, in place of the stream that was used least recently.
func (s *segments) of(t float64, c *waiting) (g *segment, begins bool) {
	oldest := &s.all[0]
	for i := range s.all {
		g = &s.all[i]
		if g.used > 0 && g.next == c.Sector {
			g.long = true
			g.used, g.next = t+1, c.Sector+c.Sectors
			return g, false
		}
		if g.used < oldest.used {
			oldest = g
		}
	}
	oldest.used, oldest.next, oldest.long = t+1, c.Sector+c.Sectors, false // t may be 0, which would be unused
	return oldest, true
}

// peek finds the stream that a command would continue; nil if none.
func (s *segments) peek(c *waiting) *segment {
	for i := range s.all {
		if g := &s.all[i]; g.used > 0 && g.next == c.Sector {
			return g
		}
	}
	return nil
}

// sharing counts the sequential streams that were used lately.
func (s *segments) sharing(t float64) (n float64) {
	for i := range s.all {
		if g := &s.all[i]; g.long && g.used > t-recent {
			n++
		}
	}
	return max(n, 1)
}

// readAhead brings the fill of the stream that is being read ahead up to t.
func (d *hdd) readAhead(t float64) {
	g := d.ahead
	if g == nil || d.stopped {
		return
	}
	most := g.taken + min(d.p.Segment, d.p.ReadCache/d.reads.sharing(t))
	to := min(g.fill+(t-d.filledAt)/d.media(g.fill), most)
	g.fill = max(g.fill, to)
	d.filledAt, d.head = t, g.fill
	if d.pressed() && g.fill-d.refilled >= d.p.ReadAheadSmall {
		d.stopped = true
	}
}

// pressed says whether so many commands wait that the drive reads ahead less.
func (d *hdd) pressed() bool { return float64(len(d.queue)-1) > d.p.QueueLimit }

// read is when a read is done that is served from t on.
func (d *hdd) read(t float64, c *waiting) float64 {
	g, begins := d.reads.of(t, c)
	if begins {
		d.lose(g)
		if d.ahead == g {
			d.ahead = nil
		}
		g.fill = -1
	}
	first, end := float64(c.Sector/blockSectors), float64(c.Sector+c.Sectors)/blockSectors
	base := d.base(c, g, d.p.Read)
	g.taken = end
	switch {
	case end <= g.fill:
		d.stats.Hits++
		return t + base
	case d.ahead == g && !d.stopped:
		d.stats.Streamed++
		done := t + max(base, (end-g.fill)*d.media(end))
		g.fill, d.filledAt, d.head = end, done, end
		return done
	}
	start := max(t, d.leave(t))
	done := d.move(start, first, c.phase) + (end-first)*d.media(first)
	done = max(done, t+base)
	g.fill, d.filledAt, d.head = end, done, end
	d.ahead, d.refilled, d.stopped = g, first, false
	return done
}

// lose notes that another stream begins in g's place: it is not the one before, which
// with one segment it would else be taken for.
func (d *hdd) lose(g *segment) {
	if d.last == g {
		d.last = &d.lost
	}
}

// leave is when the head may go elsewhere: what it destages is finished first, and so
// is what it has begun to read ahead of a sequential stream.
func (d *hdd) leave(t float64) float64 {
	t = max(t, d.dirty.finish(t))
	g := d.ahead
	if g == nil {
		return t
	}
	d.ahead = nil
	if d.stopped || !g.long {
		return t
	}
	most := d.p.ReadAheadMin
	if d.pressedNow() {
		most = d.p.ReadAheadSmall
	}
	if left := d.refilled + most - g.fill; left > 0 {
		t += left * d.media(g.fill)
		g.fill += left
		d.head = g.fill
	}
	return t
}

// pressedNow is pressed for the command in service, which has left the queue.
func (d *hdd) pressedNow() bool { return float64(len(d.queue)) > d.p.QueueLimit }

// choose is the place in the queue of the command that is served next: the oldest,
// unless it moves the head and the drive reorders.
func (d *hdd) choose(t float64) int {
	if !d.p.Reorder || len(d.queue) == 1 || d.near(&d.queue[0]) || t-d.queue[0].came > d.p.MaxWait {
		return 0
	}
	best, least := 0, math.Inf(1)
	for i := range d.queue {
		c := &d.queue[i]
		if d.near(c) {
			continue // in its turn: commands that need no head move do not overtake
		}
		if at := d.arrive(t, float64(c.Sector/blockSectors), c.phase); at < least {
			best, least = i, at
		}
	}
	return best
}

// near says whether a command needs no head move.
func (d *hdd) near(c *waiting) bool {
	if c.Op != blk.OpRead {
		return !c.FUA
	}
	g := d.reads.peek(c)
	return g != nil && (float64(c.Sector+c.Sectors)/blockSectors <= g.fill || d.ahead == g && !d.stopped)
}

package sched

import (
	"fmt"
	"io"

	"github.com/elevisor/elevisor/blk"
)

// Deadline serves requests in batches of one direction, each sorted by position, and
// checks between batches whether a request has waited too long. It behaves like the
// kernel's mq-deadline (block/mq-deadline.c; Documentation/block/deadline-iosched.rst),
// with these deliberate differences:
//
//   - A changed expiry also applies to what is queued already.
//   - The check whether a lower priority has waited too long changes nothing if it has
//     not. The kernel's resets what all priorities share, the batch and the count of
//     passed over writes, so that a low-priority guest could keep the writes of a
//     high-priority one waiting for ever.
//   - async_depth limits the writes that are on the disk, not those that are queued:
//     what is queued takes the guest's memory, not ours.
//   - Parts of failed groups are retried in their order. The kernel inserts a requeued
//     request at the head of its dispatch list, so that the last one is the first.
type Deadline struct {
	merger merger
	knobs  knobs
	levels [levelCount]level
	retry  blk.List // served first
	n      int

	// All levels share these, as in the kernel.
	dir      int   // of the last request; initially write
	batching int64 // requests in the present batch
	starved  int64 // batches of reads since the last of writes, while writes waited

	writing int64 // groups of writes that are dispatched and not complete
	wake    blk.Instant
	counts  Counters
}

// level is one priority class.
type level struct {
	fifo   [2]blk.List   // leaders, the oldest first; by direction
	sorted [2]tree       // the same, by position on the disk
	latest [2]blk.Sector // position of the last one dispatched
	load   int           // groups queued or on the disk
}

// The levels, in the order in which they are served.
const (
	levelRT = iota
	levelBE
	levelIdle
	levelCount
)

var levelNames = [levelCount]string{"rt", "be", "idle"}

// The directions. Whatever changes the disk is a write.
const (
	read = iota
	write
)

var directionNames = [2]string{"read", "write"}

// The indexes of the knobs.
const (
	readExpire = iota
	writeExpire
	writesStarved
	frontMerges
	fifoBatch
	asyncDepth
	prioAgingExpire
)

func newDeadline(c *Config) *Deadline {
	return &Deadline{
		merger: merger{cfg: c},
		dir:    write,
		wake:   blk.Never,
		knobs: knobs{
			readExpire:      {name: "read_expire", unit: "ms", high: maxInt, value: 500},
			writeExpire:     {name: "write_expire", unit: "ms", high: maxInt, value: 5000},
			writesStarved:   {name: "writes_starved", low: -maxInt - 1, high: maxInt, value: 2},
			frontMerges:     {name: "front_merges", high: 1, value: 1},
			fifoBatch:       {name: "fifo_batch", high: maxInt, value: 16},
			asyncDepth:      {name: "async_depth", low: 1, high: maxInt, value: 256},
			prioAgingExpire: {name: "prio_aging_expire", unit: "ms", high: maxInt, value: 10000},
		},
	}
}

func (d *Deadline) level(r *blk.Request) *level { return &d.levels[levelOf(r.Prio)] }

// levelOf returns the level of a class.
func levelOf(p blk.Prio) int {
	switch p {
	case blk.PrioRT:
		return levelRT
	case blk.PrioIdle:
		return levelIdle
	}
	return levelBE
}

func direction(r *blk.Request) int {
	if r.Op.Changes() {
		return write
	}
	return read
}

// Insert implements Scheduler.
func (d *Deadline) Insert(_ blk.Instant, r *blk.Request) {
	d.n++
	p := d.level(r)
	g, front := d.merger.insert(r)
	if g == nil {
		p.queue(r)
		return
	}
	for {
		kept, gone := d.merger.join(g, front)
		if gone == nil {
			break
		}
		p.unqueue(gone)
		g = kept
	}
	p.sorted[direction(g)].moved(g)
}

// queue adds a leader that is younger than all others.
func (p *level) queue(g *blk.Request) {
	dir := direction(g)
	p.load++
	p.fifo[dir].PushBack(g)
	p.sorted[dir].insert(g)
}

// unqueue removes a leader.
func (p *level) unqueue(g *blk.Request) {
	dir := direction(g)
	p.load--
	p.fifo[dir].Remove(g)
	p.sorted[dir].remove(g)
}

// Dispatch implements Scheduler. A level is served only if those above it have nothing
// queued and nothing on the disk, or if it has waited too long.
func (d *Deadline) Dispatch(now blk.Instant) *blk.Request {
	d.wake = blk.Never
	if g := d.retry.PopFront(); g != nil {
		return d.give(g)
	}
	if head := d.aged(now); head != nil {
		return head
	}
	for i := range d.levels {
		p := &d.levels[i]
		if c := d.choose(p, now); c.g != nil {
			return d.take(p, c, now)
		}
		if p.load > 0 {
			break
		}
	}
	return nil
}

// aged serves a lower level that has waited for prio_aging_expire.
func (d *Deadline) aged(now blk.Instant) *blk.Request {
	above := d.levels[levelRT].load > 0
	if !above && (d.levels[levelBE].load == 0 || d.levels[levelIdle].load == 0) {
		return nil
	}
	limit := blk.Instant(d.knobs[prioAgingExpire].value) * millisecond
	for i := levelBE; i < levelCount; i++ {
		p := &d.levels[i]
		c := d.choose(p, now)
		switch {
		case c.g == nil:
		case c.g.Arrive+limit <= now:
			if above {
				d.counts.Aged++
			}
			return d.take(p, c, now)
		default:
			d.wake = min(d.wake, c.g.Arrive+limit)
			if oldest := p.fifo[c.dir].Front(); c.fresh && oldest != c.g {
				// Once its deadline has passed, it is the choice.
				d.wake = min(d.wake, oldest.Arrive+max(limit, d.expiry(c.dir)))
			}
		}
		above = above || p.load > 0
	}
	return nil
}

// choice is what a level would serve next: the group that g leads.
type choice struct {
	g       *blk.Request
	dir     int
	fresh   bool // it starts a batch
	expired bool // it was chosen because its deadline has passed
	passed  bool // it is a read, and writes wait
}

// choose decides without changing anything. Deadlines are checked only between batches:
// they may be missed by one batch of the other direction and one of their own.
func (d *Deadline) choose(p *level, now blk.Instant) (c choice) {
	if g := d.next(p, d.dir); g != nil && d.batching < d.knobs[fifoBatch].value {
		return choice{g: g, dir: d.dir}
	}
	reads, writes := p.fifo[read].Len() > 0, p.fifo[write].Len() > 0 && d.mayWrite()
	switch {
	case reads && writes && d.starved >= d.knobs[writesStarved].value:
		c.dir = write
	case reads:
		c.dir, c.passed = read, writes
	case writes:
		c.dir = write
	default:
		return c
	}
	c.fresh = true
	oldest := p.fifo[c.dir].Front()
	c.expired = oldest.Arrive+d.expiry(c.dir) <= now
	if c.g = d.next(p, c.dir); c.g == nil || c.expired {
		c.g = oldest // also at the end of a sweep: the next one starts at the oldest
	}
	return c
}

// next returns the next group of the sweep, nil at its end.
func (d *Deadline) next(p *level, dir int) *blk.Request {
	if dir == write && !d.mayWrite() {
		return nil
	}
	return p.sorted[dir].from(p.latest[dir])
}

func (d *Deadline) mayWrite() bool { return d.writing < d.knobs[asyncDepth].value }

func (d *Deadline) expiry(dir int) blk.Instant {
	return blk.Instant(d.knobs[readExpire+dir].value) * millisecond
}

// take dispatches what choose has decided on.
func (d *Deadline) take(p *level, c choice, now blk.Instant) *blk.Request {
	if c.fresh {
		d.dir, d.batching = c.dir, 0
		switch {
		case c.passed:
			d.starved++
			d.counts.Starved++
		case c.dir == write:
			d.starved = 0
		}
	}
	if d.batching == 0 {
		d.counts.Batches++
	}
	if c.expired {
		d.counts.Expired++
	}
	d.counts.LongestWait = max(d.counts.LongestWait, now-c.g.Arrive)
	d.batching++
	d.wake = blk.Never
	p.unqueue(c.g)
	p.load++ // on the disk now
	p.latest[c.dir] = c.g.Links.Key
	return d.give(c.g)
}

// give dispatches the group that g leads.
func (d *Deadline) give(g *blk.Request) *blk.Request {
	d.n -= int(g.Links.Parts)
	if direction(g) == write {
		d.writing++
	}
	return d.merger.give(g)
}

// Retry implements Scheduler.
func (d *Deadline) Retry(_ blk.Instant, r *blk.Request) {
	aloneForGood(r)
	d.n++
	d.level(r).load++
	d.retry.PushBack(r)
}

// Complete implements Scheduler.
func (d *Deadline) Complete(_ blk.Instant, r *blk.Request) {
	if !d.merger.complete(r) {
		return
	}
	d.level(r).load--
	if direction(r) == write {
		d.writing--
	}
}

// Drain implements Scheduler.
func (d *Deadline) Drain(src blk.Source, out []*blk.Request) []*blk.Request {
	old := len(out)
	out = takeOut(&d.retry, src, out, func(g *blk.Request) { d.level(g).load-- }, nil)
	for i := range d.levels {
		for dir := range d.levels[i].fifo {
			out = d.drain(&d.levels[i], dir, src, out)
		}
	}
	d.n -= len(out) - old
	bySeq(out[old:])
	return out
}

func (d *Deadline) drain(p *level, dir int, src blk.Source, out []*blk.Request) []*blk.Request {
	return takeOut(&p.fifo[dir], src, out, func(g *blk.Request) {
		p.load--
		p.sorted[dir].remove(g)
		d.merger.forget(g)
	}, func(r *blk.Request) {
		p.load++
		p.sorted[dir].insert(r)
		d.merger.add(r)
	})
}

// Wake implements Scheduler. Time alone only lets lower priorities be served at last: an
// expired request is served as soon as there is room, like any other.
func (d *Deadline) Wake() blk.Instant { return d.wake }

// Len implements Scheduler.
func (d *Deadline) Len() int { return d.n }

// Set implements Tunable.
func (d *Deadline) Set(key, value string) error {
	_, err := d.knobs.set("deadline", key, value)
	d.merger.noFront = d.knobs[frontMerges].value == 0
	return err
}

// Tunables implements Tunable.
func (d *Deadline) Tunables() []Info { return d.knobs.infos() }

// Counters implements Tunable.
func (d *Deadline) Counters(c *Counters) {
	c.Batches += d.counts.Batches
	c.Expired += d.counts.Expired
	c.Starved += d.counts.Starved
	c.Aged += d.counts.Aged
	c.LongestWait = max(c.LongestWait, d.counts.LongestWait)
}

// Describe implements Scheduler.
func (d *Deadline) Describe(w io.Writer) {
	fmt.Fprintf(w, "deadline: %d queued, %d writes on the disk, %d of a batch of %ss, writes passed over %d times\n",
		d.n, d.writing, d.batching, directionNames[d.dir], d.starved)
	describeList(w, &d.retry)
	for i := range d.levels {
		p := &d.levels[i]
		if p.load == 0 {
			continue
		}
		fmt.Fprintf(w, " %s: %d queued or on the disk, sweep at %d for reads, %d for writes\n",
			levelNames[i], p.load, p.latest[read], p.latest[write])
		for dir := range p.fifo {
			describeList(w, &p.fifo[dir])
		}
	}
}

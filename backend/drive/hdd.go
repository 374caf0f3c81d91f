package drive

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/elevisor/elevisor/blk"
)

// HDD are the parameters of a rotational SATA drive. Times are in microseconds;
// blocks are 4 KiB. A parameter file has them by these names, with the origin of each.
//
// The drive serves one command at a time. What makes its published figures come out,
// and was fitted to them rather than documented by a vendor: a command that does not
// continue the stream of the one before costs StreamSwitch more; a stream has about
// one megabyte of read-ahead, so that the head moves once for some hundreds of
// commands; nothing is served while it does; and with a longer queue, less is read
// ahead. Seeks are a+b*sqrt(d) after Ruemmler and Wilkes ("An Introduction to Disk
// Drive Modeling", IEEE Computer 27(3), 1994).
type HDD struct {
	RPM    float64 `toml:"rpm"`    // turns a minute
	Blocks float64 `toml:"blocks"` // capacity

	Media      float64 `toml:"media_us"`    // one block under the head, outermost zone
	InnerRatio float64 `toml:"inner_ratio"` // innermost zone's rate by the outermost's; linear in between

	SeekBase   float64 `toml:"seek_base_us"`   // of any seek
	SeekStroke float64 `toml:"seek_stroke_us"` // times the square root of the fraction of the full stroke
	SeekMax    float64 `toml:"seek_max_us"`    // a seek takes at most that
	NearBlocks float64 `toml:"near_blocks"`    // not farther is no seek: the platter turns to it
	Settle     float64 `toml:"settle_us"`      // after each head move, until data flows

	Read            float64 `toml:"read_us"`             // controller and link: a read of one block
	Write           float64 `toml:"write_us"`            // a write of one
	Bus             float64 `toml:"bus_us"`              // each further block of a command, on the link
	StreamSwitch    float64 `toml:"stream_switch_us"`    // a command of another stream than the one before
	DirectionSwitch float64 `toml:"direction_switch_us"` // and of the other direction besides

	Segments       float64 `toml:"segments"`          // streams that are told apart, for each direction
	Segment        float64 `toml:"segment_blocks"`    // read-ahead of one stream
	ReadCache      float64 `toml:"read_cache_blocks"` // and of all together
	ReadAheadMin   float64 `toml:"read_ahead_min"`    // blocks, once begun: before the head leaves a sequential stream
	ReadAheadSmall float64 `toml:"read_ahead_small"`  // blocks: with more than QueueLimit commands waiting
	QueueLimit     float64 `toml:"queue_limit"`       // commands

	WriteCache float64 `toml:"write_cache_blocks"`
	Destage    float64 `toml:"destage_blocks"` // dirty ones that start writing back

	NCQ     float64 `toml:"ncq"`         // commands in the drive
	Reorder bool    `toml:"ncq_reorder"` // shortest positioning time first, for those that move the head
	MaxWait float64 `toml:"ncq_wait_us"` // longest that reordering passes a command over
}

// blockSectors are the sectors of a block.
const blockSectors = 8

// bound is one number of a parameter file, with its valid range.
type bound struct {
	name     string
	v        *float64
	min, max float64
}

// bounds lists every number of p.
func (p *HDD) bounds() []bound {
	const long = 1e7 // ten seconds: no part of a command takes longer
	return []bound{
		{"rpm", &p.RPM, 1000, 30000}, {"blocks", &p.Blocks, 1024, 1e11},
		{"media_us", &p.Media, 0.1, 1e4}, {"inner_ratio", &p.InnerRatio, 0.1, 1},
		{"seek_base_us", &p.SeekBase, 0, long}, {"seek_stroke_us", &p.SeekStroke, 0, long}, {"seek_max_us", &p.SeekMax, 0, long},
		{"near_blocks", &p.NearBlocks, 0, 1e9}, {"settle_us", &p.Settle, 0, long},
		{"read_us", &p.Read, 0, long}, {"write_us", &p.Write, 0, long}, {"bus_us", &p.Bus, 0, long},
		{"stream_switch_us", &p.StreamSwitch, 0, long}, {"direction_switch_us", &p.DirectionSwitch, 0, long},
		{"segments", &p.Segments, 1, 1024}, {"segment_blocks", &p.Segment, 1, 1e7}, {"read_cache_blocks", &p.ReadCache, 1, 1e8},
		{"read_ahead_min", &p.ReadAheadMin, 0, 1e7}, {"read_ahead_small", &p.ReadAheadSmall, 0, 1e7}, {"queue_limit", &p.QueueLimit, 0, 1e6},
		{"write_cache_blocks", &p.WriteCache, 0, 1e6}, {"destage_blocks", &p.Destage, 1, 1e6},
		{"ncq", &p.NCQ, 1, 1024}, {"ncq_wait_us", &p.MaxWait, 0, 1e9},
	}
}

// Check says which parameter is out of its range.
func (p *HDD) Check() error {
	for _, b := range p.bounds() {
		if v := *b.v; !(v >= b.min && v <= b.max) { // also what is not a number
			return fmt.Errorf("%s = %v is out of range %v to %v", b.name, v, b.min, b.max)
		}
		if v := *b.v; (b.name == "segments" || b.name == "ncq") && v != math.Trunc(v) {
			return fmt.Errorf("%s = %v is not a whole number", b.name, v)
		}
	}
	return nil
}

// Parameter is the number called name, as in a parameter file; nil if there is none.
func (p *HDD) Parameter(name string) *float64 {
	for _, b := range p.bounds() {
		if b.name == name {
			return b.v
		}
	}
	return nil
}

// Parameters are the names of all numbers, in the order of the file.
func (p *HDD) Parameters() (names []string) {
	for _, b := range p.bounds() {
		names = append(names, b.name)
	}
	return names
}

// hdd is a Drive. Instants within it are nanoseconds, as numbers with a fraction.
type hdd struct {
	p     HDD // times in nanoseconds
	turn  float64
	queue []waiting // in the order in which they came; the one in service is taken out
	rand  *rand.PCG
	stats Stats

	now     float64 // of the last call
	busy    bool
	serving int     // its tag
	until   float64 // when that is done
	reads   segments
	writes  segments
	last    *segment // of the last command; a stream that lost its place to another is lost
	lost    segment
	lastOp  blk.Op

	head     float64  // block under it
	ahead    *segment // being read ahead; nil: none
	refilled float64  // block at which that began
	filledAt float64  // when its fill was right
	stopped  bool     // no more of it is read ahead
	dirty    destager
}

// waiting is a command in the drive's queue.
type waiting struct {
	Command
	came  float64
	phase float64 // where on its turn the first block lies, 0 to 1
}

// NewHDD makes a drive with sectors of capacity: the outer part of p's, or all of it.
func NewHDD(p HDD, sectors blk.Sector, seed uint64) (Drive, error) {
	if err := p.Check(); err != nil {
		return nil, err
	}
	if most := p.Blocks * blockSectors; sectors < 1 || float64(sectors) > most {
		return nil, fmt.Errorf("size of %d sectors is out of range 1 to %.0f, the drive's capacity", sectors, most)
	}
	for _, us := range []*float64{
		&p.Media, &p.SeekBase, &p.SeekStroke, &p.SeekMax, &p.Settle, &p.Read, &p.Write, &p.Bus, &p.StreamSwitch, &p.DirectionSwitch, &p.MaxWait,
	} {
		*us *= 1000
	}
	d := &hdd{p: p, turn: 60e9 / p.RPM, rand: rand.NewPCG(seed, 0x68646431)}
	d.queue = make([]waiting, 0, int(p.NCQ))
	d.reads.init(int(p.Segments))
	d.writes.init(int(p.Segments))
	d.dirty.init(d)
	return d, nil
}

// Depth implements Drive.
func (d *hdd) Depth() int { return int(d.p.NCQ) }

// Stats implements Drive.
func (d *hdd) Stats() Stats {
	s := d.stats
	s.Destaged = uint64(d.dirty.done * blockSectors)
	return s
}

// Queue implements Drive.
func (d *hdd) Queue(now blk.Instant, c Command) bool {
	d.now = max(d.now, float64(now))
	if d.busy && len(d.queue) == cap(d.queue)-1 { // with the one in service; while there is none, nothing waits
		return false
	}
	d.stats.Commands[c.Op]++
	d.stats.Sectors[c.Op] += uint64(c.Sectors)
	d.queue = append(d.queue, waiting{Command: c, came: d.now, phase: d.draw()})
	if !d.busy {
		d.serve(d.now)
	}
	return true
}

// draw is uniform in [0, 1).
func (d *hdd) draw() float64 { return float64(d.rand.Uint64()>>11) / (1 << 53) }

// Next implements Drive.
func (d *hdd) Next() blk.Instant {
	if !d.busy {
		return blk.Never
	}
	return blk.Instant(math.Ceil(d.until))
}

// Done implements Drive. The next command is served from the very instant on at which
// this one was done, whenever that is noticed.
func (d *hdd) Done(now blk.Instant) (tag int, at blk.Instant, ok bool) {
	d.now = max(d.now, float64(now))
	at = d.Next()
	if at > now {
		return 0, 0, false
	}
	tag, d.busy = d.serving, false
	if len(d.queue) > 0 {
		d.serve(d.until)
	}
	return tag, at, true
}

// serve takes the next command into service at t.
func (d *hdd) serve(t float64) {
	d.dirty.advance(t)
	d.readAhead(t)
	i := d.choose(t)
	c := d.queue[i]
	d.queue = slices.Delete(d.queue, i, i+1)
	d.busy, d.serving = true, c.Tag
	switch c.Op {
	case blk.OpRead:
		d.until = d.read(t, &c)
	case blk.OpWrite:
		d.until = d.write(t, &c)
	case blk.OpFlush:
		d.until = d.dirty.flush(t) + d.p.Write
	default: // the drive notes what was discarded or zeroed
		d.until = t + d.p.Write
	}
}

// base is what a command costs at least, and notes whose it was.
func (d *hdd) base(c *waiting, s *segment, first float64) float64 {
	t := first + (float64(blocks(c.Sectors))-1)*d.p.Bus
	if d.last != s {
		if d.last != nil {
			t += d.p.StreamSwitch
			d.stats.Switches++
			if d.lastOp != c.Op {
				t += d.p.DirectionSwitch
			}
		}
		d.last = s
	}
	d.lastOp = c.Op
	return t
}

// blocks are what n sectors fill, at least one.
func blocks(n blk.Sector) blk.Sector { return max(1, (n+blockSectors-1)/blockSectors) }

// media is the time of one block at a place on the disk.
func (d *hdd) media(block float64) float64 {
	return d.p.Media / (1 - (1-d.p.InnerRatio)*min(1, block/d.p.Blocks))
}

// move brings the head from where it is to a block whose place on the turn is phase,
// from t on, and says when its data begins to flow.
func (d *hdd) move(t, block, phase float64) float64 {
	at := d.arrive(t, block, phase)
	dist := math.Abs(block - d.head)
	d.stats.Seeks++
	d.stats.SeekSum += blk.Sector(dist) * blockSectors
	d.stats.HeadTime += blk.Instant(at - t)
	d.head = block
	return at
}

// arrive is when a head that moves would be there.
func (d *hdd) arrive(t, block, phase float64) float64 {
	if dist := math.Abs(block - d.head); dist > d.p.NearBlocks {
		t += min(d.p.SeekMax, d.p.SeekBase+d.p.SeekStroke*math.Sqrt(dist/d.p.Blocks))
	}
	t += d.p.Settle
	wait := phase - math.Mod(t/d.turn, 1)
	if wait < 0 {
		wait++
	}
	return t + wait*d.turn
}

package drive

import (
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/elevisor/elevisor/blk"
)

// SSD are the parameters of a solid-state disk: flash dies on channels, a write
// buffer, and a host link that everything passes. Times are in nanoseconds. A parameter
// file has them by these names, with the origin of each.
//
// Known simplifications: there is no map of pages. Data is read from the die that its
// address gives, as if written in order; what is written goes to the dies in turn. How
// much garbage collection has to move is a share, not a consequence, and a discard
// frees nothing. The buffer serves no reads, and the room that it has promised to a
// write it keeps, if reads then put a program off. A channel is a rate, not a schedule.
type SSD struct {
	Channels   int `toml:"channels"`    // 1 to 64
	Dies       int `toml:"dies"`        // on each channel, 1 to 64
	QueueDepth int `toml:"queue_depth"` // commands in the drive's queue, 1 to 1024

	PageSectors blk.Sector `toml:"page_sectors"` // what a die reads or programs at a time, 8 to 512
	BlockPages  int        `toml:"block_pages"`  // pages that are erased together, 1 to 65536
	BufferPages int        `toml:"buffer_pages"` // of the write buffer, 1 to 1048576

	Read    blk.Instant `toml:"read_ns"`    // sensing a page (tR)
	Program blk.Instant `toml:"program_ns"` // tPROG
	Erase   blk.Instant `toml:"erase_ns"`   // tBERS
	Suspend blk.Instant `toml:"suspend_ns"` // the most that a read waits for a program or an erase
	Channel blk.Instant `toml:"channel_ns"` // 4 KiB between a die and the controller
	Link    blk.Instant `toml:"link_ns"`    // 4 KiB between the drive and the host
	Command blk.Instant `toml:"command_ns"` // the link's share in each command, whatever it carries

	// What the controller does for a command beside others.
	ReadSetup  blk.Instant `toml:"read_setup_ns"`
	WriteSetup blk.Instant `toml:"write_setup_ns"`
	Discard    blk.Instant `toml:"discard_ns"`

	Valid     float64 `toml:"valid"`     // share of a block that random writes leave valid, to be moved; 0 to 0.99
	Jitter    float64 `toml:"jitter"`    // Read, Program and Erase vary by up to this share of themselves, 0 to 0.99
	Protected bool    `toml:"protected"` // the buffer survives a power failure: flushes and FUA cost nothing
}

// ssdDrive is the model's state. When a command will be ready for the link is known as
// soon as it is queued; the link then takes them in the order in which they are ready.
type ssdDrive struct {
	SSD
	sectors  blk.Sector
	rng      *rand.Rand
	dies     []die
	channels []blk.Instant // until when each is busy with what it was asked for so far
	link     blk.Instant   // free from then on
	waiting  []ssdCommand  // by ready, then by arrival
	stats    Stats

	next   int           // die to program
	fill   blk.Sector    // written, not yet a page
	buffer []blk.Instant // when the pages that are in it, or were, are programmed, round a ring
	pages  int           // programmed so far
	clean  blk.Instant   // when all of them are
	random float64       // share of the lately written that was not sequential
	ends   [8]blk.Sector // of the latest writes, to tell
	writes int
}

type die struct {
	reads  blk.Instant // busy with them until then
	behind blk.Instant // and with programs and erases until then
	page   blk.Sector  // 1 + the page in its register; 0: none
	used   float64     // pages of its open block
}

type ssdCommand struct {
	tag   int
	ready blk.Instant
	link  blk.Instant // time that it takes
}

// NewSSD makes a drive of that many sectors. An error names the parameter, its value
// and the valid range.
func NewSSD(p SSD, sectors blk.Sector, seed uint64) (Drive, error) {
	if err := p.check(); err != nil {
		return nil, err
	}
	if sectors == 0 {
		return nil, fmt.Errorf("ssd: 0 sectors; at least 1")
	}
	s := &ssdDrive{
		SSD: p, sectors: sectors, rng: rand.New(rand.NewPCG(seed, 0)),
		dies: make([]die, p.Channels*p.Dies), channels: make([]blk.Instant, p.Channels),
		waiting: make([]ssdCommand, 0, p.QueueDepth), buffer: make([]blk.Instant, p.BufferPages),
		random: 1, // as after long random writes
	}
	for i := range s.dies { // they do not all erase at the same time
		s.dies[i].used = s.rng.Float64() * float64(p.BlockPages)
	}
	return s, nil
}

func (p *SSD) check() error {
	for _, f := range []struct {
		name      string
		v         int64
		low, high int64
	}{
		{"channels", int64(p.Channels), 1, 64},
		{"dies", int64(p.Dies), 1, 64},
		{"queue depth", int64(p.QueueDepth), 1, 1024},
		{"page sectors", int64(p.PageSectors), 8, 512},
		{"block pages", int64(p.BlockPages), 1, 1 << 16},
		{"buffer pages", int64(p.BufferPages), 1, 1 << 20},
		{"read", int64(p.Read), 0, 1e9},
		{"program", int64(p.Program), 0, 1e9},
		{"erase", int64(p.Erase), 0, 1e9},
		{"suspend", int64(p.Suspend), 0, 1e9},
		{"channel", int64(p.Channel), 0, 1e9},
		{"link", int64(p.Link), 0, 1e9},
		{"command", int64(p.Command), 0, 1e9},
		{"read setup", int64(p.ReadSetup), 0, 1e9},
		{"write setup", int64(p.WriteSetup), 0, 1e9},
		{"discard", int64(p.Discard), 0, 1e9},
	} {
		if f.v < f.low || f.v > f.high {
			return fmt.Errorf("ssd: %s %d is not from %d to %d", f.name, f.v, f.low, f.high)
		}
	}
	for i, v := range []float64{p.Valid, p.Jitter} {
		if !(v >= 0 && v <= 0.99) { // nor NaN
			return fmt.Errorf("ssd: %s %v is not from 0 to 0.99", []string{"valid", "jitter"}[i], v)
		}
	}
	return nil
}

// Queue implements Drive. A command beyond the disk's end is the caller's fault.
func (s *ssdDrive) Queue(now blk.Instant, c Command) bool {
	if c.Sectors > s.sectors || c.Sector > s.sectors-c.Sectors {
		panic(fmt.Sprintf("sim: %v of %d+%d on a disk of %d sectors", c.Op, c.Sector, c.Sectors, s.sectors))
	}
	if len(s.waiting) == s.QueueDepth {
		return false
	}
	w := ssdCommand{tag: c.Tag, link: s.Command}
	switch c.Op {
	case blk.OpRead:
		w.ready = s.read(now+s.ReadSetup, c)
		w.link += per4K(s.Link, c.Sectors)
	case blk.OpWrite:
		w.link += per4K(s.Link, c.Sectors)
		w.ready = s.write(now+s.WriteSetup, w.link, c)
	case blk.OpFlush:
		w.ready = now
		if !s.Protected {
			s.program(now)
			w.ready = max(now, s.clean)
		}
	default: // a discard, or zeroes, which are one here
		w.ready = now + s.Discard
	}
	s.stats.Commands[c.Op]++
	s.stats.Sectors[c.Op] += uint64(c.Sectors)
	at := len(s.waiting)
	for at > 0 && s.waiting[at-1].ready > w.ready {
		at--
	}
	s.waiting = slices.Insert(s.waiting, at, w)
	return true
}

func per4K(t blk.Instant, n blk.Sector) blk.Instant { return t * blk.Instant(n) / 8 }

// vary is t with its jitter.
func (s *ssdDrive) vary(t blk.Instant) blk.Instant {
	return t + blk.Instant(float64(t)*s.Jitter*(2*s.rng.Float64()-1))
}

// read says when all of c's pages are in the controller. A read goes before the
// programs and erases that its die still has to do, and puts them off.
func (s *ssdDrive) read(now blk.Instant, c Command) (ready blk.Instant) {
	ready = now
	stalled := false
	for at, end := c.Sector, c.Sector+c.Sectors; at < end; {
		page := at / s.PageSectors
		n := min(end, (page+1)*s.PageSectors) - at
		at += n
		i := int(page % blk.Sector(len(s.dies)))
		d := &s.dies[i]
		start := max(now, d.reads)
		if d.reads <= now && d.behind > now {
			start += min(d.behind-now, s.Suspend)
			stalled = true
		}
		done := start + per4K(s.Channel, n)
		if d.page == page+1 {
			s.stats.Hits++
		} else {
			done += s.vary(s.Read)
			d.page = page + 1
		}
		if d.behind > now {
			d.behind += done - start
		}
		d.reads = done
		ready = max(ready, done, s.carry(i, now, n))
	}
	if stalled {
		s.stats.Stalls++
	}
	return ready
}

// carry asks the channel of die i to carry n sectors, and says from when on it has had
// the time for it, and for all that it was asked for before.
func (s *ssdDrive) carry(i int, now blk.Instant, n blk.Sector) blk.Instant {
	ch := &s.channels[i%s.Channels]
	*ch = max(*ch, now) + per4K(s.Channel, n)
	return *ch
}

// write says when the buffer has room for c, or, if it must be durable, when it is.
func (s *ssdDrive) write(now, link blk.Instant, c Command) blk.Instant {
	s.judge(c)
	ready, durable := now, now
	for left := c.Sectors; left > 0; {
		n := min(left, s.PageSectors-s.fill)
		left -= n
		if s.fill += n; s.fill == s.PageSectors {
			ready = max(ready, s.buffer[s.pages%s.BufferPages])
			durable = s.program(ready + link)
		}
	}
	if ready > now {
		s.stats.Stalls++
	}
	if c.FUA && !s.Protected {
		ready = max(ready, durable, s.program(ready+link))
	}
	return ready
}

// judge keeps account of how random the writes are: what is overwritten in order
// leaves whole blocks invalid, and nothing to move.
func (s *ssdDrive) judge(c Command) {
	was := 1.0
	if i := slices.Index(s.ends[:], c.Sector); i >= 0 && s.writes > i {
		was, s.ends[i] = 0, c.Sector+c.Sectors
	} else {
		s.ends[s.writes%len(s.ends)] = c.Sector + c.Sectors
		s.writes++
	}
	blocks := float64(len(s.dies)*s.BlockPages) * float64(s.PageSectors)
	// The conversion keeps the compiler from fusing this differently on each machine.
	s.random += float64((was - s.random) * min(1, float64(c.Sectors)/blocks))
}

// program sends what was gathered, if anything, to the next die: at now or later, and
// with it the moves and erases that make room for the like. It says when that is done.
func (s *ssdDrive) program(now blk.Instant) (done blk.Instant) {
	n := s.fill
	if n == 0 {
		return now
	}
	i := s.next
	s.next = (s.next + 1) % len(s.dies)
	d := &s.dies[i]
	valid := s.Valid * s.random
	done = max(now, d.behind, d.reads) + per4K(s.Channel, n) + s.vary(s.Program)
	done += blk.Instant(float64(s.Read+s.Program) * (valid / (1 - valid)))
	for d.used += 1 / (1 - valid); d.used >= float64(s.BlockPages); {
		d.used -= float64(s.BlockPages)
		done += s.vary(s.Erase)
	}
	done = max(done, s.carry(i, now, n))
	d.behind, d.page = done, 0
	s.buffer[s.pages%s.BufferPages] = done
	s.pages++
	s.clean = max(s.clean, done)
	s.stats.Destaged += uint64(n)
	s.fill = 0
	return done
}

// Next implements Drive.
func (s *ssdDrive) Next() blk.Instant {
	if len(s.waiting) == 0 {
		return blk.Never
	}
	return max(s.link, s.waiting[0].ready) + s.waiting[0].link
}

// Done implements Drive.
func (s *ssdDrive) Done(now blk.Instant) (tag int, at blk.Instant, ok bool) {
	if at = s.Next(); at > now || at == blk.Never {
		return 0, 0, false
	}
	tag = s.waiting[0].tag
	s.waiting = slices.Delete(s.waiting, 0, 1)
	s.link = at
	return tag, at, true
}

// Depth implements Drive.
func (s *ssdDrive) Depth() int { return s.QueueDepth }

// Stats implements Drive.
func (s *ssdDrive) Stats() Stats { return s.stats }

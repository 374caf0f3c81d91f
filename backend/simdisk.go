package backend

import (
	"errors"
	"slices"
	"sync/atomic"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/elevisor/elevisor/backend/drive"
	"github.com/elevisor/elevisor/blk"
)

// Simulated is what a Backend offers, beside its own methods ([As]), if its requests
// take as long as a model of a drive says. Its Wake is exact then: a loop that comes
// later makes the drive a slower one.
type Simulated interface {
	// Simulated copies what was counted so far.
	Simulated() SimStats
}

// SimStats say what a simulated drive has done, and how well it was kept to.
type SimStats struct {
	Model drive.Stats
	// Deviation is how much later than the model's instant a command was given back,
	// ns; of every command, merged groups counting once. In virtual time all are 0.
	Deviation *hdrhistogram.Histogram
}

// The histogram of deviations reaches from 1 ns to 60 s with two significant digits.
const (
	deviationMax    = 60_000_000_000
	deviationDigits = 2
)

// simDisk is data timed by a model of a drive.
type simDisk struct {
	Image    // where the data is
	info     Info
	drive    drive.Drive
	unsafe   bool // flushes and FUA do not reach the drive
	attached atomic.Bool
}

// NewSim lets every command on data take as long as drive says, whose capacity must
// not be below data's. A merged group is one command, as is a discard of several
// ranges. Data moves when the drive is done with a command, so that contents change as
// slowly as it answers. p says which drive it is.
//
// A drive has one queue: the image can be attached once.
func NewSim(data Image, drive drive.Drive, p Physical, o Options) Image {
	i := data.Info()
	i.LogicalBlock, i.PhysicalBlock = blk.SectorSize, plainBlock
	o.blocks(&i)
	i.Engine, i.Physical, i.Rotational = "sim", p, p.Rotational && p.Believed
	return &simDisk{Image: data, info: i, drive: drive, unsafe: o.Cache == CacheUnsafe}
}

// Info implements Image.
func (d *simDisk) Info() Info { return d.info }

var errOneQueue = errors.New("a simulated drive has one queue, and another loop has it: it cannot be served by more than one worker")

// Attach implements Image.
func (d *simDisk) Attach(h Host) (Backend, error) {
	if !d.attached.CompareAndSwap(false, true) {
		return nil, errOneQueue
	}
	inner, err := d.Image.Attach(h)
	if err != nil {
		d.attached.Store(false) // nobody has the queue
		return nil, err
	}
	n := max(h.Depth, 1)
	b := &simBackend{
		disk: d, late: hdrhistogram.New(1, deviationMax, deviationDigits),
		commands: make([]command, n), free: make([]int, n), ready: make([]int, 0, n), moving: make([]int, 0, n),
	}
	b.gate = gate{Wrapper: Wrapper{inner}, line: b}
	for tag := range b.free {
		b.free[tag] = tag
	}
	return b, nil
}

// simBackend sends each request through the drive first and then, when the drive is
// done with it, to where the data is.
type simBackend struct {
	gate     // to the data; the drive is the line before it
	disk     *simDisk
	commands []command // by tag
	free     []int     // tags
	ready    []int     // tags the drive is done with, the earliest first
	moving   []int     // tags whose data is being moved
	late     *hdrhistogram.Histogram
}

// command is a request in the drive, or behind it.
type command struct {
	r   *blk.Request
	due blk.Instant // when the drive was done
}

// Info implements Backend.
func (b *simBackend) Info() Info { return b.disk.info }

// Simulated implements Simulated.
func (b *simBackend) Simulated() SimStats {
	return SimStats{Model: b.disk.drive.Stats(), Deviation: hdrhistogram.Import(b.late.Export())}
}

// Submit implements Backend.
func (b *simBackend) Submit(now blk.Instant, r *blk.Request) bool {
	if len(b.free) == 0 {
		return false
	}
	tag := b.free[len(b.free)-1]
	if b.bypasses(r) {
		b.ready = append(b.ready, tag)
	} else if !b.disk.drive.Queue(now, b.command(tag, r)) {
		return false
	}
	r.Move(blk.StateQueued, blk.StateIssued)
	b.free = b.free[:len(b.free)-1]
	b.commands[tag] = command{r: r, due: now}
	return true
}

// bypasses says of what an operator wants to be ignored that the drive never sees it.
func (b *simBackend) bypasses(r *blk.Request) bool {
	return r.Op == blk.OpFlush && b.disk.unsafe || r.Op == blk.OpDiscard && !b.disk.info.Discard
}

// command is what the drive is asked for: all of a group at once. The ranges of a
// discard may lie anywhere, and over each other; the drive gets one extent that begins
// at the first of them, and stays on the disk. That of a flush is empty.
func (b *simBackend) command(tag int, r *blk.Request) drive.Command {
	c := drive.Command{Tag: tag, Op: r.Op, FUA: r.Op.Changes() && r.Flags&blk.FlagFUA != 0 && !b.disk.unsafe}
	if r.Op == blk.OpFlush {
		return c
	}
	c.Sector = r.Sector
	if len(r.Ranges) > 0 {
		c.Sector = r.Ranges[0].Sector
	}
	c.Sector = min(c.Sector, b.disk.info.Sectors-1)
	room := b.disk.info.Sectors - c.Sector
	for part := r; part != nil; part = part.Merged {
		c.Sectors += min(part.Sectors, room-c.Sectors)
	}
	return c
}

// Reap implements Backend.
func (b *simBackend) Reap(now blk.Instant, done []*blk.Request) []*blk.Request {
	n := len(done)
	done = b.gate.Reap(now, done)
	for _, r := range done[n:] {
		b.finish(now, r)
	}
	return done
}

func (b *simBackend) next() blk.Instant {
	if len(b.ready) > 0 {
		return b.commands[b.ready[0]].due
	}
	return b.disk.drive.Next()
}

func (b *simBackend) first(now blk.Instant) *blk.Request {
	if len(b.ready) == 0 {
		tag, at, ok := b.disk.drive.Done(now)
		if !ok {
			return nil
		}
		b.commands[tag].due = at
		b.ready = append(b.ready, tag)
	}
	return b.commands[b.ready[0]].r
}

func (b *simBackend) pop() {
	b.moving = append(b.moving, b.ready[0])
	b.ready = slices.Delete(b.ready, 0, 1)
}

// finish frees the tag of a request whose data has moved. There are few at a time: the
// drive is done with one command after the other.
func (b *simBackend) finish(now blk.Instant, r *blk.Request) {
	i := slices.IndexFunc(b.moving, func(tag int) bool { return b.commands[tag].r == r })
	tag := b.moving[i]
	last := len(b.moving) - 1
	b.moving[i] = b.moving[last]
	b.moving = b.moving[:last]
	_ = b.late.RecordValue(min(int64(now-b.commands[tag].due), deviationMax)) // clamped: it cannot refuse
	b.commands[tag] = command{}
	b.free = append(b.free, tag)
}

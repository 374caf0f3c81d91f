package bench

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/elevisor/elevisor/blk"
	"github.com/elevisor/elevisor/internal/clock"
	"github.com/elevisor/elevisor/internal/guest"
)

// StreamOptions describe sequential streams that are interleaved in one queue: the
// load in which merging is worth most and hardest to find. Writer i writes its part
// of the region from front to back; reader i follows it and checks what it reads.
// Which stream is next is drawn at random.
type StreamOptions struct {
	Streams   int // writers, and as many readers
	Blocks    int // of each writer's part
	BlockSize int // bytes
	Seed      uint64
	Stall     time.Duration // see Options
}

// StreamResult is what came of it.
type StreamResult struct {
	Stats    Stats // of reads and writes together
	Runtime  time.Duration
	Verified uint64 // blocks read and compared
	Failures []error
}

// streams is a run. One goroutine owns it.
type streams struct {
	o     StreamOptions
	q     Queue
	rng   *rand.Rand
	clock clock.Monotonic
	all   []stream // writers, and then readers
	slots []streamSlot
	free  []int
	left  int
	res   StreamResult
}

type stream struct {
	next    int // block to be submitted
	settled int // a writer's blocks that are on the disk, from the front
	early   map[int]bool
}

type streamSlot struct {
	stream, block  int
	issued, kicked int64
}

// RunStreams runs o on q, a queue of a disk that is large enough.
func RunStreams(ctx context.Context, q Queue, o StreamOptions) (*StreamResult, error) {
	if o.Streams < 1 || o.Blocks < 1 || o.BlockSize < blk.SectorSize || o.BlockSize%blk.SectorSize != 0 || o.BlockSize > len(q.Buffer(0).Bytes) {
		return nil, fmt.Errorf("streams=%d, blocks=%d, bs=%d: not at least 1, 1 and a sector, and a block not above a slot's %d bytes",
			o.Streams, o.Blocks, o.BlockSize, len(q.Buffer(0).Bytes))
	}
	if o.Stall == 0 {
		o.Stall = DefaultStall
	}
	s := &streams{
		o: o, q: q, rng: rand.New(rand.NewPCG(o.Seed, 1)), clock: clock.Start(),
		all: make([]stream, 2*o.Streams), slots: make([]streamSlot, q.Depth()), left: 2 * o.Streams * o.Blocks,
		res: StreamResult{Stats: newStats()},
	}
	for i := range s.slots {
		s.free = append(s.free, i)
	}
	for i := range o.Streams {
		s.all[i].early = map[int]bool{}
	}
	for s.left > 0 && len(s.res.Failures) == 0 && ctx.Err() == nil {
		s.fill()
		s.q.Kick()
		if err := s.reap(); err != nil {
			s.res.Failures = append(s.res.Failures, err)
		}
	}
	s.res.Runtime = time.Duration(s.clock.Now())
	return &s.res, ctx.Err()
}

// fill submits blocks of streams drawn at random until the slots are used up, or no
// stream has a block that may go.
func (s *streams) fill() {
	for len(s.free) > 0 {
		n := s.pick()
		if n < 0 {
			return
		}
		slot := s.free[len(s.free)-1]
		block := s.all[n].next
		op, data := blk.OpRead, s.q.Buffer(slot).Slice(0, s.o.BlockSize)
		if n < s.o.Streams {
			op = blk.OpWrite
			fillSectors(data.Bytes, s.o.Seed, s.sector(n, block), 1)
		}
		if !s.q.Submit(slot, op, s.sector(n, block), []guest.Buf{data}) {
			return
		}
		s.free = s.free[:len(s.free)-1]
		s.all[n].next++
		now := int64(s.clock.Now())
		s.slots[slot] = streamSlot{stream: n, block: block, issued: now, kicked: now}
	}
}

// pick draws a stream that has a block to submit: any block of its part for a
// writer, one that its writer has on the disk for a reader. -1: there is none.
func (s *streams) pick() int {
	first := s.rng.IntN(len(s.all))
	for i := range s.all {
		n := (first + i) % len(s.all)
		limit := s.o.Blocks
		if n >= s.o.Streams {
			limit = s.all[n-s.o.Streams].settled
		}
		if s.all[n].next < limit {
			return n
		}
	}
	return -1
}

func (s *streams) sector(stream, block int) blk.Sector {
	at := (stream%s.o.Streams)*s.o.Blocks + block
	return blk.Sector(at * s.o.BlockSize / blk.SectorSize)
}

func (s *streams) reap() error {
	n, err := s.q.Reap(s.done)
	if err != nil || n > 0 {
		return err
	}
	return s.q.Wait(s.o.Stall)
}

func (s *streams) done(d guest.Done) {
	x := s.slots[d.Slot]
	s.free = append(s.free, d.Slot)
	s.left--
	if d.Status != blk.StatusOK {
		s.res.Stats.Errors++
		s.res.Failures = append(s.res.Failures, fmt.Errorf("stream %d, block %d: %v", x.stream, x.block, d.Status))
		return
	}
	s.res.Stats.complete(x.issued, x.kicked, int64(s.clock.Now()), int64(s.o.BlockSize))
	if x.stream < s.o.Streams {
		w := &s.all[x.stream]
		w.early[x.block] = true
		for w.early[w.settled] {
			delete(w.early, w.settled)
			w.settled++
		}
		return
	}
	data := s.q.Buffer(d.Slot).Bytes[:s.o.BlockSize]
	if err := checkSectors(data, s.o.Seed, s.sector(x.stream, x.block), 1); err != nil {
		s.res.Failures = append(s.res.Failures, err)
		return
	}
	s.res.Verified++
}

package load

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/elevisor/elevisor/blk"
	"github.com/elevisor/elevisor/guest"
	"github.com/elevisor/elevisor/sys/clock"
)

// StreamOptions describe sequential streams that are interleaved in one queue: the
// load in which merging is worth most and hardest to find. Writers write their parts
// of the region from front to back, readers read theirs, which were written before;
// which stream is next is drawn at random.
type StreamOptions struct {
	Streams   int // writers, and as many readers
	Blocks    int // of each one's part
	BlockSize int // bytes
	Seed      uint64
	Stall     time.Duration // see Options

	// Measured is called when the interleaved phase begins (true) and when it has
	// ended (false). Before and after it, parts are written and checked in requests
	// as large as a slot's buffer.
	Measured func(begins bool)
}

// StreamResult is what came of it.
type StreamResult struct {
	Stats    Stats         // of the interleaved phase, reads and writes together
	Runtime  time.Duration // of that phase
	Verified uint64        // blocks read and compared
	Failures []error
}

// streams is a run. One goroutine owns it.
type streams struct {
	o     StreamOptions
	q     Queue
	rng   *rand.Rand
	clock clock.Monotonic
	slots []streamSlot
	free  []int
	res   StreamResult

	// The present phase: which streams go on, in steps of how many blocks, doing what.
	next  []int // by stream: the first block that is not submitted
	step  int
	op    func(stream int) blk.Op
	count bool // its requests are counted
	left  int  // blocks not finished
}

type streamSlot struct {
	stream, block, blocks int
	op                    blk.Op
	issued                int64
}

// RunStreams runs o on q, a queue of a disk that is large enough.
func RunStreams(ctx context.Context, q Queue, o StreamOptions) (*StreamResult, error) {
	buffer := len(q.Buffer(0).Bytes)
	if o.Streams < 1 || o.Blocks < 1 || o.BlockSize < blk.SectorSize || o.BlockSize%blk.SectorSize != 0 || o.BlockSize > buffer {
		return nil, fmt.Errorf("streams=%d, blocks=%d, bs=%d: not at least 1, 1 and a sector, and a block not above a slot's %d bytes",
			o.Streams, o.Blocks, o.BlockSize, buffer)
	}
	if o.Stall == 0 {
		o.Stall = DefaultStall
	}
	if o.Measured == nil {
		o.Measured = func(bool) {}
	}
	s := &streams{
		o: o, q: q, rng: rand.New(rand.NewPCG(o.Seed, 1)), clock: clock.Start(),
		slots: make([]streamSlot, q.Depth()), next: make([]int, 2*o.Streams), res: StreamResult{Stats: NewStats()},
	}
	for i := range s.slots {
		s.free = append(s.free, i)
	}
	large := buffer / o.BlockSize
	s.phase(ctx, o.Streams, 2*o.Streams, large, func(int) blk.Op { return blk.OpWrite })
	begin := s.clock.Now()
	o.Measured(true)
	s.count = true
	s.phase(ctx, 0, 2*o.Streams, 1, func(stream int) blk.Op {
		if stream < o.Streams {
			return blk.OpWrite
		}
		return blk.OpRead
	})
	s.count = false
	s.res.Runtime = time.Duration(s.clock.Now() - begin)
	o.Measured(false)
	s.phase(ctx, 0, o.Streams, large, func(int) blk.Op { return blk.OpRead })
	return &s.res, ctx.Err()
}

// phase has streams from first to end go through their parts once.
func (s *streams) phase(ctx context.Context, first, end, step int, op func(stream int) blk.Op) {
	s.step, s.op, s.left = step, op, (end-first)*s.o.Blocks
	for i := range s.next {
		s.next[i] = s.o.Blocks
	}
	clear(s.next[first:end])
	for s.left > 0 && len(s.res.Failures) == 0 && ctx.Err() == nil {
		s.fill()
		s.q.Kick()
		if err := s.reap(); err != nil {
			s.res.Failures = append(s.res.Failures, err)
		}
	}
}

// fill submits blocks of streams drawn at random until the slots are used up, or
// there is nothing more.
func (s *streams) fill() {
	for len(s.free) > 0 {
		n := s.pick()
		if n < 0 {
			return
		}
		slot, x := s.free[len(s.free)-1], streamSlot{stream: n, block: s.next[n], op: s.op(n)}
		x.blocks = min(s.step, s.o.Blocks-x.block)
		data := s.q.Buffer(slot).Slice(0, x.blocks*s.o.BlockSize)
		if x.op == blk.OpWrite {
			fillSectors(data.Bytes, s.o.Seed, s.sector(n, x.block), 1)
		}
		x.issued = int64(s.clock.Now())
		if !s.q.Submit(slot, x.op, s.sector(n, x.block), []guest.Buf{data}) {
			return
		}
		s.free = s.free[:len(s.free)-1]
		s.next[n] += x.blocks
		s.slots[slot] = x
	}
}

// pick draws a stream that is not at its end; -1: all are.
func (s *streams) pick() int {
	first := s.rng.IntN(len(s.next))
	for i := range s.next {
		if n := (first + i) % len(s.next); s.next[n] < s.o.Blocks {
			return n
		}
	}
	return -1
}

func (s *streams) sector(stream, block int) blk.Sector {
	return blk.Sector((stream*s.o.Blocks + block) * s.o.BlockSize / blk.SectorSize)
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
	s.left -= x.blocks
	if d.Status != blk.StatusOK {
		s.res.Stats.Errors++
		s.res.Failures = append(s.res.Failures, fmt.Errorf("stream %d, block %d: %v: %v", x.stream, x.block, x.op, d.Status))
		return
	}
	n := x.blocks * s.o.BlockSize
	if s.count {
		s.res.Stats.Complete(x.issued, x.issued, int64(s.clock.Now()), int64(n))
	}
	if x.op == blk.OpWrite {
		return
	}
	if err := checkSectors(s.q.Buffer(d.Slot).Bytes[:n], s.o.Seed, s.sector(x.stream, x.block), 1); err != nil {
		s.res.Failures = append(s.res.Failures, err)
		return
	}
	s.res.Verified += uint64(x.blocks)
}

package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"golang.org/x/sys/unix"

	"github.com/elevisor/elevisor/blk"
	"github.com/elevisor/elevisor/internal/clock"
	"github.com/elevisor/elevisor/internal/guest"
)

// Queue is what a job drives: one queue of a guest, or what stands in front of
// it. Slots are tags from 0 to Depth-1, each with a data buffer.
type Queue interface {
	Depth() int
	Buffer(slot int) guest.Buf
	// Submit takes a request, not yet told to the device; false where it has no room.
	Submit(slot int, op blk.Op, sector blk.Sector, data []guest.Buf) bool
	// Kick hands over what was submitted.
	Kick()
	// Reap calls fn for each request that came back.
	Reap(fn func(guest.Done)) (int, error)
	// Wait until there is something to reap; guest.ErrTimeout after d.
	Wait(d time.Duration) error
	InFlight() int
}

// waitStep is how long a job sleeps at most before it looks at its context and
// its deadline again.
const waitStep = 100 * time.Millisecond

// failuresKept is how many failures a job describes; it counts them all.
const failuresKept = 8

// job is one queue's load.
type job struct {
	o      *Options
	q      Queue
	clock  clock.Monotonic
	first  blk.Sector // of the region
	blocks uint64
	pick   Picker

	ios     []access
	free    []int // slots
	batch   []int // slots submitted and not yet kicked
	held    held  // picked, waiting for room or for its block
	issued  int64 // bytes
	limit   int64 // bytes
	gens    []generation
	inUse   []bool // by block: a request is in flight; only with Verify
	reread  bool   // the verify pass
	now     blk.Instant
	moved   blk.Instant // when something last came back
	stopped bool
	onDone  func(guest.Done)

	res JobResult
}

// access is what a slot is doing.
type access struct {
	dir            Direction
	block          uint64
	gen            generation
	issued, kicked blk.Instant
	data           []guest.Buf
}

type held struct {
	dir   Direction
	block uint64
	ok    bool
}

func newJob(o *Options, index int, q Queue, clk clock.Monotonic) *job {
	offset, size := o.Region(index)
	blocks := uint64(size / int64(o.BlockSize))
	j := &job{
		o: o, q: q, clock: clk, first: blk.Sector(offset / blk.SectorSize), blocks: blocks,
		pick: NewPicker(o, index, blocks), limit: cmp.Or(o.IOSize, int64(blocks)*int64(o.BlockSize)),
		ios: make([]access, o.Depth), free: make([]int, 0, o.Depth), batch: make([]int, 0, o.Depth),
	}
	if o.TimeBased {
		j.limit = math.MaxInt64
	}
	if o.Verify {
		j.gens, j.inUse = make([]generation, blocks), make([]bool, blocks)
	}
	rng := rand.New(rand.NewPCG(o.Seed, ^uint64(index)))
	for i := range j.ios {
		j.free = append(j.free, i)
		buf := q.Buffer(i).Slice(0, o.BlockSize)
		for at := range buf.Bytes {
			buf.Bytes[at] = byte(rng.Uint32())
		}
		part := o.BlockSize / o.Segments
		for s := range o.Segments {
			j.ios[i].data = append(j.ios[i].data, buf.Slice(s*part, (s+1)*part))
		}
	}
	j.onDone = j.done
	j.res = JobResult{Index: index, Stats: [directions]Stats{NewStats(), NewStats()}}
	return j
}

// run is the whole of a job: the measured phase, and with Verify the pass over
// what it wrote.
func (j *job) run(ctx context.Context) {
	start := j.clock.Now()
	end := blk.Never
	if j.o.Runtime > 0 {
		end = start + blk.Instant(j.o.Runtime)
	}
	err := j.load(ctx, end)
	j.res.Runtime = time.Duration(j.clock.Now() - start)
	if err == nil && j.o.Verify && j.o.RW.Writes() && !j.stopped {
		j.reread, j.issued, j.limit = true, 0, int64(j.blocks)
		j.pick.pos[Reading] = 0
		err = j.load(ctx, blk.Never)
	}
	if err != nil {
		j.fail(unix.EIO, err)
	}
}

// load keeps the queue filled until limit, end, an error or the context stops it,
// and returns when nothing is in flight any more.
func (j *job) load(ctx context.Context, end blk.Instant) error {
	j.now = j.clock.Now()
	j.moved = j.now
	for {
		if j.now >= end || ctx.Err() != nil {
			j.limit, j.held.ok = 0, false
		}
		j.fill()
		if j.q.InFlight() == 0 {
			return nil
		}
		if err := j.await(); err != nil {
			return err
		}
		j.now = j.clock.Now()
		n, err := j.q.Reap(j.onDone)
		if err != nil {
			return fmt.Errorf("the device broke the ring's rules: %w", err)
		}
		if n > 0 {
			j.moved = j.now
		} else if j.now-j.moved > blk.Instant(j.o.Stall) {
			return fmt.Errorf("%d requests in flight, none came back for %v", j.q.InFlight(), j.o.Stall)
		}
	}
}

func (j *job) await() error {
	if err := j.q.Wait(waitStep); err != nil && !errors.Is(err, guest.ErrTimeout) {
		return fmt.Errorf("%d requests in flight: %w", j.q.InFlight(), err)
	}
	return nil
}

// fill submits while there is room and something to do, and kicks once.
func (j *job) fill() {
	for len(j.free) > 0 && j.ready() && j.submit() {
	}
	if len(j.batch) == 0 {
		return
	}
	j.q.Kick()
	now := j.clock.Now()
	for _, slot := range j.batch {
		j.ios[slot].kicked = now
	}
	j.batch = j.batch[:0]
	j.now = now
}

// ready makes held what is to be submitted next; false if there is nothing, or
// it must wait for a request on the same block.
func (j *job) ready() bool {
	for !j.held.ok {
		if j.issued >= j.limit || j.stopped {
			return false
		}
		var h held
		if j.reread {
			h.block = uint64(j.issued)
			j.issued++
			if g := j.gens[h.block]; g == unwritten || g == unknown {
				continue
			}
		} else {
			h.dir, h.block = j.pick.Next()
			j.issued += int64(j.o.BlockSize)
		}
		h.ok = true
		j.held = h
	}
	return j.inUse == nil || !j.inUse[j.held.block]
}

func (j *job) submit() bool {
	h, slot := j.held, j.free[len(j.free)-1]
	r := &j.ios[slot]
	r.dir, r.block, r.issued = h.dir, h.block, j.now
	op := blk.OpRead
	if h.dir == Writing {
		op = blk.OpWrite
	}
	if j.gens != nil {
		r.gen = j.gens[h.block]
		if h.dir == Writing {
			r.gen = r.gen%(unknown-1) + 1 // steps over both special values
			fillSectors(j.q.Buffer(slot).Bytes[:j.o.BlockSize], j.o.Seed, j.sector(h.block), r.gen)
		}
	}
	if !j.q.Submit(slot, op, j.sector(h.block), r.data) {
		return false
	}
	if j.inUse != nil {
		j.inUse[h.block] = true
	}
	j.free = j.free[:len(j.free)-1]
	j.batch = append(j.batch, slot)
	j.held.ok = false
	return true
}

func (j *job) sector(block uint64) blk.Sector {
	return j.first + blk.Sector(block*uint64(j.o.BlockSize/blk.SectorSize))
}

// done takes one completion.
func (j *job) done(d guest.Done) {
	r := &j.ios[d.Slot]
	j.free = append(j.free, d.Slot)
	ok := d.Status == blk.StatusOK
	if j.inUse != nil {
		j.inUse[r.block] = false
		j.settle(r, d.Slot, ok)
	}
	if !ok {
		j.failed(r, d)
		return
	}
	if !j.reread {
		j.res.Stats[r.dir].Complete(int64(r.issued), int64(r.kicked), int64(j.now), int64(j.o.BlockSize))
	}
}

// settle keeps the books of what is on the disk, and checks a read against them.
func (j *job) settle(r *access, slot int, ok bool) {
	switch {
	case r.dir == Writing && ok:
		j.gens[r.block] = r.gen
	case r.dir == Writing:
		j.gens[r.block] = unknown
	case ok && r.gen != unwritten && r.gen != unknown:
		j.res.Verified++
		err := checkSectors(j.q.Buffer(slot).Bytes[:j.o.BlockSize], j.o.Seed, j.sector(r.block), r.gen)
		if err != nil {
			j.res.Mismatches++
			j.fail(unix.EILSEQ, err)
		}
	}
}

func (j *job) failed(r *access, d guest.Done) {
	j.res.Stats[r.dir].Errors++
	what := "read"
	if r.dir == Writing {
		what = "write"
	}
	j.fail(unix.EIO, fmt.Errorf("%s of %d bytes at sector %d: %v", what, j.o.BlockSize, j.sector(r.block), d.Status))
}

// fail notes what went wrong; the first failure is the job's error and, unless it
// was told otherwise, its end.
func (j *job) fail(errno unix.Errno, err error) {
	if j.res.Errno == 0 {
		j.res.Errno = errno
	}
	if len(j.res.Failures) < failuresKept {
		j.res.Failures = append(j.res.Failures, err)
	}
	j.stopped = j.stopped || !j.o.ContinueOnError
}

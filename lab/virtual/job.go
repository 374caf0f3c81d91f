package virtual

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"golang.org/x/sys/unix"

	"github.com/elevisor/elevisor/blk"
	"github.com/elevisor/elevisor/guest"
	"github.com/elevisor/elevisor/guest/load"
)

// queue is what jobs drive: a guest.Queue or a guest.Block.
type queue interface {
	Buffer(slot int) guest.Buf
	Submit(slot int, op blk.Op, sector blk.Sector, data []guest.Buf) bool
	Kick()
	Reap(fn func(guest.Done)) (int, error)
}

// failuresKept is how many failures a job describes; it counts them all.
const failuresKept = 8

// second is 10^9 nanoseconds.
const second = 1_000_000_000

// job is one clone of a Job. At most one submission of it, of a request or of a batch, is
// planned at a time: it has one processor.
type job struct {
	o      *Job
	world  *world
	vm     *vm
	q      queue
	line   *line
	number int // in the world
	first  blk.Sector
	blocks uint64
	pick   load.Picker
	random rand.PCG // of its costs

	ios  []access // by slot, from slot base on
	base int
	free []int32 // slots, less base

	batch    []access // room for next
	next     []access // what is planned, or waits for room
	planned  bool
	waits    bool // for room in the block layer or the ring
	inflight int
	syncing  bool        // a flush is in flight
	rested   int         // submitted since the last rest
	unsynced int         // writes since the last flush
	paced    [2]int64    // requests so far, by direction
	left     int64       // bytes to submit
	idle     blk.Instant // since when its processor is
	back     blk.Instant // when something last came back
	ramp     blk.Instant // nothing is counted before
	end      blk.Instant // nothing is submitted from then on
	until    blk.Instant // end, where that is what stopped it
	counting bool
	stopped  bool // nothing more is submitted
	finished bool

	res load.JobResult
}

// access is a request of a job.
type access struct {
	op     blk.Op
	length int
	sector blk.Sector
	issued blk.Instant
	data   []guest.Buf
}

func (w *world) newJob(o *Job, v *vm, clone int) *job {
	n := len(w.jobs)
	offset, size := o.Region(clone)
	blocks := uint64(size / int64(o.BlockSize))
	j := &job{
		o: o, world: w, vm: v, number: n, first: blk.Sector(offset / blk.SectorSize), blocks: blocks,
		pick: load.NewPicker(&o.Options, n, blocks), random: *rand.NewPCG(o.Seed, ^uint64(n)),
		ios: make([]access, o.Depth), free: make([]int32, 0, o.Depth), batch: make([]access, 0, max(o.Batch, 1)),
		left: math.MaxInt64, ramp: blk.Instant(o.RampTime), end: blk.Never,
		res: load.JobResult{Index: n},
	}
	if o.Runtime > 0 {
		j.end = j.ramp + blk.Instant(o.Runtime)
	}
	for d, used := range [2]bool{load.Reading: o.RW.Reads(), load.Writing: o.RW.Writes()} {
		if used { // a histogram is large
			j.res.Stats[d] = load.NewStats()
		}
	}
	return j
}

// limit is how many bytes a job submits.
func limit(o *Job, blocks uint64) int64 {
	if o.TimeBased {
		return math.MaxInt64
	}
	region, loops := int64(blocks)*int64(o.BlockSize), int64(max(o.Loops, 1))
	if loops > math.MaxInt64/region { // a region has at least a block
		loops = math.MaxInt64 / region
	}
	return cmp.Or(o.IOSize, region*loops)
}

// drive gives j its queue and its slots from base on.
func (j *job) drive(q queue, base int) {
	j.q, j.base = q, base
	part := j.o.BlockSize / j.o.Segments
	for i := range j.ios {
		j.free = append(j.free, int32(len(j.ios)-1-i)) // the lowest is taken first
		buf := q.Buffer(base + i)                      // the whole of it with Split: submit cuts it
		for s := range j.o.Segments {
			j.ios[i].data = append(j.ios[i].data, buf.Slice(s*part, (s+1)*part))
		}
	}
}

// plan decides what j submits next, and when. It is called whenever that may have
// changed: after a submission and after a completion.
func (j *job) plan(now blk.Instant) {
	if !j.counting && now >= j.ramp {
		j.counting, j.left = true, limit(j.o, j.blocks)
	}
	if j.planned || j.waits || len(j.free) == 0 {
		return
	}
	if j.stopped || j.left <= 0 {
		j.finish()
		return
	}
	flush := j.flushDue()
	think := j.o.ThinkTime > 0 && j.rested >= j.o.Depth
	if (flush || think || j.syncing) && j.inflight > 0 || len(j.free) < j.o.Batch {
		return
	}
	at := max(now, j.idle)
	if think {
		at += blk.Instant(j.o.ThinkTime)
		j.rested = 0
	}
	at = j.choose(flush, at)
	if at >= j.end {
		j.timeUp()
		return
	}
	j.planned = true
	j.world.due.push(event{at: at, job: int32(j.number)})
}

// flushDue is whether the next request is the flush that fsync asks for.
func (j *job) flushDue() bool {
	return j.o.Fsync > 0 && j.unsynced >= j.o.Fsync
}

// choose makes next what comes next, from at on, and says when that can be submitted.
func (j *job) choose(flush bool, at blk.Instant) blk.Instant {
	if flush {
		j.next = append(j.batch[:0], access{op: blk.OpFlush})
		return at + j.cost(blk.OpFlush)
	}
	j.next = j.batch[:0]
	for unsynced := j.unsynced; len(j.next) < cap(j.batch) && j.left > 0; {
		pick := j.pick.Next()
		next := access{op: blk.OpRead, length: pick.Length, sector: j.first + blk.Sector(pick.Offset/blk.SectorSize)}
		if pick.Dir == load.Writing {
			next.op = blk.OpWrite
			unsynced++
		}
		j.left -= int64(pick.Length)
		j.next = append(j.next, next)
		at += j.cost(next.op)
		if j.o.Fsync > 0 && unsynced >= j.o.Fsync || j.o.ThinkTime > 0 && j.rested+len(j.next) >= j.o.Depth {
			break
		}
	}
	return max(at, j.paceOf(j.next[0].op)) // a batch has no pace
}

// cost is what the processor needs for the next request.
func (j *job) cost(op blk.Op) blk.Instant {
	c := &j.world.o.Costs
	base := c.PerRequest + c.PerWrite
	if op == blk.OpRead {
		base = c.PerRequest + c.PerRead
	}
	if base == 0 || c.Jitter == 0 {
		return blk.Instant(base)
	}
	u := float64(j.random.Uint64()>>11) / (1 << 53)
	return blk.Instant(float64(base) * (1 + c.Jitter*(2*u-1)))
}

// paceOf is before when a request may not go, by rate_iops.
func (j *job) paceOf(op blk.Op) blk.Instant {
	if j.o.RateIOPS == 0 {
		return 0
	}
	return blk.Instant(j.paced[direction(op)] * second / int64(j.o.RateIOPS))
}

// timeUp stops j by its runtime.
func (j *job) timeUp() {
	j.stopped, j.until = true, j.end
	j.finish()
}

func direction(op blk.Op) load.Direction {
	if op == blk.OpRead {
		return load.Reading
	}
	return load.Writing
}

// submit puts what was planned into the block layer or the ring; false: it, or the rest
// of it, waits for room there.
func (j *job) submit(now blk.Instant) bool {
	for len(j.next) > 0 {
		if !j.submitOne(now, j.next[0]) {
			return false
		}
		j.next = j.next[1:]
	}
	return true
}

func (j *job) submitOne(now blk.Instant, next access) bool {
	slot := int(j.free[len(j.free)-1])
	r := &j.ios[slot]
	if len(j.o.Split) > 0 {
		r.data[0] = j.q.Buffer(j.base+slot).Slice(0, next.length)
	}
	data := r.data
	if next.op == blk.OpFlush {
		data = nil
	} else if next.op == blk.OpWrite && j.world.o.Fill != nil {
		j.world.o.Fill(j.number, next.sector, j.q.Buffer(j.base + slot).Bytes[:next.length])
	}
	if !j.q.Submit(j.base+slot, next.op, next.sector, data) {
		return false
	}
	r.op, r.sector, r.length, r.issued = next.op, next.sector, next.length, now
	j.free = j.free[:len(j.free)-1]
	j.inflight++
	j.idle = now
	switch r.op {
	case blk.OpFlush:
		j.unsynced, j.syncing = 0, true
		return true
	case blk.OpWrite:
		j.unsynced++
	}
	j.paced[direction(r.op)]++
	j.rested++
	return true
}

// done takes one completion.
func (j *job) done(now blk.Instant, d guest.Done) {
	slot := d.Slot - j.base
	r := &j.ios[slot]
	j.free = append(j.free, int32(slot))
	j.inflight--
	j.back = now
	j.syncing = j.syncing && r.op != blk.OpFlush
	switch {
	case d.Status != blk.StatusOK:
		j.failed(unix.EIO, r, fmt.Errorf("%v", d.Status))
	case r.op == blk.OpRead && j.world.o.Check != nil:
		if err := j.world.o.Check(j.number, r.sector, j.q.Buffer(d.Slot).Bytes[:r.length]); err != nil {
			j.failed(unix.EILSEQ, r, err)
		}
	}
	if d.Status == blk.StatusOK && r.op != blk.OpFlush && now >= j.ramp {
		j.res.Stats[direction(r.op)].Complete(int64(r.issued), int64(r.issued), int64(now), int64(r.length))
	}
	j.plan(now)
}

func (j *job) failed(errno unix.Errno, r *access, err error) {
	s := &j.res.Stats[direction(r.op)]
	s.Errors++
	if j.res.Errno == 0 {
		j.res.Errno = errno
	}
	if len(j.res.Failures) < failuresKept {
		j.res.Failures = append(j.res.Failures, fmt.Errorf("%v of %d bytes at sector %d: %w", r.op, r.length, r.sector, err))
	}
	j.stopped = j.stopped || !j.o.ContinueOnError
}

// finish ends j, which submits nothing more, once nothing is in flight.
func (j *job) finish() {
	j.stopped = true
	if j.inflight > 0 || j.finished {
		return
	}
	j.finished = true
	ended := max(j.back, j.until)
	j.res.Runtime = time.Duration(max(0, ended-j.ramp))
	j.world.left--
	j.world.ended = max(j.world.ended, ended)
}

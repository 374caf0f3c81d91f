package load

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"golang.org/x/sys/unix"

	"github.com/elevisor/elevisor/blk"
	"github.com/elevisor/elevisor/guest"
)

// failuresKept is how many failures a job describes; it counts them all.
const failuresKept = 8

// job is one job's load on some slots of a queue. Its driver calls it.
type job struct {
	o      *Options
	d      *driver
	base   int        // its first slot
	first  blk.Sector // of the region
	blocks uint64
	pick   Picker

	ios      []access // by slot, less base
	free     []int    // slots, less base
	unkicked []int    // likewise: submitted and not yet kicked
	held     held     // picked, waiting for room, for its block or for its turn
	inflight int
	left     int64 // bytes to submit; of the verify pass: blocks
	gens     []generation
	inUse    []bool // by block: a request is in flight; only with Verify

	ramp, end blk.Instant // nothing is counted before, nothing submitted after
	counting  bool        // the ramp is over
	rest      blk.Instant // nothing is submitted before, by thinktime
	rested    int         // submitted since the last rest
	unsynced  int         // writes since the last flush
	syncing   bool        // a flush is in flight
	paced     [directions]int64
	begun     blk.Instant
	reread    bool // the verify pass
	next      uint64
	stopped   bool // nothing more is submitted
	ended     bool

	res JobResult
}

// access is what a slot is doing.
type access struct {
	op             blk.Op
	dir            Direction
	sector         blk.Sector
	length         int
	block          uint64 // only with Verify
	gen            generation
	issued, kicked blk.Instant
	data           []guest.Buf
}

type held struct {
	Pick
	ok bool
}

// newJob makes the clone-th job of o, number in the run, with the slots of d's queue
// from base on.
func newJob(o *Options, d *driver, clone, number, base int) *job {
	offset, size := o.Region(clone)
	blocks := uint64(size / int64(o.BlockSize))
	j := &job{
		o: o, d: d, base: base, first: blk.Sector(offset / blk.SectorSize), blocks: blocks, pick: NewPicker(o, number, blocks),
		ios: make([]access, o.Depth), free: make([]int, 0, o.Depth), unkicked: make([]int, 0, o.Depth), left: math.MaxInt64,
	}
	if o.Verify {
		j.gens, j.inUse = make([]generation, blocks), make([]bool, blocks)
	}
	rng := rand.New(rand.NewPCG(o.Seed, ^uint64(number)))
	for i := range j.ios {
		j.free = append(j.free, i)
		buf := d.q.Buffer(base+i).Slice(0, o.MaxBlock())
		for at := range buf.Bytes {
			buf.Bytes[at] = byte(rng.Uint32())
		}
		part := len(buf.Bytes) / o.Segments
		for s := range o.Segments {
			j.ios[i].data = append(j.ios[i].data, buf.Slice(s*part, (s+1)*part))
		}
	}
	j.res = JobResult{Index: number, Stats: [directions]Stats{NewStats(), NewStats()}}
	return j
}

// begin sets j's times.
func (j *job) begin(now blk.Instant) {
	j.begun, j.ramp, j.end = now, now+blk.Instant(j.o.RampTime), blk.Never
	if j.o.Runtime > 0 {
		j.end = j.ramp + blk.Instant(j.o.Runtime)
	}
}

// limit is how many bytes j submits.
func (j *job) limit() int64 {
	if j.o.TimeBased {
		return math.MaxInt64
	}
	return cmp.Or(j.o.IOSize, int64(j.blocks)*int64(j.o.BlockSize))
}

// advance submits what can be submitted, and says when j goes on by time alone; Never:
// when something has come back, or it has ended.
func (j *job) advance() blk.Instant {
	now := j.d.now
	if !j.counting && now >= j.ramp {
		j.counting, j.left = true, j.limit()
	}
	if now >= j.end && !j.reread {
		j.give()
	}
	for j.more() {
		n, at := j.turn(j.d.now)
		if at > j.d.now {
			return min(at, j.wake())
		}
		had := len(j.unkicked)
		for len(j.unkicked)-had < n && !j.flushDue() && j.ready() && j.submit() {
		}
		if n > 0 && j.flushDue() && j.inflight == 0 {
			j.flush()
		}
		if len(j.unkicked) == 0 {
			break
		}
		j.kick()
	}
	j.settled()
	return j.wake()
}

// wake is when j's ramp or its time is over.
func (j *job) wake() blk.Instant {
	switch {
	case j.ended || j.reread || !j.more():
		return blk.Never
	case !j.counting:
		return j.ramp
	}
	return j.end
}

// turn is how many requests go at once, and when. None, with an instant that has come: j
// waits for something to come back.
func (j *job) turn(now blk.Instant) (n int, at blk.Instant) {
	switch {
	case j.syncing || len(j.free) == 0 || len(j.free) < j.o.Batch:
		return 0, now
	case j.flushDue() && !j.reread:
		if j.inflight > 0 {
			return 0, now
		}
		return 1, now
	}
	n = cmp.Or(j.o.Batch, len(j.free))
	if j.reread {
		return n, now
	}
	if j.o.ThinkTime > 0 {
		if j.rested >= j.o.Depth {
			if j.inflight > 0 {
				return 0, now
			}
			j.rested, j.rest = 0, now+blk.Instant(j.o.ThinkTime)
		}
		n = min(n, j.o.Depth-j.rested)
	}
	if at = j.rest; j.o.RateIOPS > 0 && at <= now {
		if n = 1; j.pickNext() {
			at = j.begun + blk.Instant(j.paced[j.held.Dir]*second/int64(j.o.RateIOPS))
		}
	}
	return n, at
}

// flushDue is whether the next request is the flush that fsync asks for.
func (j *job) flushDue() bool {
	return j.o.Fsync > 0 && j.unsynced >= j.o.Fsync && !j.reread && j.left > 0 && !j.stopped
}

// pickNext makes held what is to be submitted next; false if there is nothing.
func (j *job) pickNext() bool {
	for !j.held.ok {
		if j.left <= 0 || j.stopped {
			return false
		}
		if !j.reread {
			j.held = held{Pick: j.pick.Next(), ok: true}
			j.left -= int64(j.held.Length)
			continue
		}
		block := j.next
		j.next++
		j.left--
		if g := j.gens[block]; g != unwritten && g != unknown {
			j.held = held{Pick: Pick{Dir: Reading, Offset: int64(block) * int64(j.o.BlockSize), Length: j.o.BlockSize}, ok: true}
		}
	}
	return true
}

// ready is whether something can be submitted now; it may have to wait for a request on
// the same block.
func (j *job) ready() bool {
	if len(j.free) == 0 || !j.pickNext() {
		return false
	}
	return j.inUse == nil || !j.inUse[j.held.Offset/int64(j.o.BlockSize)]
}

func (j *job) submit() bool {
	slot := j.free[len(j.free)-1]
	r := &j.ios[slot]
	r.op, r.dir, r.length, r.issued = blk.OpRead, j.held.Dir, j.held.Length, j.d.now
	r.sector = j.first + blk.Sector(j.held.Offset/blk.SectorSize)
	if r.dir == Writing {
		r.op = blk.OpWrite
	}
	if len(j.o.Split) > 0 {
		r.data[0] = j.d.q.Buffer(j.base+slot).Slice(0, r.length)
	}
	if j.gens != nil {
		r.block = uint64(j.held.Offset / int64(j.o.BlockSize))
		r.gen = j.gens[r.block]
		if r.dir == Writing {
			r.gen = r.gen%(unknown-1) + 1 // steps over both special values
			fillSectors(j.d.q.Buffer(j.base + slot).Bytes[:r.length], j.o.Seed, r.sector, r.gen)
		}
	}
	if !j.d.q.Submit(j.base+slot, r.op, r.sector, r.data) {
		return false
	}
	if j.inUse != nil {
		j.inUse[r.block] = true
	}
	j.take(slot)
	j.held.ok = false
	j.paced[r.dir]++
	j.rested++
	if r.dir == Writing {
		j.unsynced++
	}
	return true
}

// flush submits the flush that fsync asks for, if there is room.
func (j *job) flush() {
	slot := j.free[len(j.free)-1]
	if !j.d.q.Submit(j.base+slot, blk.OpFlush, 0, nil) {
		return
	}
	r := &j.ios[slot]
	r.op, r.dir, r.length, r.issued = blk.OpFlush, Writing, 0, j.d.now
	j.unsynced, j.syncing = 0, true
	j.take(slot)
}

// take makes a submitted request's slot busy.
func (j *job) take(slot int) {
	j.free = j.free[:len(j.free)-1]
	j.unkicked = append(j.unkicked, slot)
	j.inflight++
	j.d.inflight++
}

// kick hands over what was submitted.
func (j *job) kick() {
	j.d.q.Kick()
	now := j.d.clock.Now()
	for _, slot := range j.unkicked {
		j.ios[slot].kicked = now
	}
	j.unkicked = j.unkicked[:0]
	j.d.now = now
}

// more is whether j has something to submit.
func (j *job) more() bool { return !j.stopped && (j.left > 0 || j.held.ok) }

// give has j submit nothing more.
func (j *job) give() { j.left, j.held.ok = 0, false }

// settled goes on to the verify pass, or ends j, when all is done and nothing in flight.
func (j *job) settled() {
	if j.ended || j.inflight > 0 || j.more() {
		return
	}
	if !j.reread {
		j.res.Runtime = time.Duration(max(0, j.d.now-j.ramp))
		if j.o.Verify && j.o.RW.Writes() && !j.stopped {
			j.reread, j.left = true, int64(j.blocks)
			j.advance()
			return
		}
	}
	j.ended = true
	j.d.left--
}

// done takes one completion.
func (j *job) done(d guest.Done) {
	slot := d.Slot - j.base
	r := &j.ios[slot]
	j.free = append(j.free, slot)
	j.inflight--
	j.d.inflight--
	ok := d.Status == blk.StatusOK
	if r.op == blk.OpFlush {
		j.syncing = false
		if !ok {
			j.failed(r, d)
		}
		return
	}
	if j.inUse != nil {
		j.inUse[r.block] = false
		j.settle(r, d.Slot, ok)
	}
	switch {
	case !ok:
		j.failed(r, d)
	case !j.reread && j.d.now >= j.ramp:
		j.res.Stats[r.dir].Complete(int64(r.issued), int64(r.kicked), int64(j.d.now), int64(r.length))
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
		err := checkSectors(j.d.q.Buffer(slot).Bytes[:r.length], j.o.Seed, r.sector, r.gen)
		if err != nil {
			j.res.Mismatches++
			j.fail(unix.EILSEQ, err)
		}
	}
}

func (j *job) failed(r *access, d guest.Done) {
	j.res.Stats[r.dir].Errors++
	j.fail(unix.EIO, fmt.Errorf("%v of %d bytes at sector %d: %v", r.op, r.length, r.sector, d.Status))
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

package backend

import (
	"github.com/elevisor/elevisor/backend/uring"
	"github.com/elevisor/elevisor/blk"
	"golang.org/x/sys/unix"
)

// op carries one request out on a file. It knows what is to be done and not how:
// plan says which system operation comes next, an engine performs it, settle takes
// the result, until plan says that there is none left. Short transfers, ranges,
// bounces and fallbacks are all just further steps.
//
// An op belongs to one goroutine at a time: the loop's, or a worker's between
// being given to the pool and being taken back.
type op struct {
	d      *disk
	index  uint32
	async  bool // the engine can discard on a block device without blocking
	iov    []uring.Iovec
	bounce []byte // aligned; nil if the disk is not O_DIRECT

	req   *blk.Request
	phase phase
	sync  bool // make it durable after the last step
	tries int  // since the last step that got anywhere
	errno unix.Errno
	step  step

	pos, left int64 // bytes: where on the disk the rest is, and how long
	unmap     bool

	// Of reads and writes.
	at, end    cursor // in the request's segments: of the step, and behind it
	misaligned bool   // in memory: takes the bounce buffer
	bouncing   bool   // the step goes through it
	bounced    uint64 // steps that did, over the op's life

	// Of discards and write-zeroes.
	part *blk.Request
	next int // of part.Ranges

	link *op // free list, or the pool's queue
}

type phase uint8

const (
	phaseData phase = iota
	phaseDiscard
	phaseZeroes
	phaseSync
	phaseDone
)

// step is one system operation.
type step struct {
	kind   stepKind
	file   which
	iov    []uring.Iovec
	off, n int64  // bytes
	flags  uint32 // RWF_* of reads and writes, the mode of fallocate
}

type stepKind uint8

const (
	stepRead stepKind = iota
	stepWrite
	stepSync
	stepFallocate
	stepCommand // discard on a block device, by io_uring's own command
	stepTrim    // the same by ioctl, which blocks
)

type which uint8

const (
	viaMain which = iota
	viaCache
)

const (
	// iovMax is how many iovecs the kernel takes at once (UIO_MAXIOV).
	iovMax = 1024
	// bounceSize bounds what a misaligned request moves in one step.
	bounceSize = 128 << 10
	// triesMax bounds how often in a row a step may be interrupted or put off.
	triesMax = 1 << 12
)

// start takes up a request; plan comes next.
func (o *op) start(r *blk.Request) {
	o.req, o.errno, o.tries, o.sync = r, 0, 0, false
	through := r.Flags&blk.FlagFUA != 0 && o.d.opts.Cache != CacheUnsafe
	switch r.Op {
	case blk.OpRead, blk.OpWrite:
		o.phase = phaseData
		o.startData()
		o.sync = r.Op == blk.OpWrite && through && o.d.noDSync.Load()
	case blk.OpFlush:
		o.phase = phaseSync
		if o.d.opts.Cache == CacheUnsafe || o.d.opts.ReadOnly {
			o.phase = phaseDone
		}
	case blk.OpDiscard:
		// What a discard leaves is not promised, so neither is that it stays: no sync.
		o.phase = phaseDiscard
		if !o.d.opts.Discard {
			o.phase = phaseDone
		}
		o.startRanges()
	case blk.OpWriteZeroes:
		o.phase, o.sync = phaseZeroes, through
		o.unmap = r.Flags&blk.FlagUnmap != 0 && o.d.opts.Discard
		o.startRanges()
	}
}

// plan makes o.step the next operation; false: the request is finished.
func (o *op) plan() bool {
	for o.errno == 0 {
		switch o.phase {
		case phaseData:
			if o.left > 0 {
				return o.planData()
			}
		case phaseDiscard:
			for o.errno == 0 && o.nextRange() {
				if o.planDiscard() {
					return true
				}
			}
		case phaseZeroes:
			if o.nextRange() {
				o.planZeroes()
				return true
			}
		case phaseSync:
			if o.d.lost.Load() {
				o.errno = unix.EIO
				return false
			}
			// By the descriptor that dirties pages: each has a report of its own of
			// those that could not be written, and O_DIRECT writes would take main's.
			o.step = step{kind: stepSync, file: viaCache}
			return true
		case phaseDone:
			return false
		}
		o.phase = phaseDone
		if o.sync {
			o.phase, o.sync = phaseSync, false
		}
	}
	return false
}

// settle takes the result of o.step: a length, or a negative error number.
func (o *op) settle(res int64) {
	if res < 0 {
		o.failed(unix.Errno(-res))
		return
	}
	o.tries = 0
	switch o.step.kind {
	case stepRead, stepWrite:
		if res == 0 { // a read behind the end of a file that was cut
			o.errno = unix.EIO
			return
		}
		o.moved(res)
	case stepSync:
		o.phase = phaseDone
	default:
		o.pos, o.left = o.pos+o.step.n, o.left-o.step.n
	}
}

// failed ends the request, unless the step is worth another try or can be done
// another way.
func (o *op) failed(errno unix.Errno) {
	if errno == unix.EAGAIN || errno == unix.EINTR {
		if o.tries++; o.tries < triesMax {
			return
		}
	}
	if isRefusal(errno) && o.otherWay() {
		return
	}
	o.errno = errno
	// A failed sync has lost what was dirty. That of a write can have met the
	// pages of earlier ones, and has taken the only report of their loss.
	synced := o.step.kind == stepSync
	cached := o.step.file == viaCache || !o.d.info.Direct
	if o.step.kind == stepWrite && o.step.flags&unix.RWF_DSYNC != 0 && errno == unix.EIO && cached {
		synced = true
	}
	if synced {
		o.d.lost.Store(true)
	}
}

// finish writes the outcome into the request and lets it go.
func (o *op) finish() *blk.Request {
	r := o.req
	o.req, o.part, o.at, o.end = nil, nil, cursor{}, cursor{}
	r.Status, r.Errno = blk.StatusOK, uint16(o.errno)
	switch {
	case o.errno == unix.EOPNOTSUPP && r.Op == blk.OpDiscard:
		r.Status = blk.StatusUnsupp
	case o.errno != 0:
		r.Status = blk.StatusIOErr
	}
	return r
}

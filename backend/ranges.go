package backend

import "golang.org/x/sys/unix"

const (
	punchHole = unix.FALLOC_FL_PUNCH_HOLE | unix.FALLOC_FL_KEEP_SIZE
	zeroRange = unix.FALLOC_FL_ZERO_RANGE | unix.FALLOC_FL_KEEP_SIZE
	// zeroVecs times zeroPiece is how much is zeroed in one step by writing.
	zeroVecs = 16
)

// Ranges go by the descriptor without O_DIRECT, whatever the disk: on a device it
// is the one that holds it exclusively, and only with that does the kernel drop
// dirty cached pages of the range. By another it answers EBUSY.

// startRanges begins a discard or a write-zeroes. All ranges are looked at before
// the first is touched.
func (o *op) startRanges() {
	o.part, o.next, o.left, o.bouncing = o.req, 0, 0, false
	for r := o.req; r != nil; r = r.Merged {
		for _, x := range r.Ranges {
			if !o.d.within(x.Sector.Bytes(), x.Sectors.Bytes()) {
				o.errno = unix.EIO
			}
		}
	}
}

// nextRange makes pos and left what is still to be done of the current range, or
// the next one; false if there is none.
func (o *op) nextRange() bool {
	for o.left == 0 {
		for o.next == len(o.part.Ranges) {
			if o.part, o.next = o.part.Merged, 0; o.part == nil {
				return false
			}
		}
		x := o.part.Ranges[o.next]
		o.next++
		o.pos, o.left = x.Sector.Bytes(), x.Sectors.Bytes()
	}
	return true
}

// inner is what of the range lies on whole blocks of a device: lo = hi if nothing.
func (o *op) inner() (lo, hi int64) {
	lo, hi = roundUp(o.pos, o.d.zeroAlign), roundDown(o.pos+o.left, o.d.zeroAlign)
	return lo, max(lo, hi)
}

// planDiscard makes the step that discards what is left of the range; false if
// there is none to make. Only whole blocks can be discarded; the ends stay as they
// are, a discard being a hint.
func (o *op) planDiscard() bool {
	lo, hi := o.inner()
	if lo == hi {
		o.left = 0
		return false
	}
	o.pos, o.left = lo, hi-lo
	o.step = step{file: viaCache, off: lo, n: hi - lo}
	d := o.d
	switch {
	case d.block && o.async && !d.noCommand.Load():
		o.step.kind = stepCommand
	case d.block && !o.async && !d.noTrim.Load():
		o.step.kind = stepTrim
	case !d.noPunch.Load():
		o.step.kind, o.step.flags = stepFallocate, punchHole
	case d.block && !d.noTrim.Load():
		o.step.kind = stepTrim
	default:
		o.errno = unix.EOPNOTSUPP
		return false
	}
	return true
}

// planZeroes makes the step that zeroes as much as one can of the range: by
// fallocate, which is quick whatever the length, or by writing where the system
// has no such thing, and at the ends that are no whole blocks of a device.
// fallocate cannot be told to keep blocks in place when it punches a hole, so
// that is for requests that allow it (unmap).
func (o *op) planZeroes() {
	mode := o.d.zeroMode(o.unmap)
	lo, hi := o.inner()
	switch {
	case mode == 0 || lo == hi:
		o.writeZeroes(o.left)
	case o.pos < lo:
		o.writeZeroes(lo - o.pos)
	case o.pos < hi:
		o.step = step{kind: stepFallocate, file: viaCache, flags: mode, off: o.pos, n: hi - o.pos}
	default:
		o.writeZeroes(o.left)
	}
}

// zeroMode is the mode of fallocate that zeroes, 0 if the system has none. On a
// device punching is right as well: the kernel then unmaps only if what it
// unmapped reads as zeroes.
func (d *disk) zeroMode(unmap bool) uint32 {
	switch {
	case unmap && !d.noPunch.Load():
		return punchHole
	case !d.noZeroRange.Load():
		return zeroRange
	}
	return 0
}

// writeZeroes makes the step that writes up to n bytes of zeroes. One buffer
// serves all iovecs of all disks: nobody writes to it.
func (o *op) writeZeroes(n int64) {
	n = min(n, zeroVecs*zeroPiece)
	o.step = step{kind: stepWrite, off: o.pos, n: n}
	if o.d.info.Direct && (o.pos|n)&(o.d.offAlign-1) != 0 {
		o.step.file = viaCache
	}
	k := 0
	for ; n > 0; k++ {
		piece := min(n, zeroPiece)
		o.iov[k].Set(o.d.zeros[:piece])
		n -= piece
	}
	o.step.iov = o.iov[:k]
}

// otherWay remembers that the system cannot do o.step, so that plan makes another
// of it from now on; false if there is no other way.
func (o *op) otherWay() bool {
	d := o.d
	switch s := &o.step; {
	case s.kind == stepCommand:
		d.noCommand.Store(true)
	case s.kind == stepTrim:
		d.noTrim.Store(true)
	case s.kind == stepFallocate && s.flags == punchHole:
		d.noPunch.Store(true)
	case s.kind == stepFallocate:
		d.noZeroRange.Store(true)
	case s.kind == stepWrite && s.flags&unix.RWF_DSYNC != 0:
		d.noDSync.Store(true)
		o.sync = true
	default:
		return false
	}
	return true
}

// isRefusal says whether errno means "cannot", as against "failed".
func isRefusal(errno unix.Errno) bool {
	return errno == unix.EOPNOTSUPP || errno == unix.ENOTTY || errno == unix.ENOSYS
}

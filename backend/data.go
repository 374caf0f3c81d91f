package backend

import (
	"github.com/elevisor/elevisor/backend/uring"
	"github.com/elevisor/elevisor/blk"
	"github.com/elevisor/elevisor/sys/shm"
	"golang.org/x/sys/unix"
)

// cursor is a place in the segments of a request and of those merged behind it.
type cursor struct {
	part *blk.Request
	seg  int
	off  int
}

// take returns what is left of the segment at c, at most most bytes of it, and
// moves c behind that; empty at the end.
func (c *cursor) take(most int64) []byte {
	for c.part != nil {
		if c.seg == len(c.part.Segs) {
			*c = cursor{part: c.part.Merged}
			continue
		}
		b := c.part.Segs[c.seg][c.off:]
		if int64(len(b)) > most {
			b = b[:most]
			c.off += len(b)
			return b
		}
		c.seg, c.off = c.seg+1, 0
		if len(b) > 0 {
			return b
		}
	}
	return nil
}

// skip moves c n bytes on.
func (c *cursor) skip(n int64) {
	for n > 0 {
		n -= int64(len(c.take(n)))
	}
}

// startData measures the request. Every length and address of it is looked at
// once here: whether all of them suit O_DIRECT decides its road.
func (o *op) startData() {
	o.at = cursor{part: o.req}
	o.pos, o.left, o.misaligned = o.req.Sector.Bytes(), 0, false
	odd, held := uintptr(0), int64(0)
	for r := o.req; r != nil; r = r.Merged {
		o.left += r.Bytes()
		for _, s := range r.Segs {
			held += int64(len(s))
			odd |= shm.Addr(s) | uintptr(len(s))
		}
	}
	if held != o.left || !o.d.within(o.pos, o.left) {
		o.errno = unix.EIO
	}
	o.misaligned = odd&uintptr(o.d.memAlign-1) != 0
}

// planData makes the next step of a read or a write. On O_DIRECT there are three
// roads: memory that suits goes as it is; memory that does not, through the bounce
// buffer; and an extent that does not begin and end on the disk's own blocks,
// through the page cache of a second descriptor, because the kernel has to read
// the rest of those blocks before it can write them. The kernel keeps the two
// descriptors of one inode coherent: a direct transfer first writes back and
// drops the cached pages of its extent.
func (o *op) planData() bool {
	s := &o.step
	*s = step{kind: stepRead, off: o.pos}
	if o.req.Op == blk.OpWrite {
		s.kind = stepWrite
		if o.req.Flags&blk.FlagFUA != 0 && !o.sync && o.d.opts.Cache != CacheUnsafe {
			s.flags = unix.RWF_DSYNC
		}
	}
	o.bouncing = false
	if !o.d.info.Direct {
		o.gather(1)
		return true
	}
	if (o.pos|o.left)&(o.d.offAlign-1) != 0 {
		s.file = viaCache
		o.gather(1)
		return true
	}
	if !o.misaligned && o.gather(o.d.offAlign) {
		return true
	}
	return o.gatherBounced()
}

// gather makes the step move as much as iovMax iovecs cover, in multiples of
// align bytes; false if that is nothing.
func (o *op) gather(align int64) bool {
	o.end = o.at
	n, k := int64(0), 0
	for ; k < len(o.iov) && n < o.left; k++ {
		b := o.end.take(o.left - n)
		o.iov[k].Set(b)
		n += int64(len(b))
	}
	if excess := n & (align - 1); excess != 0 && n < o.left {
		// Cut off by iovMax in the middle of a block: give the rest of that back.
		if n -= excess; n == 0 {
			return false
		}
		k = trim(o.iov[:k], excess)
		o.end = o.at
		o.end.skip(n)
	}
	o.step.iov, o.step.n = o.iov[:k], n
	return true
}

// trim shortens iov by n bytes at its end and returns how many are left of it.
func trim(iov []uring.Iovec, n int64) int {
	k := len(iov)
	for n > 0 {
		last := &iov[k-1]
		if int64(last.Len()) > n {
			last.Cut(int(n))
			break
		}
		n -= int64(last.Len())
		k--
	}
	return k
}

// gatherBounced makes the step move a piece through the bounce buffer; false if
// what was to be written is no longer there.
func (o *op) gatherBounced() bool {
	n := min(o.left, bounceSize) // both are multiples of what the disk wants
	o.bouncing = true
	o.bounced++
	o.end = o.at
	if o.step.kind == stepWrite {
		for b := o.bounce[:n]; len(b) > 0; {
			from := o.end.take(int64(len(b)))
			if !shm.Copy(b[:len(from)], from) {
				o.errno = unix.EFAULT
				return false
			}
			b = b[len(from):]
		}
	}
	o.iov[0].Set(o.bounce[:n])
	o.step.iov, o.step.n = o.iov[:1], n
	return true
}

// moved accounts for n bytes of the step.
func (o *op) moved(n int64) {
	switch {
	case o.bouncing && o.step.kind == stepRead:
		for b := o.bounce[:n]; len(b) > 0; {
			to := o.at.take(int64(len(b)))
			if !shm.Copy(to, b[:len(to)]) {
				o.errno = unix.EFAULT
				return
			}
			b = b[len(to):]
		}
	case o.phase != phaseData: // written zeroes
	case n == o.step.n:
		o.at = o.end
	default:
		o.at.skip(n)
		// The next address may now be one that O_DIRECT does not take.
		o.misaligned = o.misaligned || o.d.info.Direct && n&(o.d.memAlign-1) != 0
	}
	o.pos, o.left = o.pos+n, o.left-n
}

package backend

import (
	"errors"
	"fmt"

	"github.com/elevisor/elevisor/backend/uring"
	"github.com/elevisor/elevisor/blk"
	"golang.org/x/sys/unix"
)

// ringBackend carries requests out on the loop's io_uring. Each step of each
// request is one operation queued there, and goes out with the loop's next wait.
type ringBackend struct {
	d     *disk
	info  Info
	ring  *uring.Ring
	tag   uring.Tag
	files [2]uring.File // by which
	slots slots
	done  []*blk.Request
	late  pool // for the one operation that io_uring does not have
	lent  int  // ops that late has
}

func newRingBackend(d *disk, h Host) (Backend, error) {
	b := &ringBackend{d: d, info: d.info, ring: h.Ring, done: make([]*blk.Request, 0, h.Depth)}
	if err := b.slots.make(d, h.Depth, h.Ring.CanCommand()); err != nil {
		return nil, err
	}
	var err error
	if b.files[viaMain], err = h.Ring.RegisterFile(d.fds[viaMain]); err != nil {
		return nil, errors.Join(fmt.Errorf("attach disk %s: %w", d.path, err), b.slots.free())
	}
	b.files[viaCache] = b.files[viaMain]
	if d.buffered != d.main {
		if b.files[viaCache], err = h.Ring.RegisterFile(d.fds[viaCache]); err != nil {
			h.Ring.UnregisterFile(b.files[viaMain])
			return nil, errors.Join(fmt.Errorf("attach disk %s: %w", d.path, err), b.slots.free())
		}
	}
	b.tag = h.Ring.Register(b)
	b.late.init(1, h.Wakeup)
	return b, nil
}

// Info implements Backend.
func (b *ringBackend) Info() Info { return b.info }

// Submit implements Backend.
func (b *ringBackend) Submit(_ blk.Instant, r *blk.Request) bool {
	o := b.slots.get()
	if o == nil {
		return false
	}
	r.Move(blk.StateQueued, blk.StateIssued)
	o.start(r)
	b.advance(o)
	return true
}

// advance queues the next step of o, or finishes it.
func (b *ringBackend) advance(o *op) {
	if !o.plan() {
		b.done = append(b.done, o.finish())
		b.slots.put(o)
		return
	}
	s := &o.step
	f := b.files[s.file]
	switch s.kind {
	case stepRead:
		b.ring.Readv(b.tag, o.index, f, s.iov, s.off, s.flags)
	case stepWrite:
		b.ring.Writev(b.tag, o.index, f, s.iov, s.off, s.flags)
	case stepSync:
		b.ring.Fsync(b.tag, o.index, f, true)
	case stepFallocate:
		b.ring.Fallocate(b.tag, o.index, f, s.flags, s.off, s.n)
	case stepCommand:
		b.ring.BlockDiscard(b.tag, o.index, f, s.off, s.n)
	case stepTrim:
		b.lent++
		b.late.give(o)
	}
}

// Completed implements uring.Completer.
func (b *ringBackend) Completed(index uint32, res int32, _ uint32) {
	o := &b.slots.ops[index]
	if o.step.kind == stepCommand && res == -int32(unix.EINVAL) {
		res = -int32(unix.EOPNOTSUPP) // a kernel that has commands, but not this one
	}
	o.settle(int64(res))
	b.advance(o)
}

// Commit implements Backend.
func (b *ringBackend) Commit() error { return nil }

// Reap implements Backend.
func (b *ringBackend) Reap(_ blk.Instant, done []*blk.Request) []*blk.Request {
	if b.lent > 0 {
		b.takeBack()
	}
	for _, r := range b.done {
		r.Move(blk.StateIssued, blk.StateDone)
	}
	done = append(done, b.done...)
	b.done = b.done[:0]
	return done
}

// takeBack finishes what late has carried out.
func (b *ringBackend) takeBack() {
	for o := b.late.take(); o != nil; b.lent-- {
		next := o.link
		b.done = append(b.done, o.finish())
		b.slots.put(o)
		o = next
	}
}

// Wake implements Backend.
func (b *ringBackend) Wake() blk.Instant { return blk.Never }

// Close implements Backend. What the kernel still works on keeps its memory, which
// it could otherwise write to when somebody else has it.
func (b *ringBackend) Close() error {
	b.late.close()
	b.takeBack()
	if b.slots.used > 0 {
		return fmt.Errorf("detach disk %s: %d requests did not end, their memory stays", b.d.path, b.slots.used)
	}
	b.ring.Unregister(b.tag)
	b.ring.UnregisterFile(b.files[viaMain])
	if b.d.buffered != b.d.main {
		b.ring.UnregisterFile(b.files[viaCache])
	}
	return b.slots.free()
}

package guest

import (
	"errors"
	"time"

	"github.com/elevisor/elevisor/blk"
)

// run gives the device what it has room for, and tells it.
func (b *Block) run(now blk.Instant) {
	b.dispatch(now)
	for _, q := range b.queues {
		q.Kick()
	}
}

// dispatch puts requests into the rings while there are tags.
func (b *Block) dispatch(now blk.Instant) {
	for b.flying < b.tags {
		r := b.next(now)
		if r == nil {
			return
		}
		if !b.issue(now, r) {
			b.held = r
			return
		}
	}
}

// next is what goes to the device next: flushes first, as they go around the
// scheduler.
func (b *Block) next(now blk.Instant) *blk.Request {
	if r := b.held; r != nil {
		b.held = nil
		return r
	}
	if r := b.flushes.PopFront(); r != nil {
		return r
	}
	return b.sched.Dispatch(now)
}

// issue makes one virtio-blk request of the head r and its group, in the slot of
// r's part, which is nobody else's until the group is done; false if the ring is
// full.
func (b *Block) issue(now blk.Instant, r *blk.Request) bool {
	b.data = b.data[:0]
	sectors := blk.Sector(0)
	for g := r; g != nil; g = g.Merged {
		sectors += g.Sectors
		for p := g.Slot.(*part).first; p != nil; p = p.next {
			b.data = append(b.data, p.data...)
		}
	}
	p := r.Slot.(*part)
	if !p.queue.Submit(p.at, r.Op, r.Sector, b.data) {
		return false
	}
	r.Move(blk.StateQueued, blk.StateIssued)
	r.Issue = now
	b.flying++
	b.stats.Issued++
	b.stats.Sectors += uint64(sectors)
	return true
}

// Reap calls fn for each request that is done, whose slot is free again when fn
// runs, and gives the device more; see Queue.Reap. fn may submit.
func (b *Block) Reap(fn func(Done)) (int, error) {
	before, accepted := b.busy, b.seq
	b.now, b.reaped = b.tick(), fn
	var errs error
	for i, q := range b.queues {
		if _, err := q.Reap(b.onDone[i]); err != nil {
			errs = errors.Join(errs, err)
		}
	}
	b.reaped = nil
	b.run(b.tick())
	return before + int(b.seq-accepted) - b.busy, errs
}

// complete ends the issued request whose head is in lead, with all its parts. One
// that failed is taken apart and its parts are tried alone.
func (b *Block) complete(lead *part, d Done) {
	head := &lead.req
	head.Move(blk.StateIssued, blk.StateDone)
	head.Status = d.Status
	b.flying--
	b.live--
	if head.Op != blk.OpFlush {
		b.sched.Complete(b.now, head)
	}
	lone := head.Merged == nil && lead.first == lead.last
	apart := d.Status != blk.StatusOK && !lone
	left := d.Written
	for r := head; r != nil; {
		behind := r.Merged
		for p := r.Slot.(*part).first; p != nil; {
			next := p.next
			p.alone()
			if p != lead {
				p.req.Move(blk.StateQueued, blk.StateDone)
			}
			switch {
			case apart:
				b.retry(p)
			case lone:
				b.finish(p, d)
			default:
				b.finish(p, Done{Status: d.Status, Written: p.share(&left)})
			}
			p = next
		}
		r = behind
	}
}

// share is p's part of what the device says it wrote, of which left is left. A
// part's own status byte counts, as if it had been alone.
func (p *part) share(left *uint32) uint32 {
	if p.req.Op != blk.OpRead || *left == 0 {
		return *left
	}
	n := min(*left-1, uint32(p.sectors.Bytes()))
	*left -= n
	return n + 1
}

// retry gives p, a part of a request that failed, to the scheduler once more.
func (b *Block) retry(p *part) {
	p.req.Move(blk.StateDone, blk.StateQueued)
	b.live++
	b.stats.Retried++
	b.sched.Retry(b.now, &p.req)
}

// finish frees p's slot and tells the submitter.
func (b *Block) finish(p *part, d Done) {
	p.req.Move(blk.StateDone, blk.StateFree)
	b.busy--
	d.Slot = p.slot
	b.reaped(d)
}

// Wait returns nil when the device has returned something to Reap; see Queue.Wait.
// It flushes the plug list first, as the kernel does when a task goes to sleep, and
// goes on dispatching where the scheduler does so by time alone.
func (b *Block) Wait(d time.Duration) error {
	deadline := b.clock.Now() + blk.Instant(d)
	for {
		b.unplug(b.tick())
		until := min(deadline, b.Wake())
		err := b.waiter.wait(until)
		if until == deadline || !errors.Is(err, ErrTimeout) {
			return err
		}
	}
}

// Wake is when Kick would hand more to the device by time alone; blk.Never if it would
// not. Wait does that by itself.
func (b *Block) Wake() blk.Instant {
	if b.flying >= b.tags || b.held != nil {
		return blk.Never
	}
	return b.sched.Wake()
}

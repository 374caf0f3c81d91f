package guest

import (
	"fmt"
	"slices"

	"github.com/elevisor/elevisor/blk"
	"github.com/elevisor/elevisor/sched"
)

// The plug list is flushed before one more request joins it when it has this many,
// or when its newest has become this large (BLK_MAX_REQUEST_COUNT and
// BLK_PLUG_FLUSH_SIZE, block/blk-mq.c and block/blk.h).
const (
	plugMax     = 32
	plugSectors = 128 << 10 / blk.SectorSize
)

// Submit takes a read, a write or a flush into slot, which must be free; see
// Queue.Submit. False, and nothing done, where nr_requests are there already: the
// plug list has been flushed then, as the kernel does before it sleeps for one to
// come back.
func (b *Block) Submit(slot int, op blk.Op, sector blk.Sector, data []Buf) bool {
	p := &b.parts[slot]
	if op > blk.OpFlush || len(data) > b.segments || p.req.State() != blk.StateFree {
		panic(fmt.Sprintf("guest: submit of a %v with %d segments of %d in slot %d, which is %v",
			op, len(data), b.segments, slot, p.req.State()))
	}
	now := b.tick()
	p.set(op, sector, data)
	p.req.Arrive = now
	if b.plugMerge(p) {
		b.take(p)
		return true
	}
	if b.live >= b.requests {
		b.unplug(now)
		if b.live >= b.requests {
			return false
		}
	}
	b.take(p)
	b.live++
	switch {
	case op == blk.OpFlush:
		b.flushes.PushBack(&p.req)
		b.run(now)
	case b.noPlug:
		b.insert(now, &p.req)
		b.run(now)
	default:
		b.plugAdd(now, &p.req)
	}
	return true
}

// Kick flushes the plug list (blk_finish_plug). What finds no room at the device
// waits in the scheduler and goes on when Reap has made room.
func (b *Block) Kick() { b.unplug(b.tick()) }

// tick reads the clock. No two requests arrive at the same instant: a scheduler
// counts neighbours that did as merged in a batch, and batches are the plug list's.
func (b *Block) tick() blk.Instant {
	b.last = max(b.clock.Now(), b.last+1)
	return b.last
}

// set is what the submitter wants of p.
func (p *part) set(op blk.Op, sector blk.Sector, data []Buf) {
	p.data = append(p.data[:0], data...)
	n := 0
	for _, d := range data {
		n += len(d.Bytes)
	}
	p.sector, p.sectors = sector, blk.Sector(n/blk.SectorSize)
	p.req.Op = op
	p.alone()
	if n%blk.SectorSize != 0 { // the device's to refuse, and nobody else's
		p.req.Flags = blk.FlagNoMerge
	}
}

// alone makes p's request stand for p only.
func (p *part) alone() {
	p.first, p.last, p.next = p, p, nil
	r := &p.req
	r.Flags, r.Merged = 0, nil
	r.Sector, r.Sectors, r.Pos = p.sector, p.sectors, p.sector
	r.Segs = p.segs[:0]
	for _, d := range p.data {
		r.Segs = append(r.Segs, d.Bytes)
	}
}

// take makes p's slot busy.
func (b *Block) take(p *part) {
	p.req.Move(blk.StateFree, blk.StateQueued)
	p.req.Seq = b.seq
	b.seq++
	b.busy++
	b.stats.Submitted++
}

// plugMerge makes p part of the newest request on the plug list, if they adjoin
// (blk_attempt_plug_merge). A request that would become too large is closed for
// good, as in the kernel (req_set_nomerge).
func (b *Block) plugMerge(p *part) bool {
	r, n := b.plug.Back(), &p.req
	if r == nil || b.cfg.NoMerges > 1 || (r.Flags|n.Flags)&blk.FlagNoMerge != 0 || n.Sectors == 0 {
		return false
	}
	back, front := r.End() == n.Sector, n.End() == r.Sector
	if !back && !front {
		return false
	}
	m := &b.cfg.Merges
	switch {
	case r.Op != n.Op:
		m.Refused[sched.OtherOp]++
		return false
	case r.Sectors+n.Sectors > b.cfg.MaxSectors:
		m.Refused[sched.TooLong]++
		r.Flags |= blk.FlagNoMerge
		return false
	case len(r.Segs)+len(n.Segs) > b.cfg.MaxSegments:
		m.Refused[sched.TooManySegs]++
		r.Flags |= blk.FlagNoMerge
		return false
	}
	who := sched.SameQueue
	if r.Source != n.Source {
		who = sched.OtherQueue
	}
	m.Merged[sched.Batch][who]++
	m.Sectors += uint64(n.Sectors)
	b.merged++
	absorb(r.Slot.(*part), p, back)
	return true
}

// absorb puts p behind or in front of what lead's request stands for.
func absorb(lead, p *part, back bool) {
	r := &lead.req
	r.Sectors += p.sectors
	if back {
		lead.last.next, lead.last = p, p
		r.Segs = append(r.Segs, p.req.Segs...)
		return
	}
	p.next, lead.first = lead.first, p
	r.Sector, r.Pos = p.sector, p.sector
	r.Segs = slices.Insert(r.Segs, 0, p.req.Segs...)
}

// plugAdd makes r the newest request on the plug list (blk_add_rq_to_plug).
func (b *Block) plugAdd(now blk.Instant, r *blk.Request) {
	newest := b.plug.Back()
	if b.plug.Len() >= plugMax || newest != nil && b.cfg.NoMerges < 2 && newest.Sectors >= plugSectors {
		b.unplug(now)
	}
	b.plug.PushBack(r)
}

// unplug moves the plug list into the scheduler and on, as far as the device has
// room. Without a scheduler each request goes on at once, so that they find nobody
// to merge with (blk_mq_plug_issue_direct).
func (b *Block) unplug(now blk.Instant) {
	for r := b.plug.PopFront(); r != nil; r = b.plug.PopFront() {
		b.insert(now, r)
		if !b.elevator {
			b.dispatch(now)
		}
	}
	b.run(now)
}

// insert gives r to the scheduler. A request that is absorbed there makes room for
// another.
func (b *Block) insert(now blk.Instant, r *blk.Request) {
	b.sched.Insert(now, r)
	merged := mergedOf(&b.cfg.Merges)
	b.live -= int(merged - b.merged)
	b.merged = merged
}

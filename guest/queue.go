package guest

import (
	"encoding/binary"
	"fmt"
	"time"

	"github.com/elevisor/elevisor/blk"
	"github.com/elevisor/elevisor/sys/clock"
	"github.com/elevisor/elevisor/sys/eventfd"
	"github.com/elevisor/elevisor/virtqueue"
)

// statusPending is what a status byte holds until the device writes it; no
// device answers with it.
const statusPending blk.Status = 0xee

// Queue is the guest's side of one virtqueue: a driver, and a table of slots that
// each hold what one request needs in guest memory. Nothing is allocated after it
// was made. One goroutine owns it; only kicks on a new connection come from
// elsewhere.
type Queue struct {
	guest *Guest
	index int
	ring  Ring
	drv   *virtqueue.Driver
	clock Clock

	device virtqueue.Notifier // whom a kick wakes
	kick   *eventfd.FD        // the same, with the two others, of a guest with a connection; else nil
	call   *eventfd.FD
	err    *eventfd.FD
	waiter waiter // likewise
	gone   bool   // of an attached guest: the device has given the ring up

	slots  []slot
	byHead []int32 // which slot a chain in flight belongs to
	busy   int
	stats  QueueStats
}

// slot is the guest memory of one request and its state.
type slot struct {
	header Buf // struct virtio_blk_req up to its data
	ranges Buf // of a discard or write-zeroes
	status Buf
	data   Buf
	table  Buf // indirect descriptors; empty without them
	elems  []virtqueue.Elem
	busy   bool
}

// QueueStats counts notifications.
type QueueStats struct {
	Kicks uint64 // sent to the device
	Calls uint64 // times that a wait was ended by the device's call
}

// Done is a request that came back.
type Done struct {
	Slot    int
	Status  blk.Status // as the device wrote it; 0xee where it did not
	Written uint32     // bytes that the device says it wrote, status byte included
}

func newQueue(g *Guest, index int, a *arena) (*Queue, error) {
	o := &g.opt
	q := &Queue{guest: g, index: index}
	ring, all := ringAt(a, o.QueueSize)
	var err error
	if q.drv, err = virtqueue.NewDriver(all.Bytes, o.QueueSize, g.features); err != nil {
		return nil, err
	}
	q.ring = ring
	q.byHead = make([]int32, o.QueueSize)
	q.slots = make([]slot, o.Depth)
	for i := range q.slots {
		s := &q.slots[i]
		s.header = a.take(blk.HeaderSize, 16)
		s.ranges = a.take(o.Ranges*blk.RangeSize, 16)
		s.status = a.take(1, 1)
		s.elems = make([]virtqueue.Elem, 0, o.Segments+2)
		if g.indirect() {
			s.table = a.take(16*(o.Segments+2), 16)
		}
	}
	for i := range q.slots {
		q.slots[i].data = a.take(o.MaxIO, 4096)
	}
	if g.device != nil {
		q.attach(g)
		return q, nil
	}
	if q.kick, q.call, q.err, err = newFDs(); err != nil {
		return nil, err
	}
	clk := clock.Start()
	q.device, q.clock, q.waiter = q.kick, clk, newWaiter(g, clk, q)
	if o.Poll {
		q.drv.DisableCalls()
	}
	return q, nil
}

// queueBytes is how much guest memory newQueue takes, generously rounded.
func queueBytes(o *Options) uint64 {
	_, _, ring := virtqueue.Layout(o.QueueSize)
	perSlot := 64 + (o.Ranges+1)*blk.RangeSize + 16*(o.Segments+4) + o.MaxIO + 4096
	return uint64(ring + 2*4096 + o.Depth*perSlot)
}

func (q *Queue) close() {
	q.kick.Close()
	q.call.Close()
	q.err.Close()
}

// Broken says whether the device has signalled since the last call that it gave
// the ring up.
func (q *Queue) Broken() bool {
	if q.err == nil {
		gone := q.gone
		q.gone = false
		return gone
	}
	return q.err.Take() != 0
}

// Index is the queue's number at the device.
func (q *Queue) Index() int { return q.index }

// Depth is the number of slots.
func (q *Queue) Depth() int { return len(q.slots) }

// InFlight is how many requests are submitted and have not been reaped.
func (q *Queue) InFlight() int { return q.busy }

// Stats are the queue's counts so far.
func (q *Queue) Stats() QueueStats { return q.stats }

// Ring is the queue's ring, for tests that look at it or spoil it.
func (q *Queue) Ring() Ring { return q.ring }

// Buffer is slot's own data buffer of Options.MaxIO bytes. A request may use any
// other guest memory as well.
func (q *Queue) Buffer(slot int) Buf { return q.slots[slot].data }

// Submit puts a read, a write or a flush into the ring, in slot, which must be
// free: its data are the buffers of data in order, at most Options.Segments.
// False, and nothing done, where the ring has no room. The device may see it from
// now on, but is not told before Kick.
func (q *Queue) Submit(slot int, op blk.Op, sector blk.Sector, data []Buf) bool {
	typ := uint32(blk.TypeFlush)
	switch op {
	case blk.OpRead:
		typ = blk.TypeIn
	case blk.OpWrite:
		typ = blk.TypeOut
	case blk.OpFlush:
	default:
		panic(fmt.Sprintf("guest: submit of a %v; it has ranges", op))
	}
	return q.SubmitType(slot, typ, sector, data, op == blk.OpRead)
}

// SubmitRanges puts a discard or a write-zeroes of ranges, at most Options.Ranges,
// into the ring; see Submit.
func (q *Queue) SubmitRanges(slot int, op blk.Op, ranges []blk.Range, unmap bool) bool {
	typ, flags := uint32(blk.TypeDiscard), uint32(0)
	if op == blk.OpWriteZeroes {
		typ = blk.TypeWriteZeroes
	}
	if unmap {
		flags = 1
	}
	b := q.slots[slot].ranges
	for i, r := range ranges {
		at := b.Bytes[i*blk.RangeSize:]
		binary.LittleEndian.PutUint64(at[0:], uint64(r.Sector))
		binary.LittleEndian.PutUint32(at[8:], uint32(r.Sectors))
		binary.LittleEndian.PutUint32(at[12:], flags)
	}
	data := [1]Buf{b.Slice(0, len(ranges)*blk.RangeSize)}
	return q.SubmitType(slot, typ, 0, data[:], false)
}

// SubmitType puts a request of any type, with data that the device writes or
// reads, into the ring; see Submit.
func (q *Queue) SubmitType(slot int, typ uint32, sector blk.Sector, data []Buf, deviceWrites bool) bool {
	s := &q.slots[slot]
	if s.busy || len(data)+2 > cap(s.elems) {
		panic(fmt.Sprintf("guest: queue %d slot %d busy=%t, %d segments of %d", q.index, slot, s.busy, len(data), cap(s.elems)-2))
	}
	h := s.header.Bytes
	binary.LittleEndian.PutUint32(h[0:], typ)
	binary.LittleEndian.PutUint32(h[4:], 0)
	binary.LittleEndian.PutUint64(h[8:], uint64(sector))
	s.status.Bytes[0] = byte(statusPending)
	s.elems = append(s.elems[:0], virtqueue.Elem{Addr: s.header.Addr, Len: blk.HeaderSize})
	for _, d := range data {
		s.elems = append(s.elems, virtqueue.Elem{Addr: d.Addr, Len: uint32(len(d.Bytes)), Write: deviceWrites})
	}
	s.elems = append(s.elems, virtqueue.Elem{Addr: s.status.Addr, Len: 1, Write: true})
	var head uint16
	var ok bool
	if len(s.table.Bytes) > 0 {
		head, ok = q.drv.AddIndirect(s.elems, s.table.Bytes, s.table.Addr)
	} else {
		head, ok = q.drv.Add(s.elems)
	}
	if ok {
		q.byHead[head], s.busy = int32(slot), true
		q.busy++
	}
	return ok
}

// Kick publishes what was submitted and wakes the device if it asked for that.
func (q *Queue) Kick() {
	if q.drv.Publish() {
		q.device.Notify()
		q.stats.Kicks++
	}
}

// Reap calls fn for each request that has come back, whose slot is free again
// when fn runs, and says how many there were. An error means that the device
// broke the ring's rules: a chain returned twice, or one that it never had.
func (q *Queue) Reap(fn func(Done)) (int, error) {
	for n := 0; ; n++ {
		head, written, ok, err := q.drv.Reap()
		if err != nil {
			return n, fmt.Errorf("queue %d: %w", q.index, err)
		}
		if !ok {
			return n, nil
		}
		slot := int(q.byHead[head])
		s := &q.slots[slot]
		s.busy = false
		q.busy--
		fn(Done{Slot: slot, Status: blk.Status(s.status.Bytes[0]), Written: written})
	}
}

// Wait returns nil when there is something to Reap, ErrTimeout after d, and
// ErrGone soon after the connection was closed by either side.
func (q *Queue) Wait(d time.Duration) error { return q.waiter.wait(q.clock.Now() + blk.Instant(d)) }

// EnableCalls asks for a call when the device returns the next request, and looks
// again: pending means that one came in between. Wait does it by itself; who has
// nothing to wait in does it after each Reap.
func (q *Queue) EnableCalls() (pending bool) { return q.drv.EnableCalls() }

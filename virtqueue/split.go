package virtqueue

import (
	"encoding/binary"
	"fmt"

	"github.com/elevisor/elevisor/sys/shm"
)

// Descriptor flags (virtio 1.3, 2.7.5).
const (
	DescNext     = 1
	DescWrite    = 2 // the device writes it
	DescIndirect = 4
)

// The two suppression flags (virtio 1.3, 2.7.7, 2.7.10).
const (
	availNoInterrupt = 1
	usedNoNotify     = 1
)

const descSize = 16

// Split is the device's side of a split virtqueue (virtio 1.3, 2.7). Indices are
// free-running 16-bit numbers; only their differences, and their remainders modulo the
// size, have a meaning.
type Split struct {
	desc  []byte // Size descriptors of 16 bytes
	avail []byte // le16 flags, idx, ring[Size], used_event
	used  []byte // le16 flags, idx, {le32 id, le32 len}[Size], avail_event

	size     uint16
	eventIdx bool

	next   uint16 // the next available entry to take
	seen   uint16 // avail.idx as last loaded
	pushed uint16 // used.idx, counting what is not published yet
	shown  uint16 // used.idx as published
	called uint16 // used.idx at the last notification that was sent
	quiet  int    // chains published since then

	taken  []bool // by head: popped and not pushed
	again  []uint16
	record inflight
	broken *BrokenError

	p     Params
	table []byte // private copy of an indirect table that spans regions
}

// RingBytes are the lengths of the three parts of a split ring of size entries.
func RingBytes(size int) (desc, avail, used int) {
	return descSize * size, 6 + 2*size, 6 + 8*size
}

// NewSplit starts a ring with the parameters p. With an in-flight record that has been
// used before, the chains that a predecessor took and did not return are popped
// again, in the order in which they were taken.
func NewSplit(p Params) (*Split, error) {
	if p.Size < 1 || p.Size > MaxSize || p.Size&(p.Size-1) != 0 {
		return nil, fmt.Errorf("ring size %d is not a power of two from 1 to %d", p.Size, MaxSize)
	}
	if p.Base > 0xffff {
		return nil, fmt.Errorf("ring base %#x exceeds 16 bits", p.Base)
	}
	q := &Split{
		size:     uint16(p.Size),
		eventIdx: p.Features&FeatureEventIdx != 0,
		next:     uint16(p.Base),
		seen:     uint16(p.Base),
		taken:    make([]bool, p.Size),
		p:        p,
	}
	if err := q.locate(p.Memory); err != nil {
		return nil, err
	}
	q.pushed = shm.Load16(q.used, 2)
	q.shown = q.pushed
	q.quiet = forceCall // called is unknown: the first completion notifies
	if p.Inflight != nil {
		if err := q.recover(); err != nil {
			return nil, err
		}
	}
	q.storeUsed()
	return q, nil
}

// locate translates the ring's three addresses; with an error it changes nothing. The
// parts must be aligned as the specification demands, at the front-end's addresses
// and at ours.
func (q *Split) locate(m *shm.Memory) error {
	nd, na, nu := RingBytes(int(q.size))
	var at [3][]byte
	for i, part := range [...]struct {
		name  string
		uva   uint64
		n     int
		align uint64
	}{
		{"descriptor table", q.p.Desc, nd, 16},
		{"avail ring", q.p.Avail, na, 2},
		{"used ring", q.p.Used, nu, 4},
	} {
		b, ok := m.User(part.uva, uint64(part.n))
		if !ok {
			return fmt.Errorf("%s at %#x, %d bytes: not in one memory region", part.name, part.uva, part.n)
		}
		if part.uva%part.align != 0 || uint64(shm.Addr(b))%min(part.align, 4) != 0 {
			return fmt.Errorf("%s at %#x is not aligned to %d", part.name, part.uva, part.align)
		}
		at[i] = b
	}
	q.desc, q.avail, q.used = at[0], at[1], at[2]
	return nil
}

// SetMemory implements Queue.
func (q *Split) SetMemory(m *shm.Memory) error {
	if err := q.locate(m); err != nil {
		return q.Break("memory table changed: " + err.Error())
	}
	q.p.Memory = m
	return nil
}

// Break implements Queue.
func (q *Split) Break(reason string) error {
	if q.broken == nil {
		q.broken = &BrokenError{Reason: reason}
	}
	return q.broken
}

// Base implements Queue.
func (q *Split) Base() uint32 { return uint32(q.next) }

// Pop implements Queue.
func (q *Split) Pop(c *Chain) (bool, error) {
	head, ok, err := q.take()
	if !ok {
		return false, err
	}
	q.taken[head] = true
	q.record.take(head)
	c.ID = head
	q.walk(c, head)
	return true, nil
}

// take returns the head of the next chain: first those that a predecessor did not
// return, then the avail ring's.
func (q *Split) take() (uint16, bool, error) {
	if q.broken != nil {
		return 0, false, q.broken
	}
	if len(q.again) > 0 {
		head := q.again[0]
		q.again = q.again[1:]
		return head, true, nil
	}
	if q.next == q.seen && !q.look() {
		if q.broken != nil {
			return 0, false, q.broken
		}
		return 0, false, nil
	}
	at := 4 + 2*int(q.next&(q.size-1))
	head := binary.LittleEndian.Uint16(q.avail[at:])
	switch {
	case head >= q.size:
		return 0, false, q.Break(fmt.Sprintf("head %d in a ring of %d", head, q.size))
	case q.taken[head]:
		return 0, false, q.Break(fmt.Sprintf("head %d is available and in flight", head))
	}
	q.next++
	return head, true, nil
}

// look loads avail.idx and returns whether there are new entries. More new entries than
// the ring has room for break the queue.
func (q *Split) look() bool {
	q.seen = shm.Load16(q.avail, 2)
	n := q.seen - q.next
	if n > q.size {
		_ = q.Break(fmt.Sprintf("avail index %d is %d entries ahead in a ring of %d", q.seen, n, q.size))
		return false
	}
	return n > 0
}

type descriptor struct {
	addr  uint64
	len   uint32
	flags uint16
	next  uint16
}

// readDesc reads descriptor i of a table, each byte once.
func readDesc(table []byte, i int) descriptor {
	var b [descSize]byte
	copy(b[:], table[i*descSize:])
	return descriptor{
		addr:  binary.LittleEndian.Uint64(b[0:]),
		len:   binary.LittleEndian.Uint32(b[8:]),
		flags: binary.LittleEndian.Uint16(b[12:]),
		next:  binary.LittleEndian.Uint16(b[14:]),
	}
}

// walk follows the chain from head and fills c. Unknown flags, and WRITE on the
// descriptor of an indirect table, are ignored. Elements of length zero are left out.
// INDIRECT is accepted without its feature too.
func (q *Split) walk(c *Chain, head uint16) {
	c.Segs, c.Out, c.Tail, c.Fault = c.Segs[:0], 0, nil, FaultNone
	table, entries, i := q.desc, int(q.size), int(head)
	indirect, writable, total := false, false, uint64(0)
	for count := 1; ; count++ {
		if count > max(int(q.size), MaxChain) {
			c.spoil(FaultLoop)
			return
		}
		d := readDesc(table, i)
		if d.flags&DescIndirect != 0 {
			if table = q.indirect(d, indirect, c); table == nil {
				return
			}
			indirect, entries, i = true, len(table)/descSize, 0
			continue
		}
		write := d.flags&DescWrite != 0
		if total += uint64(d.len); total > 1<<32 {
			c.spoil(FaultLength)
			return
		}
		if !write && writable && d.len > 0 {
			c.spoil(FaultOrder)
			return
		}
		writable = writable || write && d.len > 0
		q.element(c, d, write)
		if d.flags&DescNext == 0 {
			break
		}
		if i = int(d.next); i >= entries {
			c.spoil(FaultNext)
			return
		}
	}
	if c.Fault != FaultNone {
		c.Segs, c.Out = c.Segs[:0], 0
	}
}

// element adds one element's memory to c. A chain with an unmapped element is
// followed to its end all the same, to find the place of its status byte.
func (q *Split) element(c *Chain, d descriptor, write bool) {
	had, ok := len(c.Segs), false
	c.Segs, ok = q.p.Memory.Append(c.Segs, d.addr, uint64(d.len))
	if !ok {
		c.Fault, c.Tail = FaultAddress, nil
		return
	}
	if d.len == 0 {
		return
	}
	if !write {
		c.Out += len(c.Segs) - had
		return
	}
	c.Tail = c.Segs[len(c.Segs)-1]
}

// indirect returns the table that d points to, or nil, with the fault in c.
func (q *Split) indirect(d descriptor, nested bool, c *Chain) []byte {
	if nested || d.flags&DescNext != 0 || d.len == 0 || d.len%descSize != 0 {
		c.spoil(FaultIndirect)
		return nil
	}
	had := len(c.Segs)
	segs, ok := q.p.Memory.Append(c.Segs, d.addr, uint64(d.len))
	c.Segs = segs[:had]
	if !ok {
		c.spoil(FaultAddress)
		return nil
	}
	if len(segs) == had+1 {
		return segs[had]
	}
	q.table = q.table[:0] // it spans regions, which is rare: copy it
	for _, s := range segs[had:] {
		q.table = append(q.table, s[:min(len(s), descSize*MaxChain-len(q.table))]...)
	}
	return q.table
}

// spoil marks a chain as faulty: no part of its memory may be used.
func (c *Chain) spoil(f Fault) { c.Fault, c.Segs, c.Out, c.Tail = f, c.Segs[:0], 0, nil }

// Push implements Queue. It panics if the chain is not in flight: that is our own mistake.
func (q *Split) Push(id uint16, written uint32) {
	if !q.taken[id] {
		panic(fmt.Sprintf("virtqueue: push of head %d, which is not in flight", id))
	}
	q.taken[id] = false
	q.record.put(id)
	at := 4 + 8*int(q.pushed&(q.size-1))
	binary.LittleEndian.PutUint32(q.used[at:], uint32(id))
	binary.LittleEndian.PutUint32(q.used[at+4:], written)
	q.pushed++
}

// forceCall is how many chains may be published without a notification before one is
// sent whatever the event index says: the comparison of 16-bit indices in Publish is
// ambiguous after 65535.
const forceCall = 1 << 15

// Publish implements Queue.
func (q *Split) Publish() bool {
	if q.pushed == q.shown {
		return false
	}
	q.quiet += int(q.pushed - q.shown)
	q.shown = q.pushed
	q.storeUsed()
	q.record.settle(q.shown)
	shm.Fence() // store used.idx before used_event is read: the driver stores used_event and then reads used.idx
	notify := false
	if q.eventIdx {
		// Compared with the index at the last notification sent, not at the last check:
		// else a driver that lags behind could miss one (libblkio issue 68).
		event := shm.Load16(q.avail, 4+2*int(q.size))
		notify = q.quiet >= forceCall || q.shown-event-1 < q.shown-q.called
	} else {
		notify = shm.Load16(q.avail, 0)&availNoInterrupt == 0
	}
	if notify {
		q.called, q.quiet = q.shown, 0
	}
	return notify
}

// storeUsed stores used.idx. The flags beside it stay 0: without EVENT_IDX kicks are
// never suppressed, because libblkio checks the flags without a barrier and could
// lose a kick.
func (q *Split) storeUsed() { shm.Store32(q.used, 0, uint32(q.shown)<<16) }

// EnableKicks implements Queue.
func (q *Split) EnableKicks() bool {
	if q.broken != nil {
		return false
	}
	if q.eventIdx {
		shm.Store16(q.used, 4+8*int(q.size), q.next)
	}
	shm.Fence()
	return len(q.again) > 0 || shm.Load16(q.avail, 2) != q.next
}

package virtqueue

import (
	"encoding/binary"
	"fmt"

	"github.com/elevisor/elevisor/sys/shm"
)

// Elem is one element of a chain, as a driver describes it.
type Elem struct {
	Addr  uint64 // guest physical
	Len   uint32
	Write bool // the device writes it
}

// Driver is the guest's side of a split ring: what a virtio driver does. One goroutine
// owns it.
type Driver struct {
	desc, avail, used []byte
	size              uint16
	eventIdx          bool

	free      []uint16 // unused descriptors
	length    []uint16 // by head: descriptors in its chain
	links     []uint16 // by descriptor: the next one in its chain
	added     uint16   // avail.idx, counting what is not published yet
	published uint16
	reaped    uint16
}

// NewDriver lays out an empty ring of size entries in b, which is zeroed and has room
// for the three parts in a row (see Layout).
func NewDriver(b []byte, size int, features uint64) (*Driver, error) {
	avail, used, total := Layout(size)
	if size < 1 || size > MaxSize || size&(size-1) != 0 || len(b) < total {
		return nil, fmt.Errorf("driver ring of %d entries in %d bytes", size, len(b))
	}
	d := &Driver{
		desc: b[:avail], avail: b[avail:used], used: b[used:total],
		size:     uint16(size),
		eventIdx: features&FeatureEventIdx != 0,
		length:   make([]uint16, size),
		links:    make([]uint16, size),
	}
	for i := size - 1; i >= 0; i-- {
		d.free = append(d.free, uint16(i))
	}
	return d, nil
}

// Layout returns the offsets of the avail and of the used ring behind a descriptor table
// at 0, and the length of all three.
func Layout(size int) (avail, used, total int) {
	nd, na, nu := RingBytes(size)
	used = (nd + na + 3) &^ 3
	return nd, used, used + nu
}

// Add puts a chain of elems into the ring, not yet visible to the device, and
// returns its head. If it does not fit, nothing is done and ok is false.
func (d *Driver) Add(elems []Elem) (head uint16, ok bool) {
	if len(elems) == 0 || len(elems) > len(d.free) {
		return 0, false
	}
	at := len(d.free) - len(elems)
	chain := d.free[at:]
	for i, e := range elems {
		next, more := uint16(0), i+1 < len(elems)
		if more {
			next = chain[i+1]
		}
		d.links[chain[i]] = next
		e.put(d.desc[int(chain[i])*descSize:], more, next)
	}
	head = chain[0]
	d.length[head] = uint16(len(elems))
	d.free = d.free[:at]
	d.offer(head)
	return head, true
}

// AddIndirect puts a chain into table, which is guest memory at address addr, and one
// descriptor for that table into the ring.
func (d *Driver) AddIndirect(elems []Elem, table []byte, addr uint64) (head uint16, ok bool) {
	if len(elems) == 0 || len(d.free) == 0 || len(elems)*descSize > len(table) {
		return 0, false
	}
	for i, e := range elems {
		e.put(table[i*descSize:], i+1 < len(elems), uint16(i+1))
	}
	head = d.free[len(d.free)-1]
	d.free = d.free[:len(d.free)-1]
	PutDesc(d.desc[int(head)*descSize:], addr, uint32(len(elems)*descSize), DescIndirect, 0)
	d.length[head] = 1
	d.offer(head)
	return head, true
}

// PutDesc writes one descriptor into b.
func PutDesc(b []byte, addr uint64, n uint32, flags, next uint16) {
	binary.LittleEndian.PutUint64(b[0:], addr)
	binary.LittleEndian.PutUint32(b[8:], n)
	binary.LittleEndian.PutUint16(b[12:], flags)
	binary.LittleEndian.PutUint16(b[14:], next)
}

// put writes e as a descriptor; more says that the chain goes on at next.
func (e Elem) put(b []byte, more bool, next uint16) {
	flags := uint16(0)
	if more {
		flags |= DescNext
	}
	if e.Write {
		flags |= DescWrite
	}
	PutDesc(b, e.Addr, e.Len, flags, next)
}

func (d *Driver) offer(head uint16) {
	binary.LittleEndian.PutUint16(d.avail[4+2*int(d.added&(d.size-1)):], head)
	d.added++
}

// Publish makes the added chains available and returns whether the device wants a
// kick for them.
func (d *Driver) Publish() (kick bool) {
	if d.added == d.published {
		return false
	}
	old := d.published
	d.published = d.added
	flags := uint32(binary.LittleEndian.Uint16(d.avail))
	if shm.Addr(d.avail)%4 == 0 {
		shm.Store32(d.avail, 0, uint32(d.published)<<16|flags)
	} else {
		shm.Fence()
		shm.Store16(d.avail, 2, d.published)
	}
	shm.Fence()
	if d.eventIdx {
		event := shm.Load16(d.used, 4+8*int(d.size))
		return d.published-event-1 < d.published-old
	}
	return shm.Load16(d.used, 0)&usedNoNotify == 0
}

// Reap takes the next returned chain: its head, and how many bytes the device says
// that it has written. An id that is not in flight is an error of the device.
func (d *Driver) Reap() (head uint16, written uint32, ok bool, err error) {
	idx := shm.Load16(d.used, 2)
	if idx == d.reaped {
		return 0, 0, false, nil
	}
	if idx-d.reaped > d.size {
		return 0, 0, false, fmt.Errorf("used index went from %d to %d in a ring of %d", d.reaped, idx, d.size)
	}
	at := 4 + 8*int(d.reaped&(d.size-1))
	id := binary.LittleEndian.Uint32(d.used[at:])
	written = binary.LittleEndian.Uint32(d.used[at+4:])
	if id >= uint32(d.size) || d.length[id] == 0 {
		return 0, 0, false, fmt.Errorf("used entry %d names head %d, which is not in flight", d.reaped, id)
	}
	d.reaped++
	head = uint16(id)
	for i, n := head, d.length[head]; n > 0; n-- {
		d.free = append(d.free, i)
		i = d.links[i]
	}
	d.length[head] = 0
	return head, written, true, nil
}

// EnableCalls asks to be notified of the next returned chain, and looks again:
// pending means that one came in between.
func (d *Driver) EnableCalls() (pending bool) {
	if d.eventIdx {
		shm.Store16(d.avail, 4+2*int(d.size), d.reaped)
	} else {
		shm.Store16(d.avail, 0, 0)
	}
	shm.Fence()
	return shm.Load16(d.used, 2) != d.reaped
}

// DisableCalls asks not to be notified: the driver polls.
func (d *Driver) DisableCalls() {
	if d.eventIdx {
		shm.Store16(d.avail, 4+2*int(d.size), d.reaped-1)
	} else {
		shm.Store16(d.avail, 0, availNoInterrupt)
	}
}

// Indices are the driver's free-running indices of the next available and of the next
// used entry.
func (d *Driver) Indices() (avail, used uint16) { return d.published, d.reaped }

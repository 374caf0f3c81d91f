package guest

import (
	"encoding/binary"

	"github.com/elevisor/elevisor/sys/shm"
	"github.com/elevisor/elevisor/virtqueue"
)

// Ring is a split ring in guest memory with no driver behind it: a test writes
// into it what it likes. A Queue keeps its ring in order by itself.
type Ring struct {
	Size              int
	Desc, Avail, Used Buf
}

// NewRing is the ring of size entries whose three parts are at these guest
// addresses of m. It writes nothing.
func NewRing(m *Memory, size int, desc, avail, used uint64) Ring {
	nd, na, nu := virtqueue.RingBytes(size)
	part := func(gpa uint64, n int) Buf { return Buf{Bytes: m.Bytes(gpa, uint64(n)), Addr: gpa} }
	return Ring{Size: size, Desc: part(desc, nd), Avail: part(avail, na), Used: part(used, nu)}
}

// ringAt takes a ring out of a: the parts one behind the other.
func ringAt(a *arena, size int) (Ring, Buf) {
	avail, used, total := virtqueue.Layout(size)
	all := a.take(total, 4096)
	return Ring{
		Size: size, Desc: all.Slice(0, avail), Avail: all.Slice(avail, used), Used: all.Slice(used, total),
	}, all
}

// DescBytes is descriptor i.
func (r Ring) DescBytes(i int) []byte { return r.Desc.Bytes[16*i : 16*i+16] }

// SetHead writes entry i of the avail ring, which wraps.
func (r Ring) SetHead(i, head uint16) {
	shm.Store16(r.Avail.Bytes, 4+2*(int(i)%r.Size), head)
}

// SetAvail publishes avail.idx; everything written before is visible with it.
func (r Ring) SetAvail(idx uint16) {
	shm.Fence()
	shm.Store16(r.Avail.Bytes, 2, idx)
	shm.Fence()
}

// SetUsedEvent writes the used index beyond which the driver wants a call.
func (r Ring) SetUsedEvent(v uint16) {
	shm.Fence()
	shm.Store16(r.Avail.Bytes, 4+2*r.Size, v)
	shm.Fence()
}

// UsedIdx is used.idx.
func (r Ring) UsedIdx() uint16 { return shm.Load16(r.Used.Bytes, 2) }

// UsedElem is entry i of the used ring, which wraps.
func (r Ring) UsedElem(i uint16) (id, written uint32) {
	at := 4 + 8*(int(i)%r.Size)
	return binary.LittleEndian.Uint32(r.Used.Bytes[at:]), binary.LittleEndian.Uint32(r.Used.Bytes[at+4:])
}

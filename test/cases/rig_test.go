package cases

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/elevisor/elevisor/blk"
	"github.com/elevisor/elevisor/daemon"
	"github.com/elevisor/elevisor/guest"
	"github.com/elevisor/elevisor/sys/eventfd"
	"github.com/elevisor/elevisor/virtqueue"
)

// Guest memory of rig R0. Everything that is in neither region is a hole.
const (
	regionA     = 0x1000_0000
	regionASize = 16 << 20
	regionB     = 0x2000_0000
	regionBSize = 1 << 20
	userA       = 0x7e00_0000_0000
	userB       = userA + 0x4000_0000

	ringAvail = regionA + 0x1000
	ringUsed  = regionA + 0x2000
	H         = regionA + 0x4000  // request header
	T         = regionA + 0x6000  // indirect table
	S         = regionA + 0x8000  // status
	B         = regionA + 0x10000 // data
	other     = regionA + 0x800000
)

// canary fills guest memory outside the rings: the status byte before it is
// written, and the guard bytes around it.
const canary = 0xee

const (
	none   = 0
	OK     = blk.StatusOK
	IOERR  = blk.StatusIOErr
	UNSUPP = blk.StatusUnsupp
)

// elem is an element of a chain; R and W are the case book's notation.
type elem struct {
	addr  uint64
	n     uint32
	flags uint16
}

// R is an element that the device reads, W one that it writes.
func R(n uint32, addr uint64) elem { return elem{addr, n, 0} }
func W(n uint32, addr uint64) elem { return elem{addr, n, virtqueue.DescWrite} }

// span is guest memory that the device may write.
type span struct{ from, to uint64 }

type setup struct {
	disk     func(*daemon.Disk)
	image    []byte        // default: 2048 sectors with their numbers
	features uint64        // default: all that are offered
	places   []guest.Place // more guest memory
}

// rig is rig R0: a daemon, and a front-end with one hand-made ring of 8 entries
// as its queue 0. What the test writes into guest memory goes into a copy as
// well, and what the device may write is noted, so that finish finds every other
// byte that has changed.
type rig struct {
	*testing.T
	server *server
	mem    *guest.Memory
	places []guest.Place
	shadow [][]byte // by place: what it must hold
	may    []span
	mark   int    // length of may when the last chain came back
	image  []byte // what the image must hold
	unsure []span // bytes of the image whose contents nobody promises

	s               *guest.Session
	ring            guest.Ring
	kick, call, err *eventfd.FD
	desc            int    // next descriptor to use
	avail           uint16 // next avail index
	used            uint16 // next used index to look at
	posted          map[uint16]int
	broken          bool
}

// on runs a case on a fresh rig, and then the checks that hold for every case.
func on(t *testing.T, o setup, f func(r *rig)) {
	t.Helper()
	r := newRig(t, o)
	defer r.close()
	f(r)
	if !t.Failed() {
		r.finish()
	}
}

func newRig(t *testing.T, o setup) *rig {
	t.Helper()
	disk := r0()
	if o.disk != nil {
		o.disk(&disk)
	}
	if o.image == nil {
		o.image = sectorPattern(2048)
	}
	if o.features == 0 {
		o.features = guest.DefaultFeatures
	}
	r := &rig{T: t, image: bytes.Clone(o.image), posted: map[uint16]int{}}
	r.server = startServer(t, disk, o.image)
	r.places = append([]guest.Place{
		{GPA: regionA, UVA: userA, Size: regionASize}, {GPA: regionB, UVA: userB, Size: regionBSize},
	}, o.places...)
	var err error
	r.mem, err = guest.NewMemory(r.places...)
	require.NoError(t, err)
	for _, p := range r.places {
		b := r.mem.Bytes(p.GPA, p.Size)
		from := 0
		if p.GPA == regionA {
			from = H - regionA
		}
		fill(b[from:], canary)
		r.shadow = append(r.shadow, bytes.Clone(b))
	}
	r.connect(o.features)
	return r
}

func (r *rig) connect(features uint64) {
	r.Helper()
	for _, fd := range []**eventfd.FD{&r.kick, &r.call, &r.err} {
		var err error
		*fd, err = eventfd.New()
		require.NoError(r, err)
	}
	var err error
	r.s, err = guest.Connect(r.server.socket, features, guest.DefaultProtocol, patience)
	require.NoError(r, err)
	require.NoError(r, r.s.SetFeatures(r.s.Features))
	require.NoError(r, r.s.ShareMemory(r.mem))
	r.ring = guest.NewRing(r.mem, 8, regionA, ringAvail, ringUsed)
	r.start(0)
}

// start starts queue 0. The call that a new call descriptor may get is taken.
func (r *rig) start(base uint32) {
	r.Helper()
	require.NoError(r, r.s.StartRing(0, guest.RingSetup{
		Ring: r.ring, Memory: r.mem, Base: base, Kick: r.kick.Raw(), Call: r.call.Raw(), Err: r.err.Raw(),
	}))
	r.call.Take()
	_, _, nu := virtqueue.RingBytes(8)
	r.may = append(r.may, span{ringUsed, ringUsed + uint64(nu)})
	r.mark = len(r.may)
}

// close gives everything back; finish has looked already, or the test has failed.
func (r *rig) close() {
	r.s.Close()
	r.kick.Close()
	r.call.Close()
	r.err.Close()
	_ = r.mem.Close()
}

// poke writes guest memory as the driver does.
func (r *rig) poke(addr uint64, b []byte) {
	copy(r.mem.Bytes(addr, uint64(len(b))), b)
	copy(r.shadowed(addr, len(b)), b)
}

// shadowed is what must be in guest memory.
func (r *rig) shadowed(addr uint64, n int) []byte {
	for i, p := range r.places {
		if addr >= p.GPA && addr-p.GPA < p.Size {
			at := addr - p.GPA
			return r.shadow[i][at : at+uint64(n)]
		}
	}
	r.Fatalf("%#x is in no region", addr)
	return nil
}

// header puts a request header at H and is its element.
func (r *rig) header(typ uint32, sector uint64) elem { return r.headerAt(H, typ, 0, sector) }

func (r *rig) headerAt(addr uint64, typ, reserved uint32, sector uint64) elem {
	b := binary.LittleEndian.AppendUint32(nil, typ)
	b = binary.LittleEndian.AppendUint32(b, reserved)
	r.poke(addr, binary.LittleEndian.AppendUint64(b, sector))
	return R(16, addr)
}

// status puts the canary at S and is the element of a status byte.
func (r *rig) status() elem { return r.statusAt(S) }

func (r *rig) statusAt(addr uint64) elem {
	r.poke(addr, []byte{canary})
	return W(1, addr)
}

// data puts b at B.
func (r *rig) data(b []byte) { r.poke(B, b) }

// ranges puts segments of a discard or write-zeroes at B and is their element.
func (r *rig) ranges(segs ...segment) elem {
	var b []byte
	for _, s := range segs {
		b = binary.LittleEndian.AppendUint64(b, s.sector)
		b = binary.LittleEndian.AppendUint32(b, s.num)
		b = binary.LittleEndian.AppendUint32(b, s.flags)
	}
	r.data(b)
	return R(uint32(len(b)), B)
}

type segment struct {
	sector uint64
	num    uint32
	flags  uint32
}

// table puts elems into an indirect table at addr and is the element that points
// to it.
func (r *rig) table(addr uint64, elems ...elem) elem {
	b := make([]byte, 16*len(elems))
	for i, e := range elems {
		r.describe(b[16*i:], e, i+1 < len(elems), uint16(i+1))
	}
	r.poke(addr, b)
	return elem{addr, uint32(len(b)), virtqueue.DescIndirect}
}

func (r *rig) describe(b []byte, e elem, more bool, next uint16) {
	flags := e.flags
	if more {
		flags |= virtqueue.DescNext
	} else {
		next = 0
	}
	virtqueue.PutDesc(b, e.addr, e.n, flags, next)
	if e.flags&virtqueue.DescWrite != 0 && e.flags&virtqueue.DescIndirect == 0 {
		r.may = append(r.may, span{e.addr, e.addr + uint64(e.n)})
	}
}

// chain writes elems into the next descriptors and offers their head, without
// telling the device.
func (r *rig) chain(elems ...elem) (head uint16) {
	if r.desc+len(elems) > r.ring.Size {
		r.desc = 0 // earlier chains are back: the cases take turns
	}
	head = uint16(r.desc)
	for i, e := range elems {
		b := make([]byte, 16)
		r.describe(b, e, i+1 < len(elems), uint16(r.desc+1))
		r.poke(regionA+uint64(16*r.desc), b)
		r.desc++
	}
	r.offer(head)
	return head
}

// offer puts head into the next entry of the avail ring.
func (r *rig) offer(head uint16) {
	r.poke(ringAvail+4+2*uint64(int(r.avail)%r.ring.Size), binary.LittleEndian.AppendUint16(nil, head))
	r.avail++
	r.posted[head]++
}

// publish moves avail.idx to idx, asks for a call at the next used entry, and
// kicks.
func (r *rig) publish(idx uint16) {
	r.poke(ringAvail+4+2*uint64(r.ring.Size), binary.LittleEndian.AppendUint16(nil, r.used))
	r.ring.SetAvail(idx)
	copy(r.shadowed(ringAvail+2, 2), binary.LittleEndian.AppendUint16(nil, idx))
	r.kick.Notify()
}

// post makes a chain of elems available and is its head.
func (r *rig) post(elems ...elem) (head uint16) {
	head = r.chain(elems...)
	r.publish(r.avail)
	return head
}

// next is the next used entry, called for. Each available head may come once.
func (r *rig) next() (head uint16, written uint32) {
	r.Helper()
	until(r, "no used entry", func() bool { return r.ring.UsedIdx() != r.used })
	require.True(r, r.call.Wait(patience), "a used entry without the call that was asked for")
	r.call.Take()
	return r.take()
}

// take is the next used entry, which is there.
func (r *rig) take() (head uint16, written uint32) {
	r.Helper()
	id, written := r.ring.UsedElem(r.used)
	r.used++
	head = uint16(id)
	require.Less(r, id, uint32(r.ring.Size), "used entry names no head")
	r.posted[head]--
	require.GreaterOrEqual(r, r.posted[head], 0, "head %d was returned more often than it was offered", head)
	return head, written
}

// answered is a used entry for head with status at S and that length.
func (r *rig) answered(head uint16, status blk.Status, written uint32) {
	r.Helper()
	r.answeredAt(S, head, status, written)
}

func (r *rig) answeredAt(addr uint64, head uint16, status blk.Status, written uint32) {
	r.Helper()
	got, n := r.next()
	r.mark = len(r.may)
	require.Equal(r, head, got, "used entry of another head")
	assert.Equal(r, status, blk.Status(r.mem.Bytes(addr, 1)[0]), "status")
	assert.Equal(r, written, n, "length in the used entry")
}

// retired is a used entry for head with length 0 and nothing written.
func (r *rig) retired(head uint16) {
	r.Helper()
	got, n := r.next()
	require.Equal(r, head, got, "used entry of another head")
	assert.Zero(r, n, "length in the used entry")
	r.may = r.may[:r.mark] // whatever its elements said
}

// holds compares guest memory.
func (r *rig) holds(addr uint64, want []byte) {
	r.Helper()
	got := r.mem.Bytes(addr, uint64(len(want)))
	if at := firstDifference(got, want); at >= 0 {
		r.Errorf("guest memory at %#x is %#02x, want %#02x", addr+uint64(at), got[at], want[at])
	}
}

// untouched is guest memory that the device could have written and has not.
func (r *rig) untouched(addr uint64, n int) {
	r.Helper()
	r.holds(addr, r.shadowed(addr, n))
}

// sectors is what the image must hold there.
func (r *rig) sectors(first, n int) []byte { return r.image[first*512 : (first+n)*512] }

func fill(b []byte, v byte) {
	b[0] = v
	for n := 1; n < len(b); n *= 2 {
		copy(b[n:], b[:n])
	}
}

// firstDifference is where a and b, of the same length, differ; -1 if nowhere.
func firstDifference(a, b []byte) int {
	if bytes.Equal(a, b) {
		return -1
	}
	for i := range a {
		if a[i] != b[i] {
			return i
		}
	}
	return -1
}

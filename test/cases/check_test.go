package cases

import (
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/elevisor/elevisor/blk"
	"github.com/elevisor/elevisor/guest"
	"github.com/elevisor/elevisor/sys/eventfd"
	"github.com/elevisor/elevisor/virtqueue"
)

// finish holds what must hold after every case: the queue works or is broken in
// the proper way, the other queues and the other disk do not mind, no byte has
// changed that must not, and nothing is left behind.
func (r *rig) finish() {
	r.Helper()
	if !r.broken {
		assert.Zero(r, r.err.Take(), "the error descriptor was signalled")
		r.works()
	}
	assert.Equal(r, r.used, r.ring.UsedIdx(), "used entries nobody asked for")
	r.anotherQueueWorks()
	r.server.neighbour.progress(r.T)
	assert.NoError(r, r.checkMemory())
	assert.NoError(r, r.checkImage())
	if r.broken {
		r.cure()
	}
	r.s.Close()
	own := 3 + len(r.places) // eventfds, and files of memory
	until(r, "descriptors are left behind", func() bool { return openFDs(r.T)-own == r.server.fds })
	assert.LessOrEqual(r, r.server.log.FilterLevelExact(zap.WarnLevel).Len(), 10, "lines in the log")
}

// works reads a sector through queue 0.
func (r *rig) works() {
	r.Helper()
	h, s := r.header(blk.TypeIn, 3), r.status()
	head := r.post(h, W(512, other), s)
	r.answered(head, OK, 513)
	r.holds(other, r.sectors(3, 1))
}

// stopped is the end of queue 0: the error descriptor is signalled, and nothing
// more is processed.
func (r *rig) stopped() {
	r.Helper()
	require.True(r, r.err.Wait(patience), "the error descriptor of a broken queue was not signalled")
	assert.Equal(r, uint64(1), r.err.Take())
	r.broken = true
	before := r.ring.UsedIdx()
	for range 10 {
		r.kick.Notify()
		r.server.neighbour.progress(r.T)
	}
	assert.Equal(r, before, r.ring.UsedIdx(), "a broken queue went on")
	assert.Zero(r, r.err.Take(), "the error descriptor was signalled again")
}

// anotherQueueWorks starts queue 1 and reads through it.
func (r *rig) anotherQueueWorks() {
	r.Helper()
	const at = other + 0x10000
	var fds [2]*eventfd.FD
	for i := range fds {
		var err error
		fds[i], err = eventfd.New()
		require.NoError(r, err)
		defer fds[i].Close()
	}
	r.poke(at, make([]byte, 0x3000))
	ring := guest.NewRing(r.mem, 8, at, at+0x1000, at+0x2000)
	require.NoError(r, r.s.StartRing(1, guest.RingSetup{Ring: ring, Memory: r.mem, Kick: fds[0].Raw(), Call: fds[1].Raw(), Err: -1}))
	h, s := r.headerAt(at+0x4000, blk.TypeIn, 0, 5), r.statusAt(at+0x4100)
	for i, e := range []elem{h, W(512, at+0x5000), s} {
		virtqueue.PutDesc(ring.DescBytes(i), e.addr, e.n, e.flags|uint16(virtqueue.DescNext)*uint16(1-i/2), uint16(i+1))
	}
	ring.SetHead(0, 0)
	ring.SetAvail(1)
	fds[0].Notify()
	until(r, "queue 1 does not answer", func() bool { return ring.UsedIdx() == 1 })
	r.holds(at+0x4100, []byte{byte(OK)})
	r.holds(at+0x5000, r.sectors(5, 1))
	base, err := r.s.StopRing(1)
	require.NoError(r, err)
	assert.Equal(r, uint32(1), base)
	r.may = append(r.may, span{at, at + 0x10000})
}

// cure stops the broken queue and sets it up anew.
func (r *rig) cure() {
	r.Helper()
	_, err := r.s.StopRing(0)
	require.NoError(r, err, "a broken queue must stop")
	r.poke(regionA, make([]byte, 0x3000))
	r.avail, r.used, r.desc = 0, 0, 0
	clear(r.posted)
	r.start(0)
	r.works()
}

// checkMemory finds a byte that the device changed and had no right to.
func (r *rig) checkMemory() error {
	if err := r.mem.Intact(); err != nil {
		return err
	}
	for i, p := range r.places {
		now, want := r.mem.Bytes(p.GPA, p.Size), r.shadow[i]
		for _, s := range r.may {
			from, to := max(s.from, p.GPA), min(s.to, p.GPA+p.Size)
			if from < to && s.from < s.to {
				copy(want[from-p.GPA:to-p.GPA], now[from-p.GPA:])
			}
		}
		if at := firstDifference(now, want); at >= 0 {
			return fmt.Errorf("the device wrote %#02x to guest address %#x, where %#02x belongs", now[at], p.GPA+uint64(at), want[at])
		}
	}
	return nil
}

// checkImage compares all of the image.
func (r *rig) checkImage() error {
	got, err := os.ReadFile(r.server.image)
	if err != nil || len(got) != len(r.image) {
		return fmt.Errorf("image of %d bytes, want %d: %w", len(got), len(r.image), err)
	}
	for _, s := range r.unsure {
		copy(got[s.from:s.to], r.image[s.from:s.to])
	}
	if at := firstDifference(got, r.image); at >= 0 {
		return fmt.Errorf("byte %d of the image (sector %d) is %#02x, want %#02x", at, at/512, got[at], r.image[at])
	}
	return nil
}

// TestRigSees plants what the checks are there to find.
func TestRigSees(t *testing.T) {
	on(t, setup{}, func(r *rig) {
		r.ask(blk.TypeIn, 4, one(W(512, B)), OK, 513)
		require.NoError(t, r.checkMemory())
		require.NoError(t, r.checkImage())
		for _, addr := range []uint64{regionA, ringAvail + 2, H, S + 1, B + 512, regionA + regionASize - 1, regionB} {
			b := r.mem.Bytes(addr, 1)
			b[0]++
			assert.ErrorContains(t, r.checkMemory(), fmt.Sprintf("guest address %#x", addr))
			b[0]--
		}
		require.NoError(t, r.checkMemory())
		r.image[5*512]++
		assert.ErrorContains(t, r.checkImage(), "sector 5")
		r.image[5*512]--
		r.image = r.image[:len(r.image)-1]
		assert.ErrorContains(t, r.checkImage(), "image of 1048576 bytes")
		r.image = r.image[:len(r.image)+1]
	})
}

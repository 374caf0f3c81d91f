package guest

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/elevisor/elevisor/blk"
	"github.com/elevisor/elevisor/virtqueue"
)

// rig is a block layer on a disk that serves a request when it is told to: what
// merges does not depend on who is faster.
type rig struct {
	*Block
	g     *Guest
	toys  []*toy
	held  []*held // that the disk has taken and not served
	spare []*held
}

type held struct {
	toy   *toy
	chain virtqueue.Chain
}

type rigOptions struct {
	Options
	BlockOptions
	features uint64
	segMax   int
	sectors  int // of the disk
}

func newRig(t *testing.T, o rigOptions) *rig {
	t.Helper()
	o.Segments = cmp.Or(o.Segments, 64)
	o.Options.Queues = cmp.Or(o.Options.Queues, 1)
	g := newGuest(t, o.Options, cmp.Or(o.features, DefaultFeatures))
	g.config.SegMax, g.config.Capacity = uint32(cmp.Or(o.segMax, o.Segments)), blk.Sector(o.sectors)
	r := &rig{g: g}
	disk := make([]byte, cmp.Or(o.sectors, 1<<13)*blk.SectorSize)
	for _, q := range g.queues {
		r.toys = append(r.toys, newToy(t, q, disk))
	}
	b, err := NewBlock(g.queues, o.BlockOptions)
	require.NoError(t, err)
	r.Block = b
	return r
}

// look takes what the guest has made available.
func (r *rig) look(t require.TestingT) {
	for _, d := range r.toys {
		for {
			h := &held{toy: d}
			if n := len(r.spare); n > 0 {
				h, r.spare = r.spare[n-1], r.spare[:n-1]
			}
			h.toy = d
			ok, err := d.ring.Pop(&h.chain)
			require.NoError(t, err)
			if !ok {
				r.spare = append(r.spare, h)
				break
			}
			r.held = append(r.held, h)
		}
	}
}

// mustLook is look, where the disk must get something, at the latest when the
// scheduler has idled for long enough.
func (r *rig) mustLook(t require.TestingT) {
	for r.look(t); len(r.held) == 0; r.look(t) {
		require.NotEqual(t, blk.Never, r.Scheduler().Wake(), "%d requests in flight, none at the disk, and no time set", r.InFlight())
		_ = r.Wait(time.Millisecond)
	}
}

// serve carries out the i-th request that the disk has.
func (r *rig) serve(i int) {
	h := r.held[i]
	r.held = append(r.held[:i], r.held[i+1:]...)
	h.toy.serve(&h.chain)
	h.toy.ring.Publish()
	r.spare = append(r.spare, h)
}

func (h *held) describe(w io.Writer) {
	typ, sector, n := h.what()
	names := map[uint32]string{blk.TypeIn: "read", blk.TypeOut: "write", blk.TypeFlush: "flush"}
	fmt.Fprint(w, names[typ])
	if typ != blk.TypeFlush {
		fmt.Fprintf(w, " %d+%d in %d", sector, n, len(h.chain.Segs)-2)
	}
	if i := h.toy.q.index; i > 0 {
		fmt.Fprintf(w, " on queue %d", i)
	}
}

func (h *held) what() (typ uint32, sector, sectors blk.Sector) {
	head, data := h.chain.Segs[0], h.chain.Segs[1:len(h.chain.Segs)-1]
	n := 0
	for _, s := range data {
		n += len(s)
	}
	return binary.LittleEndian.Uint32(head), blk.Sector(binary.LittleEndian.Uint64(head[8:])), blk.Sector(n / blk.SectorSize)
}

package guest

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/elevisor/elevisor/blk"
	"github.com/elevisor/elevisor/sched"
	"github.com/elevisor/elevisor/virtqueue"
)

// world drives a block layer with any requests, and knows what must come of each.
type world struct {
	*rig
	model []byte
	free  []int
	reqs  []wanted // by slot
	next  blk.Sector
	gen   byte
	done  int // requests
	again bool
}

type wanted struct {
	op              blk.Op
	sector, sectors blk.Sector
	busy            bool
}

const worldSectors = 256

// TestBlockProperty: whatever the scheduler, the tags and the plug, every request is
// done exactly once, has moved its own bytes and no others, and failed if and only
// if one of its own sectors is bad.
func TestBlockProperty(t *testing.T) {
	for _, name := range sched.Names {
		for _, tags := range []int{1, 4, 0} {
			for _, noPlug := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s/tags=%d/noplug=%t", name, tags, noPlug), func(t *testing.T) {
					rigs := map[string]*rig{}
					rapid.Check(t, func(rt *rapid.T) {
						o := rigOptions{
							Options:      Options{QueueSize: 16, Depth: 16, Segments: 12, MaxIO: 8192, Queues: rapid.IntRange(1, 2).Draw(rt, "queues")},
							BlockOptions: BlockOptions{Scheduler: name, Tags: tags, NoPlug: noPlug, NoMerges: rapid.IntRange(0, 2).Draw(rt, "nomerges")},
							sectors:      worldSectors,
						}
						if rapid.Bool().Draw(rt, "direct descriptors") {
							o.features = DefaultFeatures &^ virtqueue.FeatureIndirect
						}
						if rapid.Bool().Draw(rt, "many requests") && (name != "none") {
							o.Requests = 64
						}
						key := fmt.Sprint(o)
						r := rigs[key] // idle: whoever fails does not put it back
						if delete(rigs, key); r == nil {
							r = newRig(t, o)
						}
						live(rt, r)
						rigs[key] = r
					})
					for _, r := range rigs {
						assert.NoError(t, r.g.mem.Intact())
					}
				})
			}
		}
	}
}

func live(t *rapid.T, r *rig) {
	w := &world{rig: r, reqs: make([]wanted, r.Depth()), model: append([]byte(nil), r.toys[0].data...)}
	for i := range r.Depth() {
		w.free = append(w.free, i)
	}
	bad := map[blk.Sector]bool{}
	for _, s := range rapid.SliceOfN(rapid.IntRange(0, worldSectors-1), 0, 8).Draw(t, "bad sectors") {
		bad[blk.Sector(s)] = true
	}
	for _, d := range r.toys {
		d.bad = bad
	}
	before := r.Stats()
	for range rapid.IntRange(1, 150).Draw(t, "steps") {
		w.step(t)
	}
	w.again = false
	for i := 0; w.InFlight() > 0; i++ {
		require.Less(t, i, 10000, "%d requests never come back", w.InFlight())
		w.Kick()
		w.reap(t)
		if w.InFlight() > 0 {
			w.mustLook(t)
			w.serve(0)
		}
	}
	s := r.Stats()
	require.Equal(t, s.Submitted-s.Merged()+s.Retried, s.Issued)
	require.Equal(t, s.Submitted-before.Submitted, uint64(w.done))
	require.Equal(t, w.model, r.toys[0].data)
	require.Zero(t, r.live)
	require.Zero(t, r.flying)
	require.Zero(t, r.Scheduler().Len())
	require.Zero(t, r.g.queues[0].InFlight())
	require.Len(t, w.free, r.Depth())
}

func (w *world) step(t *rapid.T) {
	switch rapid.IntRange(0, 9).Draw(t, "step") {
	default:
		w.submit(t)
	case 6:
		w.Kick()
	case 7, 8:
		w.look(t)
		for n := min(len(w.held), rapid.IntRange(0, 4).Draw(t, "served")); n > 0; n-- {
			w.serve(rapid.IntRange(0, len(w.held)-1).Draw(t, "which"))
		}
	case 9:
		w.again = rapid.Bool().Draw(t, "submit in reap")
		w.reap(t)
	}
}

// submit often goes on behind or in front of the last request, so that there is
// something to merge; and never where one in flight is, as order is nobody's there.
func (w *world) submit(t *rapid.T) {
	if len(w.free) == 0 {
		return
	}
	i := rapid.IntRange(0, len(w.free)-1).Draw(t, "slot")
	slot := w.free[i]
	n := blk.Sector(rapid.IntRange(1, 6).Draw(t, "sectors"))
	q := wanted{op: rapid.SampledFrom([]blk.Op{blk.OpRead, blk.OpRead, blk.OpWrite, blk.OpWrite, blk.OpWrite, blk.OpFlush}).Draw(t, "op"), sectors: n, busy: true}
	switch rapid.IntRange(0, 3).Draw(t, "where") {
	case 0, 1:
		q.sector = w.next
	case 2:
		q.sector = max(w.next, 2*n) - 2*n
	case 3:
		q.sector = blk.Sector(rapid.IntRange(0, worldSectors).Draw(t, "sector"))
	}
	q.sector = min(q.sector, worldSectors-n)
	var data []Buf
	if q.op == blk.OpFlush {
		q.sector, q.sectors = 0, 0
	} else {
		for _, o := range w.reqs {
			if o.busy && o.sector < q.sector+n && q.sector < o.sector+o.sectors {
				return
			}
		}
		data = w.data(t, slot, n)
		w.next = q.sector + n
	}
	if q.op == blk.OpWrite {
		w.gen++
		for k, v := range w.Buffer(slot).Bytes[:n.Bytes()] {
			w.Buffer(slot).Bytes[k] = byte(k/blk.SectorSize)*16 + w.gen + v&1
		}
	}
	if w.Submit(slot, q.op, q.sector, data) {
		w.reqs[slot] = q
		w.free = append(w.free[:i], w.free[i+1:]...)
	}
}

// data is n sectors of slot's buffer in one to three segments.
func (w *world) data(t *rapid.T, slot int, n blk.Sector) (data []Buf) {
	whole := w.Buffer(slot).Slice(0, int(n.Bytes()))
	cut1 := rapid.IntRange(0, int(n)).Draw(t, "cut") * blk.SectorSize
	cut2 := rapid.IntRange(cut1, len(whole.Bytes)).Draw(t, "cut")
	for _, b := range []Buf{whole.Slice(0, cut1), whole.Slice(cut1, cut2), whole.Slice(cut2, len(whole.Bytes))} {
		if len(b.Bytes) > 0 {
			data = append(data, b)
		}
	}
	return data
}

func (w *world) reap(t *rapid.T) {
	count := 0
	n, err := w.Reap(func(d Done) {
		count++
		w.took(t, d)
		if w.again {
			w.submit(t)
		}
	})
	require.NoError(t, err)
	require.Equal(t, count, n)
}

func (w *world) took(t *rapid.T, d Done) {
	q := w.reqs[d.Slot]
	require.True(t, q.busy, "slot %d is done twice", d.Slot)
	w.reqs[d.Slot] = wanted{}
	w.free = append(w.free, d.Slot)
	w.done++
	want := Done{Slot: d.Slot, Written: 1}
	for s := q.sector; s < q.sector+q.sectors; s++ {
		if w.toys[0].bad[s] {
			want.Status = blk.StatusIOErr
		}
	}
	buf, disk := w.Buffer(d.Slot).Bytes[:q.sectors.Bytes()], w.model[q.sector.Bytes():(q.sector+q.sectors).Bytes()]
	if want.Status == blk.StatusOK {
		switch q.op {
		case blk.OpRead:
			want.Written += uint32(len(buf))
			require.Equal(t, disk, buf, "read of %d+%d", q.sector, q.sectors)
		case blk.OpWrite:
			copy(disk, buf)
		}
	}
	require.Equal(t, want, d, "%v of %d+%d", q.op, q.sector, q.sectors)
}

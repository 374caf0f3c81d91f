package sched

import (
	"testing"

	"github.com/elevisor/elevisor/blk"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// check looks into a BFQ scheduler: whatever it counts is so, and every queue and every
// request stands where it belongs, and nowhere else.
func (b *BFQ) check(t require.TestingT) {
	n, inDriver := 0, 0
	var busy, weights [levelCount]int
	var sums [levelCount]int64
	raised := 0
	standing := map[*bfqTree]int{}
	for i, q := range b.queues {
		require.EqualValues(t, i+1, q.place)
		require.Equal(t, q.fifo.Len(), treeLen(q.sorted.root))
		require.Equal(t, q.fifo.Len() == 0, q.next == nil)
		found := q.next == nil
		for g := q.fifo.Front(); g != nil; g = g.Next {
			require.Equal(t, q.place, g.Links.Place)
			require.Equal(t, g.Links.First.Pos, g.Links.Key)
			n += int(g.Links.Parts)
			found = found || g == q.next
		}
		require.True(t, found, "next is none of its own")
		require.False(t, q.fifo.Len() > 0 && !q.busy, "has requests, and is not busy")
		require.GreaterOrEqual(t, q.dispatched, 0)
		inDriver += q.dispatched
		c := &b.classes[q.class]
		switch {
		case q == b.serving:
			require.Nil(t, q.on)
			require.True(t, q.busy)
		case q.busy:
			require.Same(t, &c.active, q.on)
		case q.on != nil:
			require.Same(t, &c.idle, q.on)
		}
		require.Equal(t, q.on != nil || q == b.serving, q.counted)
		if q.on != nil {
			standing[q.on]++
		}
		if q.counted {
			sums[q.class] += q.weight
		}
		busy[q.class] += asInt(q.busy)
		raised += asInt(q.busy && q.raise.coeff > 1)
		weights[q.class] += asInt(q.weighed)
		require.False(t, q.raise.coeff > 1 && q.raise.kind == bfqPlain)
		require.GreaterOrEqual(t, q.budget, int64(0))
	}
	for g := b.retry.Front(); g != nil; g = g.Next {
		require.NotZero(t, g.Links.Place)
		n += int(g.Links.Parts)
	}
	require.Equal(t, n, b.n)
	require.Equal(t, inDriver, b.inDriver)
	require.Equal(t, busy, b.busy)
	require.Equal(t, weights, b.weights)
	require.Equal(t, raised, b.raised)
	for i := range b.classes {
		c := &b.classes[i]
		require.Equal(t, sums[i], c.sum)
		for _, tr := range []*bfqTree{&c.active, &c.idle} {
			require.Equal(t, standing[tr], tr.check(t, c.time))
		}
	}
	require.False(t, b.waiting && b.serving == nil)
}

// check looks whether t is in order, finds what it should, and is not too high.
func (tr *bfqTree) check(t require.TestingT, time uint64) (n int) {
	var last, first *bfqQueue
	high := 0
	var walk func(x *bfqQueue, depth int) uint64
	walk = func(x *bfqQueue, depth int) uint64 {
		high = max(high, depth)
		earliest := x.start
		side := func(i int) {
			if c := x.child[i]; c != nil {
				require.LessOrEqual(t, c.rank, x.rank)
				if e := walk(c, depth+1); after(earliest, e) {
					earliest = e
				}
			}
		}
		side(0)
		require.True(t, last == nil || last.before(x))
		last = x
		n++
		if first == nil && !after(x.start, time) {
			first = x
		}
		side(1)
		require.Equal(t, earliest, x.earliest)
		return earliest
	}
	if tr.root != nil {
		walk(tr.root, 1)
	}
	require.Same(t, first, tr.first(time))
	if n > 1000 {
		require.Less(t, high, 60)
	}
	return n
}

// The tree finds what a search through all would, whatever times it is given, also
// where they wrap; and it does not become a list if these rise or fall.
func TestBFQTree(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var tr bfqTree
		var in []*bfqQueue
		base := rapid.SampledFrom([]uint64{0, 1 << 40, 1<<64 - 100}).Draw(t, "base")
		for range rapid.IntRange(1, 100).Draw(t, "steps") {
			if len(in) > 0 && rapid.IntRange(0, 2).Draw(t, "remove") == 0 {
				i := rapid.IntRange(0, len(in)-1).Draw(t, "which")
				tr.remove(in[i])
				in = append(in[:i], in[i+1:]...)
			} else {
				start := base + rapid.Uint64Range(0, 200).Draw(t, "start")
				q := &bfqQueue{bfqEntity: bfqEntity{start: start, finish: start + rapid.Uint64Range(0, 50).Draw(t, "budget")}}
				tr.insert(q)
				in = append(in, q)
			}
			require.Equal(t, len(in), tr.check(t, base+rapid.Uint64Range(0, 250).Draw(t, "time")))
		}
	})
	for _, step := range []int{1, -1, 0} {
		var tr bfqTree
		for i := range 5000 {
			at := uint64(1_000_000 + i*step)
			tr.insert(&bfqQueue{bfqEntity: bfqEntity{start: at, finish: at}})
		}
		require.Equal(t, 5000, tr.check(t, 1_000_000))
	}
}

// Whatever guests, disk and operator do, the books are right after each step.
func TestBFQ_books(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cfg := drawConfig(t)
		cfg.Rotational = rapid.Bool().Draw(t, "rotational")
		w := newWorld(t, "bfq", cfg, 2)
		b := w.s.(*BFQ)
		if rapid.Bool().Draw(t, "knobs") {
			drawKnobs(t, b)
		}
		depth := rapid.SampledFrom([]int{1, 4, 32}).Draw(t, "depth")
		for range rapid.IntRange(1, 200).Draw(t, "steps") {
			switch a := rapid.IntRange(0, 25).Draw(t, "action"); {
			case a < 9:
				r := w.anything(t, true)
				r.Source.Device = uint16(rapid.IntRange(0, 11).Draw(t, "guest"))
				w.insert(r)
			case a < 15:
				for len(w.issued) < depth && w.dispatch() {
					b.check(t)
				}
			case a < 20 && len(w.issued) > 0:
				w.finish(rapid.IntRange(0, len(w.issued)-1).Draw(t, "which"), rapid.IntRange(0, 5).Draw(t, "fails") == 0)
			case a < 23:
				w.now += blk.Instant(rapid.SampledFrom([]int{2e4, 1e6, 9e6, 130e6, 3e9}).Draw(t, "time"))
			case a == 23:
				w.now -= min(w.now, blk.Instant(rapid.SampledFrom([]int{1e6, 1e9}).Draw(t, "back")))
			case a == 24:
				w.drain(rapid.SampledFrom([]blk.Source{{Device: 0, Queue: 1}, {Device: 1, Queue: blk.AnyQueue}, blk.AllSources}).Draw(t, "source"))
			case a == 25:
				knob := rapid.SampledFrom([][2]string{
					{"source", "queue"}, {"source", "device"}, {"source", "stream"}, {"writes", "sync"}, {"writes", "async"},
					{"low_latency", "0"}, {"low_latency", "1"}, {"slice_idle", "0"}, {"slice_idle", "8"}, {"strict_guarantees", "1"}, {"strict_guarantees", "0"},
				}).Draw(t, "knob")
				w.calm = false // what changes its queue merges anew
				require.NoError(t, b.Set(knob[0], knob[1]))
			}
			b.check(t)
		}
		w.wind()
		b.check(t)
	})
}

// A drained request does not keep the number of its stream.
func TestBFQ_drainedStreams(t *testing.T) {
	s := newBFQ(&Config{NoMerges: 2})
	require.NoError(t, s.Set("source", "stream"))
	d := &blk.Disk{}
	reqs := make([]blk.Request, 8)
	for i := range reqs {
		reqs[i] = blk.Request{Op: blk.OpRead, Disk: d, Sector: blk.Sector(i) * 8, Pos: blk.Sector(i) * 8, Sectors: 8, Seq: uint64(i)}
		s.Insert(0, &reqs[i])
	}
	require.NotZero(t, reqs[7].Source.Stream)
	for _, r := range s.Drain(blk.AllSources, nil) {
		require.Equal(t, blk.Source{}, r.Source)
	}
}

// Once every source has been seen, nothing is allocated, whatever a flow is.
func TestBFQ_allocatesNothing(t *testing.T) {
	for _, by := range flowByNames {
		s := newBFQ(&Config{Rotational: true})
		require.NoError(t, s.Set("source", by))
		reqs, now := requests(64), blk.Instant(0)
		turn := func() {
			for i := range reqs {
				reqs[i].Arrive = now
				s.Insert(now, &reqs[i])
			}
			for s.Len() > 0 {
				r := s.Dispatch(now)
				if r == nil {
					now = s.Wake()
					continue
				}
				now += 100 * us
				s.Complete(now, r)
			}
		}
		turn()
		require.Zero(t, testing.AllocsPerRun(100, turn), by)
	}
}

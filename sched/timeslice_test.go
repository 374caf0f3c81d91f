package sched

import (
	"fmt"
	"testing"

	"github.com/elevisor/elevisor/blk"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

const (
	us = blk.Instant(1000)
	ms = 1000 * us
)

// guest keeps depth requests of its source going, without a pause between them.
type guest struct {
	src   blk.Source
	depth int
	cost  blk.Instant // of one request, on the disk

	reqs   []blk.Request
	served blk.Instant // time the disk spent on it
	waits  []blk.Instant
	queued int
	since  blk.Instant // its last dispatch, or its first arrival after an empty queue
	worst  blk.Instant // longest time without a dispatch while something was queued
}

// station is a disk that serves one request at a time, in the order it gets them, and
// holds at most depth; and guests that keep a scheduler busy.
type station struct {
	s      Scheduler
	now    blk.Instant
	guests []*guest
	depth  int
	image  blk.Disk
	disk   []*blk.Request
	done   blk.Instant // of disk[0]
	seq    uint64
}

func (w *station) insert(g *guest, r *blk.Request) {
	if g.queued == 0 {
		g.since = w.now
	}
	g.queued++
	w.seq++
	r.Disk, r.Source, r.Slot, r.Arrive, r.Seq = &w.image, g.src, g, w.now, w.seq
	r.Sector, r.Sectors = blk.Sector(w.seq)*1000, 8 // nothing adjoins
	r.Flags, r.Merged = 0, nil
	w.s.Insert(w.now, r)
}

func (w *station) run(until blk.Instant) {
	for _, g := range w.guests {
		g.reqs = make([]blk.Request, g.depth)
		for i := range g.reqs {
			w.insert(g, &g.reqs[i])
		}
	}
	for w.now < until {
		w.fill()
		if len(w.disk) == 0 {
			w.now = max(w.now+1, w.s.Wake())
			continue
		}
		if wake := w.s.Wake(); len(w.disk) < w.depth && wake > w.now && wake < w.done {
			w.now = wake
			continue
		}
		w.finish()
	}
}

func (w *station) fill() {
	for len(w.disk) < w.depth {
		r := w.s.Dispatch(w.now)
		if r == nil {
			return
		}
		g := r.Slot.(*guest)
		g.queued--
		g.waits = append(g.waits, w.now-r.Arrive)
		g.worst = max(g.worst, w.now-g.since)
		g.since = w.now
		if w.disk = append(w.disk, r); len(w.disk) == 1 {
			w.done = w.now + g.cost
		}
	}
}

func (w *station) finish() {
	w.now = w.done
	r := w.disk[0]
	w.disk = w.disk[1:]
	g := r.Slot.(*guest)
	g.served += g.cost
	w.s.Complete(w.now, r)
	w.insert(g, r)
	if len(w.disk) > 0 {
		w.done = w.now + w.disk[0].Slot.(*guest).cost
	}
}

// sliced makes a scheduler with these knobs, given as name, value, name, value.
func sliced(t require.TestingT, knobs ...string) *Timeslice {
	s := newTimeslice(&Config{})
	for i := 0; i < len(knobs); i += 2 {
		require.NoError(t, s.Set(knobs[i], knobs[i+1]))
	}
	return s
}

// SL-012: one greedy guest of two. The law holds where a slice is long against a
// request: what overruns its slice is not charged.
func TestSL012_greedyGuest(t *testing.T) {
	for _, c := range []struct {
		name         string
		large, small blk.Instant // cost of 1 MiB, of 4 KiB
		knobs        []string
	}{
		{"SSD, default", 250 * us, 15 * us, nil},
		{"rotational, 20 ms", 8 * ms, 100 * us, []string{"time_slice_us", "20000"}},
		{"rotational, 20 ms, never extended", 8 * ms, 100 * us, []string{"time_slice_us", "20000", "extend", "never"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := sliced(t, c.knobs...)
			greedy := &guest{src: blk.Source{Device: 1}, depth: 256, cost: c.large}
			modest := &guest{src: blk.Source{Device: 2}, depth: 1, cost: c.small}
			w := &station{s: s, guests: []*guest{greedy, modest}, depth: 1}
			w.run(10_000 * ms)
			share := float64(modest.served) / float64(modest.served+greedy.served)
			t.Logf("share %.3f, worst wait %d us, %+v", share, modest.worst/us, s.counts)
			require.GreaterOrEqual(t, share, 0.4)
			require.LessOrEqual(t, modest.worst, 3*s.slice+greedy.cost)
		})
	}
}

func TestTimeslice_boundedWait(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		pick := func(name string, of ...string) string { return rapid.SampledFrom(of).Draw(t, name) }
		slice := rapid.IntRange(1, 2000).Draw(t, "slice")
		extend := rapid.IntRange(1, 5).Draw(t, "max")
		s := sliced(t, "time_slice_us", fmt.Sprint(slice), "slice_extend_max", fmt.Sprint(extend),
			"slice_by", pick("by", sliceByNames...), "extend", pick("extend", extendNames...), "empty", pick("empty", emptyNames...))
		w := &station{s: s, depth: rapid.IntRange(1, 4).Draw(t, "room")}
		cost := blk.Instant(rapid.IntRange(1, 3000).Draw(t, "cost")) * us
		n := rapid.IntRange(1, 70).Draw(t, "guests")
		for i := range n {
			w.guests = append(w.guests, &guest{src: blk.Source{Device: uint16(i), Queue: 0}, cost: cost,
				depth: rapid.IntRange(1, 5).Draw(t, "depth")})
		}
		bound := blk.Instant(n-1)*(blk.Instant(extend)*s.slice+cost) + cost
		w.run(5 * bound)
		for _, g := range w.guests {
			require.LessOrEqual(t, g.worst, bound, "guest %v", g.src)
			require.NotEmpty(t, g.waits, "guest %v", g.src)
		}
	})
}

func TestTimeslice_allocatesNothing(t *testing.T) {
	s := sliced(t)
	reqs, now := requests(64), blk.Instant(0)
	require.Zero(t, testing.AllocsPerRun(100, func() { cycle(s, reqs, &now) }))
	require.Zero(t, s.Len())
	require.NotZero(t, s.counts.Slices)
}

// requests are of four guests with two queues each; nothing adjoins.
func requests(n int) []blk.Request {
	disk, reqs := &blk.Disk{}, make([]blk.Request, n)
	for i := range reqs {
		reqs[i] = blk.Request{
			Disk: disk, Source: blk.Source{Device: uint16(i & 3), Queue: uint16(i >> 2 & 1)},
			Seq: uint64(i), Sector: blk.Sector(i) * 1000, Sectors: 8,
		}
	}
	return reqs
}

// cycle puts reqs through s, one at a time on the disk.
func cycle(s Scheduler, reqs []blk.Request, now *blk.Instant) {
	for i := range reqs {
		reqs[i].Arrive = *now
		s.Insert(*now, &reqs[i])
	}
	for range reqs {
		r := s.Dispatch(*now)
		if r == nil { // an idle owner keeps the disk
			*now = s.Wake()
			r = s.Dispatch(*now)
		}
		*now += 100 * us
		s.Complete(*now, r)
	}
}

func BenchmarkTimeslice(b *testing.B) {
	for _, depth := range []int{1, 32, 256} {
		b.Run(fmt.Sprint(depth), func(b *testing.B) {
			s, reqs, now := sliced(b), requests(depth), blk.Instant(0)
			b.ReportAllocs()
			for b.Loop() {
				cycle(s, reqs, &now)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(depth*b.N), "ns/request")
		})
	}
}

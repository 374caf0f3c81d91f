package sched

import (
	"testing"

	"github.com/elevisor/elevisor/blk"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// eachScheduler runs a law under every scheduler.
func eachScheduler(t *testing.T, law func(t *testing.T, w *world)) {
	for _, name := range Names {
		t.Run(name, func(t *testing.T) { law(t, newWorld(t, name, &Config{}, 2)) })
	}
}

// ask is a request of the first disk's first guest.
func (w *world) ask(op blk.Op, at, n blk.Sector) blk.Request {
	return blk.Request{Op: op, Disk: w.disks[0], Sector: at, Sectors: n}
}

// all puts everything that is queued on the disk and says how many heads that were.
func (w *world) all() (heads int) {
	for n := len(w.issued); w.queued > 0; {
		for w.dispatch() {
		}
		if heads = len(w.issued) - n; w.queued > 0 && w.s.Wake() == blk.Never {
			return heads
		}
		if w.queued > 0 {
			w.now = w.s.Wake()
		}
	}
	return len(w.issued)
}

func TestSL001_readAfterWrite(t *testing.T) {
	eachScheduler(t, func(t *testing.T, w *world) {
		for range 5 {
			wr := w.insert(w.ask(blk.OpWrite, 5, 1))
			stamp := wr.Segs[0][0]
			w.wind()
			rd := w.insert(w.ask(blk.OpRead, 5, 1))
			w.wind()
			require.Equal(t, stamp, rd.Segs[0][0])
		}
	})
}

func TestSL003_overlappingWrites(t *testing.T) {
	eachScheduler(t, func(t *testing.T, w *world) {
		one, two := w.insert(w.ask(blk.OpWrite, 0, 8)), w.insert(w.ask(blk.OpWrite, 4, 8))
		require.Equal(t, 2, w.all(), "overlapping requests never merge")
		w.wind()
		a, b := one.Segs[0][0], two.Segs[0][0]
		for i, v := range w.content[0][:12] {
			switch {
			case i < 4:
				require.Equal(t, a, v)
			case i < 8:
				require.Contains(t, []byte{a, b}, v)
			default:
				require.Equal(t, b, v)
			}
		}
	})
}

func TestSL006_backAndFrontMerge(t *testing.T) {
	eachScheduler(t, func(t *testing.T, w *world) {
		var want []byte
		for _, at := range []blk.Sector{8, 0, 16} {
			w.insert(w.ask(blk.OpWrite, at, 8))
		}
		for _, i := range []int{1, 0, 2} {
			for range 8 {
				want = append(want, w.history[i].stamp)
			}
		}
		require.Equal(t, 1, w.all(), "one operation")
		require.Equal(t, 3, parts(w.issued[0]))
		w.wind()
		require.Equal(t, want, w.content[0][:24])
		require.Equal(t, 3, w.finished)
	})
}

func TestSL007_neverMerged(t *testing.T) {
	other := func(w *world) blk.Request {
		r := w.ask(blk.OpWrite, 8, 8)
		r.Disk = w.disks[1]
		return r
	}
	for name, second := range map[string]func(w *world) blk.Request{
		"read with write":    func(w *world) blk.Request { return w.ask(blk.OpRead, 8, 8) },
		"two disks":          other,
		"too large":          func(w *world) blk.Request { return w.ask(blk.OpWrite, 8, 16) },
		"discard with write": func(w *world) blk.Request { return w.ask(blk.OpDiscard, 8, 8) },
		"a gap of 4 KiB":     func(w *world) blk.Request { return w.ask(blk.OpWrite, 16, 8) },
	} {
		t.Run(name, func(t *testing.T) {
			eachScheduler(t, func(t *testing.T, w *world) {
				w.cfg.MaxSectors = 20
				w.insert(w.ask(blk.OpWrite, 0, 8))
				w.insert(second(w))
				require.Equal(t, 2, w.all())
				w.wind()
			})
		})
	}
}

func TestSL010_readsStarveWrites(t *testing.T) {
	w := newWorld(t, "deadline", &Config{NoMerges: 2}, 1)
	require.NoError(t, Set(w.s, "write_expire", "500"))
	reads := blk.Sector(0)
	more := func() {
		for ; w.queued < 64; reads++ {
			w.insert(w.ask(blk.OpRead, reads%modelSectors, 1))
		}
	}
	more()
	require.True(t, w.dispatch(), "a batch of reads goes on")
	w.finish(0, false)
	wr := w.insert(w.ask(blk.OpWrite, 50, 1))
	for w.live[wr] != nil {
		more()
		require.True(t, w.dispatch())
		w.now += millisecond
		w.finish(0, false)
	}
	require.LessOrEqual(t, w.now, (500+16)*millisecond)
	require.Greater(t, w.now, 16*millisecond, "the reads had their turns")
}

func TestSL015_noLeak(t *testing.T) {
	eachScheduler(t, func(t *testing.T, w *world) {
		for i := range 10000 {
			r := w.ask(blk.Op(i%2), blk.Sector(i*7%80), 4)
			r.Source.Queue = uint16(i % 3)
			w.insert(r)
			if i%7 == 0 { // cancelled: its queue stops
				w.drain(blk.Source{Queue: uint16(i % 3)})
			}
			if i%5 == 0 {
				w.dispatch()
			}
			for len(w.issued) > 20 {
				w.finish(i%len(w.issued), i%3 == 0)
			}
			if i%500 == 0 {
				w.wind()
				w.forget()
			}
		}
		w.wind()
		w.forget()
		if d, ok := w.s.(*Deadline); ok {
			assert.Zero(t, d.writing)
			for i := range d.levels {
				assert.Zero(t, d.levels[i].load)
			}
			require.NoError(t, d.Set("async_depth", "64"))
		}
		w.cfg.NoMerges = 2
		for i := range 65 {
			w.insert(w.ask(blk.OpWrite, blk.Sector(i), 1))
		}
		for len(w.issued) < 64 {
			require.True(t, w.dispatch(), "%d on the disk", len(w.issued))
		}
		w.wind()
	})
}

func TestSL017_clockJumps(t *testing.T) {
	const hour = 3600 * 1000 * millisecond
	eachScheduler(t, func(t *testing.T, w *world) {
		w.now = 2 * hour
		fill := func() {
			for i := range 40 {
				r := w.ask(blk.Op(i%2), blk.Sector(i*5%90), 2)
				r.Prio = blk.Prio(i % 3)
				w.insert(r)
			}
		}
		// The world's time goes on only where Wake says that there is nothing else to do.
		for _, jump := range []blk.Instant{-hour, hour, 60 * 1000 * millisecond, -hour} {
			fill()
			w.now += jump
			before := w.now
			w.wind()
			require.LessOrEqual(t, w.now-before, 1000*millisecond, "after a jump of %d s", jump/1000/millisecond)
		}
		// What has stood still for a minute has expired; what comes then has not.
		fill()
		w.now += 60 * 1000 * millisecond
		w.wind()
		var before, after Counters
		Count(w.s, &before)
		fill()
		w.wind()
		Count(w.s, &after)
		require.Equal(t, before.Expired, after.Expired)
	})
}

func TestSL019_failedChange(t *testing.T) {
	eachScheduler(t, func(t *testing.T, w *world) {
		w.insert(w.ask(blk.OpWrite, 0, 8))
		_, err := New("elevator", w.cfg)
		require.ErrorContains(t, err, `scheduler "elevator" is unknown; there are none, deadline`)
		require.Error(t, Set(w.s, "no_such_knob", "1"))
		w.insert(w.ask(blk.OpWrite, 8, 8))
		w.wind()
		require.Equal(t, 2, w.finished)
	})
}

// Streams that come interleaved in one queue: none finds its neighbours among the
// last eight only, an index finds them all (the case against none in a host).
func TestInterleavedStreams(t *testing.T) {
	for _, c := range []struct {
		name     string
		streams  int
		low, top float64 // share of requests merged
	}{
		{"none", 4, 0.8, 1}, {"none", 16, 0, 0.1}, {"deadline", 4, 0.8, 1}, {"deadline", 16, 0.8, 1},
	} {
		cfg := &Config{MaxSectors: 2560, MaxSegments: 1024}
		s, err := New(c.name, cfg)
		require.NoError(t, err)
		disk := &blk.Disk{}
		for i := range 512 {
			stream, k := i%c.streams, i/c.streams
			at := blk.Sector(stream)<<20 + blk.Sector(k)*8
			s.Insert(0, &blk.Request{Op: blk.OpWrite, Disk: disk, Sector: at, Pos: at, Sectors: 8, Seq: uint64(i)})
		}
		heads := 0
		for s.Dispatch(0) != nil {
			heads++
		}
		share := 1 - float64(heads)/512
		require.True(t, c.low <= share && share <= c.top, "%s, %d streams: %.2f merged", c.name, c.streams, share)
	}
}

// Guests choose their sectors: one that makes many groups with one edge must not
// make the others' searches long.
func TestMerger_boundedSearch(t *testing.T) {
	for others, merges := range map[int]uint64{searchMax - 1: 1, searchMax: 0, 100 * searchMax: 0} {
		w := newWorld(t, "deadline", &Config{}, 1)
		w.insert(w.ask(blk.OpWrite, 0, 8))
		for range others {
			w.insert(w.ask(blk.OpRead, 0, 8))
		}
		w.insert(w.ask(blk.OpWrite, 8, 8))
		require.Equal(t, merges, w.cfg.Merges.Merged[Back][SameQueue], "behind %d others", others)
		require.LessOrEqual(t, w.cfg.Merges.Refused[OtherOp], uint64(searchMax))
		w.wind()
	}
}

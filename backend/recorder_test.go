package backend

import (
	"testing"

	"github.com/elevisor/elevisor/backend/drive"
	"github.com/elevisor/elevisor/blk"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// issuedTo is one request as the naive model keeps it: part by part.
type issuedTo struct {
	parts []blk.Request
	at    blk.Instant
}

func (i *issuedTo) start() blk.Sector { return i.parts[0].Sector }
func (i *issuedTo) end() blk.Sector   { return i.parts[len(i.parts)-1].End() }

// naive counts from the whole history, by the words of RecorderStats.
func naive(all []issuedTo, others uint64) (c RecorderStats) {
	c.Others = others
	for n := range all {
		x := &all[n]
		c.Requests++
		c.Sectors += uint64(x.end() - x.start())
		if n > 0 && all[n-1].end() != x.start() {
			c.Seeks++
			if d := int64(x.start()) - int64(all[n-1].end()); d < 0 {
				c.SeekSectors += uint64(-d)
			} else {
				c.SeekSectors += uint64(d)
			}
		}
		for m := n - 1; m >= max(0, n-RecorderWindow); m-- {
			y := &all[m]
			if y.parts[0].Op != x.parts[0].Op {
				continue
			}
			var mine, other *blk.Request
			if y.end() == x.start() {
				mine, other = &x.parts[0], &y.parts[len(y.parts)-1]
			} else if x.end() == y.start() {
				mine, other = &x.parts[len(x.parts)-1], &y.parts[0]
			} else {
				continue
			}
			if mine.Source.Device != other.Source.Device {
				c.LostOtherVM++
			} else if mine.Source.Queue != other.Source.Queue {
				c.LostOtherQueue++
			} else {
				c.LostSameQueue++
			}
			if mine.Arrive > y.at {
				c.LostLate++
			}
			break
		}
	}
	return c
}

// Whatever is issued, and however often the disk is full, the counts are those of the
// naive model, and the trace is what came after it was asked for.
func TestRecorder_countsAsANaiveModelDoes(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		img := NewRecorder(newNarrow(memDisk(t, 1<<20), rapid.IntRange(1, 3).Draw(rt, "room")))
		b, err := img.Attach(Host{Depth: 4})
		require.NoError(rt, err)
		rec := recorderOf(rt, b)
		var all []issuedTo
		var before RecorderStats
		var others, now uint64
		from, keep, cut := 0, 0, 0
		places := rapid.IntRange(4, 300).Draw(rt, "places")
		for range rapid.IntRange(1, 200).Draw(rt, "requests") {
			now += uint64(rapid.IntRange(0, 2).Draw(rt, "pause"))
			if rapid.IntRange(0, 30).Draw(rt, "ramp") == 0 {
				from, keep, cut = len(all), rapid.IntRange(0, 20).Draw(rt, "keep"), len(all)
				before = rec.Recorded()
				rec.Trace(keep)
			}
			head := drawRecorded(rt, places, blk.Instant(now))
			for !b.Submit(blk.Instant(now), head) {
				require.NotEmpty(rt, b.Reap(blk.Instant(now), nil))
			}
			if head.Op == blk.OpFlush {
				others++
				continue
			}
			x := issuedTo{at: blk.Instant(now)}
			for r := head; r != nil; r = r.Merged {
				x.parts = append(x.parts, *r)
			}
			all = append(all, x)
		}
		want := naive(all, others)
		require.Equal(rt, want, rec.Recorded())
		require.Equal(rt, want.Requests-uint64(cut), rec.Recorded().Since(before).Requests)
		sum := before
		sum.Add(want.Since(before))
		require.Equal(rt, want, sum)
		kept := all[from:min(len(all), from+keep)]
		traced := rec.Traced()
		require.Len(rt, traced, len(kept))
		for i, x := range kept {
			require.Equal(rt, Access{At: x.at, Sector: x.start(), Sectors: x.end() - x.start(), Source: x.parts[0].Source, Op: x.parts[0].Op}, traced[i])
		}
		for len(b.Reap(blk.Instant(now), nil)) > 0 {
		}
		require.NoError(rt, b.Close())
		require.NoError(rt, img.Close())
	})
}

// drawRecorded is a queued request, perhaps with others merged behind it.
func drawRecorded(rt *rapid.T, places int, now blk.Instant) (head *blk.Request) {
	if rapid.IntRange(0, 9).Draw(rt, "flush") == 0 {
		head = &blk.Request{Op: blk.OpFlush}
		head.Move(blk.StateFree, blk.StateQueued)
		return head
	}
	op := []blk.Op{blk.OpRead, blk.OpWrite}[rapid.IntRange(0, 1).Draw(rt, "op")]
	at := blk.Sector(rapid.IntRange(0, places).Draw(rt, "sector"))
	var last *blk.Request
	for range rapid.IntRange(1, 3).Draw(rt, "parts") {
		n := blk.Sector(rapid.IntRange(1, 2).Draw(rt, "sectors"))
		r := data(op, at, make([]byte, n.Bytes()))
		r.Source = blk.Source{Device: uint16(rapid.IntRange(0, 1).Draw(rt, "device")), Queue: uint16(rapid.IntRange(0, 1).Draw(rt, "queue"))}
		r.Arrive = max(0, now-blk.Instant(rapid.IntRange(0, 5).Draw(rt, "age")))
		r.Move(blk.StateFree, blk.StateQueued)
		if at += n; last == nil {
			head = r
		} else {
			last.Merged = r
		}
		last = r
	}
	return head
}

// The window ends where it says.
func TestRecorder_window(t *testing.T) {
	for between, lost := range map[int]uint64{RecorderWindow - 1: 1, RecorderWindow: 0} {
		img := NewRecorder(memDisk(t, 1<<20))
		g := attach(t, img, 1)
		g.do(data(blk.OpRead, 1000, make([]byte, 512)))
		for i := range between {
			g.do(data(blk.OpRead, blk.Sector(2*i), make([]byte, 512)))
		}
		g.do(data(blk.OpRead, 1001, make([]byte, 512)))
		c := recorderOf(t, g.b).Recorded()
		require.Equal(t, lost, c.Lost(), "%d between", between)
		g.close()
		require.NoError(t, img.Close())
	}
}

func TestRecorder_passesASimulatedDriveOn(t *testing.T) {
	drive := &fakeDrive{depth: 4, cost: func(drive.Command) blk.Instant { return 5 }}
	img := NewRecorder(NewSim(memDisk(t, 1<<20), drive, Physical{}, Options{}))
	g := attach(t, img, 4)
	g.do(data(blk.OpWrite, 8, make([]byte, 4096)))
	require.Equal(t, int64(1), simulatedOf(t, g.b).Deviation.TotalCount())
	require.Equal(t, RecorderStats{Requests: 1, Sectors: 8}, recorderOf(t, g.b).Recorded())
	require.EqualValues(t, 5, g.now, "recorder takes no time")
	g.close()
	require.NoError(t, img.Close())

	img = NewRecorder(memDisk(t, 1<<20))
	g = attach(t, img, 1)
	_, is := As[Simulated](g.b)
	require.False(t, is)
	g.close()
	require.NoError(t, img.Close())
}

func TestRecorder_allocatesNothing(t *testing.T) {
	img := NewRecorder(memDisk(t, 1<<20))
	g := attach(t, img, 1)
	recorderOf(t, g.b).Trace(50)
	r := data(blk.OpRead, 0, make([]byte, 512))
	n := testing.AllocsPerRun(200, func() {
		r.Sector = (r.Sector + 7) % 1000
		g.do(r)
	})
	require.Zero(t, n)
	g.close()
	require.NoError(t, img.Close())
}

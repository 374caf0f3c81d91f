package backend

import (
	"bytes"
	"fmt"
	"math"
	"math/big"
	"testing"
	"time"

	"github.com/elevisor/elevisor/backend/drive"
	"github.com/elevisor/elevisor/blk"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

// SL-022: a limit below one request, none at all, and one beyond all numbers.
func TestSL022_limitsOfRate(t *testing.T) {
	const mib = 1 << 20
	for _, c := range []struct {
		o    RateOptions
		each time.Duration // of 1 MiB; the last instant for more than that
	}{
		{RateOptions{BPS: 512}, 2048 * time.Second},
		{RateOptions{BPS: 1}, mib * time.Second},
		{RateOptions{BPS: 512, IOPS: 1}, 2048 * time.Second},
		{RateOptions{IOPS: 1}, time.Second},
		{RateOptions{IOPS: 3}, 333333334},
		{RateOptions{}, 0},
		{RateOptions{BPS: 1 << 63}, 1},
		{RateOptions{IOPS: 1 << 63}, 1},
		{RateOptions{BPS: math.MaxUint64, IOPS: math.MaxUint64}, 1},
		{RateOptions{BPS: mib - 1}, 1000000954},
	} {
		t.Run(fmt.Sprintf("%+v", c.o), func(t *testing.T) {
			w := newWorld(t, NewRate(memDisk(t, mib), c.o), 8)
			for range 3 {
				require.True(t, w.submit(data(blk.OpWrite, 0, make([]byte, mib))))
			}
			var at []time.Duration
			for ok := true; ok; ok = w.next() {
				for _, r := range w.reap(t) {
					requireOK(t, r)
					at = append(at, time.Duration(w.now))
				}
			}
			require.Equal(t, []time.Duration{c.each, 2 * c.each, 3 * c.each}, at)
		})
	}
}

// SL-022, the other end: what would take longer than time lasts ends with it, and
// so does all that comes behind.
func TestSL022_debtBeyondTheEndOfTime(t *testing.T) {
	l := &limit{bps: 1}
	r := &blk.Request{Op: blk.OpWriteZeroes, Sectors: math.MaxInt64 / blk.SectorSize}
	r.Merged = &blk.Request{Op: blk.OpWriteZeroes, Sectors: math.MaxInt64 / blk.SectorSize}
	require.Equal(t, blk.Never-1, l.due(5, r))
	require.Equal(t, blk.Never-1, l.due(6, &blk.Request{Op: blk.OpRead, Sectors: 1}))
	require.Equal(t, blk.Never-1, l.due(blk.Never-1, &blk.Request{Op: blk.OpFlush}))
}

// SL-015 for decorators: errors leave no turn taken and no room lost.
func TestSL015_errorsCostNoRoom(t *testing.T) {
	const depth, total = 64, 10_000
	slow, err := NewDelay(NewFaults(newNarrow(memDisk(t, modelSize), 7), Fault{Nth: 3}), DelayOptions{Jitter: 100 * time.Microsecond})
	require.NoError(t, err)
	w := newWorld(t, NewRate(slow, RateOptions{IOPS: 1_000_000}), depth)
	room := make([]*blk.Request, depth)
	for i := range room {
		room[i] = data(blk.OpWrite, blk.Sector(i), make([]byte, 512))
	}
	free, failed, ended := append([]*blk.Request(nil), room...), 0, 0
	for started := 0; ended < total; {
		for started < total && len(free) > 0 && w.submit(free[0]) {
			free = free[1:]
			started++
		}
		for _, r := range w.reap(t) {
			if r.Status != blk.StatusOK {
				failed++
			}
			ended++
			free = append(free, r)
		}
		w.next()
	}
	require.Equal(t, total/3, failed)
	require.Equal(t, blk.Never, w.Wake())
	at := w.now
	for _, r := range room {
		require.True(t, w.submit(r))
	}
	require.False(t, w.submit(data(blk.OpRead, 0, make([]byte, 512))))
	require.Equal(t, at+1000, w.Wake(), "nobody's turn was left over")
	for w.next() {
		ended += len(w.reap(t))
	}
	require.Equal(t, total+depth, ended)
}

// A limit is a disk that serves one request after the other, in whole nanoseconds.
func TestRate_isASerialDisk(t *testing.T) {
	limits := rapid.OneOf(rapid.Uint64(), rapid.Uint64Range(0, 100_000_000), rapid.Uint64Range(0, 2000))
	rapid.Check(t, func(rt *rapid.T) {
		o := RateOptions{IOPS: limits.Draw(rt, "iops"), BPS: limits.Draw(rt, "bps")}
		img := memDisk(t, 1<<20)
		b, err := NewRate(img, o).Attach(Host{Depth: 64})
		require.NoError(rt, err)
		w := &world{Backend: b}
		var due []blk.Instant
		var order []*blk.Request
		last := blk.Instant(0)
		check := func() {
			for _, r := range w.reap(t) {
				require.Same(rt, order[0], r)
				require.Equal(rt, due[0], w.now)
				order, due = order[1:], due[1:]
			}
		}
		for range rapid.IntRange(1, 30).Draw(rt, "requests") {
			until := w.now + blk.Instant(rapid.OneOf(rapid.Just(int64(0)), rapid.Int64Range(0, 1e9)).Draw(rt, "pause"))
			for w.Wake() <= until {
				w.now = max(w.now, w.Wake())
				check()
			}
			w.now = until
			r := &blk.Request{Op: blk.OpRead}
			if n := rapid.IntRange(0, 64).Draw(rt, "sectors"); n > 0 {
				r = data(blk.OpWrite, 0, make([]byte, n*blk.SectorSize))
			} else if rapid.Bool().Draw(rt, "flush") {
				r.Op = blk.OpFlush
			}
			last = max(w.now, last) + exactCost(o, r)
			due, order = append(due, last), append(order, r)
			require.True(rt, w.submit(r))
			check()
		}
		for w.next() {
			check()
		}
		require.Empty(rt, due)
		require.NoError(rt, b.Close())
		require.NoError(rt, img.Close())
	})
}

// exactCost is the longer one of 1/iops and bytes/bps seconds, in nanoseconds,
// rounded up, by arithmetic that cannot overflow.
func exactCost(o RateOptions, r *blk.Request) (ns blk.Instant) {
	for _, c := range []struct{ units, limit uint64 }{{1, o.IOPS}, {uint64(r.Bytes()), o.BPS}} {
		if c.limit == 0 {
			continue
		}
		per := new(big.Int).SetUint64(c.limit)
		n := new(big.Int).Mul(new(big.Int).SetUint64(c.units), big.NewInt(1e9))
		n.Add(n, per).Sub(n, big.NewInt(1)).Div(n, per)
		ns = max(ns, blk.Instant(n.Int64()))
	}
	return ns
}

// Through any stack of decorators nothing is lost or done twice, and every request
// that succeeds finds and leaves the contents that the order of completion says,
// also where requests overlap.
func TestDecorators_anyStackIsADisk(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		img := memDisk(t, stackSize)
		base := img
		for range rapid.IntRange(1, 4).Draw(rt, "height") {
			img = drawDecorator(rt, img)
		}
		b, err := img.Attach(Host{Depth: rapid.IntRange(1, 8).Draw(rt, "depth")})
		require.NoError(rt, err)
		s := &stackRun{world: &world{Backend: b}, ended: map[*blk.Request]int{}}
		s.run(t, rt, rapid.IntRange(1, 40).Draw(rt, "requests"))
		whole := make([]byte, stackSize)
		direct, err := base.Attach(Host{Depth: 1})
		require.NoError(rt, err)
		w := &world{Backend: direct}
		require.True(rt, w.submit(data(blk.OpRead, 0, whole)))
		w.reap(t)
		require.Equal(rt, -1, firstDiff(s.model[:], whole))
		require.NoError(rt, direct.Close())
		require.NoError(rt, b.Close())
		require.NoError(rt, base.Close())
	})
}

const stackSize = 64 * blk.SectorSize

func drawDecorator(rt *rapid.T, img Image) Image {
	switch rapid.IntRange(0, 5).Draw(rt, "decorator") {
	case 0:
		drive := &fakeDrive{depth: rapid.IntRange(1, 9).Draw(rt, "ncq"), cost: func(c drive.Command) blk.Instant {
			return blk.Instant(c.Sector*7919%13) * 1e5
		}}
		return NewSim(img, drive, Physical{}, Options{})
	case 1:
		return NewRecorder(img)
	}
	return drawPlain(rt, img)
}

// drawPlain is a decorator without an optional interface.
func drawPlain(rt *rapid.T, img Image) Image {
	ms := func(name string) time.Duration {
		return time.Duration(rapid.IntRange(0, 20).Draw(rt, name)) * time.Millisecond
	}
	switch rapid.IntRange(0, 3).Draw(rt, "plain") {
	case 0:
		return NewRate(img, RateOptions{IOPS: rapid.Uint64Range(0, 1000).Draw(rt, "iops"), BPS: rapid.Uint64Range(0, 1<<20).Draw(rt, "bps")})
	case 1:
		slow, err := NewDelay(img, DelayOptions{Fixed: ms("fixed"), Jitter: ms("jitter"), Seed: rapid.Uint64().Draw(rt, "seed")})
		require.NoError(rt, err)
		return slow
	case 2:
		return NewFaults(img,
			Fault{Nth: rapid.Uint64Range(2, 9).Draw(rt, "nth"), Errno: uint16(unix.ENOSPC)},
			Fault{Ops: []blk.Op{blk.OpWrite}, Range: blk.Range{Sector: 5, Sectors: 3}, Once: true, Errno: uint16(unix.ENODATA)})
	}
	return newNarrow(img, rapid.IntRange(1, 4).Draw(rt, "room"))
}

// stackRun is a loop with a model of the disk.
type stackRun struct {
	*world
	model [stackSize]byte
	queue []*blk.Request
	ended map[*blk.Request]int
}

func (s *stackRun) run(t *testing.T, rt *rapid.T, n int) {
	total, inside := 0, 0
	for total < n || len(s.queue) > 0 || inside > 0 {
		if total < n && rapid.Bool().Draw(rt, "arrives") {
			head := drawGroup(rt, byte(total+1))
			for r := head; r != nil; r = r.Merged {
				r.Move(blk.StateFree, blk.StateQueued)
				total++
			}
			s.queue = append(s.queue, head)
		}
		for len(s.queue) > 0 && s.Submit(s.now, s.queue[0]) {
			s.queue = s.queue[1:]
			inside++
		}
		require.NoError(rt, s.Commit())
		before := inside
		s.done = s.Reap(s.now, s.done[:0])
		inside -= len(s.done)
		for _, head := range s.done {
			s.complete(rt, head)
		}
		switch wake := s.Wake(); {
		case wake == blk.Never:
			require.False(rt, inside > 0 && inside == before && total == n, "%d requests are lost", inside)
		case rapid.Bool().Draw(rt, "sleeps"):
			s.now = max(s.now, wake)
		default:
			s.now += blk.Instant(rapid.IntRange(0, 1e6).Draw(rt, "pause"))
		}
	}
	require.Len(rt, s.ended, total)
	for _, times := range s.ended {
		require.Equal(rt, 1, times)
	}
}

// complete does what the loop does: it takes a group that failed apart.
func (s *stackRun) complete(rt *rapid.T, head *blk.Request) {
	if head.Status != blk.StatusOK {
		require.Equal(rt, blk.StatusIOErr, head.Status)
		require.Contains(rt, []unix.Errno{unix.ENOSPC, unix.ENODATA}, unix.Errno(head.Errno))
	}
	apart := head.Status != blk.StatusOK && head.Merged != nil
	for r := head; r != nil; {
		next := r.Merged
		r.Merged = nil
		if r != head {
			r.Move(blk.StateQueued, blk.StateDone)
		}
		if apart {
			r.Move(blk.StateDone, blk.StateQueued)
			s.queue = append(s.queue, r)
		} else {
			r.Move(blk.StateDone, blk.StateFree)
			s.ended[r]++
			if head.Status == blk.StatusOK {
				s.carriedOut(rt, r)
			}
		}
		r = next
	}
}

func (s *stackRun) carriedOut(rt *rapid.T, r *blk.Request) {
	switch r.Op {
	case blk.OpRead:
		require.True(rt, bytes.Equal(s.model[r.Sector.Bytes():][:r.Bytes()], r.Segs[0]), "read of %d+%d", r.Sector, r.Sectors)
	case blk.OpWrite:
		copy(s.model[r.Sector.Bytes():], r.Segs[0])
	default:
		for _, x := range r.Ranges {
			clear(s.model[x.Sector.Bytes():][:x.Sectors.Bytes()])
		}
	}
}

// drawGroup is a request, perhaps with others merged behind it; content is what it
// writes.
func drawGroup(rt *rapid.T, content byte) (head *blk.Request) {
	op := blk.Op(rapid.IntRange(0, int(blk.OpCount)-1).Draw(rt, "op"))
	if op == blk.OpFlush {
		return &blk.Request{Op: op}
	}
	at := blk.Sector(rapid.IntRange(0, 20).Draw(rt, "sector"))
	var last *blk.Request
	for range rapid.IntRange(1, 3).Draw(rt, "parts") {
		n := blk.Sector(rapid.IntRange(1, 12).Draw(rt, "sectors"))
		r := ranges(op, 0, blk.Range{Sector: at, Sectors: n})
		if op == blk.OpRead || op == blk.OpWrite {
			r = data(op, at, fill(make([]byte, n.Bytes()), content))
		}
		if at += n; last == nil {
			head = r
		} else {
			last.Merged = r
		}
		last = r
	}
	return head
}

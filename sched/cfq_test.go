package sched

import (
	"slices"
	"testing"

	"github.com/elevisor/elevisor/blk"
	"github.com/stretchr/testify/require"
)

// inspectCFQ looks into a cfq scheduler: whatever is queued stands in all its places,
// a queue is busy if it has something or is active, and nothing else is anywhere.
func (w *world) inspectCFQ(c *CFQ) {
	onDisk, queued := [2]int{}, 0
	for h, s := range w.by {
		if s == c {
			onDisk[asInt(c.queueOf(h).sync)]++
		}
	}
	require.Equal(w.t, onDisk, c.inflight)
	for g := c.retry.Front(); g != nil; g = g.Next {
		queued += parts(g)
	}
	busy, busySync, leaders, near := 0, 0, 0, 0
	for i, q := range c.queues {
		if q == nil {
			continue
		}
		require.Equal(w.t, i, q.index)
		queued += w.inspectQueue(c, q)
		if q.spotted {
			near++
		}
		if q.tree != nil {
			busy++
			busySync += asInt(q.sync)
		}
		leaders += q.fifo.Len()
		onDisk[asInt(q.sync)] -= q.inflight
	}
	require.Zero(w.t, onDisk)
	require.Equal(w.t, w.queued, queued)
	require.Equal(w.t, []int{busy, busySync, leaders}, []int{c.busy, c.busySync, c.leaders})
	for class := range c.trees {
		near -= treeLen(c.near[class].root)
		for kind := range c.trees[class] {
			t := &c.trees[class][kind]
			require.Equal(w.t, t.n, treeLen(t.root))
			busy -= t.n
		}
	}
	require.Zero(w.t, near)
	require.Zero(w.t, busy)
}

// inspectQueue looks into one queue and says how many guest requests it holds.
func (w *world) inspectQueue(c *CFQ, q *cfqQueue) (queued int) {
	require.Equal(w.t, q.fifo.Len() > 0, q.next != nil)
	require.Equal(w.t, q.fifo.Len() > 0 || q == c.active, q.tree != nil, "busy")
	require.Equal(w.t, q.fifo.Len(), treeLen(q.sorted.root))
	require.Equal(w.t, q.sync && q.class != levelIdle && q.next != nil, q.spotted)
	if q.spotted {
		require.Equal(w.t, placeKey(q.next.Disk, q.next.Links.Start), q.spot.Links.Key)
	}
	found := false
	for g := q.fifo.Front(); g != nil; g = g.Next {
		if g.Prev != nil && g.Prev.Seq > g.Seq || g.Links.First.Pos != g.Links.Key || parts(g.Links.First) != int(g.Links.Parts) {
			require.Fail(w.t, "not by age, or not in its place, or miscounted")
		}
		require.Same(w.t, q, c.queueOf(g))
		found = found || g == q.next
		queued += int(g.Links.Parts)
	}
	require.Equal(w.t, q.next != nil, found)
	return queued
}

// cfqLoop is a closed loop in virtual time: each flow reads sequentially in its own
// part of the disk, one request at a time, and thinks between a completion and the
// next one. The disk takes service for each request, one after the other, and has up
// to depth of them.
type cfqLoop struct {
	t              *testing.T
	s              Scheduler
	now            blk.Instant
	service, think blk.Instant
	depth          int

	reqs   []*blk.Request
	asks   []blk.Instant  // when a flow comes with its next request; Never: it waits
	onDisk []blk.Instant  // when the requests on the disk are complete
	heads  []*blk.Request // those
	order  []int          // flows, as they were dispatched
	done   []served       // as they were completed
	held   int            // times that the disk had room and there was work, but none came
}

// served is one completed request.
type served struct {
	flow int
	at   blk.Instant
}

func newCFQLoop(t *testing.T, rotational bool, n int) *cfqLoop {
	s, err := New("cfq", &Config{Rotational: rotational})
	require.NoError(t, err)
	l := &cfqLoop{t: t, s: s, service: 100 * microsecond, think: 25 * microsecond, depth: 32}
	disk := &blk.Disk{}
	for i := range n {
		at := blk.Sector(i) * 10 << 20
		l.reqs = append(l.reqs, &blk.Request{
			Op: blk.OpRead, Disk: disk, Sector: at, Pos: at, Sectors: 8, Source: blk.Source{Device: uint16(i)},
		})
		l.asks = append(l.asks, blk.Instant(i))
	}
	return l
}

// run goes on until end.
func (l *cfqLoop) run(end blk.Instant) {
	for l.now < end {
		for i, at := range l.asks {
			if at <= l.now {
				l.asks[i] = blk.Never
				l.reqs[i].Arrive = l.now
				l.reqs[i].Seq++
				l.s.Insert(l.now, l.reqs[i])
			}
		}
		for len(l.heads) < l.depth {
			r := l.s.Dispatch(l.now)
			if r == nil {
				if l.s.Len() > 0 {
					l.held++
					require.True(l.t, len(l.heads) > 0 || l.s.Wake() < blk.Never, "asleep with work")
				}
				break
			}
			begin := l.now
			if n := len(l.onDisk); n > 0 {
				begin = max(begin, l.onDisk[n-1])
			}
			l.heads, l.onDisk = append(l.heads, r), append(l.onDisk, begin+l.service)
			l.order = append(l.order, int(r.Source.Device))
		}
		l.now = min(slices.Min(l.asks), l.s.Wake(), end)
		if len(l.onDisk) > 0 && l.onDisk[0] <= l.now {
			l.now = l.onDisk[0]
			l.complete()
		}
	}
}

func (l *cfqLoop) complete() {
	r := l.heads[0]
	l.heads, l.onDisk = l.heads[1:], l.onDisk[1:]
	l.s.Complete(l.now, r)
	i := int(r.Source.Device)
	l.done = append(l.done, served{i, l.now})
	r.Sector += r.Sectors
	r.Pos += r.Sectors
	l.asks[i] = l.now + l.think
}

// slices are the completed runs of one flow, as from the first completion to the
// dispatch of the last request.
func (l *cfqLoop) slices() (flows []int, lengths []blk.Instant) {
	for i := 0; i < len(l.done); {
		j := i
		for j < len(l.done) && l.done[j].flow == l.done[i].flow {
			j++
		}
		if j < len(l.done) {
			flows = append(flows, l.done[i].flow)
			lengths = append(lengths, l.done[j-1].at-l.done[i].at)
		}
		i = j
	}
	return flows, lengths
}

// Sequential readers at depth 1 have the disk in turn: 100 ms each, or, with
// low_latency, so much that all have had it within 300 ms, but 16 at least. That is
// from the first completion to the last dispatch before the end.
func TestCFQ_slicesOfAClosedLoop(t *testing.T) {
	for n, want := range map[int]blk.Instant{2: 100_000, 3: 100_000, 4: 75_000, 5: 60_000, 8: 37_500, 20: 16_000, 40: 16_000} {
		l := newCFQLoop(t, true, n)
		l.run(10_000 * millisecond)
		flows, lengths := l.slices()
		want *= microsecond
		require.Greater(t, len(flows), 60)
		for i := 3 * n; i < len(flows); i++ { // the number of busy queues is smoothed
			require.Equal(t, flows[i-n], flows[i], "in turn")
			require.InDelta(t, int64(want), int64(lengths[i]), float64(2*(l.service+l.think)), "%d flows", n)
		}
		var c Counters
		Count(l.s, &c)
		require.EqualValues(t, len(flows)+1, c.Slices)
		require.LessOrEqual(t, c.EarlyEnds, uint64(1))
		require.GreaterOrEqual(t, c.Idled, uint64(len(l.done)*9/10))
	}
}

// One alone is never waited for, and never waits.
func TestCFQ_oneFlow(t *testing.T) {
	l := newCFQLoop(t, true, 1)
	l.run(1000 * millisecond)
	require.InDelta(t, int64(1000*millisecond/(l.service+l.think)), len(l.done), 2)
	require.Zero(t, l.held)
}

// Without idling the requests of all flows are on the disk at once, as long as it
// has room, and come round in turn.
func TestCFQ_noIdleInterleaves(t *testing.T) {
	for _, n := range []int{2, 5, 8, 32} {
		for _, rotational := range []bool{true, false} {
			l := newCFQLoop(t, rotational, n)
			require.NoError(t, Set(l.s, "slice_idle", "0"))
			l.run(1000 * millisecond)
			require.Zero(t, l.held, "%d flows", n)
			for i := 2 * n; i < len(l.order); i++ {
				require.Equal(t, l.order[i-n], l.order[i])
			}
			require.InDelta(t, int64(1000*millisecond/l.service), len(l.done), 5)
		}
	}
}

// More flows than the disk takes requests: those that wait have their turns too.
func TestCFQ_noIdleStarvesNobody(t *testing.T) {
	l := newCFQLoop(t, false, 100)
	l.run(1000 * millisecond)
	count := make([]int, 100)
	for _, d := range l.done {
		count[d.flow]++
	}
	require.Greater(t, slices.Min(count), 90)
	require.Less(t, slices.Max(count), 110)
}

// A flow that is slower than slice_idle is not waited for, once that is known; with
// it the disk stays free for less than the time of its slice.
func TestCFQ_thinkers(t *testing.T) {
	l := newCFQLoop(t, true, 2)
	l.think = 20 * millisecond
	l.run(2000 * millisecond)
	var before, after Counters
	Count(l.s, &before)
	l.run(4000 * millisecond)
	Count(l.s, &after)
	require.NotZero(t, before.Idled)
	require.LessOrEqual(t, after.Idled, before.Idled+1)
}

// A stream is the scheduler's own affair: who gets a request back does not see it.
func TestCFQ_drainForgetsStreams(t *testing.T) {
	s, err := New("cfq", &Config{})
	require.NoError(t, err)
	require.NoError(t, Set(s, "source", "stream"))
	disk := &blk.Disk{}
	for i := range 4 {
		s.Insert(0, &blk.Request{Op: blk.OpRead, Disk: disk, Sector: blk.Sector(i) * 8, Sectors: 8, Seq: uint64(i)})
	}
	head := s.Dispatch(0)
	require.NotNil(t, head)
	retryParts(s, 0, head)
	out := s.Drain(blk.AllSources, nil)
	require.Len(t, out, 4)
	for _, r := range out {
		require.Zero(t, r.Source.Stream)
	}
}

// Whatever its flows are, it does not allocate once it has seen them.
func TestCFQ_doesNotAllocate(t *testing.T) {
	for _, source := range flowByNames {
		for _, writes := range writesNames {
			s, err := New("cfq", &Config{})
			require.NoError(t, err)
			require.NoError(t, Set(s, "source", source))
			require.NoError(t, Set(s, "writes", writes))
			reqs, now := load(256, true), blk.Instant(0)
			once := func() { // as pass, but writes wait for what is on the disk
				for i := range reqs {
					s.Insert(now, &reqs[i])
				}
				for s.Len() > 0 {
					r := s.Dispatch(now)
					require.NotNil(t, r)
					now += 1000
					s.Complete(now, r)
				}
			}
			once()
			require.Zero(t, testing.AllocsPerRun(10, once), "%s, %s", source, writes)
		}
	}
}

// Products of knobs at the ends of their ranges do not run over.
func TestCFQ_scale(t *testing.T) {
	require.EqualValues(t, 75, scale(100, 300, 400))
	most := blk.Instant(maxInt) * millisecond
	require.Equal(t, most, scale(most, most, most))
	require.Equal(t, blk.Never, scale(most, most, 1))
}

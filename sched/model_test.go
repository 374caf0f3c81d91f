package sched

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/elevisor/elevisor/blk"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// A model disk has few sectors, of one byte each: the last writer's stamp. Guests so
// meet each other all the time.
const modelSectors = 96

// world is a loop around a scheduler, with model disks, that checks what the
// contract says. It does with a request's state what the loop does.
type world struct {
	t        require.TestingT
	s        Scheduler
	cfg      *Config
	now      blk.Instant
	disks    []*blk.Disk
	content  [][]byte
	bad      map[blk.Sector]bool // sectors that cannot be read or written
	seq      uint64
	queued   int
	issued   []*blk.Request             // heads on the disk
	by       map[*blk.Request]Scheduler // that gave the head up
	live     map[*blk.Request]*life
	free     []*blk.Request // slots, used again and again
	history  []*life
	last     *life // inserted
	finished int
	starts   int  // heads that left for the first time
	calm     bool // nothing came back or was drained: merges can be counted
	bounded  func(*life) int
}

// life is what the test knows of one request.
type life struct {
	r        *blk.Request
	op       blk.Op
	prio     blk.Prio
	disk     int
	from, to blk.Sector
	stamp    byte
	inserted int // events, in order
	ended    int // math.MaxInt: not yet
	failed   bool
	issued   bool
	ahead    int // requests of its direction before it
	passed   int // dispatched before it since its deadline
}

func newWorld(t require.TestingT, name string, cfg *Config, disks int) *world {
	w := &world{t: t, cfg: cfg, bad: map[blk.Sector]bool{}, by: map[*blk.Request]Scheduler{}, live: map[*blk.Request]*life{}, calm: true}
	s, err := New(name, cfg)
	require.NoError(t, err)
	w.s = s
	for i := range disks {
		w.disks = append(w.disks, &blk.Disk{Index: i, Sectors: modelSectors, Base: blk.Sector(i) * modelSectors})
		w.content = append(w.content, make([]byte, modelSectors))
	}
	return w
}

// insert makes a guest request out of want, in a used slot if there is one.
func (w *world) insert(want blk.Request) *blk.Request {
	r := &blk.Request{}
	if n := len(w.free); n > 0 {
		r, w.free = w.free[n-1], w.free[:n-1]
	}
	links := r.Links // what the last life has left
	*r = want
	r.Links = links
	w.seq++
	r.Seq, r.Arrive, r.Pos = w.seq, w.now, r.Disk.Base+r.Sector
	l := &life{
		r: r, op: r.Op, prio: r.Prio, disk: r.Disk.Index, from: r.Sector, to: r.End(),
		stamp: byte(w.seq%255 + 1), inserted: int(w.seq), ended: math.MaxInt,
	}
	switch r.Op {
	case blk.OpRead, blk.OpWrite:
		r.Segs = [][]byte{make([]byte, r.Sectors)}
		if r.Sectors > 2 {
			r.Segs = [][]byte{r.Segs[0][:1], r.Segs[0][1:]}
		}
		for _, s := range r.Segs {
			for i := range s {
				s[i] = l.stamp
			}
		}
	default:
		r.Ranges = []blk.Range{{Sector: r.Sector, Sectors: r.Sectors}}
		l.stamp = 0
	}
	for _, o := range w.live {
		if o.r.State() == blk.StateQueued && o.op.Changes() == r.Op.Changes() {
			l.ahead++
		}
	}
	w.live[r], w.last = l, l
	w.history = append(w.history, l)
	r.Move(blk.StateFree, blk.StateQueued)
	w.queued++
	w.s.Insert(w.now, r)
	w.count()
	return r
}

func (w *world) count() {
	require.Equal(w.t, w.queued, w.s.Len(), "queued")
	switch s := w.s.(type) {
	case *Deadline:
		w.inspect(s)
	case *CFQ:
		w.inspectCFQ(s)
	}
}

// inspect searchMax into a deadline scheduler: whatever is queued stands in all its
// places, and nothing else.
func (w *world) inspect(d *Deadline) {
	indexed, onDisk, writing := 0, 0, 0
	for h, s := range w.by {
		if s == d {
			onDisk++
			if h.Op.Changes() {
				writing++
			}
			if h.Links.Leader.Links.Indexed {
				indexed++
			}
		}
	}
	require.EqualValues(w.t, writing, d.writing)
	load, queued := d.retry.Len()+onDisk, 0
	for g := d.retry.Front(); g != nil; g = g.Next {
		queued += parts(g)
	}
	for i := range d.levels {
		p := &d.levels[i]
		load -= p.load
		for dir := range p.fifo {
			load += p.fifo[dir].Len()
			for g := p.fifo[dir].Front(); g != nil; g = g.Next {
				if g.Prev != nil && g.Prev.Seq > g.Seq || g.Links.First.Pos != g.Links.Key || parts(g.Links.First) != int(g.Links.Parts) {
					require.Fail(w.t, "not by age, or not in its place, or miscounted")
				}
				queued += int(g.Links.Parts)
				if g.Links.Indexed {
					indexed++
				}
			}
			require.Equal(w.t, p.fifo[dir].Len(), treeLen(p.sorted[dir].root))
		}
	}
	require.Zero(w.t, load)
	require.Equal(w.t, w.queued, queued)
	chained := [2]int{}
	for i := range d.merger.buckets {
		for by, g := range d.merger.buckets[i] {
			for prev := (*blk.Request)(nil); g != nil; prev, g = g, g.Links.Chain[by].Next {
				if g.Links.Chain[by].Prev != prev || d.merger.bucket(g.Disk, edge(g, by)) != &d.merger.buckets[i] {
					require.Fail(w.t, "on the wrong chain")
				}
				chained[by]++
			}
		}
	}
	require.Equal(w.t, [2]int{indexed, indexed}, chained)
}

func treeLen(x *blk.Request) int {
	if x == nil {
		return 0
	}
	return treeLen(x.Links.Child[0]) + 1 + treeLen(x.Links.Child[1])
}

// dispatch takes the next head, checks its group and puts it on the disk.
func (w *world) dispatch() bool {
	head := w.s.Dispatch(w.now)
	wake := w.s.Wake()
	if head == nil {
		require.Greater(w.t, wake, w.now, "the loop would spin")
		require.False(w.t, w.queued > 0 && len(w.issued) == 0 && wake == blk.Never, "asleep with work")
		w.count()
		return false
	}
	w.by[head] = w.s
	w.check(head)
	for r := head; r != nil; r = r.Merged {
		w.live[r].issued = true
	}
	head.Issue = w.now
	head.Move(blk.StateQueued, blk.StateIssued)
	w.issued = append(w.issued, head)
	return true
}

func parts(head *blk.Request) (n int) {
	for r := head; r != nil; r = r.Merged {
		n++
	}
	return n
}

// check searchMax at a group that Dispatch has given up.
func (w *world) check(head *blk.Request) {
	w.queued -= parts(head)
	w.count()
	sum, segs, at := blk.Sector(0), 0, head.Sector
	for r := head; r != nil; r = r.Merged {
		require.Contains(w.t, w.live, r, "given up twice, or never inserted")
		require.False(w.t, w.live[r].issued, "given up twice")
		require.Equal(w.t, at, r.Sector, "a gap, or an overlap")
		require.Same(w.t, head.Disk, r.Disk)
		require.Equal(w.t, head.Op, r.Op)
		require.Equal(w.t, head.Prio, r.Prio)
		require.True(w.t, parts(head) == 1 || r.Flags&blk.FlagFUA == 0)
		at, sum, segs = r.End(), sum+r.Sectors, segs+len(r.Segs)
	}
	if parts(head) > 1 && w.cfg.MaxSectors > 0 && head.Op != blk.OpDiscard {
		require.LessOrEqual(w.t, sum, w.cfg.MaxSectors)
	}
	if parts(head) > 1 && w.cfg.MaxSegments > 0 {
		require.LessOrEqual(w.t, segs, w.cfg.MaxSegments)
	}
	if w.cfg.NoMerges == 2 {
		require.Nil(w.t, head.Merged)
	}
	if head.Flags&blk.FlagNoMerge == 0 {
		w.starts++
	}
	if w.bounded != nil {
		w.overtaken()
	}
}

// overtaken counts, for all that have waited too long, that another was served.
func (w *world) overtaken() {
	for r, l := range w.live {
		if r.State() == blk.StateQueued && !l.issued {
			if l.passed++; w.bounded(l) >= 0 {
				require.LessOrEqual(w.t, l.passed, w.bounded(l), "%v waits", r.Sector)
			} else {
				l.passed = 0
			}
		}
	}
}

// finish ends the i-th head on the disk. All of its group is moved at once, or, if
// it fails, nothing.
func (w *world) finish(i int, fail bool) {
	head := w.issued[i]
	w.issued = slices.Delete(w.issued, i, i+1)
	for at := head.Sector; at < head.Sector+blk.Sector(length(head)); at++ {
		fail = fail || w.bad[at]
	}
	if !fail {
		w.move(head)
	}
	head.Move(blk.StateIssued, blk.StateDone)
	if s := w.by[head]; s != nil {
		s.Complete(w.now, head)
		delete(w.by, head)
	}
	apart := fail && head.Merged != nil
	for r := head; r != nil; {
		next := r.Merged
		r.Merged = nil
		switch {
		case apart:
			w.calm = false
			if r == head {
				r.Move(blk.StateDone, blk.StateQueued)
			}
			w.live[r].issued = false
			w.queued++
			w.s.Retry(w.now, r)
			require.NotZero(w.t, r.Flags&blk.FlagNoMerge)
		default:
			w.end(r, fail, r != head)
		}
		r = next
	}
	w.count()
}

func length(head *blk.Request) (n int) {
	for r := head; r != nil; r = r.Merged {
		n += int(r.Sectors)
	}
	return n
}

// move does head's operation at one place, as readv and writev do: what a part
// gets or gives depends on its place in the group only.
func (w *world) move(head *blk.Request) {
	disk := w.content[head.Disk.Index]
	at := head.Sector
	for r := head; r != nil; r = r.Merged {
		switch r.Op {
		case blk.OpRead, blk.OpWrite:
			for _, s := range r.Segs {
				if r.Op == blk.OpRead {
					copy(s, disk[at:])
				} else {
					copy(disk[at:], s)
				}
				at += blk.Sector(len(s))
			}
		default:
			for _, x := range r.Ranges {
				clear(disk[x.Sector : x.Sector+x.Sectors])
			}
		}
	}
}

// end gives one guest request back to its guest.
func (w *world) end(r *blk.Request, failed, part bool) {
	l := w.live[r]
	require.NotNil(w.t, l, "completed twice")
	w.seq++
	l.ended, l.failed = int(w.seq), failed
	if r.Op == blk.OpRead && !failed {
		w.read(l, slices.Concat(r.Segs...))
	}
	if part {
		r.Move(blk.StateQueued, blk.StateDone)
	}
	r.Move(blk.StateDone, blk.StateFree)
	delete(w.live, r)
	w.free = append(w.free, r)
	w.finished++
}

// read checks what a read has got: of each sector something that was written, and
// nothing that another write, finished before the read began, had replaced.
func (w *world) read(l *life, got []byte) {
	for i, v := range got {
		at := l.from + blk.Sector(i)
		var writes []*life
		for _, h := range w.history {
			if h.op.Changes() && !h.failed && h.disk == l.disk && h.from <= at && at < h.to && h.inserted < l.ended {
				writes = append(writes, h)
			}
		}
		replaced := func(ended int) bool {
			return slices.ContainsFunc(writes, func(h *life) bool { return h.inserted > ended && h.ended < l.inserted })
		}
		ok := v == 0 && !replaced(0) || slices.ContainsFunc(writes, func(h *life) bool { return h.stamp == v && !replaced(h.ended) })
		require.True(w.t, ok, "read of sector %d got %d", at, v)
	}
}

// drain stops what src names: its requests go to the disk at once.
func (w *world) drain(src blk.Source) {
	w.calm = false
	want := 0
	for r, l := range w.live {
		if r.State() == blk.StateQueued && !l.issued && src.Covers(r.Source) {
			want++
		}
	}
	out := w.s.Drain(src, nil)
	require.Len(w.t, out, want)
	w.queued -= len(out)
	w.count()
	for i, r := range out {
		require.Nil(w.t, r.Merged)
		require.True(w.t, src.Covers(r.Source))
		require.True(w.t, i == 0 || out[i-1].Seq < r.Seq, "not by age")
		w.live[r].issued = true
		r.Move(blk.StateQueued, blk.StateIssued)
		w.issued = append(w.issued, r)
	}
}

// change goes over to another scheduler, as a live switch does.
func (w *world) change(name string) {
	w.calm = false
	s, err := New(name, w.cfg)
	require.NoError(w.t, err)
	out := w.s.Drain(blk.AllSources, nil)
	require.Len(w.t, out, w.queued)
	require.Zero(w.t, w.s.Len())
	w.s = s
	for _, r := range out {
		s.Insert(w.now, r)
	}
	w.count()
}

// wind lets everything end.
func (w *world) wind() {
	for len(w.live) > 0 {
		for w.dispatch() {
		}
		if len(w.issued) > 0 {
			w.finish(0, false)
		} else if w.queued > 0 {
			w.now = w.s.Wake()
		}
	}
	require.Zero(w.t, w.s.Len())
	require.Equal(w.t, len(w.history), w.finished)
	for i, c := range w.content {
		w.read(&life{disk: i, inserted: int(w.seq) + 1, ended: math.MaxInt}, c)
	}
	if w.calm {
		merged := 0
		for _, row := range w.cfg.Merges.Merged {
			for _, n := range row {
				merged += int(n)
			}
		}
		require.Equal(w.t, w.finished, w.starts+merged, "requests in = groups out + merges")
	}
}

// forget begins anew with the disks, so that long tests need not look far back.
func (w *world) forget() {
	w.history, w.finished = nil, 0
	for _, c := range w.content {
		clear(c)
	}
}

// anything draws a request of one of a few guests.
func (w *world) anything(t *rapid.T, prios bool) blk.Request {
	n := blk.Sector(rapid.IntRange(1, 8).Draw(t, "sectors"))
	at := blk.Sector(rapid.IntRange(0, modelSectors/4-2).Draw(t, "sector")) * 4
	r := blk.Request{
		Op:     rapid.SampledFrom([]blk.Op{blk.OpRead, blk.OpRead, blk.OpWrite, blk.OpWrite, blk.OpDiscard, blk.OpWriteZeroes}).Draw(t, "op"),
		Disk:   w.disks[rapid.IntRange(0, len(w.disks)-1).Draw(t, "disk")],
		Sector: at, Sectors: min(n, modelSectors-at),
		Source: blk.Source{Device: uint16(rapid.IntRange(0, 2).Draw(t, "device")), Queue: uint16(rapid.IntRange(0, 1).Draw(t, "queue"))},
	}
	if l := w.last; l != nil && rapid.IntRange(0, 2).Draw(t, "beside") > 0 {
		r.Op, r.Disk, r.Prio = l.op, w.disks[l.disk], l.prio
		r.Sectors = 4
		if r.Sector = l.to; r.Sector+4 > modelSectors || l.from >= 4 && rapid.Bool().Draw(t, "before") {
			r.Sector = l.from - min(4, l.from)
		}
	}
	if r.Op == blk.OpWrite && rapid.IntRange(0, 9).Draw(t, "fua") == 0 {
		r.Flags = blk.FlagFUA
	}
	if prios && r.Prio == blk.PrioBE {
		r.Prio = rapid.SampledFrom([]blk.Prio{blk.PrioBE, blk.PrioBE, blk.PrioRT, blk.PrioIdle}).Draw(t, "prio")
	}
	return r
}

func drawConfig(t *rapid.T) *Config {
	return &Config{
		Rotational:  rapid.Bool().Draw(t, "rotational"),
		NoMerges:    rapid.IntRange(0, 2).Draw(t, "nomerges"),
		MaxSectors:  blk.Sector(rapid.SampledFrom([]int{0, 0, 8, 20}).Draw(t, "max sectors")),
		MaxSegments: rapid.SampledFrom([]int{0, 0, 3, 6}).Draw(t, "max segments"),
	}
}

// drawKnobs sets each knob to something valid, often an end of its range.
func drawKnobs(t *rapid.T, s Scheduler) {
	for _, i := range Tunables(s) {
		if words := strings.Split(i.Valid, " or "); len(words) > 1 {
			require.NoError(t, Set(s, i.Name, rapid.SampledFrom(words).Draw(t, i.Name)))
			continue
		}
		var low, high int
		n, _ := fmt.Sscanf(i.Valid, "%d to %d", &low, &high)
		if n == 0 || rapid.Bool().Draw(t, "as it is") {
			continue
		}
		if n == 1 { // an unsigned one
			high = math.MaxInt
		}
		v := rapid.SampledFrom([]int{low, high, max(low, min(high, 1)), max(low, min(high, 3)), max(low, min(high, 20))}).Draw(t, i.Name)
		require.NoError(t, Set(s, i.Name, fmt.Sprint(v)))
	}
}

// Whatever guests, disk and operator do: every request ends once, with the right
// bytes, and the groups are what the contract says.
func TestModel(t *testing.T) {
	for _, name := range Names {
		t.Run(name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) { program(t, name) })
		})
	}
}

func program(t *rapid.T, name string) {
	w := newWorld(t, name, drawConfig(t), rapid.IntRange(1, 2).Draw(t, "disks"))
	drawKnobs(t, w.s)
	depth := rapid.SampledFrom([]int{1, 2, 8, 64}).Draw(t, "depth")
	if rapid.Bool().Draw(t, "bad sector") {
		w.bad[13] = true
	}
	rough := rapid.Bool().Draw(t, "rough") // else no failures, no changes: merges can be counted
	for range rapid.IntRange(1, 150).Draw(t, "steps") {
		switch a := rapid.IntRange(0, 23).Draw(t, "action"); {
		case a < 10:
			w.insert(w.anything(t, true))
		case a < 15:
			for len(w.issued) < depth && w.dispatch() {
			}
		case a < 19 && len(w.issued) > 0:
			w.finish(rapid.IntRange(0, len(w.issued)-1).Draw(t, "which"), rough && rapid.IntRange(0, 3).Draw(t, "fails") == 0)
		case a < 21:
			w.now += blk.Instant(rapid.SampledFrom([]int{1e3, 1e6, 1e9, 20e9}).Draw(t, "time"))
		case a == 21 && rough:
			src := rapid.SampledFrom([]blk.Source{{Device: 0, Queue: 1}, {Device: 1, Queue: blk.AnyQueue}, blk.AllSources}).Draw(t, "source")
			w.drain(src)
		case a == 22 && rough:
			w.change(rapid.SampledFrom(Names).Draw(t, "next"))
			drawKnobs(t, w.s)
		case a == 23 && rough:
			w.calm = false // a new knob may have all merged anew
			drawKnobs(t, w.s)
			w.cfg.NoMerges = min(w.cfg.NoMerges, rapid.IntRange(0, 2).Draw(t, "nomerges")) // what is merged stays so
		}
	}
	w.wind()
}

// deadline's bound: from a request's deadline on, each decision for its direction
// serves the oldest, and at worst each writes_starved+1st is for its direction.
func TestDeadline_boundedWait(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t, "deadline", drawConfig(t), 2)
		d := w.s.(*Deadline)
		batch := rapid.IntRange(0, 5).Draw(t, "fifo_batch")
		starved := rapid.IntRange(1, 4).Draw(t, "writes_starved")
		expire := rapid.IntRange(0, 20).Draw(t, "expire")
		for key, v := range map[string]int{"fifo_batch": batch, "writes_starved": starved, "read_expire": expire, "write_expire": expire} {
			require.NoError(t, d.Set(key, fmt.Sprint(v)))
		}
		w.bounded = func(l *life) int {
			if w.now < l.r.Arrive+blk.Instant(expire)*millisecond {
				return -1
			}
			return (l.ahead+1)*(starved+1)*max(batch, 1) + max(batch, 1)
		}
		for range rapid.IntRange(1, 200).Draw(t, "steps") {
			switch a := rapid.IntRange(0, 9).Draw(t, "action"); {
			case a < 5:
				w.insert(w.anything(t, false))
			case a < 9:
				if w.dispatch() {
					w.finish(0, false)
				}
			default:
				w.now += 5 * millisecond
			}
		}
		w.wind()
	})
}

// A tree is a sorted list, and balanced: no way is more than twice another.
func TestTree(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var tr tree
		var model []*blk.Request
		for range rapid.IntRange(0, 300).Draw(t, "steps") {
			if len(model) > 0 && rapid.IntRange(0, 2).Draw(t, "remove") == 0 {
				i := rapid.IntRange(0, len(model)-1).Draw(t, "which")
				tr.remove(model[i])
				model = slices.Delete(model, i, i+1)
			} else {
				r := &blk.Request{}
				r.Links.Key = blk.Sector(rapid.IntRange(0, 40).Draw(t, "key"))
				tr.insert(r)
				i, _ := slices.BinarySearchFunc(model, r.Links.Key+1, func(m *blk.Request, k blk.Sector) int { return int(m.Links.Key) - int(k) })
				model = slices.Insert(model, i, r)
			}
			key := blk.Sector(rapid.IntRange(0, 41).Draw(t, "from"))
			i := slices.IndexFunc(model, func(m *blk.Request) bool { return m.Links.Key >= key })
			if got := tr.from(key); i < 0 {
				require.Nil(t, got)
			} else {
				require.Same(t, model[i], got)
			}
		}
		for i, m := range model {
			around := [2]*blk.Request{}
			if i > 0 {
				around[0] = model[i-1]
			}
			if i < len(model)-1 {
				around[1] = model[i+1]
			}
			require.Same(t, around[0], tr.beside(m, 0))
			require.Same(t, around[1], tr.beside(m, 1))
		}
		if len(model) > 0 {
			require.Same(t, model[0], tr.end(0))
			require.Same(t, model[len(model)-1], tr.end(1))
		}
		require.False(t, red(tr.root))
		var walk func(x, up *blk.Request) (blacks int)
		at := 0
		walk = func(x, up *blk.Request) int {
			if x == nil {
				return 1
			}
			require.Same(t, up, x.Links.Parent)
			require.False(t, red(x) && red(up), "red under red")
			n := walk(x.Links.Child[0], x)
			require.Same(t, model[at], x)
			at++
			require.Equal(t, n, walk(x.Links.Child[1], x), "black requests on every way")
			if !red(x) {
				n++
			}
			return n
		}
		walk(tr.root, nil)
		require.Len(t, model, at)
	})
}

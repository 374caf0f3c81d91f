package backend

import "github.com/elevisor/elevisor/blk"

// RecorderWindow is among how many issued requests a neighbour is looked for.
const RecorderWindow = 64

// Recorder is what a Backend offers, beside its own methods ([As]), if it remembers what
// was asked of it. Like the rest of a Backend it is for the loop's goroutine.
type Recorder interface {
	// Recorded copies the counts so far; what happened between two copies is the later
	// one's [RecorderStats.Since] the earlier one.
	Recorded() RecorderStats
	// Trace keeps the next n reads and writes, and forgets what it kept before.
	Trace(n int)
	// Traced copies what was kept, the oldest first.
	Traced() []Access
}

// RecorderStats count the reads and writes that reached an image through one loop, in the
// order in which they were issued; a merged group is one. With several loops there is
// no such order: each has its own.
type RecorderStats struct {
	Requests uint64
	Sectors  uint64
	Others   uint64 // flushes, discards and write-zeroes, which are counted nowhere else

	// Seeks do not begin where the request before them ended, in either direction;
	// SeekSectors are the distances from there, summed up.
	Seeks       uint64
	SeekSectors uint64

	// Lost merges are requests that adjoin, at either end, one of the RecorderWindow
	// issued before them in the same direction, by who the two are to each other. Each
	// counts once, with the neighbour that was issued last.
	LostSameQueue  uint64
	LostOtherQueue uint64 // of the same device
	LostOtherVM    uint64
	// LostLate are those among them that were not there yet when the neighbour was
	// issued: without waiting, no scheduler could have made the two one.
	LostLate uint64
}

// Lost is the number of lost merges.
func (r *RecorderStats) Lost() uint64 { return r.LostSameQueue + r.LostOtherQueue + r.LostOtherVM }

// Since is what was counted after before was copied.
func (r RecorderStats) Since(before RecorderStats) RecorderStats {
	return RecorderStats{
		Requests: r.Requests - before.Requests, Sectors: r.Sectors - before.Sectors, Others: r.Others - before.Others,
		Seeks: r.Seeks - before.Seeks, SeekSectors: r.SeekSectors - before.SeekSectors,
		LostSameQueue: r.LostSameQueue - before.LostSameQueue, LostOtherQueue: r.LostOtherQueue - before.LostOtherQueue,
		LostOtherVM: r.LostOtherVM - before.LostOtherVM, LostLate: r.LostLate - before.LostLate,
	}
}

// Add adds what another loop has counted of the same image.
func (r *RecorderStats) Add(o RecorderStats) { *r = r.Since(RecorderStats{}.Since(o)) } // modulo 2^64

// Access is one read or write on its way to the disk.
type Access struct {
	At      blk.Instant // when it was issued
	Sector  blk.Sector  // in the image
	Sectors blk.Sector
	Source  blk.Source // of its first part
	Op      blk.Op
}

// NewRecorder makes an Image whose Backends offer a [Recorder], and are in everything else
// inner's: recording takes no time. To see what a loop issues, it is the outermost
// decorator.
func NewRecorder(inner Image) Image {
	return &decorated{inner, func(b Backend, _ Host) Backend {
		return &recorder{Wrapper: Wrapper{b}}
	}}
}

// recorder counts on the way. Nothing is allocated but by Trace and Traced.
type recorder struct {
	Wrapper
	counts RecorderStats
	window [RecorderWindow]extent // a ring; the newest stands before next
	next   int
	known  int // entries of window
	trace  []Access
}

// extent is one issued request, as far as neighbours need to know it. Where merged
// parts came from different queues, its two ends differ in who they are.
type extent struct {
	start, end  blk.Sector
	first, last blk.Source  // of its lowest and its highest part
	since, till blk.Instant // when these arrived
	at          blk.Instant // when it was issued
	op          blk.Op
}

// Submit implements Backend. r is looked at before it is given away.
func (r *recorder) Submit(now blk.Instant, q *blk.Request) bool {
	if q.Op != blk.OpRead && q.Op != blk.OpWrite {
		if !r.Backend.Submit(now, q) {
			return false
		}
		r.counts.Others++
		return true
	}
	x := extent{start: q.Sector, end: q.Sector, first: q.Source, since: q.Arrive, at: now, op: q.Op}
	for part := q; part != nil; part = part.Merged {
		x.end += part.Sectors
		x.last, x.till = part.Source, part.Arrive
	}
	if !r.Backend.Submit(now, q) {
		return false
	}
	r.note(&x)
	return true
}

func (r *recorder) note(x *extent) {
	c := &r.counts
	c.Requests++
	c.Sectors += uint64(x.end - x.start)
	if r.known > 0 {
		if head := r.newest(0).end; x.start != head {
			c.Seeks++
			c.SeekSectors += uint64(max(x.start, head) - min(x.start, head))
		}
	}
	r.lose(x)
	r.window[r.next] = *x
	r.next = (r.next + 1) % RecorderWindow
	r.known = min(r.known+1, RecorderWindow)
	if len(r.trace) < cap(r.trace) {
		r.trace = append(r.trace, Access{At: x.at, Sector: x.start, Sectors: x.end - x.start, Source: x.first, Op: x.op})
	}
}

// newest is the i-th newest of the window.
func (r *recorder) newest(i int) *extent {
	return &r.window[(r.next-1-i+2*RecorderWindow)%RecorderWindow]
}

// lose looks for the newest neighbour of x in its direction.
func (r *recorder) lose(x *extent) {
	for i := range r.known {
		n := r.newest(i)
		switch {
		case n.op != x.op:
		case n.end == x.start:
			r.lost(n.last, x.first, x.since > n.at)
			return
		case n.start == x.end:
			r.lost(n.first, x.last, x.till > n.at)
			return
		}
	}
}

func (r *recorder) lost(a, b blk.Source, late bool) {
	c := &r.counts
	switch {
	case a.Device != b.Device:
		c.LostOtherVM++
	case a.Queue != b.Queue:
		c.LostOtherQueue++
	default:
		c.LostSameQueue++
	}
	if late {
		c.LostLate++
	}
}

// Recorded implements Recorder.
func (r *recorder) Recorded() RecorderStats { return r.counts }

// Trace implements Recorder.
func (r *recorder) Trace(n int) { r.trace = make([]Access, 0, max(n, 0)) }

// Traced implements Recorder.
func (r *recorder) Traced() []Access { return append([]Access(nil), r.trace...) }

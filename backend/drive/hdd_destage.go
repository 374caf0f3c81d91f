package drive

import "math"

// run are dirty blocks in a row.
type run struct {
	at, blocks float64
}

// destager is the write cache. When it has enough dirty blocks, the head writes the
// longest run back, while the host goes on; a read that needs the head waits for the
// end of the run, which new writes make longer.
type destager struct {
	d     *hdd
	total float64 // dirty blocks
	done  float64 // written back so far
	loose []run   // of streams that the drive has lost sight of; in no order

	writing bool
	held    *segment // whose run is being written back; nil: it is loose[at]
	at      int
	from    float64 // when its next block begins to be written
	free    float64 // when the head was last done
}

func (w *destager) init(d *hdd) {
	w.d = d
	w.loose = make([]run, 0, int(d.p.WriteCache)+1)
}

// write is when a write is done that is served from t on.
func (d *hdd) write(t float64, c *waiting) float64 {
	n := float64(c.Sectors) / blockSectors
	g, begins := d.writes.of(t, c)
	if begins {
		d.lose(g)
		d.dirty.lose(g)
	}
	base := d.base(c, g, d.p.Write)
	first := float64(c.Sector) / blockSectors
	if c.FUA || n > d.p.WriteCache {
		start := d.leave(t)
		done := d.move(start, first, c.phase) + n*d.media(first)
		d.head = first + n
		return max(done, t+base)
	}
	at := d.dirty.room(t, n)
	if g.run.blocks <= 0 {
		g.run.at = first
	}
	g.run.blocks += n
	d.dirty.total += n
	d.dirty.start(at)
	return max(t, at) + base
}

// lose keeps the dirty blocks of a stream whose place another takes.
func (w *destager) lose(g *segment) {
	if g.run.blocks <= 0 {
		return
	}
	w.loose = append(w.loose, g.run)
	if w.writing && w.held == g {
		w.held, w.at = nil, len(w.loose)-1
	}
	g.run = run{}
}

// start begins to write back, at t, if there is enough to.
func (w *destager) start(t float64) {
	if w.writing || w.total < w.d.p.Destage {
		return
	}
	w.begin(t)
}

// begin takes the head for the longest run. Where none is left, and what is counted as
// dirty is what rounding has left, nothing is.
func (w *destager) begin(t float64) {
	if w.writing = w.pick(); !w.writing {
		w.total = 0
		return
	}
	w.d.ahead = nil
	w.from = w.d.move(max(t, w.free), w.of().at, w.d.draw())
}

// of is the run that is being written back.
func (w *destager) of() *run {
	if w.held != nil {
		return &w.held.run
	}
	return &w.loose[w.at]
}

// pick chooses the run with the most blocks; of equal ones, that nearest to the head.
// false: there is none.
func (w *destager) pick() bool {
	best := run{}
	better := func(r run) bool {
		near := math.Abs(r.at-w.d.head) < math.Abs(best.at-w.d.head)
		if r.blocks > best.blocks || r.blocks > 0 && r.blocks == best.blocks && near {
			best = r
			return true
		}
		return false
	}
	for i := range w.d.writes.all {
		if g := &w.d.writes.all[i]; better(g.run) {
			w.held = g
		}
	}
	for i, r := range w.loose {
		if better(r) {
			w.held, w.at = nil, i
		}
	}
	return best.blocks > 0
}

// advance brings the cache up to t: what was written back by then is clean.
func (w *destager) advance(t float64) {
	for w.writing && w.from < t {
		r := w.of()
		n := (t - w.from) / w.d.media(r.at)
		if n < r.blocks {
			w.clean(n)
			w.from = t
			return
		}
		w.end()
		w.start(w.free)
	}
}

// clean takes n written blocks off the run.
func (w *destager) clean(n float64) {
	r := w.of()
	r.at += n
	r.blocks -= n
	w.total -= n
	w.done += n
	w.d.head = r.at
}

// end is the end of the run: the head is free.
func (w *destager) end() {
	r := w.of()
	w.free = w.from + r.blocks*w.d.media(r.at)
	w.clean(r.blocks)
	r.blocks = 0
	if w.held == nil {
		last := len(w.loose) - 1
		w.loose[w.at] = w.loose[last]
		w.loose = w.loose[:last]
	}
	w.writing, w.held = false, nil
	if w.total < 1e-6 { // what rounding has left
		w.total = 0
	}
}

// finish ends the run that is being written back and says when the head is free.
func (w *destager) finish(t float64) float64 {
	if w.writing {
		w.end()
	}
	return max(t, w.free)
}

// room is when the cache has room for n blocks more.
func (w *destager) room(t, n float64) float64 {
	if w.total+n > w.d.p.WriteCache {
		w.d.stats.Stalls++
	}
	for w.total+n > w.d.p.WriteCache {
		if !w.writing {
			w.begin(t)
			continue // or nothing is dirty after all
		}
		r := w.of()
		need := w.total + n - w.d.p.WriteCache
		if need >= r.blocks {
			w.end()
			t = max(t, w.free)
			continue
		}
		w.from = max(t, w.from) + need*w.d.media(r.at)
		w.clean(need)
		t = w.from
	}
	return t
}

// flush is when everything that is dirty at t has been written.
func (w *destager) flush(t float64) float64 {
	for w.total > 0 {
		if !w.writing {
			w.begin(t)
		}
		t = w.finish(t)
	}
	return t
}

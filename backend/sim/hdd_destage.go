package sim

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
	loose []run   // of streams that the drive has lost sight of; in no order

	writing bool
	of      *run    // being written back
	from    float64 // when its next block begins to be written
	free    float64 // when the head was last done
}

func (w *destager) init(d *hdd) {
	w.d = d
	w.loose = make([]run, 0, int(d.p.WriteCache)+1)
}

// write is when a write is done that is served from t on.
func (d *hdd) write(t float64, c *waiting) float64 {
	n := float64(blocks(c.Sectors))
	g, begins := d.writes.of(t, c)
	if begins {
		d.dirty.lose(g)
	}
	base := d.base(c, g, d.p.Write)
	first := float64(c.Sector / blockSectors)
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
	if w.of == &g.run {
		w.of = &w.loose[len(w.loose)-1]
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

// begin takes the head for the longest run.
func (w *destager) begin(t float64) {
	w.writing = true // so that leave does not wait for us
	w.of = w.longest()
	d := w.d
	d.ahead = nil
	w.from = d.move(max(t, w.free), w.of.at, d.draw())
}

// longest is the run with the most blocks; of equal ones, that nearest to the head.
func (w *destager) longest() *run {
	var best *run
	better := func(r *run) bool {
		switch {
		case r.blocks <= 0:
			return false
		case best == nil || r.blocks > best.blocks:
			return true
		}
		return r.blocks == best.blocks && math.Abs(r.at-w.d.head) < math.Abs(best.at-w.d.head)
	}
	for i := range w.d.writes.all {
		if r := &w.d.writes.all[i].run; better(r) {
			best = r
		}
	}
	for i := range w.loose {
		if r := &w.loose[i]; better(r) {
			best = r
		}
	}
	return best
}

// advance brings the cache up to t: what was written back by then is clean.
func (w *destager) advance(t float64) {
	for w.writing && w.from < t {
		n := (t - w.from) / w.d.media(w.of.at)
		if n < w.of.blocks {
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
	w.of.at += n
	w.of.blocks -= n
	w.total -= n
	w.d.stats.Destaged += uint64(n * blockSectors)
	w.d.head = w.of.at
}

// end is the end of the run: the head is free.
func (w *destager) end() {
	w.free = w.from + w.of.blocks*w.d.media(w.of.at)
	w.clean(w.of.blocks)
	w.of.blocks = 0
	if n := len(w.loose); n > 0 {
		for i := range w.loose {
			if w.of == &w.loose[i] {
				w.loose[i] = w.loose[n-1]
				w.loose = w.loose[:n-1]
				break
			}
		}
	}
	w.writing, w.of = false, nil
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
	for w.total+n > w.d.p.WriteCache {
		w.d.stats.Stalls++
		if !w.writing {
			w.begin(t)
		}
		need := min(w.total+n-w.d.p.WriteCache, w.of.blocks)
		at := max(t, w.from) + need*w.d.media(w.of.at)
		w.from = max(t, w.from)
		w.advance(at)
		if w.writing && w.from < at {
			w.from = at
		}
		t = at
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

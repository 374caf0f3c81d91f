package sched

import "github.com/elevisor/elevisor/blk"

// turn takes the next group of the slice's owner, after a change of the owner if it is
// due. nil: nothing is queued, or only by others, and the owner keeps the disk.
func (t *Timeslice) turn(now blk.Instant) *blk.Request {
	if t.owner == nil || t.over(now) {
		next := t.ring().next(t.place)
		if next == nil {
			return nil
		}
		t.leave(now)
		t.enter(now, next)
	}
	g := t.owner.list.PopFront()
	if g != nil {
		t.ring().note(t.owner)
		t.served++
		t.lately++
	}
	return g
}

// over reports whether the owner loses the slice.
func (t *Timeslice) over(now blk.Instant) bool {
	t.renew(now)
	if !t.wanted() {
		return false
	}
	if t.owner.idle(emptyRule(t.knobs[emptyBy].value)) {
		if now < t.end {
			t.counts.EarlyEnds++
		}
		return true
	}
	return now >= t.end && !t.extended(now)
}

// renew does what a timer at the end of each slice would have done while nobody waited for
// it: start the next one, for the same owner.
func (t *Timeslice) renew(now blk.Instant) {
	if t.owner == nil || now < t.end || t.wanted() {
		return
	}
	t.start = now - (now-t.end)%t.slice
	t.end = t.start + t.slice
	t.grown, t.served, t.lately = 0, 0, 0
}

// extended extends the slice by another one if the rule allows it, or by as many as bring
// the end past now, if Dispatch was called late. slice_extend_max limits them, the first
// one included. Rule R wants the owner to have used its last slice, and nobody else to
// have waited for slice_extend_max slices.
func (t *Timeslice) extended(now blk.Instant) bool {
	most := blk.Instant(t.knobs[extendMax].value) // slices in a row, the first one included
	switch extendRule(t.knobs[extendBy].value) {
	case extendNever:
		return false
	case extendRuleR:
		if t.lately == 0 && t.owner.inflight == 0 || now-t.ring().oldest(t.owner) >= most*t.slice {
			return false
		}
	}
	n := (now-t.end)/t.slice + 1
	if n > most-1-blk.Instant(t.grown) {
		return false
	}
	t.grown += int(n)
	t.end += n * t.slice
	t.lately = 0
	t.counts.Extensions += uint64(n)
	return true
}

// enter starts a slice of k.
func (t *Timeslice) enter(now blk.Instant, k *key) {
	t.owner, t.place = k, k.place
	t.start, t.end = now, now+t.slice
	t.grown, t.served, t.lately = 0, 0, 0
	t.counts.Slices++
}

// leave ends the slice of its owner, if it has one.
func (t *Timeslice) leave(now blk.Instant) {
	if t.owner != nil {
		t.owner.left = now
		t.owner = nil
	}
}

// wanted reports whether anybody but the owner has something queued.
func (t *Timeslice) wanted() bool {
	n := t.ring().waiting
	if t.owner != nil && t.owner.list.Len() > 0 {
		n--
	}
	return n > 0
}

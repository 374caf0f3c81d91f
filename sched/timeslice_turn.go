package sched

import "github.com/elevisor/elevisor/blk"

// turn takes a group from the owner of the slice, after having found it one. nil: nobody has
// anything queued, or others have and the owner keeps the disk for its next request.
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

// over says whether the owner has to hand the slice on.
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

// renew does what a timer at the end of each slice would have done while nobody
// waited for it: begin the next one, for the same owner.
func (t *Timeslice) renew(now blk.Instant) {
	if t.owner == nil || now < t.end || t.wanted() {
		return
	}
	t.start = now - (now-t.end)%t.slice
	t.end = t.start + t.slice
	t.grown, t.served, t.lately = 0, 0, 0
}

// extended lets the owner go on for another slice where the rule allows it, or for
// as many as bring the end past now if the disk had no room to ask in time. By rule
// R the owner must have made use of its last slice, must not get more than
// slice_extend_max in all, and nobody else may have waited as long as that.
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

// enter gives k the slice.
func (t *Timeslice) enter(now blk.Instant, k *key) {
	t.owner, t.place = k, k.place
	t.start, t.end = now, now+t.slice
	t.grown, t.served, t.lately = 0, 0, 0
	t.counts.Slices++
}

// leave takes the slice from its owner, if it has one.
func (t *Timeslice) leave(now blk.Instant) {
	if t.owner != nil {
		t.owner.left = now
		t.owner = nil
	}
}

// wanted says whether others than the owner have something queued.
func (t *Timeslice) wanted() bool {
	n := t.ring().waiting
	if t.owner != nil && t.owner.list.Len() > 0 {
		n--
	}
	return n > 0
}

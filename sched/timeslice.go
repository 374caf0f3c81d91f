package sched

import "github.com/elevisor/elevisor/blk"

// Timeslice gives the disk to one key at a time, which is a device or a queue, until its
// slice has expired (or, with other values of the knob empty, until it has nothing more):
// the time slice per software queue that an RFC of February 2016 proposed for blk-mq
// (time_slice_us), as far as its description and its published tables tell. Streams that
// would alternate on a rotational disk, and pay for each change, come in runs instead.
//
// By default a key keeps its slice although it has nothing queued: a guest that reads at
// depth 1 has nothing queued once its request is dispatched, and nothing in flight
// between the completion and its next request. Meanwhile the requests of others wait
// here, where they can still be merged with others of the same key.
//
// With n keys that always want more, each waits at most
//
//	(n-1) * (slice_extend_max * time_slice_us + one request)
//
// from the end of a slice to the start of its next one: where the disk has room for one
// request only, one that is on it at the end of a slice is waited for. That time is
// charged to nobody. Shares are equal if slices are long compared with requests and the
// loop's depth is 1 or 2, so that an owner does not start behind what the last one has
// left in the disk's own queue.
//
// Keys take turns in the order in which they were first seen. With time_slice_us=0 it is
// None, by the same code.
type Timeslice struct {
	none  None     // serves while slice is 0
	merge merger   // and this while it is not
	retry blk.List // served first, whoever has the slice
	known []*key   // devices, by blk.Source.Device
	rings [sliceByCount]ring

	knobs knobs
	slice blk.Instant // time_slice_us; 0: as None
	by    sliceBy     // slice_by

	// The slice in progress. Without an owner, the next one after place gets it.
	owner  *key
	place  int         // of the owner, or of the last one, in its ring
	start  blk.Instant // of the slice
	end    blk.Instant
	grown  int // extensions since start
	served int // heads dispatched since start
	lately int // heads dispatched since the last extension

	last   blk.Instant // latest time that was passed: Describe and Set are given none
	queued int         // guest requests, without those of none
	counts Counters
}

func newTimeslice(c *Config) *Timeslice {
	t := &Timeslice{
		none:  None{cfg: c},
		merge: merger{cfg: c, within: mergeWithin[byDevice]},
		knobs: timesliceKnobs(), place: -1,
	}
	t.slice = blk.Instant(t.knobs[timeSlice].value) * microsecond
	return t
}

// Insert implements Scheduler.
func (t *Timeslice) Insert(now blk.Instant, r *blk.Request) {
	t.last = now
	k := t.key(t.queue(r.Source))
	if t.slice == 0 {
		t.none.Insert(now, r)
		return
	}
	t.renew(now) // first, as r did not wait until now
	t.queued++
	g, front := t.merge.insert(r)
	if g == nil {
		k.list.PushBack(r)
		t.ring().note(k)
		return
	}
	for {
		kept, gone := t.merge.join(g, front)
		if gone == nil {
			return
		}
		k.list.Remove(gone)
		g = kept
	}
}

// Dispatch implements Scheduler.
func (t *Timeslice) Dispatch(now blk.Instant) *blk.Request {
	t.last = now
	if g := t.retry.PopFront(); g != nil {
		return t.give(g)
	}
	if t.slice == 0 {
		r := t.none.Dispatch(now)
		if r != nil {
			r.Links.Leader = r
			t.started(r)
		}
		return r
	}
	g := t.turn(now)
	if g == nil {
		return nil
	}
	t.counts.LongestWait = max(t.counts.LongestWait, now-g.Arrive)
	return t.give(g)
}

// give dispatches the group that g leads.
func (t *Timeslice) give(g *blk.Request) *blk.Request {
	t.queued -= int(g.Links.Parts)
	r := t.merge.give(g)
	t.started(r)
	return r
}

// Retry implements Scheduler.
func (t *Timeslice) Retry(now blk.Instant, r *blk.Request) {
	t.last = now
	aloneForGood(r)
	t.queued++
	t.retry.PushBack(r)
}

// Complete implements Scheduler.
func (t *Timeslice) Complete(now blk.Instant, r *blk.Request) {
	t.last = now
	if t.merge.complete(r) {
		q := t.queue(r.Source)
		q.inflight--
		q.device.inflight--
	}
}

// started counts the head r as on the disk.
func (t *Timeslice) started(r *blk.Request) {
	q := t.queue(r.Source)
	q.inflight++
	q.device.inflight++
}

// Drain implements Scheduler. An owner that has nothing left, queued or on the disk,
// gives up its slice.
func (t *Timeslice) Drain(src blk.Source, out []*blk.Request) []*blk.Request {
	n := len(out)
	out = t.takeOut(&t.retry, src, out, nil)
	if t.slice == 0 {
		out = t.none.Drain(src, out)
	} else {
		out = t.takeQueued(src, out)
	}
	bySeq(out[n:])
	if t.owner != nil && t.owner.leaves(src) {
		t.leave(t.last)
	}
	return out
}

// takeQueued removes what src covers of what waits for a slice.
func (t *Timeslice) takeQueued(src blk.Source, out []*blk.Request) []*blk.Request {
	for _, k := range t.ring().keys {
		if k.list.Len() == 0 {
			continue
		}
		out = t.takeOut(&k.list, src, out, t.merge.add)
		t.ring().note(k)
	}
	return out
}

// takeOut removes what src covers from l; keep is called for what is left of a group, which
// goes back to l.
func (t *Timeslice) takeOut(l *blk.List, src blk.Source, out []*blk.Request, keep func(*blk.Request)) []*blk.Request {
	n := len(out)
	out = takeOut(l, src, out, t.merge.forget, keep)
	t.queued -= len(out) - n
	return out
}

// Wake implements Scheduler: the end of the slice, if others wait for it.
func (t *Timeslice) Wake() blk.Instant {
	if t.slice == 0 || t.owner == nil || t.retry.Len() > 0 || !t.wanted() {
		return blk.Never
	}
	return t.end
}

// Len implements Scheduler.
func (t *Timeslice) Len() int { return t.queued + t.none.Len() }

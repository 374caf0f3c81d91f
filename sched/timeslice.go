package sched

import "github.com/elevisor/elevisor/blk"

// Timeslice gives the disk to one key at a time, a queue or a device, until its
// slice has run out or it has nothing more: the per-software-queue time slice that
// an RFC of February 2016 proposed for blk-mq (time_slice_us), as far as it can be
// told from its description and its published tables. Streams that would take turns
// on a rotational disk, and pay for the change each time, come in runs instead.
//
// A key keeps its slice although it has nothing queued: a guest that reads at depth 1
// is empty the moment its request has been dispatched, and has nothing in flight
// either between the completion and its next request. What others want waits here
// meanwhile, where it can still be merged, with what is of the same key.
//
// Of n keys that always want more, each waits at most
//
//	(n-1) * (slice_extend_max * time_slice_us + one request)
//
// from giving up the slice to having it again: a request that is on the disk when
// the slice ends is waited for where the disk has room for one only. It is not
// charged either: shares are equal where slices are long against requests, and the
// loop's depth is 1 or 2, so that an owner does not begin behind what the last one
// has left in the disk's own queue.
//
// Keys take turns in the order in which they were first seen. time_slice_us=0 is
// None, by the same code. Make one with New.
type Timeslice struct {
	none  None     // serves while slice is 0
	merge merger   // and this while it is not
	retry blk.List // served first, whoever has the slice
	known []*key   // devices, by blk.Source.Device
	rings [sliceByCount]ring

	knobs knobs
	slice blk.Instant // time_slice_us, as what is queued goes by; 0: as None
	by    sliceBy     // slice_by, likewise

	// The slice in progress. Without an owner, whoever comes next after place gets it.
	owner  *key
	place  int         // of the owner, or of the last one, in its ring
	start  blk.Instant // of the slice
	end    blk.Instant
	grown  int // extensions since start
	served int // heads dispatched since start
	lately int // and since the last extension

	last   blk.Instant // newest argument: Describe and Set are given none
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
	t.renew(now) // before r waits: until now nobody did
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

// give sends the group that g leads on its way.
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

// started counts the head r as being on the disk.
func (t *Timeslice) started(r *blk.Request) {
	q := t.queue(r.Source)
	q.inflight++
	q.device.inflight++
}

// Drain implements Scheduler. A key that has nothing any more, here and on the disk,
// gives the slice up.
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

// takeQueued takes out what src covers of what waits for a slice.
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

// takeOut takes out what src covers of l; keep is told of what is left of a group,
// which goes back to l.
func (t *Timeslice) takeOut(l *blk.List, src blk.Source, out []*blk.Request, keep func(*blk.Request)) []*blk.Request {
	n := len(out)
	out = takeOut(l, src, out, t.merge.forget, keep)
	t.queued -= len(out) - n
	return out
}

// Wake implements Scheduler: the end of the slice, if somebody waits for it.
func (t *Timeslice) Wake() blk.Instant {
	if t.slice == 0 || t.owner == nil || t.retry.Len() > 0 || !t.wanted() {
		return blk.Never
	}
	return t.end
}

// Len implements Scheduler.
func (t *Timeslice) Len() int { return t.queued + t.none.Len() }

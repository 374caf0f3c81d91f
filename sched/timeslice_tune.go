package sched

import (
	"fmt"
	"io"

	"github.com/elevisor/elevisor/blk"
)

// The bounds of the numbers. The RFC's field is an unsigned int; it silently truncated a
// larger value, which is refused here.
const (
	maxSliceUS   = 1<<32 - 1
	maxExtendMax = 1000
)

// sliceBy is what a slice belongs to: a queue, as in the RFC, or the whole device, which
// stays the same when a guest's task moves to another CPU, and so to another queue.
type sliceBy uint8

const (
	byDevice sliceBy = iota
	byQueue
	sliceByCount
)

// extendRule says when a slice is extended at its end although others wait.
type extendRule uint8

const (
	extendRuleR extendRule = iota // see Timeslice.extended
	extendAlways
	extendNever
)

// emptyRule says when an owner that has nothing queued loses its slice early.
type emptyRule uint8

const (
	emptyExpiry    emptyRule = iota // never
	emptyInflight                   // if it has nothing on the disk either
	emptyImmediate                  // at once
)

// mergeWithin keeps merges within what a slice belongs to.
var mergeWithin = [sliceByCount]scope{byDevice: withinDevice, byQueue: withinSource}

var (
	sliceByNames = []string{byDevice: "device", byQueue: "queue"}
	extendNames  = []string{extendRuleR: "rule-r", extendAlways: "always", extendNever: "never"}
	emptyNames   = []string{emptyExpiry: "expiry", emptyInflight: "inflight", emptyImmediate: "immediate"}
)

// The indexes of the knobs.
const (
	timeSlice = iota
	extendMax
	sliceOf
	extendBy
	emptyBy
)

// timesliceKnobs has for its default the slice that the RFC's author found best. Numbers
// are decimal, as in the RFC's store function.
func timesliceKnobs() knobs {
	return knobs{
		timeSlice: {name: "time_slice_us", unit: "us", base: 10, high: maxSliceUS, value: 250},
		extendMax: {name: "slice_extend_max", base: 10, low: 1, high: maxExtendMax, value: 3},
		sliceOf:   {name: "slice_by", words: sliceByNames},
		extendBy:  {name: "extend", words: extendNames},
		emptyBy:   {name: "empty", words: emptyNames},
	}
}

// Set implements Tunable. When slice_by changes, or time_slice_us to or from 0, what is
// queued is queued anew, in the order of arrival.
func (t *Timeslice) Set(key, value string) error {
	place, err := t.knobs.set("timeslice", key, value)
	if err != nil {
		return err
	}
	switch v := t.knobs[place].value; place {
	case timeSlice:
		t.setSlice(blk.Instant(v) * microsecond)
	case sliceOf:
		if by := sliceBy(v); by != t.by {
			t.move(t.slice, by)
		}
	}
	return nil
}

// setSlice changes the length of slices. The one in progress ends when it would have ended
// with that length from its start.
func (t *Timeslice) setSlice(slice blk.Instant) {
	if (slice == 0) != (t.slice == 0) {
		t.move(slice, t.by)
		return
	}
	t.slice = slice
	t.end = t.start + blk.Instant(t.grown+1)*slice
}

// move queues everything anew under another slice or key, but for what is to be retried.
func (t *Timeslice) move(slice blk.Instant, by sliceBy) {
	var queued []*blk.Request
	if t.slice == 0 {
		queued = t.none.Drain(blk.AllSources, nil)
	} else {
		queued = t.takeQueued(blk.AllSources, nil)
	}
	bySeq(queued)
	t.leave(t.last)
	if by != t.by {
		t.by, t.place = by, -1
		t.merge.within = mergeWithin[by]
	}
	t.slice = slice
	for _, r := range queued {
		t.Insert(t.last, r)
	}
}

// Tunables implements Tunable.
func (t *Timeslice) Tunables() []Info { return t.knobs.infos() }

// Counters implements Tunable.
func (t *Timeslice) Counters(c *Counters) {
	c.Slices += t.counts.Slices
	c.Extensions += t.counts.Extensions
	c.EarlyEnds += t.counts.EarlyEnds
	c.LongestWait = max(c.LongestWait, t.counts.LongestWait)
}

// Describe implements Scheduler.
func (t *Timeslice) Describe(w io.Writer) {
	fmt.Fprintf(w, "timeslice: %d us by %s, at most %d, extend %s, empty %s: %d queued\n", t.slice/microsecond,
		t.knobs[sliceOf].text(), t.knobs[extendMax].value, t.knobs[extendBy].text(), t.knobs[emptyBy].text(), t.Len())
	if t.retry.Len() > 0 {
		fmt.Fprintf(w, "  to retry: %d\n", t.retry.Len())
	}
	if t.slice == 0 {
		t.none.Describe(w)
		return
	}
	if t.owner != nil {
		fmt.Fprintf(w, "  owner %s: %d us left of slice %d in a row, %d served\n", t.owner,
			max(0, t.end-t.last)/microsecond, t.grown+1, t.served)
	}
	for _, k := range t.ring().keys {
		if k.list.Len() > 0 || k.inflight > 0 {
			fmt.Fprintf(w, "  %s: %d queued, %d on the disk\n", k, k.list.Len(), k.inflight)
		}
	}
}

// String is for Describe.
func (k *key) String() string {
	if k == k.device {
		return fmt.Sprint(k.src.Device)
	}
	return fmt.Sprintf("%d/%d", k.src.Device, k.src.Queue)
}

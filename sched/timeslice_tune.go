package sched

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/elevisor/elevisor/blk"
)

// microsecond is the unit of time_slice_us.
const microsecond blk.Instant = 1000

// The bounds of the numbers. The RFC's field is an unsigned int; it silently took
// what was left of a larger value, which is refused here.
const (
	maxSliceUS   = 1<<32 - 1
	maxExtendMax = 1000
)

// sliceBy is what a slice belongs to: the RFC's queue, or the whole device, which
// stays the same when a guest's task moves from one CPU, and so queue, to another.
type sliceBy uint8

const (
	byDevice sliceBy = iota
	byQueue
	sliceByCount
)

// extendRule is when a slice is extended at its end although others wait.
type extendRule uint8

const (
	extendRuleR extendRule = iota // see Timeslice.extended
	extendAlways
	extendNever
)

// emptyRule is when an owner that has nothing queued hands on before its time.
type emptyRule uint8

const (
	emptyInflight  emptyRule = iota // when it has nothing on the disk either
	emptyImmediate                  // at once
)

// mergeWithin keeps merges within what a slice belongs to.
var mergeWithin = [sliceByCount]scope{byDevice: withinDevice, byQueue: withinSource}

var (
	sliceByNames = []string{byDevice: "device", byQueue: "queue"}
	extendNames  = []string{extendRuleR: "rule-r", extendAlways: "always", extendNever: "never"}
	emptyNames   = []string{emptyInflight: "inflight", emptyImmediate: "immediate"}
)

// Set implements Tunable. What is queued is taken along when slice_by changes, or
// time_slice_us to or from 0: as if it had just come, in the order of arrival.
func (t *Timeslice) Set(name, value string) error {
	switch strings.ReplaceAll(name, "-", "_") {
	case "time_slice_us":
		n, err := number(name, value, 0, maxSliceUS)
		if err == nil {
			t.setSlice(blk.Instant(n) * microsecond)
		}
		return err
	case "slice_extend_max":
		n, err := number(name, value, 1, maxExtendMax)
		if err == nil {
			t.extendMax = int(n)
		}
		return err
	case "slice_by":
		n, err := oneOf(name, value, sliceByNames)
		if err == nil && sliceBy(n) != t.by {
			t.move(t.slice, sliceBy(n))
		}
		return err
	case "extend":
		n, err := oneOf(name, value, extendNames)
		if err == nil {
			t.extend = extendRule(n)
		}
		return err
	case "empty":
		n, err := oneOf(name, value, emptyNames)
		if err == nil {
			t.empty = emptyRule(n)
		}
		return err
	}
	return fmt.Errorf("timeslice has no %q; there are %s", name, strings.Join(names(t), ", "))
}

// setSlice changes the length of slices, of the one in progress too: it ends where
// it would have ended, had it had that length from its start.
func (t *Timeslice) setSlice(slice blk.Instant) {
	if (slice == 0) != (t.slice == 0) {
		t.move(slice, t.by)
		return
	}
	t.slice = slice
	t.end = t.start + blk.Instant(t.grown+1)*slice
}

// move takes what is queued from where it is to where it belongs under another
// slice or key. What is to be served first is not concerned.
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
func (t *Timeslice) Tunables() []Info {
	return []Info{
		{"time_slice_us", strconv.FormatInt(int64(t.slice/microsecond), 10), fmt.Sprintf("0 to %d", uint64(maxSliceUS)), "us"},
		{"slice_extend_max", strconv.Itoa(t.extendMax), fmt.Sprintf("1 to %d", maxExtendMax), ""},
		{"slice_by", sliceByNames[t.by], strings.Join(sliceByNames, " or "), ""},
		{"extend", extendNames[t.extend], strings.Join(extendNames, " or "), ""},
		{"empty", emptyNames[t.empty], strings.Join(emptyNames, " or "), ""},
	}
}

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
		sliceByNames[t.by], t.extendMax, extendNames[t.extend], emptyNames[t.empty], t.Len())
	if t.first.Len() > 0 {
		fmt.Fprintf(w, "  first: %d\n", t.first.Len())
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

// names lists the knobs of a scheduler.
func names(t Tunable) (list []string) {
	for _, i := range t.Tunables() {
		list = append(list, i.Name)
	}
	return list
}

// number reads a decimal number as the kernel's store functions do, except that
// one out of range is refused, not cut off or clamped.
func number(name, value string, lo, hi uint64) (uint64, error) {
	n, err := strconv.ParseUint(value, 10, 64)
	switch {
	case errors.Is(err, strconv.ErrSyntax):
		return 0, fmt.Errorf("%s: %q is not a whole number from %d to %d", name, value, lo, hi)
	case err != nil, n < lo, n > hi:
		return 0, fmt.Errorf("%s: %s is out of range, which is %d to %d", name, value, lo, hi)
	}
	return n, nil
}

// oneOf finds value among names.
func oneOf(name, value string, names []string) (int, error) {
	if i := slices.Index(names, value); i >= 0 {
		return i, nil
	}
	return 0, fmt.Errorf("%s: %q is not one of %s", name, value, strings.Join(names, ", "))
}

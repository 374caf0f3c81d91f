// Package sched holds the I/O schedulers. They are pure: single-threaded, no clock (time
// is an argument), no I/O, no goroutine, no iteration over maps. The same calls give the
// same answers, in real and in virtual time.
//
// A scheduler knows neither rings nor disks. The loop limits the number of requests on
// the disk: it does not call Dispatch while there is no room. [Kinds] lists the
// schedulers.
package sched

import (
	"fmt"
	"io"

	"github.com/elevisor/elevisor/blk"
)

// Scheduler orders the requests of one scheduling domain: of all guests, all queues and
// all images on one physical disk. The loop's goroutine owns it. Insert, Dispatch, Retry
// and Complete do not allocate once every source of the domain has been seen.
//
// The loop moves a request's state (blk.Request.Move); a scheduler never does. Flushes do
// not come here: they cover completed writes only, so the loop issues them at once
// (virtio 1.3, 5.2.6.2).
//
// From Dispatch to Complete the head of a merged group represents it: the guest request
// with the lowest sector. The others follow through blk.Request.Merged by ascending
// sector, without a gap or an overlap.
type Scheduler interface {
	// Insert takes r. It may merge it with a queued neighbour.
	Insert(now blk.Instant, r *blk.Request)
	// Dispatch gives up the head of the next request or merged group. nil means empty,
	// throttled or idling; Wake says when to ask again.
	Dispatch(now blk.Instant) *blk.Request
	// Retry takes one part of a merged group that failed, so that it is tried by
	// itself: the group is complete and split (Merged is nil), and another scheduler may
	// have made it. Retried parts are served before everything else, in the order of
	// their Retry, and never merged again.
	Retry(now blk.Instant, r *blk.Request)
	// Complete says that a dispatched head is finished, with all its parts, which are
	// still linked to it. It is called for every head, on the scheduler that dispatched
	// it, also after a switch. r is lent.
	Complete(now blk.Instant, r *blk.Request)
	// Drain gives up all queued requests that src covers: it appends them to out, each
	// alone (Merged is nil), in the order of Seq, without waiting for slices or tokens.
	// The rest of a split group stays queued.
	Drain(src blk.Source, out []*blk.Request) []*blk.Request
	// Wake is when Dispatch may give another answer by time alone; Never if it cannot.
	Wake() blk.Instant
	// Len is the number of guest requests that are queued and not yet dispatched.
	Len() int
	// Describe prints the state, for people and for transcripts.
	Describe(w io.Writer)
}

// Tunable is what a Scheduler may implement besides, for operators: its knobs, by the
// kernel's names (block/*-iosched.c, /sys/block/X/queue/iosched), and its counts. Set,
// Tunables and Count do the same for any scheduler, also for one without.
type Tunable interface {
	// Set changes a knob; hyphens and underscores in key are the same. An error
	// names the value and the valid range, and nothing has changed.
	Set(key, value string) error
	// Tunables lists the knobs with their present values, in a fixed order.
	Tunables() []Info
	// Counters adds what the scheduler has counted to c.
	Counters(c *Counters)
}

// Set changes a knob of s; see Tunable.
func Set(s Scheduler, key, value string) error {
	if t, ok := s.(Tunable); ok {
		return t.Set(key, value)
	}
	return fmt.Errorf("there is no knob %q; this scheduler has none", key)
}

// Tunables lists the knobs of s; see Tunable.
func Tunables(s Scheduler) []Info {
	if t, ok := s.(Tunable); ok {
		return t.Tunables()
	}
	return nil
}

// Count adds what s has counted to c; see Tunable.
func Count(s Scheduler, c *Counters) {
	if t, ok := s.(Tunable); ok {
		t.Counters(c)
	}
}

// Info describes one knob.
type Info struct {
	Name  string // read_expire
	Value string // as Set would take it
	Valid string // "0 to 2147483647"
	Unit  string // "ms"; empty for counts and switches
}

// Counters are what schedulers count. A scheduler leaves at zero what it does not count.
type Counters struct {
	Batches     uint64      // batches of requests in one direction; with kyber of one domain
	Expired     uint64      // dispatched because their deadline had passed
	Starved     uint64      // times that waiting writes were passed over for reads
	Aged        uint64      // dispatched before a higher priority because they had waited too long
	Slices      uint64      // time slices started
	Extensions  uint64      // extensions of slices
	EarlyEnds   uint64      // slices that ended early because the owner had nothing more
	Idled       uint64      // times that the disk was kept idle for the next request of a flow
	Preempted   uint64      // slices that were taken away for a flow that goes first
	LongestWait blk.Instant // from Insert to Dispatch, ns
}

// Add adds what the scheduler of another loop has counted. The longest wait is the longer
// of the two.
func (c *Counters) Add(b *Counters) {
	c.Batches += b.Batches
	c.Expired += b.Expired
	c.Starved += b.Starved
	c.Aged += b.Aged
	c.Slices += b.Slices
	c.Extensions += b.Extensions
	c.EarlyEnds += b.EarlyEnds
	c.Idled += b.Idled
	c.Preempted += b.Preempted
	c.LongestWait = max(c.LongestWait, b.LongestWait)
}

// Config is what the successive schedulers of a loop have in common. It outlives a
// switch. Its loop changes it in place, and each loop has its own.
type Config struct {
	// Rotational says that the disk has a head to move, so that it can pay to idle for
	// the next request of the same flow.
	Rotational  bool
	MaxSectors  blk.Sector // of a merged group (max_sectors_kb); 0: no limit
	MaxSegments int        // memory segments of a merged group; 0: no limit
	NoMerges    int        // nomerges: 0 all merges, 1 only with the one-hit cache, 2 none
	Merges      MergeStats
}

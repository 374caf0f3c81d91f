// Package sched holds the I/O schedulers. They are pure: single-threaded, no
// clock (time is an argument), no I/O, no goroutine, no map iteration, so that
// one history of calls gives one history of answers, in real and in virtual time.
//
// A scheduler knows neither rings nor disks. How many requests the disk has at a
// time is the loop's business: it stops asking.
package sched

import (
	"fmt"
	"io"

	"github.com/elevisor/elevisor/blk"
)

// Scheduler orders the requests of one scheduling domain: all guests, all queues,
// all images of one physical disk. Its goroutine is the loop's. No method
// allocates once every source of the domain has been seen once.
//
// The loop moves a request's state (blk.Request.Move); a scheduler never does.
// Flushes never come here: they cover completed writes only, so the loop issues
// them at once (virtio 1.3, 5.2.6.2).
//
// A merged group stands for its guest requests from Dispatch to Complete: its head
// is the one with the lowest sector, the others follow through blk.Request.Merged
// by ascending sector, without gap or overlap.
type Scheduler interface {
	// Insert takes r; it may merge it with a queued neighbour.
	Insert(now blk.Instant, r *blk.Request)
	// Dispatch gives up the head of the next request or merged group; nil means
	// empty, throttled or idling, and Wake says when to ask again.
	Dispatch(now blk.Instant) *blk.Request
	// Retry takes one part of a merged group that failed, so that it is tried by
	// itself: the group is complete and taken apart (Merged is nil), and another
	// scheduler may have made it. Retried parts are served before everything else,
	// in the order of their Retry, and never merged again.
	Retry(now blk.Instant, r *blk.Request)
	// Complete says that a head given up earlier is finished, with all its parts,
	// which still hang on it. It is called for every head, after a switch too: on the
	// scheduler that gave it up. r is lent.
	Complete(now blk.Instant, r *blk.Request)
	// Drain gives up everything queued that src covers, groups taken apart (Merged
	// is nil), in the order of Seq, by appending it to out. It does not wait for
	// slices or tokens. What is left of a group stays queued.
	Drain(src blk.Source, out []*blk.Request) []*blk.Request
	// Wake is when Dispatch may change its mind by time alone: Never if it cannot.
	Wake() blk.Instant
	// Len is the number of guest requests queued, not yet dispatched.
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

// Counters are the schedulers' own counts. A scheduler leaves at zero what it does
// not have.
type Counters struct {
	Batches     uint64      // runs of requests in one direction
	Expired     uint64      // dispatched because their deadline had passed
	Starved     uint64      // times that writes were passed over for reads
	Aged        uint64      // dispatched over a higher priority because they had waited too long
	Slices      uint64      // time slices begun
	Extensions  uint64      // and extended
	EarlyEnds   uint64      // and ended before their time: the owner had nothing more
	Idled       uint64      // times that the disk was kept free for the next request of one flow
	Preempted   uint64      // slices taken away for a flow that goes first
	LongestWait blk.Instant // from Insert to Dispatch, ns
}

// Config is what the schedulers of a loop have in common, one after the other. It
// outlives a switch; its loop changes it in place, and nobody else has it.
type Config struct {
	// Rotational says that the disk has a head to move: idling for the next request
	// of the same flow is worth it.
	Rotational  bool
	MaxSectors  blk.Sector // of a merged group (max_sectors_kb); 0: no limit
	MaxSegments int        // memory segments of a merged group; 0: no limit
	NoMerges    int        // nomerges: 0 all merges, 1 only the one-hit cache, 2 none
	Merges      MergeStats
}

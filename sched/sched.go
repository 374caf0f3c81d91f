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
// allocates once the domain runs.
//
// Flushes never come here: they cover completed writes only, so the loop issues
// them at once (virtio 1.3, 5.2.6.2).
type Scheduler interface {
	// Insert takes r; it may merge it with a queued neighbour.
	Insert(now blk.Instant, r *blk.Request)
	// Dispatch gives up the head of the next request or merged group; nil means
	// empty, throttled or idling, and Wake says when to ask again.
	Dispatch(now blk.Instant) *blk.Request
	// Requeue takes back a head that Dispatch gave up: the disk was full, or a part
	// of a failed group must be tried alone. It is served first and never merged
	// again.
	Requeue(now blk.Instant, r *blk.Request)
	// Complete says that a head given up earlier is finished, with all its parts.
	// r is lent.
	Complete(now blk.Instant, r *blk.Request)
	// Drain gives up everything queued that src covers, groups taken apart, in
	// arrival order, by appending it to out. It does not wait for slices or tokens.
	Drain(src blk.Source, out []*blk.Request) []*blk.Request
	// Wake is when Dispatch may change its mind by time alone: Never if it cannot.
	Wake() blk.Instant
	// Len is the number of guest requests queued, not yet dispatched.
	Len() int
	// Describe prints the state, for people and for transcripts.
	Describe(w io.Writer)
}

// Names are the schedulers that New knows, and their aliases in the kernel's words.
var Names = []string{"none"}

// New makes the scheduler called name.
func New(name string) (Scheduler, error) {
	switch name {
	case "none", "noop":
		return &None{}, nil
	}
	return nil, fmt.Errorf("scheduler %q is unknown; there are %v", name, Names)
}

package backend

import (
	"slices"

	"github.com/elevisor/elevisor/blk"
	"golang.org/x/sys/unix"
)

// Fault is a rule by which requests fail. Its zero value fails all with EIO.
type Fault struct {
	Ops   []blk.Op  // the operations it concerns; none: all
	Range blk.Range // the extent it concerns; of no length: all of the disk, and only then flushes, which have none
	Nth   uint64    // every Nth of the requests it concerns fails; 0: each
	Once  bool      // only the first of those fails
	Errno uint16    // the system's error number; 0: EIO
}

// NewFaults makes requests fail by rules: with StatusIOErr and the first fitting
// rule's error number, before inner has seen them, so that they change and read
// nothing. Guest requests are counted, not merged groups; a group fails if one of
// its parts does. A part that is tried again alone counts again. Every loop that
// serves the image counts for itself.
func NewFaults(inner Image, rules ...Fault) Image {
	if len(rules) == 0 {
		return inner
	}
	return &decorated{inner, func(b Backend, _ Host) Backend {
		f := &faulty{Wrapper: Wrapper{b}}
		for _, r := range rules {
			r.Nth = max(r.Nth, 1)
			if r.Errno == 0 {
				r.Errno = uint16(unix.EIO)
			}
			f.rules = append(f.rules, counted{Fault: r})
		}
		return f
	}}
}

type faulty struct {
	Wrapper
	rules  []counted
	failed blk.List
}

// counted is a rule with what it has seen.
type counted struct {
	Fault
	seen  uint64
	spent bool
}

// Submit implements Backend.
func (b *faulty) Submit(now blk.Instant, r *blk.Request) bool {
	errno := b.verdict(r)
	if errno == 0 {
		if b.Backend.Submit(now, r) {
			return true
		}
		b.forget(r) // it will come again
		return false
	}
	r.Move(blk.StateQueued, blk.StateIssued)
	r.Status, r.Errno = blk.StatusIOErr, errno
	b.failed.PushBack(r)
	return true
}

// verdict counts r with all rules and returns the error number it fails with, 0
// for none.
func (b *faulty) verdict(r *blk.Request) (errno uint16) {
	for i := range b.rules {
		c := &b.rules[i]
		before := c.seen / c.Nth
		c.seen += c.concerned(r)
		if c.seen/c.Nth == before || c.Once && c.spent {
			continue
		}
		c.spent = true
		if errno == 0 {
			errno = c.Errno
		}
	}
	return errno
}

// forget undoes the verdict that r does not fail.
func (b *faulty) forget(r *blk.Request) {
	for i := range b.rules {
		b.rules[i].seen -= b.rules[i].concerned(r)
	}
}

// Reap implements Backend.
func (b *faulty) Reap(now blk.Instant, done []*blk.Request) []*blk.Request {
	for r := b.failed.PopFront(); r != nil; r = b.failed.PopFront() {
		r.Move(blk.StateIssued, blk.StateDone)
		done = append(done, r)
	}
	return b.Backend.Reap(now, done)
}

// concerned is how many guest requests of the group of r the rule is about.
func (f *Fault) concerned(r *blk.Request) (n uint64) {
	if len(f.Ops) > 0 && !slices.Contains(f.Ops, r.Op) {
		return 0
	}
	for ; r != nil; r = r.Merged {
		if f.Range.Sectors == 0 || f.touches(r) {
			n++
		}
	}
	return n
}

func (f *Fault) touches(r *blk.Request) bool {
	if len(r.Ranges) == 0 {
		return overlap(f.Range, blk.Range{Sector: r.Sector, Sectors: r.Sectors})
	}
	for _, x := range r.Ranges {
		if overlap(f.Range, x) {
			return true
		}
	}
	return false
}

// overlap says whether a and b have a sector in common. It adds nothing up, so
// that an operator's range may reach to the end of all numbers.
func overlap(a, b blk.Range) bool {
	if a.Sector > b.Sector {
		a, b = b, a
	}
	return b.Sectors > 0 && b.Sector-a.Sector < a.Sectors
}

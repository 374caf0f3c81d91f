package sched

import (
	"math/bits"

	"github.com/elevisor/elevisor/blk"
)

// Kyber is for fast disks without a head. It does not sort by position. It limits the
// number of requests on the disk, so that requests wait here rather than there. There are
// four domains of requests, by operation; each has tokens, and a request on the disk holds
// one. While the disk is slow, domains that meet their target latency lose tokens, so that
// the others can meet theirs (adjust). It behaves like the kernel's kyber
// (block/kyber-iosched.c since 4.20; Documentation/block/kyber-iosched.rst) with one
// hardware queue.
//
// It is not fair between guests: only the domains take turns. A queue is a virtqueue of a
// device here, and only matters for merging: a new request may merge with one of the
// newest few of its own queue and domain. Once there is a token for a domain, all that its
// queues hold is moved to one list, and merges no more.
//
// Deliberate differences from the kernel:
//
//   - Each of the two latencies of a domain is evaluated when it has enough samples or
//     is a second old. The kernel has one timer for both, which the first one resets
//     each time, so that on a disk with fewer than 500 requests a second the total
//     latency is judged by much older samples.
//   - A domain that has lost tokens gets none until as many have come back. In the
//     kernel the lost ones are no longer counted.
//   - Parts of failed groups go before everything else of their domain.
//   - There is no limit for asynchronous requests: what is queued takes the guest's
//     memory, not ours.
type Kyber struct {
	cfg     *Config
	knobs   knobs
	domains [kyberDomains]kyberDomain
	places  perSource[*kyberQueue]
	queues  []*kyberQueue // in the order in which they were first seen
	n       int

	turn      int  // domain
	batching  int  // requests of it since its turn started
	throttled bool // the last Dispatch found work, but no token

	timer   blk.Instant // when the depths are adjusted next; Never: not before a completion
	counts  Counters
	refused uint64 // times that Dispatch was throttled
	resized uint64 // changes of a depth
}

// The domains, in the order in which they take turns.
const (
	kyberRead = iota
	kyberWrite
	kyberDiscard
	kyberOther
	kyberDomains
)

var (
	kyberNames = [kyberDomains]string{"read", "write", "discard", "other"}
	// kyberDepths are the tokens of a domain at most and at first.
	kyberDepths = [kyberDomains]int{256, 128, 64, 16}
	// kyberBatches are how many requests a domain may send in its turn.
	kyberBatches = [kyberDomains]int{16, 8, 1, 1}
)

// kyberDomain is one domain.
type kyberDomain struct {
	retry  blk.List // served first
	list   blk.List // leaders that no longer merge
	busy   []uint64 // a bit for each of Kyber.queues that holds something
	depth  int      // tokens
	onDisk int      // tokens that are held

	latency [latencyKinds]histogram
	p99     int // bucket of the total latency that was not used yet, or noPercentile
}

// kyberQueue holds the requests of one virtqueue, by domain.
type kyberQueue struct {
	src    blk.Source
	place  int // in Kyber.queues
	fifo   [kyberDomains]blk.List
	newest [kyberDomains]newest
}

func newKyber(c *Config) *Kyber {
	k := &Kyber{cfg: c, knobs: kyberKnobs(), timer: blk.Never}
	for i := range k.domains {
		k.domains[i].depth, k.domains[i].p99 = kyberDepths[i], noPercentile
	}
	return k
}

// kyberDomainOf returns the domain of r.
func kyberDomainOf(r *blk.Request) int {
	switch r.Op {
	case blk.OpRead:
		return kyberRead
	case blk.OpWrite:
		return kyberWrite
	case blk.OpDiscard:
		return kyberDiscard
	}
	return kyberOther
}

// queue returns the queue of s, which it makes if it is new.
func (k *Kyber) queue(s blk.Source) *kyberQueue {
	p := k.places.at(s)
	if *p == nil {
		*p = &kyberQueue{src: blk.Source{Device: s.Device, Queue: s.Queue}, place: len(k.queues)}
		k.queues = append(k.queues, *p)
		for i := range k.domains {
			if d := &k.domains[i]; len(d.busy) <= (*p).place/64 {
				d.busy = append(d.busy, 0)
			}
		}
	}
	return *p
}

// Insert implements Scheduler.
func (k *Kyber) Insert(now blk.Instant, r *blk.Request) {
	k.tick(now)
	k.n++
	alone(r)
	q, i := k.queue(r.Source), kyberDomainOf(r)
	if k.cfg.NoMerges < 2 && q.newest[i].insert(k.cfg, r) {
		return
	}
	q.fifo[i].PushBack(r)
	k.domains[i].busy[q.place/64] |= 1 << (q.place % 64)
}

// Dispatch implements Scheduler. A domain keeps its turn for a batch, or until it has
// nothing more or no token.
func (k *Kyber) Dispatch(now blk.Instant) *blk.Request {
	k.tick(now)
	k.throttled = false
	for i := range k.domains {
		if d := &k.domains[i]; d.onDisk < d.depth {
			if g := d.retry.PopFront(); g != nil {
				return k.give(d, g)
			}
		}
	}
	if k.batching < kyberBatches[k.turn] {
		if head := k.next(now); head != nil {
			return head
		}
	}
	k.batching = 0
	for range kyberDomains {
		k.turn = (k.turn + 1) % kyberDomains
		if head := k.next(now); head != nil {
			return head
		}
	}
	if k.n > 0 {
		k.throttled = true
		k.refused++
	}
	return nil
}

// next dispatches the next request of the domain whose turn it is; nil if it has none, or
// no token.
func (k *Kyber) next(now blk.Instant) *blk.Request {
	d := &k.domains[k.turn]
	if d.onDisk >= d.depth {
		return nil // what waits in the queues can still merge
	}
	if d.list.Len() == 0 {
		k.flush(d)
	}
	g := d.list.PopFront()
	if g == nil {
		return nil
	}
	if k.batching == 0 {
		k.counts.Batches++
	}
	k.batching++
	k.counts.LongestWait = max(k.counts.LongestWait, now-g.Arrive)
	return k.give(d, g)
}

// flush moves what the queues hold of d, whose turn it is, to its list.
func (k *Kyber) flush(d *kyberDomain) {
	for word, set := range d.busy {
		for ; set != 0; set &= set - 1 {
			q := k.queues[word*64+bits.TrailingZeros64(set)]
			for g := q.fifo[k.turn].PopFront(); g != nil; g = q.fifo[k.turn].PopFront() {
				g.Links.Place = 0
				d.list.PushBack(g)
			}
			q.newest[k.turn] = newest{}
		}
		d.busy[word] = 0
	}
}

// give dispatches the group that g leads, with a token.
func (k *Kyber) give(d *kyberDomain, g *blk.Request) *blk.Request {
	k.n -= int(g.Links.Parts)
	d.onDisk++
	head := g.Links.First
	head.Links.Leader = g
	return head
}

// Retry implements Scheduler.
func (k *Kyber) Retry(now blk.Instant, r *blk.Request) {
	k.tick(now)
	aloneForGood(r)
	k.n++
	k.domains[kyberDomainOf(r)].retry.PushBack(r)
}

// Complete implements Scheduler.
func (k *Kyber) Complete(now blk.Instant, r *blk.Request) {
	k.tick(now)
	g := r.Links.Leader
	if g == nil {
		return
	}
	r.Links.Leader = nil
	i := kyberDomainOf(r)
	k.domains[i].onDisk--
	if i != kyberOther {
		k.measure(i, now-g.Arrive, now-r.Issue)
		k.timer = min(k.timer, now+adjustEvery)
	}
}

// Drain implements Scheduler.
func (k *Kyber) Drain(src blk.Source, out []*blk.Request) []*blk.Request {
	n := len(out)
	for i := range k.domains {
		d := &k.domains[i]
		out = takeOut(&d.retry, src, out, nil, nil)
		out = takeOut(&d.list, src, out, nil, nil)
		for _, q := range k.queues {
			if src.Covers(q.src) { // it covers everything in q
				out = takeOut(&q.fifo[i], src, out, nil, nil)
				q.newest[i] = newest{}
				d.busy[q.place/64] &^= 1 << (q.place % 64)
			}
		}
	}
	bySeq(out[n:])
	k.n -= len(out) - n
	return out
}

// Wake implements Scheduler: a domain that waits for a token and has lost some may get them
// back at the timer.
func (k *Kyber) Wake() blk.Instant {
	if k.throttled && k.timer != blk.Never {
		for i := range kyberOther { // the depth of kyberOther is fixed
			if d := &k.domains[i]; d.depth < kyberDepths[i] && d.waiting() {
				return k.timer
			}
		}
	}
	return blk.Never
}

// waiting reports whether the domain has something queued.
func (d *kyberDomain) waiting() bool {
	if d.retry.Len()+d.list.Len() > 0 {
		return true
	}
	for _, set := range d.busy {
		if set != 0 {
			return true
		}
	}
	return false
}

// Len implements Scheduler.
func (k *Kyber) Len() int { return k.n }

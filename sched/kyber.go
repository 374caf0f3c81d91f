package sched

import (
	"math/bits"

	"github.com/elevisor/elevisor/blk"
)

// Kyber is for disks without a head: it keeps no order by place, but few requests on
// the disk, so that those wait here that would otherwise wait there. Requests are of
// four domains, by what they do; each has tokens, and what is on the disk holds one.
// While the disk is slow, domains that meet their target latency lose tokens to let
// the others meet theirs (adjust). It behaves as the kernel's kyber does (block/
// kyber-iosched.c, since 4.20; Documentation/block/kyber-iosched.rst), for one
// hardware queue.
//
// It is not fair between guests: only the domains take turns. A queue here is a
// virtqueue of a device, which only matters to merging: a new request may join one of
// the newest few of its own queue and domain. Nothing merges any more once a token
// was there for its domain: all that its queues hold is moved to one list then.
//
// Differences from the kernel, all deliberate:
//
//   - The two latencies of a domain are judged when each has samples enough or is a
//     second old. The kernel has one clock for both, which the first one takes back
//     each time, so that the total of a disk slower than 500 requests a second is
//     judged by much older samples.
//   - A domain that has lost tokens gets none before as many have come back. In the
//     kernel those that it has lost do not count any more.
//   - Parts of failed groups go before all else of their domain.
//   - Asynchronous requests may fill what they like: what is queued is the guest's
//     memory, not ours.
type Kyber struct {
	cfg     *Config
	knobs   knobs
	domains [kyberDomains]kyberDomain
	places  perSource[*kyberQueue]
	queues  []*kyberQueue // in the order in which they were first seen
	n       int

	turn      int  // domain
	batching  int  // requests of it since its turn began
	throttled bool // the last Dispatch found work, but no token

	timer   blk.Instant // when the depths are looked at next; Never: after the next completion
	counts  Counters
	refused uint64 // times that Dispatch was throttled
	resized uint64 // changes of a depth
}

// The domains, in the order in which they take turns. What is none of the others is
// the fourth's.
const (
	kyberRead = iota
	kyberWrite
	kyberDiscard
	kyberOther
	kyberDomains
)

var (
	kyberNames = [kyberDomains]string{"read", "write", "discard", "other"}
	// kyberDepths are the most tokens that a domain has, and what it begins with.
	kyberDepths = [kyberDomains]int{256, 128, 64, 16}
	// kyberBatches are how many requests a domain may send in its turn.
	kyberBatches = [kyberDomains]int{16, 8, 1, 1}
)

// kyberDomain is what a domain has.
type kyberDomain struct {
	retry  blk.List // served first
	list   blk.List // leaders that merge no more
	busy   []uint64 // a bit for each of Kyber.queues that holds something
	depth  int      // tokens
	onDisk int      // those that are held

	latency [latencyKinds]histogram
	p99     int // of the total, as long as it was not used; or noPercentile
}

// kyberQueue is what one virtqueue holds, for each domain.
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

// kyberDomainOf is r's.
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

// queue finds the one of s, or makes it.
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

// Dispatch implements Scheduler. A domain that has its turn keeps it for a batch, or
// until it has nothing more or no token.
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

// next gives up the next request of the domain that has its turn; nil if it has none,
// or no token.
func (k *Kyber) next(now blk.Instant) *blk.Request {
	d := &k.domains[k.turn]
	if d.onDisk >= d.depth {
		return nil // and what waits in the queues can still merge
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

// flush moves what the queues hold of the domain whose turn it is to its list.
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

// give sends the group that g leads on its way, with a token.
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
			if src.Covers(q.src) { // and with it all that it holds
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

// Wake implements Scheduler: where a token is waited for that was lost, the timer may
// bring it back.
func (k *Kyber) Wake() blk.Instant {
	if k.throttled && k.timer != blk.Never {
		for i := range kyberOther { // whose depth is fixed
			if d := &k.domains[i]; d.depth < kyberDepths[i] && d.waiting() {
				return k.timer
			}
		}
	}
	return blk.Never
}

// waiting says whether the domain has something queued.
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

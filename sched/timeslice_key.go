package sched

import (
	"math/bits"

	"github.com/elevisor/elevisor/blk"
)

// key is what gets slices: a device or one of its queues, as slice_by says. There are keys
// for both in any case, so that slice_by can change while requests are on the disk.
type key struct {
	src    blk.Source // Queue is AnyQueue for a device
	device *key       // of a queue; a device's own
	queues []*key     // of a device, by blk.Source.Queue
	place  int        // in its ring

	list     blk.List    // leaders, the longest waiting first
	inflight int         // heads on the disk
	left     blk.Instant // when it lost its last slice
}

// idle reports whether k loses its slice because it has nothing queued.
func (k *key) idle(rule emptyRule) bool {
	switch {
	case rule == emptyExpiry || k.list.Len() > 0:
		return false
	case rule == emptyInflight:
		return k.inflight == 0
	}
	return true
}

// since is when k, which has something queued, began to wait for its turn: the arrival of
// its oldest request, or the end of its last slice, if that was later. What a deep queue
// did not get through in its own slice does not count as waiting for others.
func (k *key) since() blk.Instant { return max(k.list.Front().Arrive, k.left) }

// leaves reports whether k has nothing left, queued or on the disk, now that src was
// drained.
func (k *key) leaves(src blk.Source) bool {
	if k.list.Len() > 0 {
		return false
	}
	if k != k.device {
		return src.Covers(k.src)
	}
	inflight, covered := 0, false
	for _, q := range k.queues {
		switch {
		case q == nil:
		case src.Covers(q.src):
			covered = true
		default:
			inflight += q.inflight
		}
	}
	return covered && inflight == 0
}

// ring holds keys in the order in which they were first seen. Only those that have
// something queued are looked at.
type ring struct {
	keys    []*key
	busy    []uint64 // a bit for each key with something queued
	waiting int      // number of these
}

// add makes k the last of g.
func (g *ring) add(k *key) {
	k.place = len(g.keys)
	g.keys = append(g.keys, k)
	if k.place/64 == len(g.busy) {
		g.busy = append(g.busy, 0)
	}
}

// note updates busy and waiting after a change of k's list.
func (g *ring) note(k *key) {
	bit := uint64(1) << (k.place % 64)
	was, is := g.busy[k.place/64]&bit != 0, k.list.Len() > 0
	if was != is {
		g.busy[k.place/64] ^= bit
		g.waiting++
		if was {
			g.waiting -= 2
		}
	}
}

// next returns the first busy key after place, round the ring; nil if none is busy.
func (g *ring) next(place int) *key {
	if g.waiting == 0 {
		return nil
	}
	place++
	word := place / 64 % len(g.busy)
	set := g.busy[word] &^ (1<<(place%64) - 1)
	for set == 0 {
		word = (word + 1) % len(g.busy)
		set = g.busy[word]
	}
	return g.keys[word*64+bits.TrailingZeros64(set)]
}

// oldest is the time since which some key other than but has waited.
func (g *ring) oldest(but *key) blk.Instant {
	since := blk.Never
	for word, set := range g.busy {
		for ; set != 0; set &= set - 1 {
			if k := g.keys[word*64+bits.TrailingZeros64(set)]; k != but {
				since = min(since, k.since())
			}
		}
	}
	return since
}

// ring returns the one in use.
func (t *Timeslice) ring() *ring { return &t.rings[t.by] }

// key returns the key whose slices q uses: itself or its device.
func (t *Timeslice) key(q *key) *key {
	if t.by == byDevice {
		return q.device
	}
	return q
}

// queue returns the key of a queue.
func (t *Timeslice) queue(s blk.Source) *key {
	if int(s.Device) < len(t.known) {
		if d := t.known[s.Device]; d != nil && int(s.Queue) < len(d.queues) && d.queues[s.Queue] != nil {
			return d.queues[s.Queue]
		}
	}
	return t.newQueue(s)
}

// newQueue makes the key of a queue that has not been seen before, and its device's.
func (t *Timeslice) newQueue(s blk.Source) *key {
	for int(s.Device) >= len(t.known) {
		t.known = append(t.known, nil)
	}
	d := t.known[s.Device]
	if d == nil {
		d = &key{src: blk.Source{Device: s.Device, Queue: blk.AnyQueue}}
		d.device = d
		t.known[s.Device] = d
		t.rings[byDevice].add(d)
	}
	for int(s.Queue) >= len(d.queues) {
		d.queues = append(d.queues, nil)
	}
	q := &key{src: blk.Source{Device: s.Device, Queue: s.Queue}, device: d}
	d.queues[s.Queue] = q
	t.rings[byQueue].add(q)
	return q
}

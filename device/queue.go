package device

import (
	"fmt"
	"sync/atomic"

	"github.com/elevisor/elevisor/blk"
	"github.com/elevisor/elevisor/sched"
	"github.com/elevisor/elevisor/sys/eventfd"
	"github.com/elevisor/elevisor/sys/shm"
	"github.com/elevisor/elevisor/virtqueue"
)

const (
	// slotsMax is how many requests of one queue are held at a time; more wait in the
	// ring. Rings may have 32768 entries, and slots are not small.
	slotsMax = 1024
	// segsMax bounds the memory segments of all held requests of a queue, so that a guest
	// with long chains does not use up our memory.
	segsMax = 32 * 1024
	// segsKept is the longest segment list that a free slot keeps for reuse.
	segsKept = 1024
)

// queue is one virtqueue of one device. The goroutine of its loop owns it.
type queue struct {
	loop      atomic.Pointer[Loop] // its goroutine owns the rest; see Gather for who changes it
	moving    bool                 // to another loop: nothing is taken
	unwatched bool                 // while it moves: its kick is no longer read here
	source    blk.Source
	disk      *blk.Disk
	prio      blk.Prio
	limits    blk.Limits
	name      string
	log       func(msg string, err error)
	enabled   bool

	ring    virtqueue.Queue // nil: stopped
	through bool            // writes are durable before they are acknowledged
	broken  bool
	kick    *eventfd.FD
	watch   Watch
	kicked  bool // the kick descriptor was readable; set by the waiter
	hot     bool // to be checked without a kick
	dirty   bool // something was pushed and not published
	call    virtqueue.Notifier
	errs    virtqueue.Notifier

	slots  []slot
	free   []*slot
	segs   int // memory segments of all held requests
	owed   int // requests held: queued or issued
	pinned *pin
	record *shm.Mapping // the in-flight region, kept while the ring runs

	stopping func(base uint32)
	base     uint32 // position of the ring when it last stopped

	stats      Stats // without what meter, inDisk and latency hold
	meter      meter
	lane       *meter // of all queues of this device on this loop
	inDisk     int
	latency    Histograms // since the last swapLatencies
	waits      bool       // requests were left in the ring because there was no room
	waitsSince blk.Instant
}

// slot holds one request from Pop to Push.
type slot struct {
	req   blk.Request
	chain virtqueue.Chain
	reply blk.Reply
	queue *queue
	pin   *pin // the memory table that the request's segments are in
	segs  int  // counted in queue.segs

	keeper sched.Scheduler // the one that dispatched the request; nil: it is a direct one
}

// pin counts the requests that use a memory table. A table that was replaced is released
// with the last of them.
type pin struct {
	memory  *shm.Memory
	held    int
	current bool
}

func newPin(m *shm.Memory) *pin {
	m.Retain()
	return &pin{memory: m, current: true}
}

func (p *pin) settle() {
	if p != nil && !p.current && p.held == 0 {
		p.memory.Release()
	}
}

// retire makes p no longer the current table.
func (p *pin) retire() {
	if p != nil {
		p.current = false
		p.settle()
	}
}

// on is the loop that q is on. Only that loop's goroutine calls it.
func (q *queue) on() *Loop { return q.loop.Load() }

// runs reports whether requests may be taken from q.
func (q *queue) runs() bool {
	return q.ring != nil && q.enabled && !q.broken && q.stopping == nil && !q.moving
}

// room reports whether q can hold another request.
func (q *queue) room() bool { return len(q.free) > 0 && q.segs < segsMax && !q.broken }

// hold counts a request that goes to the scheduler or the disk.
func (s *slot) hold() {
	q := s.queue
	q.owed++
	s.segs = len(s.chain.Segs)
	q.segs += s.segs
	s.pin = q.pinned
	s.pin.held++
}

// drop undoes hold, after the chain was returned.
func (s *slot) drop() {
	q := s.queue
	q.owed--
	q.segs -= s.segs
	s.pin.held--
	s.pin.settle()
	s.pin = nil
}

// answered writes the status byte and returns the chain. The length that is returned ends
// at the first gap in what was written.
func (q *queue) answered(s *slot) {
	*s.reply.Status = byte(s.req.Status)
	written := s.reply.Written
	if written == s.reply.DataLen {
		written++
	}
	q.push(s, written)
}

// retire returns a chain that is not valid. If only an address was wrong and the status
// byte is known, the guest learns that its request failed.
func (q *queue) retire(s *slot) {
	if tail := s.chain.Tail; len(tail) > 0 {
		tail[len(tail)-1] = byte(blk.StatusIOErr)
	}
	q.push(s, 0)
}

func (q *queue) push(s *slot, written uint32) {
	q.ring.Push(s.chain.ID, written)
	q.dirty = true
	if cap(s.chain.Segs) > segsKept {
		s.chain.Segs = nil
	}
	q.free = append(q.free, s)
}

// broke ends the use of q's ring, which is the guest's fault. One line is logged and the
// front-end is told; what is on the disk is finished.
func (q *queue) broke(err error) {
	if q.broken {
		return
	}
	q.broken = true
	q.stats.Broken++
	q.log("queue stopped: its ring makes no sense", fmt.Errorf("%s: %w", q.name, err))
	q.on().notify(q.errs)
}

// vanished ends the use of a ring whose memory has vanished.
func (q *queue) vanished() {
	if q.ring != nil {
		q.broke(q.ring.Break("guest memory is no longer there"))
	}
}

// count counts a finished request. A group counts as one I/O, at the queue of its head,
// from the arrival of its oldest request.
func (q *queue) count(r *blk.Request, now, since blk.Instant, absorbed bool) {
	o := &q.stats.Op[r.Op]
	if absorbed {
		o.Merges++
	} else {
		o.IOs++
		o.Time += uint64(now - since)
	}
	record(q.latency[Queued], r.Issue-r.Arrive)
	record(q.latency[InDisk], now-r.Issue)
	if r.Status != blk.StatusOK {
		o.Errors++
		return
	}
	o.Sectors += uint64(r.Sectors)
}

// snapshot copies what q has counted, except for the latencies.
func (q *queue) snapshot(now blk.Instant) Stats {
	s := q.stats
	s.InFlight, s.Held, s.IOTime = q.inDisk, q.meter.held, uint64(q.meter.total(now))
	return s
}

// swapLatencies returns the histograms filled since the last swap and continues with empty
// ones. Copying them would take longer than many requests.
func (q *queue) swapLatencies(empty Histograms) Histograms {
	full := q.latency
	q.latency = empty
	return full
}

// start runs on q's loop. It takes over p.Kick, also on an error.
func (q *queue) start(p virtqueue.Params, record *shm.Mapping, limits blk.Limits, through bool) error {
	if q.ring != nil {
		p.Kick.Close()
		return fmt.Errorf("%s runs already", q.name)
	}
	var ring *virtqueue.Split
	err := fmt.Errorf("%s: guest memory is no longer there", q.name)
	shm.Guard(func() { ring, err = virtqueue.NewSplit(p) })
	if err != nil {
		p.Kick.Close()
		return fmt.Errorf("start %s: %w", q.name, err)
	}
	q.ring, q.limits, q.through, q.broken = ring, limits, through, false
	q.record = record
	if record != nil {
		record.Retain()
	}
	q.pinned = newPin(p.Memory)
	q.makeSlots(min(p.Size, slotsMax))
	q.setKick(p.Kick)
	q.hot = true // a kick may have come before this
	return nil
}

func (q *queue) makeSlots(n int) {
	ranges := max(q.limits.MaxDiscardSeg, q.limits.MaxZeroesSeg, 1)
	pool := make([]blk.Range, n*ranges)
	q.slots, q.free = make([]slot, n), make([]*slot, 0, n)
	for i := range q.slots {
		s := &q.slots[i]
		s.queue, s.req.Slot = q, s
		s.req.Ranges = pool[i*ranges : i*ranges : (i+1)*ranges]
		s.chain.Segs = make([][]byte, 0, 8)
		q.free = append(q.free, s)
	}
}

// setKick replaces the kick descriptor.
func (q *queue) setKick(k *eventfd.FD) {
	if q.kick != nil {
		if q.watch != nil { // nil: q is moving to another loop
			q.on().unwatch(q.watch, nil)
		}
		q.kick.Close()
	}
	q.kick, q.watch = k, nil
	if k != nil {
		q.watch = q.on().watch(k.Raw(), &q.kicked)
		q.hot = true
	}
}

// setMemory moves q to another memory table; nil only for a stopped queue.
func (q *queue) setMemory(m *shm.Memory) {
	if q.ring == nil {
		return
	}
	if m == nil {
		q.broke(q.ring.Break("memory table withdrawn"))
		return
	}
	if err := q.ring.SetMemory(m); err != nil {
		q.broke(err) // the ring has not moved, and its memory stays pinned until it stops
		return
	}
	q.pinned.retire()
	q.pinned = newPin(m)
	q.hot = true
}

// stop takes nothing more from q, submits what is queued past the scheduler, and calls done
// when the last request is finished.
func (l *Loop) stop(q *queue, done func(base uint32)) {
	switch {
	case q.ring == nil:
		done(q.base)
		return
	case q.stopping != nil:
		prior := q.stopping
		q.stopping = func(base uint32) { prior(base); done(base) }
		return
	}
	q.setKick(nil)
	q.stopping = done
	for _, r := range l.sched.Drain(blk.Source{Device: q.source.Device, Queue: q.source.Queue}, nil) {
		l.disks[r.Disk.Index].direct.PushBack(r)
	}
	if q.owed == 0 {
		l.stopped(q)
	}
}

// stopped completes stop: it releases the ring and its memory.
func (l *Loop) stopped(q *queue) {
	if q.dirty {
		l.publish()
	}
	q.base = q.ring.Base()
	q.ring, q.slots, q.free, q.segs = nil, nil, nil, 0
	q.hot, q.dirty, q.waits = false, false, false // what is still in the ring waits for the next start
	q.pinned.retire()
	q.pinned = nil
	if q.record != nil {
		q.record.Release()
		q.record = nil
	}
	done := q.stopping
	q.stopping = nil
	done(q.base)
}

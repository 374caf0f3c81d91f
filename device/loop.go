// Package device is the data path: it takes requests from virtqueues, sends them through
// a scheduler to disks, and returns them.
//
// A [Loop] is a scheduling domain, or one worker of it: one scheduler, the images on one
// physical disk, and the queues of the guests that use them. Everything that is reachable
// from a Loop belongs to its goroutine; everyone else calls Do. A [Device] is one guest's
// disk as the vhost-user session sees it; its queues run on one loop or are spread over
// several. A [Single] is both, for a disk that shares with no other.
package device

import (
	"github.com/elevisor/elevisor/backend"
	"github.com/elevisor/elevisor/blk"
	"github.com/elevisor/elevisor/sched"
	"github.com/elevisor/elevisor/sys/shm"
)

const (
	// takeMax bounds the requests that one queue brings in per round, so that a busy
	// guest does not hold up the others.
	takeMax = 256
	// roundsMax bounds a step: a guest that is as fast as the loop must not keep it from
	// its mailbox.
	roundsMax = 16
	// directMax is how many requests that go past the scheduler a disk has at a time, in
	// addition to the loop's depth. If a guest floods it with flushes, they wait.
	directMax = 64
)

// Loop is the data path of a scheduling domain, or of one worker of it. Step is all it
// does. A goroutine that Start makes calls it in real time, lab/virtual in virtual time.
type Loop struct {
	sched  sched.Scheduler
	config *sched.Config // its own, also if the domain has several loops
	disks  []*disk
	queues []*queue

	depth    int // most requests on the disks, apart from direct ones
	depthMax int // what the backends were made for
	inflight int // requests on the disks now, apart from direct ones
	done     []*blk.Request
	seq      uint64
	now      blk.Instant // of the last step
	exact    blk.Instant // with a simulated drive: when the next step is due; else Never
	meter    meter

	live
}

// disk is this loop's access to one image.
type disk struct {
	backend.Backend
	direct  blk.List // waiting; they go past the scheduler and the depth: flushes, and what a stopping queue had queued
	directs int      // direct ones in flight
	held    blk.List // dispatched and counted in inflight, but the backend was full

	simulated backend.Simulated // in the Backend's stack of decorators; nil: there is none
	recorder  backend.Recorder  // the same
}

// NewLoop makes a loop that keeps at most depth requests on its disks. It takes over c,
// the configuration that s was made with.
func NewLoop(s sched.Scheduler, c *sched.Config, depth int) *Loop {
	return &Loop{
		sched: s, config: c, depth: depth, depthMax: max(depth, DepthMax),
		done: make([]*blk.Request, 0, DepthMax+directMax),
	}
}

// Attach makes img the loop's next image and returns its index, for
// blk.Disk.Index. Called on the loop's goroutine, or before it starts.
func (l *Loop) Attach(img backend.Image, h backend.Host) (int, error) {
	h.Depth = l.depthMax + directMax
	b, err := img.Attach(h)
	if err != nil {
		return 0, err
	}
	d := &disk{Backend: b}
	d.simulated, _ = backend.As[backend.Simulated](b)
	d.recorder, _ = backend.As[backend.Recorder](b)
	l.disks = append(l.disks, d)
	return len(l.disks) - 1, nil
}

// Step does all that can be done at the instant now and returns when it wants to be called
// again at the latest: now, if there is more to do at once. It does not block, reads no
// clock and does a bounded amount of work.
//
// A request passes through: intake (take, accept), dispatch (submit), reap (complete,
// finish), publish.
func (l *Loop) Step(now blk.Instant) blk.Instant {
	l.now = now
	busy := true
	for round := 0; busy && round < roundsMax; round++ {
		reaped := l.reap(now) // first, to make room and to let guests continue
		l.publish()
		taken := l.intake(now)
		issued := l.dispatch(now)
		busy = reaped+taken+issued > 0
	}
	l.commit()
	if l.arm() || busy {
		return now
	}
	return l.wake()
}

// wake is when the scheduler or a disk has something to do by time alone.
func (l *Loop) wake() blk.Instant {
	wake := l.sched.Wake()
	if l.inflight >= l.depth {
		wake = blk.Never // whatever it would dispatch then, there is no room
	}
	l.exact = blk.Never
	for _, d := range l.disks {
		wake = min(wake, d.Wake())
	}
	if l.simulates() { // the time that a scheduler waits is a part of the model's
		l.exact = wake
	}
	return wake
}

// simulates reports whether one of the disks is a simulated drive.
func (l *Loop) simulates() bool {
	for _, d := range l.disks {
		if d.simulated != nil {
			return true
		}
	}
	return false
}

// intake takes what guests have made available, from all queues that were kicked or had
// requests a moment ago.
func (l *Loop) intake(now blk.Instant) (n int) {
	for _, q := range l.queues {
		if q.kicked {
			q.kicked, q.hot = false, true
		}
		if q.hot && q.runs() {
			n += l.take(q, now)
		}
	}
	return n
}

// take pops chains from q until there are none, or no room for another.
func (l *Loop) take(q *queue, now blk.Instant) (n int) {
	ok := shm.Guard(func() {
		for n < takeMax && q.room() {
			s := q.free[len(q.free)-1]
			got, err := q.ring.Pop(&s.chain)
			if err != nil {
				q.broke(err)
			}
			if !got {
				q.waits = false
				return
			}
			n++
			if q.waits {
				record(q.latency[InRing], now-q.waitsSince)
			}
			q.free = q.free[:len(q.free)-1]
			l.accept(q, s, now)
		}
		if !q.waits {
			q.waits, q.waitsSince = true, now
		}
	})
	if !ok {
		q.vanished()
	}
	return n
}

// accept turns a chain into a request. Faults of the guest end here: in a status or, where
// there is no room for one, in a chain that is returned with length 0.
func (l *Loop) accept(q *queue, s *slot, now blk.Instant) {
	if s.chain.Fault != 0 {
		q.stats.Faults[s.chain.Fault]++
		q.retire(s)
		return
	}
	r := &s.req
	reply, verdict := blk.Parse(r, s.chain.Readable(), s.chain.Writable(), &q.limits)
	s.reply, r.Arrive = reply, now
	switch verdict {
	case blk.Retire:
		q.retire(s)
		return
	case blk.Answer:
		q.answered(s)
		return
	}
	r.Source, r.Disk, r.Prio = q.source, q.disk, q.prio
	r.Pos = q.disk.Base + r.Sector
	r.Merged = nil
	s.hold()
	q.meter.enter(now)
	q.lane.enter(now)
	l.meter.enter(now)
	r.Move(blk.StateFree, blk.StateQueued)
	r.Seq = l.seq
	l.seq++
	if r.Op == blk.OpFlush {
		l.disks[r.Disk.Index].direct.PushBack(r)
		return
	}
	if q.through && r.Op.Changes() {
		r.Flags |= blk.FlagFUA
	}
	l.sched.Insert(now, r)
}

// dispatch submits what goes past the scheduler, and then what the scheduler chooses, while
// there is room.
func (l *Loop) dispatch(now blk.Instant) (n int) {
	for _, d := range l.disks {
		for d.direct.Len() > 0 && d.directs < directMax {
			if !l.submit(now, d, d.direct.PopFront(), nil) {
				break
			}
			d.directs++
			n++
		}
		for d.held.Len() > 0 && l.submit(now, d, d.held.PopFront(), l.sched) {
			n++
		}
	}
	for l.inflight < l.depth {
		r := l.sched.Dispatch(now)
		if r == nil {
			break
		}
		l.inflight++
		n++
		d := l.disks[r.Disk.Index]
		if d.held.Len() > 0 {
			r.Slot.(*slot).keeper = l.sched
			d.held.PushBack(r)
			continue
		}
		l.submit(now, d, r, l.sched)
	}
	return n
}

// submit gives r, which is on no list, to its disk. keeper is the scheduler that dispatched
// it, nil for a direct request. If the disk is full, it goes to the front of the list where
// it waits.
func (l *Loop) submit(now blk.Instant, d *disk, r *blk.Request, keeper sched.Scheduler) bool {
	s := r.Slot.(*slot)
	if s.keeper == nil { // otherwise it was held, and there may have been a switch since
		s.keeper = keeper
	}
	r.Issue = now
	if d.Submit(now, r) {
		s.queue.inDisk++
		return true
	}
	if keeper == nil {
		d.direct.PushFront(r)
	} else {
		d.held.PushFront(r)
	}
	return false
}

// reap takes back the requests that the disks have finished.
func (l *Loop) reap(now blk.Instant) (n int) {
	for _, d := range l.disks {
		l.done = d.Reap(now, l.done[:0])
		n += len(l.done)
		for _, r := range l.done {
			l.complete(now, d, r)
		}
	}
	return n
}

// complete ends an issued head and all parts of its group. A group that failed is split
// and its parts are retried alone, so that a bad sector of one guest does not fail another
// guest's request.
func (l *Loop) complete(now blk.Instant, d *disk, head *blk.Request) {
	s := head.Slot.(*slot)
	s.queue.inDisk--
	if s.keeper != nil { // which may not be the present scheduler
		l.inflight--
		s.keeper.Complete(now, head)
		s.keeper = nil
	} else {
		d.directs--
	}
	if head.Status != blk.StatusOK && head.Merged != nil {
		l.takeApart(now, d, head)
		return
	}
	since := oldest(head)
	for r := head; r != nil; {
		next := r.Merged
		r.Merged, r.Issue = nil, head.Issue
		if r != head {
			r.Status, r.Errno = head.Status, head.Errno
			r.Move(blk.StateQueued, blk.StateDone)
		}
		l.finish(now, r, since, r != head)
		r = next
	}
}

// oldest is the arrival of the oldest request of a group: the kernel, too, counts a merged
// request's time from then on (start_time_ns, block/blk-merge.c).
func oldest(head *blk.Request) blk.Instant {
	at := head.Arrive
	for r := head.Merged; r != nil; r = r.Merged {
		at = min(at, r.Arrive)
	}
	return at
}

// takeApart has the parts of a failed group retried alone, in their order. Those of a queue
// that is being stopped go past the scheduler.
func (l *Loop) takeApart(now blk.Instant, d *disk, head *blk.Request) {
	head.Move(blk.StateDone, blk.StateQueued)
	var last *blk.Request // the last one that went to the front of direct
	for r := head; r != nil; {
		next := r.Merged
		r.Merged = nil
		if r.Slot.(*slot).queue.stopping != nil {
			d.direct.InsertAfter(r, last)
			last = r
		} else {
			l.sched.Retry(now, r)
		}
		r = next
	}
}

// finish writes the status byte and returns the chain; the slot is free again. since is the
// arrival of the oldest request of r's group.
func (l *Loop) finish(now blk.Instant, r *blk.Request, since blk.Instant, absorbed bool) {
	s := r.Slot.(*slot)
	q := s.queue
	q.count(r, now, since, absorbed)
	q.meter.leave(now)
	q.lane.leave(now)
	l.meter.leave(now)
	s.reply.Written = 0
	if r.Op == blk.OpRead && r.Status == blk.StatusOK {
		s.reply.Written = s.reply.DataLen
	}
	r.Move(blk.StateDone, blk.StateFree)
	if q.ring != nil && !shm.Guard(func() { q.answered(s) }) {
		q.vanished()
	}
	s.drop()
	if q.stopping != nil && q.owed == 0 {
		l.stopped(q)
	}
}

// publish makes the returned chains visible to their guests, with one store of the index
// and at most one call per queue.
func (l *Loop) publish() {
	for _, q := range l.queues {
		if !q.dirty {
			continue
		}
		q.dirty = false
		notify := false
		if !shm.Guard(func() { notify = q.ring.Publish() }) {
			q.vanished()
		}
		if notify && q.call != nil {
			l.notify(q.call)
			q.stats.Calls++
		}
	}
}

// commit hands over the step's submissions. A disk that can no longer take them has lost
// its engine: nothing that it holds will come back.
func (l *Loop) commit() {
	for _, d := range l.disks {
		if err := d.Commit(); err != nil && l.lost == nil {
			l.lost = err
		}
	}
}

// arm enables kicks for all queues that have gone quiet, and then checks them once more. It
// reports whether one of them has something all the same.
func (l *Loop) arm() (pending bool) {
	l.publish()
	for _, q := range l.queues {
		if !q.hot || !q.runs() || !q.room() { // without room it stays hot until something finishes
			continue
		}
		more := false
		if !shm.Guard(func() { more = q.ring.EnableKicks() }) {
			q.vanished()
		}
		q.hot = more
		pending = pending || more
	}
	return pending
}

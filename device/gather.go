package device

import (
	"errors"
	"fmt"
	"slices"
)

// Requests of queues on different loops do not meet. Before a domain gets a scheduler in
// which they have to (sched.Kind.Meets), its queues are gathered on one loop.

// add puts q on l. Any goroutine.
func (l *Loop) add(q *queue) error {
	var full bool
	err := l.Do(func() {
		if full = len(l.queues) == queuesMax; full {
			return
		}
		q.loop.Store(l)
		l.queues = append(l.queues, q)
	})
	if full {
		return fmt.Errorf("a loop drives at most %d queues", queuesMax)
	}
	return err
}

// Gather moves all queues to the first of the device's loops, under load, one by one: its
// loop takes nothing more from the ring and finishes what it has taken, and the other loop
// continues where the ring stands. wait is called between two attempts and returns false
// once it has taken too long. On that or another error some queues have moved, and all of
// them continue. One goroutine at a time calls Gather; sessions may call everything else
// meanwhile.
func (d *Device) Gather(wait func() bool) error {
	for _, q := range d.queues {
		if q.loop.Load() == d.o.Loops[0] {
			continue
		}
		if err := d.move(q, d.o.Loops[0], wait); err != nil {
			return fmt.Errorf("move %s: %w", q.name, err)
		}
	}
	return nil
}

func (d *Device) move(q *queue, to *Loop, wait func() bool) error {
	from := q.loop.Load()
	room := false
	if err := to.Do(func() { room = len(to.queues) < queuesMax }); err != nil {
		return err
	}
	if !room {
		return fmt.Errorf("a loop drives at most %d queues", queuesMax)
	}
	for left, late := false, false; !left; late = !left && !wait() {
		if err := from.Do(func() { left = from.giveUp(q, to, late) }); err != nil {
			return err
		}
		if late && !left {
			return errors.New("its requests in flight take too long to end")
		}
	}
	return to.Do(func() {
		q.lane = &d.lanes[slices.Index(d.o.Loops, to)]
		to.queues = append(to.queues, q)
		q.serveOn(to)
	})
}

// giveUp takes q off l if nothing of it is in flight and its kick is no longer read here,
// where it would be lost to the other loop. Otherwise it makes this come true soon or, if
// it is too late for that, lets q continue here.
func (l *Loop) giveUp(q *queue, to *Loop, late bool) (left bool) {
	q.moving = true
	if q.kick != nil && q.watch != nil {
		q.unwatched = false
		l.unwatch(q.watch, func() { q.unwatched = true })
		q.watch = nil
	}
	for _, r := range l.sched.Drain(q.source, nil) {
		l.disks[r.Disk.Index].direct.PushBack(r)
	}
	if q.owed == 0 && (q.kick == nil || q.unwatched) {
		l.publish()
		l.queues = slices.DeleteFunc(l.queues, func(x *queue) bool { return x == q })
		q.loop.Store(to)
		return true
	}
	if late {
		q.serveOn(l)
	}
	return false
}

// serveOn makes l, on whose goroutine it runs, serve q.
func (q *queue) serveOn(l *Loop) {
	q.moving, q.hot = false, true
	if q.kick != nil && q.watch == nil {
		q.watch = l.watch(q.kick.Raw(), &q.kicked)
	}
}

package device

import (
	"errors"
	"fmt"
	"slices"
)

// Requests of queues on different loops never meet, which only the scheduler none
// does not mind. Before another one takes over, the queues are gathered on one loop.

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

// Gather moves all queues to the first of the device's loops, under load. For each
// in turn: nothing more is taken, what was taken is waited for, and the other loop
// goes on where the ring stands. wait is called between two looks and is false when
// it has been too long; with that or another error, some queues have moved and all
// go on. One goroutine at a time calls it; sessions may call all else meanwhile.
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
		q.goOn(to)
	})
}

// giveUp takes q off l if nothing of it is in flight and nobody here reads its kick any
// more, which would be lost to the other loop. Else it sees to it that soon this is
// so; or, when it is too late for that, that q goes on here.
func (l *Loop) giveUp(q *queue, to *Loop, late bool) (left bool) {
	q.moving = true
	if q.kick != nil && q.watch != nil {
		q.deaf = false
		l.unwatch(q.watch, func() { q.deaf = true })
		q.watch = nil
	}
	for _, r := range l.sched.Drain(q.source, nil) {
		l.disks[r.Disk.Index].direct.PushBack(r)
	}
	if q.owed == 0 && (q.kick == nil || q.deaf) {
		l.publish()
		l.queues = slices.DeleteFunc(l.queues, func(x *queue) bool { return x == q })
		q.loop.Store(to)
		return true
	}
	if late {
		q.goOn(l)
	}
	return false
}

// goOn has q served by l, on whose goroutine it runs.
func (q *queue) goOn(l *Loop) {
	q.moving, q.hot = false, true
	if q.kick != nil && q.watch == nil {
		q.watch = l.watch(q.kick.Raw(), &q.kicked)
	}
}

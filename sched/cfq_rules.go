package sched

import "github.com/elevisor/elevisor/blk"

// choose returns the queue to serve now; nil: nothing is queued, or the disk is kept idle
// for the active queue (cfq_select_queue).
func (c *CFQ) choose(now blk.Instant) *cfqQueue {
	if c.leaders == 0 {
		return nil
	}
	if q := c.active; q != nil {
		if !c.used(now) || c.slice.must {
			if q.next != nil {
				return q
			}
			if o := c.cooperator(q); o != nil {
				c.handOn(now, o)
				return o
			}
			if c.slice.idling {
				return nil
			}
			c.giveUpIdling(now, q)
			if q.inflight > 0 && c.worthIdling(q) {
				return nil
			}
		}
		c.expire(now, false)
	}
	return c.enter(now)
}

// giveUpIdling notes that a seeky queue has run empty in the first half of its slice, deep as it
// was: it is no longer worth idling for.
func (c *CFQ) giveUpIdling(now blk.Instant, q *cfqQueue) {
	if q.seeky() && q.idles && (c.slice.fresh || c.slice.end-now > now-c.slice.start) {
		q.deep, q.idles = false, false
	}
}

// worthIdling reports whether the disk should be kept idle for q's next request: because
// it is expected soon and near; or because q is the last busy queue of its kind, whose
// time would go to others (cfq_should_idle).
func (c *CFQ) worthIdling(q *cfqQueue) bool {
	idle := c.ms(sliceIdle)
	if idle == 0 || q.class == levelIdle {
		return false
	}
	if q.idles && q.sync && c.cfg.Rotational {
		return true
	}
	return q.sync && q.tree != nil && q.tree.n == 1 && !(q.tree.think.known() && q.tree.think.mean > idle)
}

// idle keeps the disk idle for the active queue's next request, if that is worth it.
func (c *CFQ) idle(now blk.Instant, q *cfqQueue) {
	if !c.cfg.Rotational || q.inflight > 0 || !c.worthIdling(q) {
		return
	}
	if q.think.known() && c.slice.end-now < q.think.mean {
		return
	}
	c.slice.idling, c.slice.idleSince = true, now
	c.counts.Idled++
}

// tick does what the idle timer would have done if it had fired by now: no request has
// come. It also fires if the clock was set back.
func (c *CFQ) tick(now blk.Instant) {
	if s := &c.slice; !s.idling || now >= s.idleSince && now < s.idleSince+c.ms(sliceIdle) {
		return
	}
	c.slice.idling = false
	c.active.deep = false
	c.expire(now, false)
}

// may reports whether the active queue q may have one more request on the disk
// (cfq_may_dispatch).
func (c *CFQ) may(q *cfqQueue, now blk.Instant) bool {
	if c.inflight[0] > 0 && c.worthIdling(q) || c.inflight[1] > 0 && !q.sync {
		return false
	}
	quantum := int(c.knobs[quantum].value)
	most := max(quantum/2, 1)
	if q.class == levelIdle {
		return q.inflight == 0
	}
	if q.inflight >= most {
		alone := c.busy == 1 || q.sync && c.busySync == 1
		soon := c.slice.fresh || now+c.ms(sliceIdle)*blk.Instant(q.inflight) > c.slice.end
		switch {
		case alone:
			most = maxInt
		case soon:
			return false
		default:
			most = quantum
		}
	}
	if !q.sync && c.knobs[lowLatency].value != 0 {
		depth := int(min(max(0, now-c.delayed)/c.ms(sliceSync), maxInt))
		if q.inflight == 0 {
			depth = max(depth, 1)
		}
		most = min(most, depth)
	}
	return q.inflight < most
}

// challenge is called when r has been added to q, which is not active. It preempts the
// active queue if q goes first, ends its slice if that is not worth waiting for, or hands
// it on if q works close to it (cfq_should_preempt, cfq_preempt_queue).
func (c *CFQ) challenge(now blk.Instant, q *cfqQueue, r *blk.Request) {
	a := c.active
	if a == nil || q.class == levelIdle {
		return
	}
	used := c.used(now)
	switch {
	case a.class == levelIdle, q.class < a.class, q.class == a.class && q.sync && !a.sync && !c.slice.must:
		c.preempt(now, q)
	case q.class > a.class:
	case used, a.next == nil && (c.noIdle(a, q) || !c.worthIdling(a)):
		c.expire(now, used)
	case c.slice.idling && q.sync && c.close(r.Disk, placeKey(r.Disk, r.Sector)):
		c.handOn(now, q)
	}
}

// noIdle reports whether the disk would be kept idle not for one flow but for the queues
// of a kind, and q is one of these.
func (c *CFQ) noIdle(a, q *cfqQueue) bool {
	return c.kind == kindNoIdle && a.class == q.class && q.kind() == kindNoIdle
}

// preempt ends the slice for q, which goes first.
func (c *CFQ) preempt(now blk.Instant, q *cfqQueue) {
	c.counts.Preempted++
	if a := c.active; a.kind() != q.kind() {
		c.until = now - 1 // else the kind that is being served would go on
	}
	c.expire(now, true)
	c.placeFirst(q, now)
}

// handOn gives q, which is busy, the rest of the active queue's slice.
func (c *CFQ) handOn(now blk.Instant, q *cfqQueue) {
	was := c.active
	c.active = q
	c.slice.idling, c.slice.must = false, false
	c.resort(was, now)
}

// cooperator returns a queue whose next request is close to the head, while q, the active
// one, has none: the two work on the same part of the disk (cfq_close_cooperator).
func (c *CFQ) cooperator(q *cfqQueue) *cfqQueue {
	if c.busy == 1 || c.headOn == nil || !q.sync || q.class == levelIdle || q.seeky() {
		return nil
	}
	t := &c.near[q.class]
	next := t.from(c.headKey)
	if o := c.closeQueue(next, q); o != nil {
		return o
	}
	prev := (*blk.Request)(nil)
	if next == nil {
		prev = t.end(1)
	} else {
		prev = t.beside(next, 0)
	}
	return c.closeQueue(prev, q)
}

// closeQueue returns the queue at spot, if there is one other than q that works close to
// the head.
func (c *CFQ) closeQueue(spot *blk.Request, q *cfqQueue) *cfqQueue {
	o := queueAt(spot)
	if o == nil || o == q || o.seeky() || !c.close(o.next.Disk, spot.Links.Key) {
		return nil
	}
	return o
}

// close reports whether a position is close to the head.
func (c *CFQ) close(d *blk.Disk, key blk.Sector) bool {
	return d == c.headOn && distance(key, c.headKey) <= closeBy
}

package sched

import (
	"fmt"
	"io"

	"github.com/elevisor/elevisor/blk"
)

// The indexes of the knobs.
const (
	quantum = iota
	fifoExpireSync
	fifoExpireAsync
	backSeekMax
	backSeekPenalty
	sliceSync
	sliceAsync
	sliceAsyncRq
	sliceIdle
	lowLatency
	targetLatency
	cfqSource
	cfqWrites
)

// cfqKnobs are the kernel's, and two of ours. slice_idle is 0 on disks that are not
// rotational.
func cfqKnobs(rotational bool) knobs {
	ks := knobs{
		quantum:         {name: "quantum", low: 1, high: maxInt, value: 8},
		fifoExpireSync:  {name: "fifo_expire_sync", unit: "ms", low: 1, high: maxInt, value: 125},
		fifoExpireAsync: {name: "fifo_expire_async", unit: "ms", low: 1, high: maxInt, value: 250},
		backSeekMax:     {name: "back_seek_max", unit: "KiB", high: maxInt, value: 16384},
		backSeekPenalty: {name: "back_seek_penalty", low: 1, high: maxInt, value: 2},
		sliceSync:       {name: "slice_sync", unit: "ms", low: 1, high: maxInt, value: 100},
		sliceAsync:      {name: "slice_async", unit: "ms", low: 1, high: maxInt, value: 40},
		sliceAsyncRq:    {name: "slice_async_rq", low: 1, high: maxInt, value: 2},
		sliceIdle:       {name: "slice_idle", unit: "ms", high: maxInt, value: 0},
		lowLatency:      {name: "low_latency", high: 1, value: 1},
		targetLatency:   {name: "target_latency", unit: "ms", low: 1, high: maxInt, value: 300},
		cfqSource:       {name: "source", words: flowByNames},
		cfqWrites:       {name: "writes", words: writesNames},
	}
	if rotational {
		ks[sliceIdle].value = 8
	}
	return ks
}

func (c *CFQ) backSeek() backSeek {
	return backSeek{most: blk.Sector(c.knobs[backSeekMax].value) * 2, penalty: blk.Sector(c.knobs[backSeekPenalty].value)}
}

func (c *CFQ) expiry(sync bool) blk.Instant {
	if sync {
		return c.ms(fifoExpireSync)
	}
	return c.ms(fifoExpireAsync)
}

// Set implements Tunable. A slice in progress keeps its length. When source or writes
// changes, what is queued is queued anew, in the order of arrival.
func (c *CFQ) Set(key, value string) error {
	source, writes := c.knobs[cfqSource].value, c.knobs[cfqWrites].value
	if _, err := c.knobs.set("cfq", key, value); err != nil {
		return err
	}
	if c.knobs[cfqSource].value == source && c.knobs[cfqWrites].value == writes {
		return nil
	}
	queued := c.drainQueues(blk.AllSources, nil)
	bySeq(queued)
	if c.active != nil {
		c.expire(c.last, false)
	}
	c.flows.by = flowBy(c.knobs[cfqSource].value)
	c.merger.within = mergeWithinFlow[c.flows.by]
	for _, r := range queued {
		c.Insert(c.last, r)
	}
	return nil
}

// Drain implements Scheduler.
func (c *CFQ) Drain(src blk.Source, out []*blk.Request) []*blk.Request {
	n := len(out)
	out = takeOut(&c.retry, src, out, nil, nil)
	c.queued -= len(out) - n
	out = c.drainQueues(src, out)
	for _, r := range out[n:] {
		r.Source.Stream = 0
	}
	bySeq(out[n:])
	return out
}

// drainQueues removes what src covers from the queues. The active queue gives up its slice
// if it is empty then.
func (c *CFQ) drainQueues(src blk.Source, out []*blk.Request) []*blk.Request {
	n := len(out)
	for _, q := range c.queues {
		if q == nil || q.next == nil {
			continue
		}
		old := len(out)
		if out = c.drainQueue(q, src, out); len(out) == old {
			continue
		}
		q.next = c.backSeek().anew(&q.sorted, c.head)
		c.settle(q)
		switch {
		case q.next != nil:
		case q == c.active:
			c.expire(c.last, false)
		default:
			c.leaveTree(q)
		}
	}
	c.queued -= len(out) - n
	return out
}

func (c *CFQ) drainQueue(q *cfqQueue, src blk.Source, out []*blk.Request) []*blk.Request {
	return takeOut(&q.fifo, src, out, func(g *blk.Request) {
		q.sorted.remove(g)
		c.leaders--
		c.merger.forget(g)
	}, func(r *blk.Request) {
		q.sorted.insert(r)
		c.leaders++
		c.merger.add(r)
	})
}

// Tunables implements Tunable.
func (c *CFQ) Tunables() []Info { return c.knobs.infos() }

// Counters implements Tunable.
func (c *CFQ) Counters(n *Counters) {
	n.Slices += c.counts.Slices
	n.EarlyEnds += c.counts.EarlyEnds
	n.Expired += c.counts.Expired
	n.Idled += c.counts.Idled
	n.Preempted += c.counts.Preempted
	n.LongestWait = max(n.LongestWait, c.counts.LongestWait)
}

// Describe implements Scheduler.
func (c *CFQ) Describe(w io.Writer) {
	fmt.Fprintf(w, "cfq: by %s, writes %s: %d queued, %d queues busy\n",
		c.knobs[cfqSource].text(), c.knobs[cfqWrites].text(), c.queued, c.busy)
	if c.retry.Len() > 0 {
		fmt.Fprintf(w, "  to retry: %d\n", c.retry.Len())
	}
	if q := c.active; q != nil {
		fmt.Fprintf(w, "  active %s: %d served, ", q, c.slice.served)
		if c.slice.fresh {
			fmt.Fprint(w, "slice not begun")
		} else {
			fmt.Fprintf(w, "%d us left", max(0, c.slice.end-c.last)/microsecond)
		}
		if c.slice.idling {
			fmt.Fprint(w, ", the disk kept idle")
		}
		fmt.Fprintln(w)
	}
	for _, q := range c.queues {
		if q == nil || q.next == nil && q.inflight == 0 {
			continue
		}
		fmt.Fprintf(w, "  %s: %d queued, %d on the disk, %s\n", q, q.fifo.Len(), q.inflight, q.describe())
	}
}

// describe says what is known of the flow.
func (q *cfqQueue) describe() string {
	s := cfqKindNames[q.kind()]
	if q.seeky() {
		s += ", seeky"
	}
	if q.think.known() {
		s += fmt.Sprintf(", thinks %d us", q.think.mean/microsecond)
	}
	return s
}

// String is for Describe.
func (q *cfqQueue) String() string {
	if !q.sync {
		return "async " + levelNames[q.class]
	}
	return fmt.Sprintf("flow %d %s", q.index/levelCount-1, levelNames[q.class])
}

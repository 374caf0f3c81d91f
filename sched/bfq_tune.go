package sched

import (
	"fmt"
	"io"

	"github.com/elevisor/elevisor/blk"
)

// bfqTune are the knobs' values in the units of the code.
type bfqTune struct {
	sliceIdle, timeout blk.Instant
	maxBudget          int64 // sectors; 0: from the disk's rate
	lowLatency, strict bool
	fifoExpire         [2]blk.Instant // asynchronous, synchronous
	back               backSeek
	raiseTo            int64
	raiseTime          blk.Instant // 0: from the disk's rate
	raiseService       int64       // sectors; 0: no limit
	asyncWrites        bool
}

// The indexes of the knobs.
const (
	bfqSliceIdle = iota
	bfqSliceIdleUS
	bfqTimeoutSync
	bfqMaxBudget
	bfqLowLatency
	bfqStrict
	bfqExpireSync
	bfqExpireAsync
	bfqBackMax
	bfqBackPenalty
	bfqRaiseCoeff
	bfqRaiseTime
	bfqRaiseService
	bfqSource
	bfqWrites
)

// bfqStrictIdle is the least slice_idle that setting strict_guarantees leaves, in ms.
const bfqStrictIdle = 8

func bfqKnobs() knobs {
	const idle = 8
	return knobs{
		bfqSliceIdle:    {name: "slice_idle", unit: "ms", base: 10, high: (1<<32 - 1) / 1000, value: idle},
		bfqSliceIdleUS:  {name: "slice_idle_us", unit: "us", base: 10, high: 1<<32 - 1, value: idle * 1000},
		bfqTimeoutSync:  {name: "timeout_sync", unit: "ms", base: 10, low: 1, high: maxInt, value: 125},
		bfqMaxBudget:    {name: "max_budget", unit: "sectors", base: 10, high: maxInt},
		bfqLowLatency:   {name: "low_latency", base: 10, high: 1, value: 1},
		bfqStrict:       {name: "strict_guarantees", base: 10, high: 1},
		bfqExpireSync:   {name: "fifo_expire_sync", unit: "ms", base: 10, low: 1, high: maxInt, value: 125},
		bfqExpireAsync:  {name: "fifo_expire_async", unit: "ms", base: 10, low: 1, high: maxInt, value: 250},
		bfqBackMax:      {name: "back_seek_max", unit: "KiB", base: 10, high: maxInt, value: 16384},
		bfqBackPenalty:  {name: "back_seek_penalty", base: 10, low: 1, high: maxInt, value: 2},
		bfqRaiseCoeff:   {name: "wr_coeff", base: 10, low: 1, high: 1000, value: 30},
		bfqRaiseTime:    {name: "wr_max_time", unit: "ms", base: 10, high: maxInt},
		bfqRaiseService: {name: "wr_max_service", unit: "sectors", base: 10, high: maxInt, value: 120000},
		bfqSource:       {name: "source", words: flowByNames},
		bfqWrites:       {name: "writes", words: writesNames},
	}
}

// retune computes b.tune from the knobs.
func (b *BFQ) retune() {
	value := func(place int) int64 { return b.knobs[place].value }
	ms := func(place int) blk.Instant { return blk.Instant(value(place)) * millisecond }
	b.tune = bfqTune{
		sliceIdle:    blk.Instant(value(bfqSliceIdleUS)) * microsecond,
		timeout:      ms(bfqTimeoutSync),
		maxBudget:    value(bfqMaxBudget),
		lowLatency:   value(bfqLowLatency) == 1,
		strict:       value(bfqStrict) == 1,
		fifoExpire:   [2]blk.Instant{ms(bfqExpireAsync), ms(bfqExpireSync)},
		back:         backSeek{most: blk.Sector(2 * value(bfqBackMax)), penalty: blk.Sector(value(bfqBackPenalty))},
		raiseTo:      value(bfqRaiseCoeff),
		raiseTime:    ms(bfqRaiseTime),
		raiseService: value(bfqRaiseService),
		asyncWrites:  value(bfqWrites) == writesAsync,
	}
}

// Set implements Tunable. When source or writes changes, what is queued is queued anew, in
// the order of arrival.
func (b *BFQ) Set(key, value string) error {
	was := b.tune
	place, err := b.knobs.set("bfq", key, value)
	if err != nil {
		return err
	}
	idle, idleUS := &b.knobs[bfqSliceIdle].value, &b.knobs[bfqSliceIdleUS].value
	switch v := b.knobs[place].value; place {
	case bfqSliceIdle:
		*idleUS = *idle * 1000
	case bfqSliceIdleUS:
		*idle = *idleUS / 1000
	case bfqStrict:
		if v == 1 && !was.strict && *idle < bfqStrictIdle {
			*idle, *idleUS = bfqStrictIdle, bfqStrictIdle*1000
		}
	case bfqSource:
		if by := flowBy(v); by != b.flows.by {
			b.move(func() { b.flows.by, b.merger.within = by, mergeWithinFlow[by] })
		}
	case bfqWrites:
		if (v == writesAsync) != was.asyncWrites {
			b.move(func() { b.tune.asyncWrites = v == writesAsync })
		}
	}
	b.retune()
	switch place {
	case bfqMaxBudget, bfqTimeoutSync:
		b.setBudget()
	case bfqLowLatency:
		if was.lowLatency && !b.tune.lowLatency {
			for _, q := range b.queues {
				b.endRaise(q)
			}
		}
	}
	return nil
}

// move calls change, which changes the queues that requests belong to, and queues
// everything anew.
func (b *BFQ) move(change func()) {
	var queued []*blk.Request
	for _, q := range b.queues {
		if q.fifo.Len() > 0 {
			queued = b.takeOut(q, blk.AllSources, queued)
		}
	}
	bySeq(queued)
	b.n -= len(queued)
	if q := b.serving; q != nil {
		b.expire(q, bfqNoMore, false)
	}
	change()
	for _, r := range queued {
		b.Insert(b.now, r)
	}
}

// Tunables implements Tunable.
func (b *BFQ) Tunables() []Info { return b.knobs.infos() }

// Counters implements Tunable.
func (b *BFQ) Counters(c *Counters) {
	c.Expired += b.counts.Expired
	c.Slices += b.counts.Slices
	c.EarlyEnds += b.counts.EarlyEnds
	c.LongestWait = max(c.LongestWait, b.counts.LongestWait)
}

// Describe implements Scheduler.
func (b *BFQ) Describe(w io.Writer) {
	fmt.Fprintf(w, "bfq by %s: %d queued, %d on the disk; budget at most %d, %d of %d busy queues raised\n",
		b.knobs[bfqSource].text(), b.n, b.inDriver, b.budgetMax(), b.raised, b.busyQueues())
	if b.retry.Len() > 0 {
		fmt.Fprintf(w, "  to retry: %d\n", b.retry.Len())
	}
	for _, q := range b.queues {
		if q.busy || q.dispatched > 0 || q.raise.coeff > 1 {
			b.describeQueue(w, q)
		}
	}
}

func (b *BFQ) describeQueue(w io.Writer, q *bfqQueue) {
	fmt.Fprintf(w, "  %s: %s, %s, weight %d, %d queued, %d on the disk, budget %d of %d left",
		q, levelNames[q.class], bfqKindNames[q.raise.kind], q.weight, q.fifo.Len(), q.dispatched, q.budget-q.service, q.budget)
	for _, x := range []struct {
		is   bool
		name string
	}{
		{q == b.serving, "served"}, {q == b.serving && b.waiting, "waited for"}, {q.seeky(), "seeky"},
		{!q.ioBound, "not I/O-bound"}, {q.sync && q.class != levelIdle && !q.quick, "thinks"}, {q.raise.inBurst, "of a burst"},
	} {
		if x.is {
			fmt.Fprintf(w, ", %s", x.name)
		}
	}
	fmt.Fprintln(w)
}

// String is for Describe.
func (q *bfqQueue) String() string {
	switch {
	case !q.sync:
		return "async"
	case q.source.Queue == blk.AnyQueue:
		return fmt.Sprintf("%d (%d)", q.source.Device, q.place)
	}
	return fmt.Sprintf("%d/%d (%d)", q.source.Device, q.source.Queue, q.place)
}

package sched

import "github.com/elevisor/elevisor/blk"

// bfqRate is what is known of the disk: its peak rate, and whether it queues commands
// itself (NCQ).
type bfqRate struct {
	peak    uint64 // sectors/us << 16
	loading uint64 // the peak rate of a reference disk, times the ms in which it loads a large program
	budget  int64  // sectors: max_budget, or what the disk transfers at its peak in timeout_sync

	// The present interval.
	samples, sequential uint64
	sectors             uint64
	largest             blk.Sector // request of the last 32
	first               blk.Instant
	length              blk.Instant // from first to the last dispatch

	lastDispatch, lastCompletion blk.Instant
	lastPos                      blk.Sector // end of the last request that was dispatched

	ncq          bool // assumed at first
	ncqSure      bool
	deepest      int // most requests on the disk
	depthSamples int
}

const (
	bfqRateShift       = 16
	bfqRateSamplesMin  = 32
	bfqRateIntervalMin = 300 * millisecond
	bfqRateInterval    = 1000 * millisecond
	bfqRatePause       = 100 * millisecond // without a dispatch ends an interval
	bfqRateMost        = 20 << bfqRateShift

	bfqDepth        = 3 // a disk that had more requests at a time has NCQ
	bfqDepthSamples = 32
)

// init assumes two thirds of the reference disk's rate: 109 MB/s for a rotational one, which
// loads a large program in 7 s, and 258 MB/s for others, which take 2.5 s.
func (t *bfqRate) init(rotational bool) {
	rate, ms := uint64(33000), uint64(2500)
	if rotational {
		rate, ms = 14000, 7000
	}
	t.peak, t.loading, t.budget, t.ncq = rate*2/3, rate*ms, bfqBudget, true
}

// setBudget computes the largest budget.
func (b *BFQ) setBudget() {
	b.rate.budget = b.tune.maxBudget
	if b.tune.maxBudget == 0 {
		b.rate.budget = int64(b.rate.peak * 1000 * uint64(b.tune.timeout/millisecond) >> bfqRateShift)
	}
}

// dispatched takes a sample when g goes to the disk.
func (b *BFQ) dispatched(g *blk.Request) {
	t := &b.rate
	switch {
	case t.samples == 0:
		t.begin(b.now, g)
	case b.now-t.lastDispatch > bfqRatePause && b.inDriver == 0:
		b.rateOver()
		t.begin(b.now, g)
	default:
		b.sample(g)
	}
	t.lastPos = g.Links.Key + g.Links.Total
	t.lastDispatch = b.now
}

// begin starts an interval.
func (t *bfqRate) begin(now blk.Instant, g *blk.Request) {
	t.first, t.length = now, 0
	t.samples, t.sequential, t.sectors, t.largest = 1, 0, uint64(g.Links.Total), g.Links.Total
}

func (b *BFQ) sample(g *blk.Request) {
	t := &b.rate
	t.samples++
	if (b.inDriver > 0 || b.now-t.lastCompletion < bfqWaitMin) && !b.seek(t.lastPos, g.Links.Key, g.Links.Total) {
		t.sequential++
	}
	t.sectors += uint64(g.Links.Total)
	if t.samples%32 == 0 {
		t.largest = 0
	}
	t.largest = max(t.largest, g.Links.Total)
	t.length = b.now - t.first
	if t.length >= bfqRateInterval {
		b.rateOver()
		t.begin(b.now, g)
	}
}

// rateCompleted ends the interval if a completion came so late that the disk was surely not
// at its peak rate.
func (b *BFQ) rateCompleted() {
	t := &b.rate
	gap := b.now - t.lastCompletion
	if gap > bfqWaitMin && uint64(t.largest)<<bfqRateShift/uint64(gap/microsecond) < 1<<(bfqRateShift-10) {
		b.rateOver()
		t.samples = 0
	}
	t.lastCompletion = b.now
}

// rateOver evaluates the interval, if it is long enough: it counts more the longer it was
// and the more of it was sequential, up to one half.
func (b *BFQ) rateOver() {
	t := &b.rate
	if t.samples < bfqRateSamplesMin || t.length < bfqRateIntervalMin {
		return
	}
	length := uint64(max(t.length, t.lastCompletion-t.first))
	rate := t.sectors << bfqRateShift / (length / 1000)
	if t.sequential < 3*t.samples/4 && rate <= t.peak || rate > bfqRateMost {
		return
	}
	weight := min(8, 9*t.sequential/t.samples*length/uint64(bfqRateInterval))
	divisor := 10 - weight
	t.peak = max(1, t.peak*(divisor-1)/divisor+rate/divisor)
	if b.tune.maxBudget == 0 {
		b.setBudget()
	}
}

// sampleDepth finds out whether the disk has NCQ. Samples count only if there were several
// requests to send.
func (b *BFQ) sampleDepth() {
	t := &b.rate
	t.deepest = max(t.deepest, b.inDriver)
	if t.ncqSure && t.ncq || b.inDriver+b.n <= bfqDepth {
		return
	}
	if q := b.serving; q != nil && q.quick && q.dispatched+q.fifo.Len() < bfqDepth && b.inDriver < bfqDepth {
		return
	}
	if t.depthSamples++; t.depthSamples <= bfqDepthSamples {
		return
	}
	t.ncq, t.ncqSure = t.deepest > bfqDepth, true
	t.deepest, t.depthSamples = 0, 0
}

package sched

import "github.com/elevisor/elevisor/blk"

// The two latencies of a request.
const (
	latencyTotal  = iota // from its arrival
	latencyOnDisk        // from its submission to the disk
	latencyKinds
)

const (
	adjustEvery    = 100 * millisecond
	samplesEnough  = 500
	samplesAge     = 1000 * millisecond
	latencyBuckets = 8
	// goodBuckets are the ones up to the target; each is a quarter of it wide.
	goodBuckets  = 4
	noPercentile = -1
)

// discardTarget is the target of discards. It is fixed, as in the kernel.
const discardTarget = 5000 * millisecond

// histogram counts latencies in quarters of the target; the last bucket is for more than
// seven of them.
type histogram struct {
	counts [latencyBuckets]int
	total  int
	until  blk.Instant // from when on fewer than samplesEnough will do; 0: not set
}

// add counts one latency. It is less than 0 if the clock was set back, and then good.
func (h *histogram) add(latency blk.Instant, target uint64) {
	at := uint64(0)
	if latency > 0 {
		at = min(uint64(latency-1)/max(target/goodBuckets, 1), latencyBuckets-1)
	}
	h.counts[at]++
	h.total++
}

// percentile returns the bucket of the p-th percentile and empties h, or returns
// noPercentile if there are too few samples yet.
func (h *histogram) percentile(now blk.Instant, p int) (bucket int) {
	if h.total == 0 {
		return noPercentile
	}
	if h.until == 0 || h.until > now+samplesAge {
		h.until = now + samplesAge
	}
	if h.total < samplesEnough && now < h.until {
		return noPercentile
	}
	left := (h.total*p + 99) / 100
	for bucket < latencyBuckets-1 && h.counts[bucket] < left {
		left -= h.counts[bucket]
		bucket++
	}
	*h = histogram{}
	return bucket
}

// measure counts the latencies of a request of domain i, which is not kyberOther.
func (k *Kyber) measure(i int, total, onDisk blk.Instant) {
	target := uint64(discardTarget)
	if i < len(k.knobs) {
		target = uint64(k.knobs[i].value)
	}
	k.domains[i].latency[latencyTotal].add(total, target)
	k.domains[i].latency[latencyOnDisk].add(onDisk, target)
}

// tick is called first by all methods that are given the time: it does what a timer would
// have done when it was due. No completion has come since.
func (k *Kyber) tick(now blk.Instant) {
	if due := k.timer; due <= now {
		k.timer = blk.Never
		k.adjust(due)
	}
}

// adjust changes depths by latencies. The disk is congested if, in some domain, one in ten
// requests took longer on the disk than the target. Then the depth of each domain follows
// its total latency: down if that is good, up if it is not. Without congestion it only
// goes up.
//
// The domains do not have enough samples at the same time, so a domain's last percentile
// is kept for the next congestion. It is used only once, or the domain would lose tokens
// again for the same requests.
func (k *Kyber) adjust(now blk.Instant) {
	congested := false
	for i := range kyberOther {
		if k.domains[i].latency[latencyOnDisk].percentile(now, 90) >= goodBuckets {
			congested = true
		}
	}
	for i := range kyberOther {
		d := &k.domains[i]
		p99 := d.latency[latencyTotal].percentile(now, 99)
		switch {
		case congested:
			if p99 == noPercentile {
				p99 = d.p99
			}
			d.p99 = noPercentile
		case p99 != noPercentile:
			d.p99 = p99
		}
		if p99 == noPercentile || !congested && p99 < goodBuckets {
			continue
		}
		if depth := max(1, min(d.depth*(p99+1)/goodBuckets, kyberDepths[i])); depth != d.depth {
			d.depth = depth
			k.resized++
		}
	}
}

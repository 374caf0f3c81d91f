package sched

import (
	"fmt"
	"slices"
	"testing"

	"github.com/elevisor/elevisor/blk"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// served has k serve n requests, one after the other. Each waits here for wait and
// is on the disk for cost; none takes time of the clock's, which stands at now then.
func kyberServed(t require.TestingT, k *Kyber, now blk.Instant, op blk.Op, n int, wait, cost blk.Instant) {
	disk := &blk.Disk{}
	for range n {
		r := &blk.Request{Op: op, Disk: disk, Sectors: 8, Arrive: now - cost - wait}
		k.Insert(now, r)
		require.Same(t, r, k.Dispatch(now))
		r.Issue = now - cost
		k.Complete(now, r)
	}
}

func depths(k *Kyber) (out [kyberDomains]int) {
	for i := range k.domains {
		out[i] = k.domains[i].depth
	}
	return out
}

// later lets the timer run, 100 ms after the first completion before.
func later(k *Kyber, now *blk.Instant) {
	*now += adjustEvery
	k.Dispatch(*now)
}

// A disk that is slow for reads costs the other domains tokens, and only what they
// have shown not to need.
func TestKyber_congestion(t *testing.T) {
	k, now := newKyber(&Config{}), blk.Instant(0)
	kyberServed(t, k, now, blk.OpRead, 500, 0, 3*ms) // the target is 2 ms
	kyberServed(t, k, now, blk.OpWrite, 500, 0, 1*ms)
	kyberServed(t, k, now, blk.OpDiscard, 500, 2600*ms, 0) // past a half of 5 s
	k.Dispatch(now + adjustEvery - 1)
	require.Equal(t, kyberDepths, depths(k), "the timer has not run yet")
	later(k, &now)
	require.Equal(t, [kyberDomains]int{256, 32, 48, 16}, depths(k))

	// Still congested; but who has no new samples loses nothing for the old ones.
	kyberServed(t, k, now, blk.OpRead, 500, 0, 3*ms)
	later(k, &now)
	require.Equal(t, [kyberDomains]int{256, 32, 48, 16}, depths(k))

	// Writes that come too late get tokens back, congestion or not: 32 * 6/4.
	kyberServed(t, k, now, blk.OpWrite, 500, 13*ms, 1*ms)
	later(k, &now)
	require.Equal(t, [kyberDomains]int{256, 48, 48, 16}, depths(k))

	// All is well: all stays as it is. And the good latency of then is remembered
	// until congestion comes: 48 * 1/4.
	kyberServed(t, k, now, blk.OpWrite, 500, 0, 1*ms)
	later(k, &now)
	require.Equal(t, [kyberDomains]int{256, 48, 48, 16}, depths(k))
	kyberServed(t, k, now, blk.OpRead, 500, 0, 3*ms)
	later(k, &now)
	require.Equal(t, [kyberDomains]int{256, 12, 48, 16}, depths(k))

	// Never less than one token.
	for range 5 {
		kyberServed(t, k, now, blk.OpRead, 500, 0, 3*ms)
		kyberServed(t, k, now, blk.OpWrite, 500, 0, 1*ms)
		later(k, &now)
	}
	require.Equal(t, [kyberDomains]int{256, 1, 48, 16}, depths(k))
}

// Long waits here are no congestion: it is the disk that must be slow.
func TestKyber_waitsAreNoCongestion(t *testing.T) {
	k, now := newKyber(&Config{}), blk.Instant(0)
	kyberServed(t, k, now, blk.OpRead, 500, 100*ms, 1*ms)
	kyberServed(t, k, now, blk.OpWrite, 500, 0, 1*ms)
	later(k, &now)
	require.Equal(t, kyberDepths, depths(k))
}

// Few samples are judged when the first are a second old.
func TestKyber_fewSamples(t *testing.T) {
	k, now := newKyber(&Config{}), blk.Instant(0)
	for i := range 11 { // the first timer finds the first samples
		require.Equal(t, kyberDepths, depths(k), "after %d timers", i)
		kyberServed(t, k, now, blk.OpRead, 10, 0, 3*ms)
		kyberServed(t, k, now, blk.OpWrite, 10, 0, 1*ms)
		later(k, &now)
	}
	require.Equal(t, [kyberDomains]int{256, 32, 64, 16}, depths(k))
}

// A target is what the operator says; 0 is one nanosecond's quarters.
func TestKyber_targets(t *testing.T) {
	for _, c := range []struct {
		target string
		want   int
	}{{"3000000", 128}, {"2999999", 32}, {"0", 32}, {"18446744073709551615", 128}} {
		k, now := newKyber(&Config{}), blk.Instant(0)
		require.NoError(t, k.Set("read_lat_nsec", c.target))
		kyberServed(t, k, now, blk.OpRead, 500, 0, 3*ms)
		kyberServed(t, k, now, blk.OpWrite, 500, 0, 1*ms)
		later(k, &now)
		require.Equal(t, c.want, k.domains[kyberWrite].depth, c.target)
	}
}

// Who waits for a token that was lost is woken when the timer runs; who waits for one
// that is on the disk is not.
func TestKyber_wake(t *testing.T) {
	k, now := newKyber(&Config{}), blk.Instant(0)
	for range 4 { // 128, 32, 8, 2, 1
		kyberServed(t, k, now, blk.OpRead, 500, 0, 3*ms)
		kyberServed(t, k, now, blk.OpWrite, 500, 0, 1*ms)
		later(k, &now)
	}
	require.Equal(t, 1, k.domains[kyberWrite].depth)
	disk := &blk.Disk{}
	var z [17]blk.Request
	for i := range z {
		z[i] = blk.Request{Op: blk.OpWriteZeroes, Disk: disk, Sector: 8, Sectors: 8}
		k.Insert(now, &z[i])
		require.Equal(t, i < 16, k.Dispatch(now) != nil)
	}
	kyberServed(t, k, now, blk.OpRead, 1, 0, 0)
	require.Nil(t, k.Dispatch(now))
	require.Equal(t, blk.Never, k.Wake(), "the others' depth is fixed")

	var w [2]blk.Request
	for i := range w {
		w[i] = blk.Request{Op: blk.OpWrite, Disk: disk, Sector: blk.Sector(100 * i), Sectors: 8, Arrive: now}
		k.Insert(now, &w[i])
		require.Equal(t, i == 0, k.Dispatch(now) != nil)
	}
	require.Equal(t, now+adjustEvery, k.Wake())
	for range 500 { // writes that came too late
		k.measure(kyberWrite, 100*ms, 0)
	}
	now = k.Wake()
	require.Same(t, &w[1], k.Dispatch(now))
	require.Equal(t, blk.Never, k.Wake())
}

// With all domains busy, each has its share of every 26 dispatches, and none has more
// on the disk than it has tokens.
func TestKyber_shares(t *testing.T) {
	k := newKyber(&Config{})
	disk, ops := &blk.Disk{}, []blk.Op{blk.OpRead, blk.OpWrite, blk.OpDiscard, blk.OpWriteZeroes}
	at := blk.Sector(0)
	more := func(op blk.Op) {
		at += 100
		k.Insert(0, &blk.Request{Op: op, Disk: disk, Sector: at, Sectors: 8})
	}
	for _, op := range ops {
		for range 100 {
			more(op)
		}
	}
	var out []int
	for range 10 * 26 {
		r := k.Dispatch(0)
		out = append(out, kyberDomainOf(r))
		k.Complete(0, r)
		more(r.Op)
	}
	for turns := range slices.Chunk(out, 26) {
		var got [kyberDomains]int
		for _, i := range turns {
			got[i]++
		}
		require.Equal(t, kyberBatches, got)
	}
	for k.Dispatch(0) != nil {
	}
	for i, d := range k.domains {
		require.Equal(t, min(100, kyberDepths[i]), d.onDisk)
	}
}

// A histogram's percentile is that of the sorted samples, in quarters of the target.
func TestHistogram(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		target := rapid.Uint64Range(0, 100).Draw(t, "target")
		p := rapid.IntRange(1, 100).Draw(t, "p")
		var h histogram
		require.Equal(t, noPercentile, h.percentile(0, p))
		got := rapid.SliceOfN(rapid.Int64Range(-10, 300), 1, 600).Draw(t, "latencies")
		for _, l := range got {
			h.add(blk.Instant(l), target)
		}
		now := blk.Instant(rapid.Int64Range(1, 1<<40).Draw(t, "now"))
		bucket := h.percentile(now, p)
		if len(got) < samplesEnough {
			require.Equal(t, noPercentile, bucket)
			require.Equal(t, noPercentile, h.percentile(now+samplesAge-1, p))
			bucket = h.percentile(now+samplesAge, p)
		}
		slices.Sort(got)
		width := max(int64(target)/goodBuckets, 1)
		at := got[(len(got)*p+99)/100-1]
		want := 0
		for want < latencyBuckets-1 && at > int64(want+1)*width {
			want++
		}
		require.Equal(t, want, bucket, fmt.Sprint(at, width))
		require.Equal(t, histogram{}, h)
	})
}

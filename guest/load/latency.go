package load

import (
	"math"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// The histogram covers a nanosecond to 18 minutes with three digits.
const (
	histogramMax    = 1 << 40
	histogramDigits = 3
)

// Latency is what is kept of a series of times in nanoseconds.
type Latency struct {
	N        uint64
	Min, Max int64
	mean, m2 float64 // Welford's running mean and sum of squared distances
}

func (l *Latency) record(ns int64) {
	if l.N == 0 || ns < l.Min {
		l.Min = ns
	}
	l.Max = max(l.Max, ns)
	l.N++
	d := float64(ns) - l.mean
	l.mean += d / float64(l.N)
	l.m2 += d * (float64(ns) - l.mean)
}

// Mean of the series, 0 for an empty one.
func (l *Latency) Mean() float64 { return l.mean }

// StdDev is the sample's standard deviation, as fio prints it.
func (l *Latency) StdDev() float64 {
	if l.N < 2 {
		return 0
	}
	return math.Sqrt(l.m2 / float64(l.N-1))
}

// merge adds o's series to l (Chan's parallel form of Welford's sums).
func (l *Latency) merge(o *Latency) {
	if o.N == 0 {
		return
	}
	if l.N == 0 {
		*l = *o
		return
	}
	n, d := float64(l.N+o.N), o.mean-l.mean
	l.m2 += o.m2 + d*d*float64(l.N)*float64(o.N)/n
	l.mean += d * float64(o.N) / n
	l.N += o.N
	l.Min, l.Max = min(l.Min, o.Min), max(l.Max, o.Max)
}

// Stats are one direction's of one job, or of several together.
type Stats struct {
	IOs    uint64 // requests that came back OK
	Bytes  uint64 // moved by them
	Errors uint64 // requests that came back with another status
	Slat   Latency
	Clat   Latency // kick to completion
	Lat    Latency // submission to completion
	hist   *hdrhistogram.Histogram
}

// NewStats are empty ones.
func NewStats() Stats {
	return Stats{hist: hdrhistogram.New(1, histogramMax, histogramDigits)}
}

// Complete counts a request that was put into the ring at issued, kicked at
// kicked and reaped at now.
func (s *Stats) Complete(issued, kicked, now, bytes int64) {
	s.IOs++
	s.Bytes += uint64(bytes)
	s.Slat.record(kicked - issued)
	s.Clat.record(now - kicked)
	s.Lat.record(now - issued)
	// The clamp keeps an error, which cannot be handled here, from happening.
	_ = s.hist.RecordValue(min(max(now-kicked, 1), histogramMax))
}

func (s *Stats) merge(o *Stats) {
	s.IOs += o.IOs
	s.Bytes += o.Bytes
	s.Errors += o.Errors
	s.Slat.merge(&o.Slat)
	s.Clat.merge(&o.Clat)
	s.Lat.merge(&o.Lat)
	if o.hist != nil { // nothing was ever recorded
		s.hist.Merge(o.hist)
	}
}

// Percentile of the completion latencies in nanoseconds, within a thousandth; 0
// where there are none. The histogram answers with the upper end of a bucket,
// which may lie above the largest time there was.
func (s *Stats) Percentile(p float64) int64 {
	if s.IOs == 0 {
		return 0
	}
	return min(s.hist.ValueAtPercentile(p), s.Clat.Max)
}

package device

import (
	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/elevisor/elevisor/blk"
	"github.com/elevisor/elevisor/sched"
	"github.com/elevisor/elevisor/virtqueue"
)

// OpStats count one operation, in the kernel's terms (Documentation/block/stat.rst).
type OpStats struct {
	IOs     uint64 // completed, after merging: a merged group counts once, at its first request's queue
	Merges  uint64 // guest requests that were absorbed by a group
	Sectors uint64 // moved by requests that were OK
	Time    uint64 // ns from the arrival of the oldest request to completion, summed over IOs
	Errors  uint64 // guest requests with a status other than OK
}

// Requests is how many guest requests were finished.
func (o *OpStats) Requests() uint64 { return o.IOs + o.Merges }

// Add sums b into o.
func (o *OpStats) Add(b *OpStats) {
	o.IOs += b.IOs
	o.Merges += b.Merges
	o.Sectors += b.Sectors
	o.Time += b.Time
	o.Errors += b.Errors
}

// Stage is a part of a request's way.
type Stage uint8

// The stages. InRing is the time in which the loop knew of requests in the ring and
// had no room for them, so it is an upper bound for each of them; Queued is from
// arrival to the backend; InDisk from there to the completion.
const (
	InRing Stage = iota
	Queued
	InDisk
	StageCount
)

// StageNames are for people and for JSON, by Stage.
var StageNames = [StageCount]string{"ring", "queued", "disk"}

// The histograms reach from 1 us to 60 s with two significant digits.
const (
	histMin    = 1_000
	histMax    = 60_000_000_000
	histDigits = 2
)

// Histogram counts latencies in nanoseconds.
type Histogram = hdrhistogram.Histogram

func newHistogram() *Histogram { return hdrhistogram.New(histMin, histMax, histDigits) }

// Histograms are one for each stage.
type Histograms [StageCount]*Histogram

// NewHistograms makes empty ones.
func NewHistograms() (h Histograms) {
	for i := range h {
		h[i] = newHistogram()
	}
	return h
}

func record(h *Histogram, d blk.Instant) {
	_ = h.RecordValue(min(max(int64(d), histMin), histMax)) // clamped: it cannot refuse
}

// meter measures when there was work: the kernel's in_flight and io_ticks.
type meter struct {
	held  int         // requests taken and not finished
	since blk.Instant // when held left 0
	busy  blk.Instant // up to then
}

func (m *meter) enter(now blk.Instant) {
	if m.held == 0 {
		m.since = now
	}
	m.held++
}

func (m *meter) leave(now blk.Instant) {
	if m.held--; m.held == 0 {
		m.busy += now - m.since
	}
}

// total is the busy time up to now.
func (m *meter) total(now blk.Instant) blk.Instant {
	if m.held == 0 {
		return m.busy
	}
	return m.busy + now - m.since
}

// Stats are the counts of a queue, of a device's queues, or of a domain.
type Stats struct {
	Op       [blk.OpCount]OpStats
	InFlight int    // requests on the disk
	Held     int    // requests taken from the guest and not finished
	IOTime   uint64 // ns with at least one request held (io_ticks)
	Calls    uint64 // notifications sent to drivers for returned requests
	Broken   uint64 // times that a ring made no sense
	Faults   [virtqueue.FaultCount]uint64
	Latency  Histograms // nil where nobody asked for them
}

// Add sums b into s, all but IOTime, which of two things together is not a sum.
func (s *Stats) Add(b *Stats) {
	for i := range s.Op {
		s.Op[i].Add(&b.Op[i])
	}
	s.InFlight += b.InFlight
	s.Held += b.Held
	s.Calls += b.Calls
	s.Broken += b.Broken
	for i := range s.Faults {
		s.Faults[i] += b.Faults[i]
	}
	for i, h := range b.Latency {
		if h == nil {
			continue
		}
		if s.Latency[i] == nil {
			s.Latency[i] = newHistogram()
		}
		s.Latency[i].Merge(h)
	}
}

// Sysfs is s as the 17 numbers of /sys/block/X/stat; times in milliseconds.
func (s *Stats) Sysfs() [17]uint64 {
	ms := func(ns uint64) uint64 { return ns / 1_000_000 }
	r, d, f := &s.Op[blk.OpRead], &s.Op[blk.OpDiscard], &s.Op[blk.OpFlush]
	w := s.Op[blk.OpWrite]
	w.Add(&s.Op[blk.OpWriteZeroes]) // which the kernel counts as writes (op_stat_group)
	return [17]uint64{
		r.IOs, r.Merges, r.Sectors, ms(r.Time),
		w.IOs, w.Merges, w.Sectors, ms(w.Time),
		uint64(s.InFlight), ms(s.IOTime), ms(r.Time + w.Time + d.Time + f.Time),
		d.IOs, d.Merges, d.Sectors, ms(d.Time),
		f.IOs, ms(f.Time),
	}
}

// AddLoop sums another loop of the domain into s; both have the same scheduler. IOTime
// becomes the longer one's, since the domain was busy at least as long as each of its
// loops.
func (s *DomainStats) AddLoop(b *DomainStats) {
	s.Add(&b.Stats)
	s.IOTime = max(s.IOTime, b.IOTime)
	s.Queued += b.Queued
	s.Depth += b.Depth
	s.Merges.Add(&b.Merges)
	s.Counters.Add(&b.Counters)
}

// DomainStats are a domain's own: what its scheduler and its merges count.
type DomainStats struct {
	Stats
	Scheduler string
	Queued    int // in the scheduler
	Depth     int
	Merges    sched.MergeStats
	Counters  sched.Counters
}

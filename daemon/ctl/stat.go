package ctl

import (
	"github.com/elevisor/elevisor/blk"
	"github.com/elevisor/elevisor/device"
	"github.com/elevisor/elevisor/sched"
	"github.com/elevisor/elevisor/virtqueue"
)

// Stat is the answer to stat. Counts only grow while the server lives.
type Stat struct {
	Uptime  uint64       `json:"uptime_ns"` // of the server, when the counts were copied
	Disks   []DiskCounts `json:"disks"`
	Domains []DomainStat `json:"domains"`
}

// DiskCounts are one disk's.
type DiskCounts struct {
	Disk   string `json:"disk"`
	Domain string `json:"domain"`
	Counts
	Queues    []Counts   `json:"queues"`
	Simulated *Simulated `json:"simulated,omitempty"` // of a simulated drive only
	Recorded  *Recorded  `json:"recorded,omitempty"`  // with record=on only
}

// Counts are of a disk, of a queue or of a domain. The names are QEMU's
// (query-blockstats), and as there the operations are the guest's, before merging,
// those that failed apart, and write-zeroes are writes. The total times are sums over operations after
// merging, from arrival to completion.
type Counts struct {
	Stat [17]uint64 `json:"stat"` // /sys/block/X/stat

	RdOperations    uint64 `json:"rd_operations"`
	RdBytes         uint64 `json:"rd_bytes"`
	RdMerged        uint64 `json:"rd_merged"`
	RdTotalTime     uint64 `json:"rd_total_time_ns"`
	RdFailed        uint64 `json:"failed_rd_operations"`
	WrOperations    uint64 `json:"wr_operations"`
	WrBytes         uint64 `json:"wr_bytes"`
	WrMerged        uint64 `json:"wr_merged"`
	WrTotalTime     uint64 `json:"wr_total_time_ns"`
	WrFailed        uint64 `json:"failed_wr_operations"`
	UnmapOperations uint64 `json:"unmap_operations"`
	UnmapBytes      uint64 `json:"unmap_bytes"`
	UnmapMerged     uint64 `json:"unmap_merged"`
	UnmapTotalTime  uint64 `json:"unmap_total_time_ns"`
	UnmapFailed     uint64 `json:"failed_unmap_operations"`
	FlushOperations uint64 `json:"flush_operations"`
	FlushTotalTime  uint64 `json:"flush_total_time_ns"`
	FlushFailed     uint64 `json:"failed_flush_operations"`

	WriteZeroes uint64 `json:"write_zeroes_operations"` // which wr_operations contain

	InFlight int    `json:"in_flight"` // on the disk
	Held     int    `json:"held"`      // taken from the guest and not finished
	IOTime   uint64 `json:"io_time_ns"`
	Weighted uint64 `json:"weighted_io_time_ns"`
	Calls    uint64 `json:"calls"` // notifications to the driver

	BrokenRings uint64             `json:"broken_rings"`
	Malformed   map[string]uint64  `json:"malformed_chains"` // by fault, those that happened
	Latency     map[string]Latency `json:"latency"`          // by stage
}

// Latency sums up a histogram; nanoseconds.
type Latency struct {
	Count int64 `json:"count"`
	P50   int64 `json:"p50"`
	P90   int64 `json:"p90"`
	P99   int64 `json:"p99"`
	P999  int64 `json:"p99_9"`
	Max   int64 `json:"max"`
}

// DomainStat are a scheduling domain's: what its disks have done together, and what
// its scheduler has counted.
type DomainStat struct {
	Domain    string `json:"domain"`
	Scheduler string `json:"scheduler"`
	Queued    int    `json:"queued"` // in the scheduler
	Depth     int    `json:"queue_depth"`
	Counts
	Merged      map[string]map[string]uint64 `json:"merged"`  // by place, by who
	Refused     map[string]uint64            `json:"refused"` // by reason
	MergedBytes uint64                       `json:"merged_bytes"`
	Counters    Counters                     `json:"counters"`
}

// Counters are sched.Counters.
type Counters struct {
	Batches     uint64 `json:"batches"`
	Expired     uint64 `json:"expired_dispatches"`
	Starved     uint64 `json:"starved"`
	Aged        uint64 `json:"aged"`
	Slices      uint64 `json:"slices"`
	Extensions  uint64 `json:"slice_extensions"`
	EarlyEnds   uint64 `json:"slice_early_ends"`
	Idled       uint64 `json:"idled"`
	Preempted   uint64 `json:"preempted"`
	LongestWait int64  `json:"longest_wait_ns"`
}

// NewStat puts statistics, copied at now, into the words of the wire.
func NewStat(now blk.Instant, disks []DiskStat) *Stat {
	s := &Stat{Uptime: uint64(now), Disks: []DiskCounts{}, Domains: []DomainStat{}}
	seen := map[string]bool{}
	for i := range disks {
		d := &disks[i]
		one := DiskCounts{
			Disk: d.ID, Domain: d.Domain, Counts: counts(&d.Total), Queues: make([]Counts, len(d.Queues)),
			Simulated: NewSimulated(d.Simulated), Recorded: recorded(d.Recorded),
		}
		for q := range d.Queues {
			one.Queues[q] = counts(&d.Queues[q])
		}
		s.Disks = append(s.Disks, one)
		if !seen[d.Domain] {
			seen[d.Domain] = true
			s.Domains = append(s.Domains, domainStat(d.Domain, &d.DomainStats))
		}
	}
	return s
}

func counts(s *device.Stats) Counts {
	rd, dc, fl, wz := &s.Op[blk.OpRead], &s.Op[blk.OpDiscard], &s.Op[blk.OpFlush], &s.Op[blk.OpWriteZeroes]
	wr := s.Op[blk.OpWrite]
	wr.Add(wz)
	good := func(o *device.OpStats) uint64 { return o.Requests() - min(o.Errors, o.Requests()) }
	bytes := func(o *device.OpStats) uint64 { return o.Sectors * blk.SectorSize }
	c := Counts{
		Stat:         s.Sysfs(),
		RdOperations: good(rd), RdBytes: bytes(rd), RdMerged: rd.Merges, RdTotalTime: rd.Time, RdFailed: rd.Errors,
		WrOperations: good(&wr), WrBytes: bytes(&wr), WrMerged: wr.Merges, WrTotalTime: wr.Time, WrFailed: wr.Errors,
		UnmapOperations: good(dc), UnmapBytes: bytes(dc), UnmapMerged: dc.Merges, UnmapTotalTime: dc.Time, UnmapFailed: dc.Errors,
		FlushOperations: good(fl), FlushTotalTime: fl.Time, FlushFailed: fl.Errors,
		WriteZeroes: good(wz),
		InFlight:    s.InFlight, Held: s.Held, IOTime: s.IOTime, Weighted: rd.Time + wr.Time + dc.Time + fl.Time,
		Calls: s.Calls, BrokenRings: s.Broken,
		Malformed: map[string]uint64{}, Latency: map[string]Latency{},
	}
	for i, n := range s.Faults {
		if n != 0 {
			c.Malformed[virtqueue.Fault(i).String()] = n
		}
	}
	for i, h := range s.Latency {
		c.Latency[device.StageNames[i]] = latency(h)
	}
	return c
}

func latency(h *device.Histogram) (l Latency) {
	if h == nil || h.TotalCount() == 0 { // an empty histogram has a largest value all the same
		return l
	}
	at := h.ValueAtQuantile
	return Latency{Count: h.TotalCount(), P50: at(50), P90: at(90), P99: at(99), P999: at(99.9), Max: h.Max()}
}

func domainStat(name string, d *device.DomainStats) DomainStat {
	c := &d.Counters
	s := DomainStat{
		Domain: name, Scheduler: d.Scheduler, Queued: d.Queued, Depth: d.Depth, Counts: counts(&d.Stats),
		Merged: map[string]map[string]uint64{}, Refused: map[string]uint64{},
		MergedBytes: d.Merges.Sectors * blk.SectorSize,
		Counters: Counters{
			Batches: c.Batches, Expired: c.Expired, Starved: c.Starved, Aged: c.Aged, Slices: c.Slices,
			Extensions: c.Extensions, EarlyEnds: c.EarlyEnds,
			Idled: c.Idled, Preempted: c.Preempted, LongestWait: int64(c.LongestWait),
		},
	}
	for p, by := range d.Merges.Merged {
		s.Merged[sched.PlaceNames[p]] = map[string]uint64{}
		for w, n := range by {
			s.Merged[sched.PlaceNames[p]][sched.WhoNames[w]] = n
		}
	}
	for r, n := range d.Merges.Refused {
		s.Refused[sched.ReasonNames[r]] = n
	}
	return s
}

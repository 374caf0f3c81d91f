// Package measure converts counters into the parts of a [plan.Outcome]: those of the
// built-in guest, the device, the recorder in front of the disk and simulated drives.
// Worlds in virtual time and over loopback use all of it. The qemu world uses it for disks
// and traces; its guests' figures come from fio and the kernel.
package measure

import (
	"fmt"
	"strconv"
	"time"

	"github.com/elevisor/elevisor/backend"
	"github.com/elevisor/elevisor/backend/drive"
	"github.com/elevisor/elevisor/blk"
	"github.com/elevisor/elevisor/device"
	"github.com/elevisor/elevisor/guest"
	"github.com/elevisor/elevisor/guest/load"
	"github.com/elevisor/elevisor/lab/plan"
	"github.com/elevisor/elevisor/sched"
)

// Jobs adds the results of a run's jobs to o. results and options are those of each VM's
// jobs.
func Jobs(o *plan.Outcome, results [][]load.JobResult, options [][]load.Options) {
	var all []load.JobResult
	var read, write float64
	for vm := range results {
		all = append(all, results[vm]...)
		for at := range results[vm] {
			r := &results[vm][at]
			s := seconds(r, &options[vm][at])
			o.Seconds = max(o.Seconds, s)
			read += perSecond(r.Reads().IOs, s)
			write += perSecond(r.Writes().IOs, s)
			o.Jobs = append(o.Jobs, plan.Share{VM: vm, Job: at, IOPS: perSecond(r.Reads().IOs+r.Writes().IOs, s)})
		}
	}
	total := load.Total(all)
	o.Read, o.Write = direction(total.Reads()), direction(total.Writes())
	o.Read.IOPS, o.Write.IOPS = read, write
}

// seconds is how long a job was measured. Requests in flight when its time is up count, as
// they do in fio, but the time that they take does not: otherwise a scheduler that idles
// for jobs that have ended would be charged for the end of the run.
func seconds(r *load.JobResult, o *load.Options) float64 {
	d := r.Runtime
	if o.Runtime > 0 {
		d = min(d, o.Runtime)
	}
	return d.Seconds()
}

func perSecond(n uint64, seconds float64) float64 {
	if seconds == 0 {
		return 0
	}
	return float64(n) / seconds
}

// quantiles are the points of a latency distribution that are stored.
var quantiles = []float64{0, 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.999, 1}

// direction is what all jobs did in one direction, without IOPS.
func direction(s *load.Stats) plan.Direction {
	d := plan.Direction{IOs: s.IOs, Bytes: s.Bytes}
	if s.IOs == 0 {
		return d
	}
	us := func(ns int64) float64 { return float64(ns) / 1e3 }
	at := func(q float64) float64 {
		switch q {
		case 0:
			return us(s.Clat.Min)
		case 1:
			return us(s.Clat.Max)
		}
		return us(s.Percentile(100 * q))
	}
	d.Mean, d.P50, d.P99, d.Max = s.Clat.Mean()/1e3, at(0.5), at(0.99), at(1)
	for _, q := range quantiles {
		d.CDF = append(d.CDF, plan.Quantile{Q: q, US: at(q)})
	}
	return d
}

// Guest adds to m what a guest's block layer counted between two readings.
func Guest(m *plan.Merging, before, after *guest.BlockStats) {
	m.Known = true
	m.Submitted += after.Submitted - before.Submitted
	m.Merged += after.Merged() - before.Merged()
	m.Issued += after.Issued - before.Issued
	for why, n := range after.Merges.Refused {
		m.Refused[why] += n - before.Merges.Refused[why]
	}
}

// Host is what the host's scheduler counted between two readings. Merges are counted when
// they happen, issued requests when they complete.
func Host(before, after *device.DomainStats) plan.Merging {
	m := plan.Merging{Known: true}
	for op := range blk.OpCount {
		m.Issued += after.Op[op].IOs - before.Op[op].IOs
	}
	for p, by := range after.Merges.Merged {
		was := &before.Merges.Merged[p]
		m.SameQueue += by[sched.SameQueue] - was[sched.SameQueue]
		m.CrossQueue += by[sched.OtherQueue] - was[sched.OtherQueue]
		m.CrossVM += by[sched.OtherVM] - was[sched.OtherVM]
	}
	for why, n := range after.Merges.Refused {
		m.Refused[why] = n - before.Merges.Refused[why]
	}
	m.Merged = m.SameQueue + m.CrossQueue + m.CrossVM
	m.Submitted = m.Merged + m.Issued
	return m
}

// Disk is what a recorder counted, and what a simulated drive counted between two readings;
// before and after are nil for other disks.
func Disk(r *backend.RecorderStats, before, after *drive.Stats) plan.Disk {
	d := plan.Disk{
		Requests: r.Requests, Sectors: r.Sectors, Seeks: r.Seeks, SeekSum: r.SeekSectors,
		LostSameQueue: r.LostSameQueue, LostCrossQueue: r.LostOtherQueue, LostCrossVM: r.LostOtherVM, LostLate: r.LostLate,
	}
	if after != nil {
		d.HeadMoves = after.Seeks - before.Seeks
		d.HeadSeconds = time.Duration(after.HeadTime - before.HeadTime).Seconds()
	}
	return d
}

// Trace converts the requests that a recorder kept. Times start at the end of the ramp.
func Trace(kept []backend.Access, ramp blk.Instant) []plan.Access {
	all := make([]plan.Access, 0, len(kept))
	for _, a := range kept {
		all = append(all, plan.Access{
			Seconds: time.Duration(a.At - ramp).Seconds(), Sector: uint64(a.Sector), Sectors: uint32(a.Sectors),
			VM: a.Source.Device, Queue: a.Source.Queue, Write: a.Op == blk.OpWrite,
		})
	}
	return all
}

// Block returns the options of the block layer in the guest that a cell asks for, and the
// knobs that belong to its scheduler.
func Block(c *plan.Cell) (*guest.BlockOptions, []sched.Knob, error) {
	o := &guest.BlockOptions{Scheduler: c.Guest.Name, NoMerges: c.NoMerges}
	var own []sched.Knob
	for _, k := range c.Guest.Knobs {
		n, err := strconv.Atoi(k.Value)
		switch k.Key {
		case "max_sectors_kb":
			o.MaxSectors = 2 * blk.Sector(n)
		case "nr_requests":
			o.Requests = n
		default:
			own, err = append(own, k), nil
		}
		if err != nil {
			return nil, nil, fmt.Errorf("knob %s=%q of the guest: want a number", k.Key, k.Value)
		}
	}
	return o, own, nil
}

package simworld

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/elevisor/elevisor/blk"
	"github.com/elevisor/elevisor/internal/bench"
	"github.com/elevisor/elevisor/internal/expt"
	"github.com/elevisor/elevisor/internal/sim"
	"github.com/elevisor/elevisor/sched"
)

// quantiles are the points of a run's distribution of latencies.
var quantiles = []float64{0, 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.999, 1}

// outcome puts a result into the words of experiments.
func (w *world) outcome(res *sim.Result) (*expt.Outcome, error) {
	o := &expt.Outcome{}
	total := res.Total()
	for i := range res.Results {
		o.Seconds = max(o.Seconds, seconds(res, i))
	}
	o.Read, o.Write = direction(&total.Stats[bench.Reading]), direction(&total.Stats[bench.Writing])
	for vm := range res.VMs {
		for at, n := range res.VMs[vm].Jobs {
			r, s := &res.Results[n], seconds(res, n)
			o.Read.IOPS += perSecond(r.Reads().IOs, s)
			o.Write.IOPS += perSecond(r.Writes().IOs, s)
			o.Jobs = append(o.Jobs, expt.Share{VM: vm, Job: at, IOPS: perSecond(r.Reads().IOs+r.Writes().IOs, s)})
		}
	}
	o.Guest, o.Host = guestMerging(res), hostMerging(res)
	disk(o, res)
	if w.o.Fio {
		var b, compact bytes.Buffer
		if err := res.WriteJSON(&b, "elevisor-"+w.o.Version); err != nil {
			return nil, err
		}
		if err := json.Compact(&compact, b.Bytes()); err != nil {
			return nil, fmt.Errorf("fio's form: %w", err)
		}
		o.Fio = compact.Bytes()
	}
	return o, nil
}

// seconds are what job n was measured for. A job that ends by time had that time and no
// more: what is in flight then counts, as fio counts it, but not how long a scheduler that
// idles for jobs which have ended keeps it.
func seconds(res *sim.Result, n int) float64 {
	j := &res.Jobs[n]
	d := res.Results[n].Runtime
	if j.Runtime > 0 {
		d = min(d, j.Runtime)
	}
	return d.Seconds()
}

func perSecond(n uint64, seconds float64) float64 {
	if seconds == 0 {
		return 0
	}
	return float64(n) / seconds
}

func direction(s *bench.Stats) expt.Direction {
	d := expt.Direction{IOs: s.IOs, Bytes: s.Bytes}
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
		d.CDF = append(d.CDF, expt.Quantile{Q: q, US: at(q)})
	}
	return d
}

// guestMerging are all guests together.
func guestMerging(res *sim.Result) expt.Merging {
	m := expt.Merging{Known: true}
	for i := range res.VMs {
		g := &res.VMs[i].Guest
		m.Submitted += g.Submitted
		m.Merged += g.Merged()
		m.Issued += g.Issued
		for why, n := range g.Merges.Refused {
			m.Refused[why] += n
		}
	}
	return m
}

func hostMerging(res *sim.Result) expt.Merging {
	m := expt.Merging{Known: true, Refused: res.Host.Merges.Refused}
	for op := range blk.OpCount {
		s := &res.Host.Op[op]
		m.Submitted += s.Requests()
		m.Merged += s.Merges
		m.Issued += s.IOs
	}
	for _, by := range res.Host.Merges.Merged {
		m.SameQueue += by[sched.SameQueue]
		m.CrossQueue += by[sched.OtherQueue]
		m.CrossVM += by[sched.OtherVM]
	}
	return m
}

// disk is what reached it.
func disk(o *expt.Outcome, res *sim.Result) {
	r := res.Record
	o.Disk = expt.Disk{
		Requests: r.Requests, Sectors: r.Sectors, Seeks: r.Seeks, SeekSum: r.SeekSectors,
		LostSameQueue: r.LostSameQueue, LostCrossQueue: r.LostOtherQueue, LostCrossVM: r.LostOtherVM, LostLate: r.LostLate,
	}
	if res.Drive != nil {
		o.Disk.HeadMoves, o.Disk.HeadSeconds = res.Drive.Model.Seeks, time.Duration(res.Drive.Model.HeadTime).Seconds()
	}
	ramp := blk.Instant(0)
	for i := range res.Jobs {
		ramp = max(ramp, blk.Instant(res.Jobs[i].RampTime))
	}
	o.Trace = slices.Grow(o.Trace, len(res.Kept))
	for _, a := range res.Kept {
		o.Trace = append(o.Trace, expt.Access{
			Seconds: time.Duration(a.At - ramp).Seconds(), Sector: uint64(a.Sector), Sectors: uint32(a.Sectors),
			VM: a.Source.Device, Queue: a.Source.Queue, Write: a.Op == blk.OpWrite,
		})
	}
}

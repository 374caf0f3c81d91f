package reporttest

import (
	"math"

	"github.com/elevisor/elevisor/lab/plan"
	"github.com/elevisor/elevisor/lab/stats"
)

// summary fills in what a report needs, with the statistics of the real ones.
func summary(r *plan.Results) *plan.Summary {
	s := &plan.Summary{
		Headline: "On the made-up disk, host timeslice is fastest: 70 % more IOPS than no scheduler at all [69, 71]; a guest scheduler adds 18 % to that.",
		Warnings: []string{"randrw-70, none / cfq: the ratio drifted by 0.3 % a block (p = 0.03); figures may look surer than they are."},
	}
	outcomes := make([]map[int]*plan.Outcome, len(r.Plan.Cells))
	for i := range outcomes {
		outcomes[i] = map[int]*plan.Outcome{}
	}
	for _, run := range r.Runs {
		outcomes[run.Cell][run.Block] = run.Outcome
	}
	for i := range r.Plan.Cells {
		s.Cells = append(s.Cells, cellStats(i, outcomes[i]))
	}
	if r.Plan.Repeats >= 2 {
		for _, m := range []struct {
			name   string
			better stats.Direction
			of     func(*plan.Outcome) float64
		}{
			{"iops", stats.HigherIsBetter, (*plan.Outcome).IOPS},
			{"p99_us", stats.LowerIsBetter, p99},
		} {
			s.Comparisons = append(s.Comparisons, compare(r, outcomes, m.name, m.better, m.of)...)
		}
	}
	return s
}

func p99(o *plan.Outcome) float64 { return math.Max(o.Read.P99, o.Write.P99) }

func compare(r *plan.Results, outcomes []map[int]*plan.Outcome, metric string, better stats.Direction, of func(*plan.Outcome) float64) []plan.Comparison {
	var all []plan.Comparison
	var p []float64
	for i, c := range r.Plan.Cells {
		base := 0
		for j, b := range r.Plan.Cells {
			if b.Workload.Name == c.Workload.Name && b.Guest.Name == r.Plan.BaseGuest && b.Host.Name == r.Plan.BaseHost {
				base = j
			}
		}
		if base == i {
			continue
		}
		var a, b []float64
		for block := range r.Plan.Repeats {
			a, b = append(a, of(outcomes[base][block])), append(b, of(outcomes[i][block]))
		}
		x, err := stats.Paired(a, b, stats.DefaultLevel)
		if err != nil {
			panic(err)
		}
		v := x.Verdict(c.Guest.Name+" / "+c.Host.Name, stats.DefaultCriteria(better))
		all = append(all, plan.Comparison{Cell: i, Base: base, Metric: metric, Pairs: x.N, Ratio: x.Ratio, Low: x.Low, High: x.High,
			T: x.Test.T, P: x.Test.P, PFlip: x.SignFlip.P, Verdict: v.Words})
		p = append(p, x.Test.P)
	}
	holm, err := stats.Holm(p)
	if err != nil {
		panic(err)
	}
	for i := range all {
		all[i].PHolm, all[i].Mark = holm[i], stats.Mark(p[i], holm[i], 0.05)
	}
	return all
}

func cellStats(i int, outcomes map[int]*plan.Outcome) plan.CellStats {
	s := plan.CellStats{Cell: i, Runs: len(outcomes)}
	for _, q := range []struct {
		to *plan.Sample
		of func(*plan.Outcome) float64
	}{
		{&s.IOPS, (*plan.Outcome).IOPS},
		{&s.BW, func(o *plan.Outcome) float64 { return float64(o.Read.Bytes+o.Write.Bytes) / o.Seconds / (1 << 20) }},
		{&s.P50, func(o *plan.Outcome) float64 { return math.Max(o.Read.P50, o.Write.P50) }},
		{&s.P99, p99},
		{&s.Max, func(o *plan.Outcome) float64 { return math.Max(o.Read.Max, o.Write.Max) }},
		{&s.Jain, func(o *plan.Outcome) float64 { return 0.998 }},
		{&s.GuestMergePct, func(o *plan.Outcome) float64 { return percent(o.Guest.Merged, o.Guest.Submitted) }},
		{&s.HostMergePct, func(o *plan.Outcome) float64 { return percent(o.Host.Merged, o.Host.Submitted) }},
		{&s.CrossQueuePct, func(o *plan.Outcome) float64 { return percent(o.Host.CrossQueue, o.Host.Merged) }},
		{&s.CrossVMPct, func(o *plan.Outcome) float64 { return percent(o.Host.CrossVM, o.Host.Merged) }},
		{&s.RequestsPerGiB, func(o *plan.Outcome) float64 { return perGiB(o, o.Disk.Requests) }},
		{&s.MeanKiB, func(o *plan.Outcome) float64 { return float64(o.Disk.Sectors) / 2 / float64(o.Disk.Requests) }},
		{&s.SeeksPerGiB, func(o *plan.Outcome) float64 { return perGiB(o, o.Disk.Seeks) }},
		{&s.MeanSeekMiB, func(o *plan.Outcome) float64 { return float64(o.Disk.SeekSum) / 2048 / float64(o.Disk.Seeks) }},
		{&s.LostPerGiB, func(o *plan.Outcome) float64 { return perGiB(o, o.Disk.LostSameQueue+o.Disk.LostCrossQueue) }},
	} {
		var all []float64
		for block := range len(outcomes) {
			all = append(all, q.of(outcomes[block]))
		}
		if d, err := stats.Describe(all); err == nil {
			*q.to = plan.Sample{N: d.N, Mean: d.Mean, SD: d.SD, Min: d.Min, Median: d.Median, Max: d.Max}
		}
	}
	return s
}

func percent(part, of uint64) float64 {
	if of == 0 {
		return 0
	}
	return 100 * float64(part) / float64(of)
}

func perGiB(o *plan.Outcome, n uint64) float64 {
	return float64(n) / (float64(o.Disk.Sectors) / (1 << 21))
}

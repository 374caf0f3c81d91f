package plan

import (
	"fmt"

	"github.com/elevisor/elevisor/lab/stats"
)

// Metrics that cells are compared by.
const (
	MetricIOPS = "iops"
	MetricP99  = "clat_p99_us" // of the slower direction
)

var metrics = []struct {
	name   string
	better stats.Direction
	of     func(*Outcome) (float64, bool)
}{
	{MetricIOPS, stats.HigherIsBetter, func(o *Outcome) (float64, bool) { return o.IOPS(), true }},
	{MetricP99, stats.LowerIsBetter, worst(func(d *Direction) float64 { return d.P99 })},
}

// alpha is the significance level, before and after correction.
const alpha = 1 - stats.DefaultLevel

// Summarize computes what the runs of a plan show. Runs without an outcome are left out.
// The same runs give the same summary.
func Summarize(p *Plan, runs []Run) (*Summary, error) {
	s := &summing{plan: p, byCell: make([][]*Run, len(p.Cells)), Summary: &Summary{Comparisons: []Comparison{}, Warnings: []string{}}}
	for i := range runs {
		if r := &runs[i]; r.Outcome != nil {
			s.byCell[r.Cell] = append(s.byCell[r.Cell], r)
		}
	}
	for i := range p.Cells {
		c, err := s.cell(i)
		if err != nil {
			return nil, err
		}
		s.Cells = append(s.Cells, c)
	}
	for m := range metrics {
		if err := s.compare(m); err != nil {
			return nil, err
		}
	}
	s.warn()
	s.Headline = s.headline()
	return s.Summary, nil
}

// summing is a summary under construction.
type summing struct {
	*Summary
	plan   *Plan
	byCell [][]*Run // the runs of each cell, in order
	// For each comparison: its outcome, and its log ratios by block.
	shown  []stats.Outcome
	ratios [][]float64
}

// cell describes a cell's runs.
func (s *summing) cell(i int) (CellStats, error) {
	c := CellStats{Cell: i, Runs: len(s.byCell[i])}
	for _, q := range quantities(&c) {
		var all []float64
		for _, r := range s.byCell[i] {
			if x, ok := q.of(r.Outcome); ok {
				all = append(all, x)
			}
		}
		if len(all) == 0 {
			continue
		}
		d, err := stats.Describe(all)
		if err != nil {
			return c, fmt.Errorf("cell %d (%s): %w", i, &s.plan.Cells[i], err)
		}
		*q.to = Sample{N: d.N, Mean: d.Mean, SD: d.SD, Min: d.Min, Median: d.Median, Max: d.Max}
	}
	return c, nil
}

// compare adds the comparisons by one metric, corrected for their number.
func (s *summing) compare(metric int) error {
	first := len(s.Comparisons)
	for _, g := range s.plan.Groups() {
		for _, cell := range g.Cells {
			if g.Base < 0 || cell == g.Base {
				continue
			}
			if err := s.pair(metric, cell, g.Base); err != nil {
				return err
			}
		}
	}
	of := s.Comparisons[first:]
	p := make([]float64, len(of))
	for i := range of {
		p[i] = of[i].P
	}
	holm, err := stats.Holm(p)
	if err != nil {
		return err
	}
	for i := range of {
		of[i].PHolm, of[i].Mark = holm[i], stats.Mark(p[i], holm[i], alpha)
	}
	return nil
}

// pair compares a cell with its baseline over the blocks in which both have a value. If a
// value has no logarithm (a run that completed no request), there is no comparison, only a
// warning: leaving out just that block would bias the result.
func (s *summing) pair(metric, cell, base int) error {
	m := &metrics[metric]
	at := map[int]float64{}
	for _, r := range s.byCell[base] {
		if x, ok := m.of(r.Outcome); ok {
			at[r.Block] = x
		}
	}
	var a, b []float64
	for _, r := range s.byCell[cell] {
		x, ok := m.of(r.Outcome)
		y, both := at[r.Block]
		if ok && both {
			a, b = append(a, y), append(b, x)
		}
	}
	if len(a) == 0 {
		return nil
	}
	d, err := stats.LogRatios(a, b)
	if err != nil {
		s.Warnings = append(s.Warnings, fmt.Sprintf("%s is not compared by %s: %v.", &s.plan.Cells[cell], m.name, err))
		return nil
	}
	x, err := stats.Paired(a, b, stats.DefaultLevel)
	if err != nil {
		return err
	}
	v := x.Verdict("", stats.DefaultCriteria(m.better))
	s.Comparisons = append(s.Comparisons, Comparison{
		Cell: cell, Base: base, Metric: m.name, Pairs: x.N, Ratio: x.Ratio, Low: x.Low, High: x.High,
		T: x.Test.T, P: x.Test.P, PFlip: x.SignFlip.P, Verdict: v.Words,
	})
	s.shown, s.ratios = append(s.shown, v.Outcome), append(s.ratios, d)
	return nil
}

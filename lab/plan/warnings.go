package plan

import (
	"fmt"
	"slices"
	"strings"

	"github.com/elevisor/elevisor/lab/stats"
)

// namedMost is how many comparisons a warning names.
const namedMost = 4

// warn says what makes the comparisons weaker than they look.
func (s *summing) warn() {
	s.warnFew()
	s.warnNoBase()
	s.warnSeries("moved from block to block", "the figures look surer than they are", func(d []float64) bool { return stats.Drift(d).Warn })
	s.warnSeries("resembled the block before", "the blocks are not independent, and the figures look surer than they are", func(d []float64) bool { return stats.Lag1(d).Warn })
	s.warnRepeated()
	s.warnRuns()
}

// warnFew is about too few pairs, and missing ones.
func (s *summing) warnFew() {
	missing := 0
	for _, runs := range s.byCell {
		missing += s.plan.Repeats - len(runs)
	}
	if missing > 0 {
		s.add("%d of %d runs are missing: what is compared are the blocks in which both have run.", missing, s.plan.Repeats*len(s.plan.Cells))
	}
	if s.plan.Repeats < stats.MinPairs {
		s.add("With %d repeats there is no verdict: it takes %d.", s.plan.Repeats, stats.MinPairs)
	} else if n := s.count(func(i int) bool { return s.shown[i] == stats.TooFewPairs }); n > 0 {
		s.add("%d of %d comparisons have fewer than %d pairs, and no verdict.", n, len(s.Comparisons), stats.MinPairs)
	}
}

// warnNoBase is about groups that have no baseline.
func (s *summing) warnNoBase() {
	for _, g := range s.plan.Groups() {
		if c := &s.plan.Cells[g.Cells[0]]; g.Base < 0 {
			s.add("Nothing of workload %s is compared: there is no cell %s / %s.", c.Workload.Name, s.plan.BaseGuest, s.plan.BaseHost)
		}
	}
}

// warnSeries is about a property of series that one in 20 has by chance.
func (s *summing) warnSeries(what, so string, has func([]float64) bool) {
	tested := s.count(func(i int) bool { return len(s.ratios[i]) >= stats.MinPairs })
	if n := s.count(func(i int) bool { return has(s.ratios[i]) }); n > 0 {
		s.add("The ratio to the baseline %s in %d of %d comparisons (1 in 20 does by chance); if that is no chance, %s: %s.",
			what, n, tested, so, s.named(func(i int) bool { return has(s.ratios[i]) }))
	}
}

// warnRepeated is about pairs that all gave the same ratio, which is no noise to test
// against. Where it is 1, the two may well be one and the same: a reader must know that
// this was found, and not that a difference was too small.
func (s *summing) warnRepeated() {
	same := func(i int) bool {
		d := s.ratios[i]
		return len(d) > 1 && slices.Min(d) == slices.Max(d)
	}
	one := func(i int) bool { return same(i) && s.ratios[i][0] == 0 }
	other := func(i int) bool { return same(i) && s.ratios[i][0] != 0 }
	if n := s.count(one); n > 0 {
		s.add("In %d of %d comparisons both sides gave the very same figure in every block: on these workloads the two did the same, and more repeats show nothing else.", n, len(s.Comparisons))
	}
	if n := s.count(other); n > 0 {
		s.add("All pairs of %d comparisons gave the very same ratio: their runs repeat one another, and are worth one pair: %s.", n, s.named(other))
	}
}

// warnRuns is about what the world has said of single runs.
func (s *summing) warnRuns() {
	var texts []string
	times := map[string]int{}
	for _, runs := range s.byCell {
		for _, r := range runs {
			for _, w := range r.Outcome.Warnings {
				if times[w] == 0 {
					texts = append(texts, w)
				}
				times[w]++
			}
		}
	}
	for _, w := range texts {
		s.add("%s (%d runs)", w, times[w])
	}
}

func (s *summing) add(format string, args ...any) {
	s.Warnings = append(s.Warnings, fmt.Sprintf(format, args...))
}

// count is how many comparisons have a property.
func (s *summing) count(has func(i int) bool) (n int) {
	for i := range s.Comparisons {
		if has(i) {
			n++
		}
	}
	return n
}

// named are the first few comparisons with a property.
func (s *summing) named(has func(i int) bool) string {
	var names []string
	n := 0
	for i := range s.Comparisons {
		if !has(i) {
			continue
		}
		if n++; n <= namedMost {
			c := &s.Comparisons[i]
			names = append(names, fmt.Sprintf("%s (%s)", &s.plan.Cells[c.Cell], c.Metric))
		}
	}
	if n > namedMost {
		names = append(names, fmt.Sprintf("%d more", n-namedMost))
	}
	return strings.Join(names, "; ")
}

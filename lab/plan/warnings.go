package plan

import (
	"fmt"
	"slices"
	"strings"

	"github.com/elevisor/elevisor/lab/stats"
)

// namedMost is how many comparisons a warning names at most.
const namedMost = 4

// warn adds the reasons why the comparisons may be weaker than they look.
func (s *summing) warn() {
	s.warnFew()
	s.warnNoBase()
	s.warnSeries("drifted over the blocks", "the confidence intervals are unreliable", func(d []float64) bool { return stats.Drift(d).Warn })
	s.warnSeries("is correlated from block to block", "the blocks are not independent and the confidence intervals are unreliable", func(d []float64) bool { return stats.Lag1(d).Warn })
	s.warnRepeated()
	s.warnRuns()
}

// warnFew warns of missing runs and of too few pairs.
func (s *summing) warnFew() {
	missing := 0
	for _, runs := range s.byCell {
		missing += s.plan.Repeats - len(runs)
	}
	if missing > 0 {
		s.add("%d of %d runs are missing: a comparison uses the blocks in which both cells have run.", missing, s.plan.Repeats*len(s.plan.Cells))
	}
	if s.plan.Repeats < stats.MinPairs {
		s.add("With %d repeats there is no verdict: at least %d are needed.", s.plan.Repeats, stats.MinPairs)
	} else if n := s.count(func(i int) bool { return s.shown[i] == stats.TooFewPairs }); n > 0 {
		s.add("%d of %d comparisons have fewer than %d pairs and therefore no verdict.", n, len(s.Comparisons), stats.MinPairs)
	}
}

// warnNoBase warns of groups without a baseline.
func (s *summing) warnNoBase() {
	for _, g := range s.plan.Groups() {
		if c := &s.plan.Cells[g.Cells[0]]; g.Base < 0 {
			s.add("Workload %s is not compared: it has no cell %s / %s.", c.Workload.Name, s.plan.BaseGuest, s.plan.BaseHost)
		}
	}
}

// warnSeries warns of a property that one series in 20 has by chance.
func (s *summing) warnSeries(what, so string, has func([]float64) bool) {
	tested := s.count(func(i int) bool { return len(s.ratios[i]) >= stats.MinPairs })
	if n := s.count(func(i int) bool { return has(s.ratios[i]) }); n > 0 {
		s.add("The ratio to the baseline %s in %d of %d comparisons (by chance, in 1 of 20); if it is not chance, %s: %s.",
			what, n, tested, so, s.named(func(i int) bool { return has(s.ratios[i]) }))
	}
}

// warnRepeated warns of comparisons in which all pairs gave the same ratio: there is no
// noise to test against. Where the ratio is 1, the two cells probably behaved identically.
// That is more than a difference too small to show, and a reader must be told.
func (s *summing) warnRepeated() {
	same := func(i int) bool {
		d := s.ratios[i]
		return len(d) > 1 && slices.Min(d) == slices.Max(d)
	}
	one := func(i int) bool { return same(i) && s.ratios[i][0] == 0 }
	other := func(i int) bool { return same(i) && s.ratios[i][0] != 0 }
	if n := s.count(one); n > 0 {
		s.add("In %d of %d comparisons both cells gave identical figures in every block: they behaved the same on these workloads, and more repeats will not change that.", n, len(s.Comparisons))
	}
	if n := s.count(other); n > 0 {
		s.add("In %d of %d comparisons all pairs gave the same ratio: the runs repeat one another and count as a single pair: %s.", n, len(s.Comparisons), s.named(other))
	}
}

// warnRuns passes on the warnings of runs.
func (s *summing) warnRuns() {
	var texts []string
	times, all := map[string]int{}, 0
	for _, runs := range s.byCell {
		all += len(runs)
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
		s.add("%s (In %d of %d runs.)", w, times[w], all)
	}
}

func (s *summing) add(format string, args ...any) {
	s.Warnings = append(s.Warnings, fmt.Sprintf(format, args...))
}

// count returns how many comparisons have a property.
func (s *summing) count(has func(i int) bool) (n int) {
	for i := range s.Comparisons {
		if has(i) {
			n++
		}
	}
	return n
}

// named lists the first few comparisons with a property.
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

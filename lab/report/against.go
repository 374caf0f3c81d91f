package report

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"strings"

	"gonum.org/v1/gonum/stat/distuv"

	"github.com/elevisor/elevisor/lab/plan"
	"github.com/elevisor/elevisor/lab/stats"
)

// Pair is a cell that two results have in common, with B's runs compared to A's.
type Pair struct {
	A, B   int // indexes of the two plans' cells
	Metric string
	NA, NB int     // runs
	MeanA  float64 // in the metric's unit
	SDA    float64
	MeanB  float64
	SDB    float64

	Tested    bool    // whether there were enough runs, and some variation, for a test
	Ratio     float64 // B to A, of geometric means
	Low, High float64 // 95 % confidence interval
	P         float64 // Welch's t-test of the logarithms
	PHolm     float64 // P, corrected for all pairs of the metric
	Mark      string  // "**": significant after correction; "*": only before
	Verdict   string
}

// Difference is the comparison of two results.
type Difference struct {
	Pairs        []Pair // of IOPS in the order of A's cells, then of p99
	OnlyA, OnlyB []int  // cells that the other one does not have
}

// Compare matches the cells of two results by their whole configuration (schedulers,
// knobs, jobs, VMs, queues, depth) and tests B's runs against A's. The runs are treated as
// independent samples, even if both experiments drew the same seeds: they did not run in
// common blocks, so that whatever changed between the two experiments looks like an effect.
func Compare(a, b *plan.Results) (*Difference, error) {
	for _, r := range []*plan.Results{a, b} {
		if err := check(r); err != nil {
			return nil, err
		}
	}
	match, d := matchCells(a, b)
	for _, metric := range []string{plan.MetricIOPS, plan.MetricP99} {
		first := len(d.Pairs)
		for i := range a.Plan.Cells {
			if j, ok := match[i]; ok {
				d.Pairs = append(d.Pairs, pair(metric, i, j, values(a, i, metric), values(b, j, metric)))
			}
		}
		correct(d.Pairs[first:])
	}
	return d, nil
}

// matchCells pairs A's cells with B's. A cell of B is used once.
func matchCells(a, b *plan.Results) (map[int]int, *Difference) {
	d, match := &Difference{}, map[int]int{}
	byKey := map[string][]int{}
	for j, c := range b.Plan.Cells {
		k := cellKey(c)
		byKey[k] = append(byKey[k], j)
	}
	for i, c := range a.Plan.Cells {
		k := cellKey(c)
		if len(byKey[k]) == 0 {
			d.OnlyA = append(d.OnlyA, i)
			continue
		}
		match[i], byKey[k] = byKey[k][0], byKey[k][1:]
	}
	for j, c := range b.Plan.Cells {
		for _, left := range byKey[cellKey(c)] {
			if left == j {
				d.OnlyB = append(d.OnlyB, j)
			}
		}
	}
	return match, d
}

func cellKey(c plan.Cell) string {
	key, err := json.Marshal(c)
	if err != nil { // strings and integers only
		panic(err)
	}
	return string(key)
}

// values returns a metric of a cell's runs. p99 is that of the slower direction.
func values(r *plan.Results, cell int, metric string) []float64 {
	var all []float64
	for i := range r.Runs {
		o := r.Runs[i].Outcome
		if r.Runs[i].Cell != cell || o == nil {
			continue
		}
		if metric == plan.MetricIOPS {
			all = append(all, o.IOPS())
		} else {
			all = append(all, math.Max(o.Read.P99, o.Write.P99))
		}
	}
	return all
}

func pair(metric string, i, j int, a, b []float64) Pair {
	p := Pair{A: i, B: j, Metric: metric, NA: len(a), NB: len(b)}
	p.MeanA, p.SDA = spread(a)
	p.MeanB, p.SDB = spread(b)
	meanA, sdA, okA := logs(a)
	meanB, sdB, okB := logs(b)
	if !okA || !okB {
		p.Verdict = "no verdict: a run has no figure"
		return p
	}
	p.Ratio = math.Exp(meanB - meanA)
	p.Low, p.High = p.Ratio, p.Ratio
	if len(a) < stats.MinPairs || len(b) < stats.MinPairs {
		p.Verdict = fmt.Sprintf("too few runs (%d and %d): no verdict", len(a), len(b))
		return p
	}
	test, err := stats.Welch(meanA, sdA, len(a), meanB, sdB, len(b))
	if err != nil {
		p.Verdict = "no verdict: the runs of neither vary"
		return p
	}
	half := distuv.StudentsT{Sigma: 1, Nu: test.DF}.Quantile(0.5+stats.DefaultLevel/2) *
		math.Sqrt(sdA*sdA/float64(len(a))+sdB*sdB/float64(len(b)))
	p.Tested, p.P, p.PHolm = true, test.P, test.P
	p.Low, p.High = math.Exp(meanB-meanA-half), math.Exp(meanB-meanA+half)
	p.Verdict = p.words()
	return p
}

func spread(x []float64) (mean, sd float64) {
	s, err := stats.Describe(x)
	if err != nil { // no runs
		return 0, 0
	}
	return s.Mean, s.SD
}

// logs describes the values' logarithms; ok is false if one has none.
func logs(x []float64) (mean, sd float64, ok bool) {
	l := make([]float64, len(x))
	for i, v := range x {
		if !(v > 0) || math.IsInf(v, 0) {
			return 0, 0, false
		}
		l[i] = math.Log(v)
	}
	mean, sd = spread(l)
	return mean, sd, len(x) > 0
}

// words follows the rules of stats.Comparison.Verdict, with B as the name.
func (p *Pair) words() string {
	lower := stats.HigherIsBetter
	if p.Metric == plan.MetricP99 {
		lower = stats.LowerIsBetter
	}
	k := stats.DefaultCriteria(lower)
	percent := func(x float64) float64 { return 100 * (x - 1) }
	x, lo, hi := percent(p.Ratio), percent(p.Low), percent(p.High)
	switch {
	case (p.Low > 1 || p.High < 1) && math.Abs(math.Log(p.Ratio)) >= math.Log1p(k.MinEffect):
		outcome := stats.Slower
		if (p.Ratio > 1) == (k.Better == stats.HigherIsBetter) {
			outcome = stats.Faster
		}
		if x < 0 {
			x, lo, hi = -x, -hi, -lo
		}
		return fmt.Sprintf("B %s by %s %% [%s, %s]", k.Word(outcome), digits(x), digits(lo), digits(hi))
	case p.Low > 1/(1+k.Margin) && p.High < 1+k.Margin:
		return fmt.Sprintf("equivalent within %g %% [%s, %s]", 100*k.Margin, digits(lo), digits(hi))
	}
	return fmt.Sprintf("no difference shown [%s, %s]", digits(lo), digits(hi))
}

// correct adds Holm's correction over the pairs that were tested, and the marks.
func correct(pairs []Pair) {
	var p []float64
	for i := range pairs {
		if pairs[i].Tested {
			p = append(p, pairs[i].P)
		}
	}
	adjusted, err := stats.Holm(p)
	if err != nil { // a p of Welch's lies from 0 to 1
		panic(err)
	}
	for i := range pairs {
		if pairs[i].Tested {
			pairs[i].PHolm, adjusted = adjusted[0], adjusted[1:]
			pairs[i].Mark = stats.Mark(pairs[i].P, pairs[i].PHolm, 1-stats.DefaultLevel)
		}
	}
}

// Against writes a comparison of B's results with A's, for a terminal.
func Against(w io.Writer, a, b *plan.Results) error {
	d, err := Compare(a, b)
	if err != nil {
		return err
	}
	var out strings.Builder
	say := func(s string) {
		for _, l := range wrap(s, Width, "  ") {
			out.WriteString(l + "\n")
		}
	}
	say(origin("A", a))
	say(origin("B", b))
	for _, l := range environments(a.Environment, b.Environment) {
		say(l)
	}
	say("The runs of A and B are unpaired: they did not run in common blocks, so that anything that changed between the " +
		"two experiments looks like an effect. Welch's t-test of the logarithms; * p < 0.05, ** also after Holm's correction.")
	ma, mb := newModel(a), newModel(b)
	for _, g := range ma.groups {
		g.against(&out, d)
	}
	for _, k := range ma.keys {
		say("In A, " + k)
	}
	ma.unmatched(&out, "Only in A:", d.OnlyA)
	mb.unmatched(&out, "Only in B:", d.OnlyB)
	_, err = io.WriteString(w, out.String())
	return err
}

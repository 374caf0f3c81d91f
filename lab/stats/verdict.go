package stats

import (
	"fmt"
	"math"
	"strings"
)

// Direction says which direction of a metric is better.
type Direction int

// Higher is better for IOPS and MB/s, lower for latencies and elapsed times.
const (
	HigherIsBetter Direction = iota
	LowerIsBetter
)

// MinPairs is the number of pairs that a verdict needs at least.
const MinPairs = 3

// Criteria of a verdict; effects are fractions (0.01 is 1 %).
type Criteria struct {
	Better    Direction
	MinEffect float64 // a smaller difference is not reported
	Margin    float64 // a difference that does not matter; 0: never report equivalence
}

// DefaultCriteria report differences from 1 % on, and equivalence within 2 %.
func DefaultCriteria(better Direction) Criteria {
	return Criteria{Better: better, MinEffect: 0.01, Margin: 0.02}
}

// Word is the word for an outcome: rates are faster or slower, times are lower or higher.
func (k Criteria) Word(o Outcome) string {
	if k.Better == LowerIsBetter {
		return map[Outcome]string{Faster: "lower", Slower: "higher"}[o]
	}
	return string(o)
}

// Outcome of a comparison.
type Outcome string

// Outcomes. Faster and slower are B compared with A.
const (
	TooFewPairs  Outcome = "too-few-pairs"
	Faster       Outcome = "faster"
	Slower       Outcome = "slower"
	Equivalent   Outcome = "equivalent"
	NoDifference Outcome = "no-difference-shown"
)

// Verdict is an outcome, and the words for it.
type Verdict struct {
	Outcome Outcome
	Words   string
}

// Verdict says what the comparison shows about B. The words start with name, unless it is
// empty. The verdict is
//
//   - faster or slower (for times: lower or higher) if the interval excludes 1 and the
//     ratio is at least MinEffect away from it (in logarithms, so that exchanging A and B
//     exchanges the words and nothing else);
//   - else equivalent, if the whole interval lies inside the margin;
//   - else no difference shown. If the interval excludes 1 all the same, the words say "no
//     difference of 1 % shown".
//
// Percentages are relative to A: x % faster is x % more IOPS or x % less latency. The
// brackets have the interval: after faster and slower that of the amount, otherwise that of
// B's change, with its sign.
func (c Comparison) Verdict(name string, k Criteria) Verdict {
	change := func(ratio float64) float64 { return 100 * (ratio - 1) }
	x, lo, hi := change(c.Ratio), change(c.Low), change(c.High)
	apart := c.Low > 1 || c.High < 1
	switch _, equivalent := c.TOST(k.Margin); {
	case c.N < MinPairs:
		return Verdict{TooFewPairs, fmt.Sprintf("too few pairs (%d): no verdict", c.N)}
	case apart && math.Abs(c.MeanD) >= math.Log1p(k.MinEffect):
		outcome := Slower
		if (c.Ratio > 1) == (k.Better == HigherIsBetter) {
			outcome = Faster
		}
		if c.Ratio < 1 {
			x, lo, hi = -x, -hi, -lo
		}
		words := fmt.Sprintf("%s by %s %% [%s, %s]", k.Word(outcome), digits(x, ""), digits(lo, ""), digits(hi, ""))
		return Verdict{outcome, strings.TrimLeft(name+" "+words, " ")}
	case equivalent:
		return Verdict{Equivalent, fmt.Sprintf("equivalent within %g %% [%s, %s]", 100*k.Margin, digits(lo, "+"), digits(hi, "+"))}
	case apart:
		return Verdict{NoDifference, fmt.Sprintf("no difference of %g %% shown [%s, %s]", 100*k.MinEffect, digits(lo, "+"), digits(hi, "+"))}
	}
	return Verdict{NoDifference, fmt.Sprintf("no difference shown [%s, %s]", digits(lo, "+"), digits(hi, "+"))}
}

// digits writes a percentage with two decimals below 10, else with one.
func digits(percent float64, sign string) string {
	precision := 1
	if math.Abs(percent) < 10 {
		precision = 2
	}
	return fmt.Sprintf("%"+sign+".*f", precision, percent)
}

// TOST is Schuirmann's two one-sided tests of whether B lies within the margin (a
// fraction) of A: from A/(1+margin) to A·(1+margin), which is symmetric in A and B. p is
// the larger one-sided p; within says whether Low to High lies inside, that is whether
// p < (1-Level)/2. That is stricter than the usual one-sided 5 %: the interval of what is
// called equivalent is never partly outside
// (D. J. Schuirmann, J. Pharmacokinetics and Biopharmaceutics 15, 1987).
func (c Comparison) TOST(margin float64) (p float64, within bool) {
	bound := math.Log1p(margin)
	if c.N < 2 || !(bound > 0) {
		return 1, false
	}
	se := c.SD / math.Sqrt(float64(c.N))
	near := bound - math.Abs(c.MeanD) // to the nearer bound: the larger p
	if se == 0 {
		if near > 0 {
			return 0, true
		}
		return 1, false
	}
	p = student(float64(c.N - 1)).CDF(-near / se)
	return p, p < (1-c.Level)/2
}

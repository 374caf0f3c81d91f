package stats

import (
	"fmt"
	"math"
	"slices"
)

// DefaultLevel is the confidence level of intervals: two-sided tests at 5 %.
const DefaultLevel = 0.95

// Comparison of B with A over pairs of runs. With a single pair there is no variation and
// no interval: SD is 0, Low and High equal Ratio, and both p are 1.
type Comparison struct {
	N     int     // pairs
	Level float64 // confidence of Low to High
	Ratio float64 // geometric mean of b/a
	Low   float64 // Ratio's interval
	High  float64
	MeanD float64 // of d = ln(b/a)
	SD    float64 // of d, with n-1

	Test     TTest // paired, of d: the one that verdicts use
	SignFlip Flips
	// Raw is the paired test of b-a. Over the rows of a table the largest ones dominate
	// it; it is here to check what others have published.
	Raw TTest
}

// Paired compares b with a, pair by pair: a[i] and b[i] come from the same block.
// The interval is exp(mean d ± t(1/2+level/2; n-1) sd/√n).
//
// All values must be positive, from 1e-100 to 1e100; level is between 0 and 1. An error
// names a value that is not (a run that completed nothing, or failed): leaving it out
// silently would bias the result.
func Paired(a, b []float64, level float64) (Comparison, error) {
	d, err := LogRatios(a, b)
	if err != nil {
		return Comparison{}, err
	}
	if !(level > 0 && level < 1) {
		return Comparison{}, fmt.Errorf("compare pairs: the confidence level is %v, not between 0 and 1", level)
	}
	n := float64(len(d))
	raw := make([]float64, len(d))
	for i := range d {
		raw[i] = b[i] - a[i]
	}
	c := Comparison{N: len(d), Level: level, SignFlip: signFlip(d)}
	c.MeanD, c.SD = meanSD(d, 1)
	c.Test = tTest(c.MeanD, c.SD/math.Sqrt(n), n-1)
	rawMean, rawSD := meanSD(raw, max(slices.Max(a), slices.Max(b)))
	c.Raw = tTest(rawMean, rawSD/math.Sqrt(n), n-1)
	half := 0.0
	if c.N > 1 {
		half = student(n-1).Quantile(0.5+level/2) * c.SD / math.Sqrt(n)
	}
	c.Ratio, c.Low, c.High = exp(c.MeanD), exp(c.MeanD-half), exp(c.MeanD+half)
	return c, nil
}

// LogRatios returns d[i] = ln(b[i]/a[i]) in the order of the pairs, as Drift and Lag1
// take it. It refuses the same values as Paired.
func LogRatios(a, b []float64) ([]float64, error) {
	if len(a) != len(b) || len(a) == 0 {
		return nil, fmt.Errorf("compare pairs: %d runs of A and %d of B; want equally many, and at least 1", len(a), len(b))
	}
	d := make([]float64, len(a))
	for i := range d {
		for _, side := range []struct {
			name string
			x    float64
		}{{"A", a[i]}, {"B", b[i]}} {
			if !(side.x >= smallest && side.x <= largest) {
				return nil, fmt.Errorf("compare pairs: run %d of %s gave %v, not a positive number from %g to %g", i, side.name, side.x, smallest, largest)
			}
		}
		d[i] = math.Log(b[i] / a[i])
	}
	return d, nil
}

// exp stays finite, since JSON has no infinity: the interval of 2 pairs can be arbitrarily wide.
func exp(x float64) float64 { return math.Min(math.Exp(x), math.MaxFloat64) }

package stats

import (
	"fmt"
	"math"
	"slices"
)

// DefaultLevel is the confidence level of intervals: two-sided tests at 5 %.
const DefaultLevel = 0.95

// Comparison of B with A over pairs of runs. With a single pair there is no spread
// and so no interval: SD is 0, Low and High are the ratio itself, both p are 1.
type Comparison struct {
	N     int     `json:"n"`     // pairs
	Level float64 `json:"level"` // confidence of Low to High
	Ratio float64 `json:"ratio"` // geometric mean of b/a
	Low   float64 `json:"low"`   // Ratio's interval
	High  float64 `json:"high"`
	MeanD float64 `json:"mean_d"` // of d = ln(b/a)
	SD    float64 `json:"sd_d"`   // of d, with n-1

	Test     TTest `json:"test"` // paired, of d: the one that counts
	SignFlip Flips `json:"sign_flip"`
	// Raw is the paired test of b-a. Over rows of one table it lets the largest
	// dominate; it is here to check what others have published.
	Raw TTest `json:"raw"`
}

// Paired compares b with a, pair by pair: a[i] and b[i] come from the same block.
// The interval is exp(mean d ± t(1/2+level/2; n-1) sd/√n).
//
// All values must be positive, from 1e-100 to 1e100; level is between 0 and 1. A
// value that is not (a run that did nothing, or failed) is refused by name: leaving
// it out silently would bias the result.
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

// LogRatios are d[i] = ln(b[i]/a[i]), in the order of the pairs, as Drift and Lag1
// want them. What it refuses, Paired refuses.
func LogRatios(a, b []float64) ([]float64, error) {
	if len(a) != len(b) || len(a) == 0 {
		return nil, fmt.Errorf("compare pairs: %d runs of A and %d of B, as many of each are needed and at least 1", len(a), len(b))
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

// exp stays finite, as JSON wants numbers: the interval of 2 pairs can be anything.
func exp(x float64) float64 { return math.Min(math.Exp(x), math.MaxFloat64) }

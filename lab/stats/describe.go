package stats

import (
	"fmt"
	"math"
	"slices"

	"gonum.org/v1/gonum/stat"
)

// Summary describes a sample. All but N and CV are in the sample's unit.
type Summary struct {
	N      int
	Mean   float64
	SD     float64 // with n-1; 0 for one value
	Min    float64
	Median float64 // of an even number, the mean of the middle two
	Max    float64
	CV     float64 // SD over |Mean|, a fraction; 0 if Mean is 0
}

// Describe summarizes a sample of at least one value; each must be within ±1e100.
func Describe(sample []float64) (Summary, error) {
	if len(sample) == 0 {
		return Summary{}, fmt.Errorf("describe a sample: it has 0 values, at least 1 is needed")
	}
	for i, x := range sample {
		if !(math.Abs(x) <= largest) {
			return Summary{}, fmt.Errorf("describe a sample: value %d is %v, not within ±%g", i, x, largest)
		}
	}
	sorted := slices.Sorted(slices.Values(sample))
	n := len(sorted)
	s := Summary{N: n, Min: sorted[0], Median: (sorted[(n-1)/2] + sorted[n/2]) / 2, Max: sorted[n-1]}
	s.Mean, s.SD = meanSD(sample, 0)
	if s.Mean != 0 {
		s.CV = s.SD / math.Abs(s.Mean)
	}
	return s, nil
}

// Measurements must lie in this range, so that sums of their squares stay finite.
const (
	smallest = 1e-100
	largest  = 1e100
)

// rounding bounds the relative error of a sum of a few thousand values.
const rounding = 1e-12

// meanSD of a sample of at least one value, with n-1. The deviation is 0 if it could be
// the rounding error of equal values that were computed from numbers as large as scale.
func meanSD(x []float64, scale float64) (mean, sd float64) {
	mean, sd = stat.MeanStdDev(x, nil)
	if len(x) < 2 || sd <= rounding*max(scale, math.Abs(slices.Max(x)), math.Abs(slices.Min(x))) {
		return mean, 0
	}
	return mean, sd
}

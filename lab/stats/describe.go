package stats

import (
	"fmt"
	"math"
	"slices"

	"gonum.org/v1/gonum/stat"
)

// Summary of a sample, all but N and CV in the sample's unit.
type Summary struct {
	N      int     `json:"n"`
	Mean   float64 `json:"mean"`
	SD     float64 `json:"sd"` // with n-1; 0 for one value
	Min    float64 `json:"min"`
	Median float64 `json:"median"` // of an even number, the mean of the middle two
	Max    float64 `json:"max"`
	CV     float64 `json:"cv"` // SD over |Mean|, a fraction; 0 if Mean is 0
}

// Describe sums up a sample of at least one value; each lies within ±1e100.
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

// Measurements lie in this range; sums of their squares then stay finite.
const (
	smallest = 1e-100
	largest  = 1e100
)

// rounding is the relative error that sums of a few thousand values stay below.
const rounding = 1e-12

// meanSD of a sample of at least one; the deviation is with n-1, and 0 where it is
// but the rounding of equal values that were computed from numbers as large as scale.
func meanSD(x []float64, scale float64) (mean, sd float64) {
	mean, sd = stat.MeanStdDev(x, nil)
	if len(x) < 2 || sd <= rounding*max(scale, math.Abs(slices.Max(x)), math.Abs(slices.Min(x))) {
		return mean, 0
	}
	return mean, sd
}

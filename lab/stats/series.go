package stats

import (
	"math"

	"gonum.org/v1/gonum/floats"
	"gonum.org/v1/gonum/stat"
)

// warnBelow is the p below which a trend is reported.
const warnBelow = 0.05

// Trend is the linear trend of a series.
type Trend struct {
	Slope float64 // per step; of log ratios: 0.01 is about 1 % a block
	Test  TTest   // of whether it is 0, with n-2 degrees of freedom
	Warn  bool    // p < 0.05: the difference moved during the experiment
}

// Drift fits a least-squares line to log ratios over 0, 1, 2, … It warns of one in 20
// series without a trend, by chance. Fewer than 3 values have no trend.
func Drift(d []float64) Trend {
	n := float64(len(d))
	if n < 3 {
		return Trend{Test: TTest{P: 1}}
	}
	order := make([]float64, len(d))
	for i := range order {
		order[i] = float64(i)
	}
	if _, sd := meanSD(d, 1); sd == 0 {
		return Trend{Test: TTest{DF: n - 2, P: 1}}
	}
	intercept, slope := stat.LinearRegression(order, d, nil, false)
	residual := make([]float64, len(d))
	for i, x := range order {
		residual[i] = d[i] - intercept - slope*x
	}
	spread := math.Sqrt(n * (n*n - 1) / 12) // of 0, 1, …, n-1 about their mean
	left := floats.Norm(residual, 2)
	if left <= rounding*max(1, floats.Norm(d, 2)) {
		left = 0 // a straight line
	}
	test := tTest(slope, left/math.Sqrt(n-2)/spread, n-2)
	return Trend{Slope: slope, Test: test, Warn: test.P < warnBelow}
}

// Autocorrelation is the correlation of a series with itself one step later.
type Autocorrelation struct {
	R     float64 // from -1 to 1
	Bound float64 // 1.96/√n: |R| of independent values stays below in 19 of 20 series
	Warn  bool    // |R| > Bound: neighbouring blocks resemble each other
}

// Lag1 of log ratios is Σ(d[i]-m)(d[i+1]-m) / Σ(d[i]-m)² with the bound of M. S. Bartlett (1946).
// It is 0 for fewer than 3 values and for equal values.
func Lag1(d []float64) Autocorrelation {
	if len(d) < 3 {
		return Autocorrelation{}
	}
	a := Autocorrelation{Bound: 1.96 / math.Sqrt(float64(len(d)))}
	mean, sd := meanSD(d, 1)
	if sd == 0 {
		return a
	}
	centred := make([]float64, len(d))
	for i, x := range d {
		centred[i] = x - mean
	}
	a.R = floats.Dot(centred[1:], centred[:len(d)-1]) / floats.Dot(centred, centred)
	a.Warn = math.Abs(a.R) > a.Bound
	return a
}

package stats

import (
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"gonum.org/v1/gonum/stat/distuv"
	"pgregory.net/rapid"
)

func TestDescribe(t *testing.T) {
	s, err := Describe([]float64{4, 1, 3, 2})
	require.NoError(t, err)
	require.InDelta(t, math.Sqrt(5.0/3), s.SD, 1e-12)
	require.InDelta(t, math.Sqrt(5.0/3)/2.5, s.CV, 1e-12)
	s.SD, s.CV = 0, 0
	require.Equal(t, Summary{N: 4, Mean: 2.5, Min: 1, Median: 2.5, Max: 4}, s)

	s, err = Describe([]float64{7})
	require.NoError(t, err)
	require.Equal(t, Summary{N: 1, Mean: 7, Min: 7, Median: 7, Max: 7}, s)
	s, err = Describe([]float64{-1, 1, 0})
	require.NoError(t, err)
	require.Equal(t, Summary{N: 3, SD: 1, Min: -1, Max: 1}, s)
	s, err = Describe([]float64{-1, -3})
	require.NoError(t, err)
	require.InDelta(t, math.Sqrt2/2, s.CV, 1e-12)

	_, err = Describe(nil)
	require.ErrorContains(t, err, "0 values")
	_, err = Describe([]float64{1, math.Inf(1)})
	require.ErrorContains(t, err, "value 1 is +Inf")
	_, err = Describe([]float64{math.NaN()})
	require.ErrorContains(t, err, "value 0 is NaN")
}

func TestDescribe_leavesTheSampleInOrder(t *testing.T) {
	sample := []float64{3, 1, 2}
	_, err := Describe(sample)
	require.NoError(t, err)
	require.Equal(t, []float64{3, 1, 2}, sample)
}

func TestPaired_refuses(t *testing.T) {
	for _, c := range []struct {
		a, b  []float64
		level float64
		words string
	}{
		{nil, nil, 0.95, "0 runs of A and 0 of B"},
		{[]float64{1, 2}, []float64{1}, 0.95, "2 runs of A and 1 of B"},
		{[]float64{1, 0}, []float64{1, 1}, 0.95, "run 1 of A gave 0"},
		{[]float64{1, 1}, []float64{-3, 1}, 0.95, "run 0 of B gave -3"},
		{[]float64{1, 1}, []float64{1, math.NaN()}, 0.95, "run 1 of B gave NaN"},
		{[]float64{math.Inf(1)}, []float64{1}, 0.95, "run 0 of A gave +Inf"},
		{[]float64{1}, []float64{1}, 1, "level is 1"},
		{[]float64{1}, []float64{1}, math.NaN(), "level is NaN"},
	} {
		_, err := Paired(c.a, c.b, c.level)
		require.ErrorContains(t, err, c.words)
	}
}

func TestPaired_onePairHasNoInterval(t *testing.T) {
	c, err := Paired([]float64{100}, []float64{200}, DefaultLevel)
	require.NoError(t, err)
	require.InDelta(t, 2, c.Ratio, 1e-12)
	require.Equal(t, []float64{c.Ratio, c.Ratio, 0, 1, 1, 1}, []float64{c.Low, c.High, c.SD, c.Test.P, c.SignFlip.P, c.Raw.P})
	_, within := c.TOST(10)
	require.False(t, within)
}

// If all pairs have the same ratio, the deviation is exactly 0.
func TestPaired_withoutSpread(t *testing.T) {
	same, err := Paired([]float64{3, 7, 11}, []float64{3, 7, 11}, DefaultLevel)
	require.NoError(t, err)
	require.Equal(t, TTest{DF: 2, P: 1}, same.Test)
	require.Equal(t, Flips{P: 1, Flips: 8, Exact: true}, same.SignFlip)
	require.Equal(t, "equivalent within 2 % [+0.00, +0.00]", same.Verdict("B", DefaultCriteria(HigherIsBetter)).Words)

	half, err := Paired([]float64{3, 7.7, 11.1}, []float64{1.5, 3.85, 5.55}, DefaultLevel)
	require.NoError(t, err)
	require.Zero(t, half.SD)
	require.Equal(t, TTest{T: math.Inf(-1), DF: 2}, half.Test)
	require.Equal(t, "B slower by 50.0 % [50.0, 50.0]", half.Verdict("B", DefaultCriteria(HigherIsBetter)).Words)
	p, within := half.TOST(0.02)
	require.False(t, within)
	require.InDelta(t, 1.0, p, 0)

	// Rounding errors are not variation: equal ratios, and equal differences, also tiny ones.
	x := []float64{3, 7.7, 1.4}
	for _, b := range [][]float64{
		{x[0] * 1.1, x[1] * 1.1, x[2] * 1.1},
		{x[0] * 0.9999999, x[1] * 0.9999999, x[2] * 0.9999999},
		{x[0] + 1.1, x[1] + 1.1, x[2] + 1.1},
		{x[0] + 1e-6, x[1] + 1e-6, x[2] + 1e-6},
	} {
		c, err := Paired(x, b, DefaultLevel)
		require.NoError(t, err)
		require.True(t, math.IsInf(c.Test.T, 0) != math.IsInf(c.Raw.T, 0), "%+v", c)
	}
	require.Equal(t, Flips{P: 0.25, Flips: 8, Exact: true}, half.SignFlip)
}

// Two wild pairs give an interval that no float64 can hold.
func TestPaired_staysFinite(t *testing.T) {
	c, err := Paired([]float64{1e-100, 1e100}, []float64{1e100, 1e-100}, DefaultLevel)
	require.NoError(t, err)
	require.False(t, math.IsInf(c.High, 0) || math.IsNaN(c.Low))
	require.LessOrEqual(t, c.Low, c.Ratio)
	require.LessOrEqual(t, c.Ratio, c.High)
}

func TestSignFlip(t *testing.T) {
	require.Equal(t, Flips{P: 2.0 / 8, Flips: 8, Exact: true}, signFlip([]float64{1, 2, 3}))
	// 3+2-1 is reached by +++ (6), ++- (4), and their opposites.
	require.Equal(t, Flips{P: 4.0 / 8, Flips: 8, Exact: true}, signFlip([]float64{3, 2, -1}))
	// Sums that differ only by rounding count as equal: ±0.4 and ±0.2, four times.
	require.Equal(t, Flips{P: 6.0 / 8, Flips: 8, Exact: true}, signFlip([]float64{0.1, 0.2, -0.1}))
	require.InDelta(t, 2.0/(1<<15), signFlip(slices.Repeat([]float64{0.1}, 15)).P, 0)

	// With more than 15 pairs signs are drawn: close to the binomial count, and always the same.
	d := slices.Repeat([]float64{1}, 16)
	for i := range 4 {
		d[i] = -1 // the sum is 8: at most 4 or at least 12 of 16
	}
	got := signFlip(d)
	require.False(t, got.Exact)
	require.Equal(t, 100_000, got.Flips)
	exact := 2 * float64(1+16+120+560+1820) / (1 << 16)
	require.InDelta(t, exact, got.P, 4*math.Sqrt(exact*(1-exact)/100_000))
	require.Equal(t, got, signFlip(d))

	// Also with more than 64 pairs, each has its own sign: 128 pairs, 75 up, 53 down.
	many := append(slices.Repeat([]float64{1}, 75), slices.Repeat([]float64{-1}, 53)...)
	exact = 2 * distuv.Binomial{N: 128, P: 0.5}.CDF(53)
	require.InDelta(t, exact, signFlip(many).P, 4*math.Sqrt(exact*(1-exact)/100_000))
	require.Positive(t, signFlip(slices.Repeat([]float64{1}, 100)).P, "never 0: it was seen once")
}

func TestHolm(t *testing.T) {
	got, err := Holm([]float64{0.01, 0.04, 0.03, 0.005})
	require.NoError(t, err)
	require.InDeltaSlice(t, []float64{0.03, 0.06, 0.06, 0.02}, got, 1e-12)
	got, err = Holm(nil)
	require.NoError(t, err)
	require.Empty(t, got)
	for _, p := range []float64{-0.1, 1.1, math.NaN()} {
		_, err = Holm([]float64{0, p})
		require.ErrorContains(t, err, "number 1 is")
	}
	require.Equal(t, []string{"", "*", "**", "**", ""}, []string{
		Mark(0.06, 0.2, 0.05), Mark(0.04, 0.06, 0.05), Mark(0.01, 0.02, 0.05), Mark(0.01, 0.02, 0.03), Mark(0.05, 0.05, 0.05)})
}

func TestWelch_refuses(t *testing.T) {
	for _, c := range []struct {
		mean, sd float64
		n        int
		words    string
	}{
		{1, 1, 1, "group B has 1 runs"},
		{1, 1, 0, "group B has 0 runs"},
		{math.NaN(), 1, 2, "mean of group B is NaN"},
		{1, -1, 2, "deviation of group B is -1"},
		{1, math.Inf(1), 2, "deviation of group B is +Inf"},
		{1, 0, 2, "both standard deviations are 0"},
	} {
		_, err := Welch(1, 0, 2, c.mean, c.sd, c.n)
		require.ErrorContains(t, err, c.words)
	}
}

func TestWelch_equalGroupsAreStudents(t *testing.T) {
	w, err := Welch(10, 2, 8, 12, 2, 8)
	require.NoError(t, err)
	require.InDelta(t, 14, w.DF, 1e-9)
	require.InDelta(t, 2, w.T, 1e-9)
	w, err = Welch(10, 0, 8, 12, 2, 8)
	require.NoError(t, err)
	require.InDelta(t, 7, w.DF, 1e-9, "only B varies")
}

func TestDrift(t *testing.T) {
	// By hand: the line is 1 + 0.8x, its residuals 0, 0.2, -0.6, 0.6, -0.2.
	got := Drift([]float64{1, 2, 2, 4, 4})
	require.InDelta(t, 0.8, got.Slope, 1e-12)
	residuals := 0.2*0.2 + 0.6*0.6 + 0.6*0.6 + 0.2*0.2
	require.InDelta(t, 0.8/math.Sqrt(residuals/3/10), got.Test.T, 1e-9)
	require.InDelta(t, 3, got.Test.DF, 0)
	require.True(t, got.Warn)

	require.False(t, Drift([]float64{0.01, -0.02, 0.015, -0.01, 0.02, -0.015}).Warn)
	require.Equal(t, Trend{Test: TTest{DF: 2, P: 1}}, Drift([]float64{3, 3, 3, 3}))
	require.Equal(t, Trend{Test: TTest{P: 1}}, Drift([]float64{1, 2}))
	line := Drift([]float64{0.1, 0.2, 0.3, 0.4})
	require.True(t, line.Warn)
	require.InDelta(t, math.Inf(1), line.Test.T, 0)
}

func TestLag1(t *testing.T) {
	got := Lag1([]float64{1, 2, 3, 4, 5})
	require.InDelta(t, (2.0+0+0+2)/10, got.R, 1e-12)
	require.InDelta(t, 1.96/math.Sqrt(5), got.Bound, 1e-12)
	require.False(t, got.Warn)
	require.True(t, Lag1([]float64{1, -1, 1, -1, 1, -1, 1, -1}).Warn)
	require.True(t, Lag1([]float64{1, 1, 1, 1, 1, -1, -1, -1, -1, -1}).Warn, "r is 7/10")
	require.Equal(t, Autocorrelation{}, Lag1([]float64{1, 2}))
	require.Equal(t, Autocorrelation{Bound: 0.98}, Lag1([]float64{2, 2, 2, 2}))
}

func TestFairness(t *testing.T) {
	for _, c := range []struct {
		shares       []float64
		jain, minMax float64
	}{
		{[]float64{5, 5, 5}, 1, 1},
		{[]float64{1, 0, 0, 0}, 0.25, 0},
		{[]float64{1, 1, 0, 0}, 0.5, 0},
		{[]float64{5e99, 1e100}, 0.9, 0.5},
		{[]float64{7}, 1, 1},
	} {
		j, err := Jain(c.shares)
		require.NoError(t, err)
		require.InDelta(t, c.jain, j, 1e-12)
		m, err := MinMax(c.shares)
		require.NoError(t, err)
		require.InDelta(t, c.minMax, m, 1e-12)
	}
	for words, shares := range map[string][]float64{
		"none of 0": nil, "none of 2": {0, 0}, "share 1 is -1": {1, -1}, "share 0 is NaN": {math.NaN()},
	} {
		_, err := Jain(shares)
		require.ErrorContains(t, err, words)
		_, err = MinMax(shares)
		require.ErrorContains(t, err, words)
	}
	rapid.Check(t, func(rt *rapid.T) {
		shares := rapid.SliceOfN(rapid.Float64Range(0.001, 1e6), 1, 30).Draw(rt, "shares")
		j, err := Jain(shares)
		require.NoError(rt, err)
		require.GreaterOrEqual(rt, j, 1/float64(len(shares))-1e-12)
		require.LessOrEqual(rt, j, 1.0)
	})
}

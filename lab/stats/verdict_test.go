package stats

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
	"gonum.org/v1/gonum/stat/distuv"
	"pgregory.net/rapid"
)

// known is a comparison of 9 pairs with the interval MeanD ± half.
func known(mean, half float64) Comparison {
	sd := half / student(8).Quantile(0.975) * 3
	return Comparison{N: 9, Level: DefaultLevel, MeanD: mean, SD: sd, Ratio: math.Exp(mean), Low: math.Exp(mean - half), High: math.Exp(mean + half)}
}

func TestVerdict_words(t *testing.T) {
	few := known(0.5, 0.1)
	few.N = 2
	for _, c := range []struct {
		comparison Comparison
		better     Direction
		outcome    Outcome
		words      string
	}{
		{few, HigherIsBetter, TooFewPairs, "too few pairs (2): no verdict"},
		{known(math.Log(1.12), 0.02), HigherIsBetter, Faster, "host bfq faster by 12.0 % [9.78, 14.3]"},
		{known(math.Log(1.12), 0.02), LowerIsBetter, Slower, "host bfq higher by 12.0 % [9.78, 14.3]"},
		{known(math.Log(0.8), 0.02), HigherIsBetter, Slower, "host bfq slower by 20.0 % [18.4, 21.6]"},
		{known(math.Log(0.8), 0.02), LowerIsBetter, Faster, "host bfq lower by 20.0 % [18.4, 21.6]"},
		{known(math.Log(1.015), 0.002), HigherIsBetter, Faster, "host bfq faster by 1.50 % [1.30, 1.70]"},
		{known(math.Log(1.02), 0.05), HigherIsBetter, NoDifference, "no difference shown [-2.97, +7.23]"},
		{known(math.Log(0.98), 0.05), LowerIsBetter, NoDifference, "no difference shown [-6.78, +3.02]"},
		{known(0, 0.015), HigherIsBetter, Equivalent, "equivalent within 2 % [-1.49, +1.51]"},
		{known(math.Log(1.005), 0.002), HigherIsBetter, Equivalent, "equivalent within 2 % [+0.30, +0.70]"},
	} {
		got := c.comparison.Verdict("host bfq", DefaultCriteria(c.better))
		require.Equal(t, Verdict{c.outcome, c.words}, got)
	}
	narrow := Criteria{MinEffect: 0.01}
	require.Equal(t, Verdict{NoDifference, "no difference of 1 % shown [+0.30, +0.70]"}, known(math.Log(1.005), 0.002).Verdict("B", narrow))
	require.Equal(t, NoDifference, known(0, 0.001).Verdict("B", narrow).Outcome, "without a margin nothing is equivalent")
}

// TOST and the interval must give the same answer.
func TestTOST_isTheIntervalInsideTheMargin(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		c := known(rapid.Float64Range(-0.05, 0.05).Draw(rt, "mean"), rapid.Float64Range(0.001, 0.05).Draw(rt, "half"))
		margin := rapid.Float64Range(0.001, 0.1).Draw(rt, "margin")
		p, within := c.TOST(margin)
		slack := math.Min(math.Abs(c.High-1-margin), math.Abs(c.Low-1/(1+margin)))
		if slack > 1e-9 {
			require.Equal(rt, c.High < 1+margin && c.Low > 1/(1+margin), within)
		}
		require.Equal(rt, p < 0.025, within)
	})
	p, _ := known(0, 0.02).TOST(math.Expm1(0.02))
	require.InDelta(t, 0.025, p, 1e-9)
}

// noisy draws runs of a configuration with this mean and relative noise.
func noisy(random *rand.Rand, n int, mean, cv float64) []float64 {
	x := make([]float64, n)
	for i := range x {
		x[i] = mean * math.Exp(cv*random.NormFloat64())
	}
	return x
}

func paired(t require.TestingT, a, b []float64) Comparison {
	c, err := Paired(a, b, DefaultLevel)
	require.NoError(t, err)
	return c
}

// Of experiments that compare a configuration with itself, 5 % find a difference by
// chance; more would mean that the verdict is wrong. The number is binomial: with 200
// experiments it is from 3 to 20 with a probability of more than 99.5 %.
func TestVerdict_falsePositives(t *testing.T) {
	const experiments, fewest, most = 200, 3, 20
	chance := distuv.Binomial{N: experiments, P: 0.05}
	require.Greater(t, chance.CDF(most)-chance.CDF(fewest-1), 0.995)
	random := rand.New(rand.NewPCG(1, 1))
	found := 0
	for range experiments {
		c := paired(t, noisy(random, 10, 1000, 0.03), noisy(random, 10, 1000, 0.03))
		switch c.Verdict("B", DefaultCriteria(HigherIsBetter)).Outcome {
		case Faster, Slower:
			found++
		}
	}
	require.GreaterOrEqual(t, found, fewest)
	require.LessOrEqual(t, found, most)
}

// Without a correction nearly two in three tables of 20 equal cells have an asterisk;
// with Holm's, one table in 20 has two. Of 200 tables that is 10; 20 at most have a
// probability above 99.8 %.
func TestHolm_falsePositivesOfATable(t *testing.T) {
	const tables, cells, most = 200, 20, 20
	require.Greater(t, distuv.Binomial{N: tables, P: 0.05}.CDF(most), 0.998)
	random := rand.New(rand.NewPCG(2, 2))
	one, two := 0, 0
	for range tables {
		p := make([]float64, cells)
		for i := range p {
			p[i] = paired(t, noisy(random, 10, 1000, 0.03), noisy(random, 10, 1000, 0.03)).Test.P
		}
		adjusted, err := Holm(p)
		require.NoError(t, err)
		marks := map[string]int{}
		for i := range p {
			marks[Mark(p[i], adjusted[i], 0.05)]++
		}
		if marks["**"] > 0 {
			two++
		}
		if marks["*"]+marks["**"] > 0 {
			one++
		}
	}
	require.Greater(t, one, tables/2, "the tables do tempt")
	require.Positive(t, two)
	require.LessOrEqual(t, two, most)
}

// With as many pairs as PairsNeeded says, a real difference is found about 4 times in
// 5: of 400, 320 with a standard deviation of 8.
func TestPairsNeeded_givesThePower(t *testing.T) {
	const experiments = 400
	random := rand.New(rand.NewPCG(3, 3))
	for _, c := range []struct{ effect, cv float64 }{{0.02, 0.01}, {0.02, 0.02}, {0.05, 0.05}, {0.01, 0.02}} {
		n, err := PairsNeeded(c.effect, c.cv)
		require.NoError(t, err)
		found := 0
		for range experiments {
			b := noisy(random, n, 1000*math.Exp(c.effect), c.cv)
			d, err := LogRatios(noisy(random, n, 1000, c.cv), b)
			require.NoError(t, err)
			mean, sd := meanSD(d, 1)
			if tTest(mean, sd/math.Sqrt(float64(n)), float64(n-1)).P < 0.05 {
				found++
			}
		}
		require.InDelta(t, 0.8*experiments, found, 4*8, "effect %g, cv %g, %d pairs", c.effect, c.cv, n)
	}
}

func TestPairsNeeded_refuses(t *testing.T) {
	for _, x := range []float64{0, -1, math.NaN(), math.Inf(1)} {
		_, err := PairsNeeded(x, 0.01)
		require.ErrorContains(t, err, "the effect is")
		_, err = PairsNeeded(0.01, x)
		require.ErrorContains(t, err, "the coefficient of variation is")
	}
	n, err := PairsNeeded(1e-6, 10)
	require.NoError(t, err)
	require.Positive(t, n, "the largest answer is an int")
}

func TestPaired_properties(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		n := rapid.IntRange(2, 12).Draw(rt, "pairs")
		values := rapid.SliceOfN(rapid.Float64Range(0.5, 1e6), n, n)
		a, b := values.Draw(rt, "a"), values.Draw(rt, "b")
		ab, ba := paired(rt, a, b), paired(rt, b, a)
		require.InEpsilon(rt, ab.Ratio, 1/ba.Ratio, 1e-9)
		require.InEpsilon(rt, math.Max(ab.Low, 1e-300), math.Max(1/ba.High, 1e-300), 1e-6)
		require.LessOrEqual(rt, ab.Low, ab.Ratio)
		require.GreaterOrEqual(rt, ab.High, ab.Ratio)
		require.InDelta(rt, ab.Test.P, ba.Test.P, 1e-9)
		require.InDelta(rt, ab.SignFlip.P, ba.SignFlip.P, 0)
		require.GreaterOrEqual(rt, ab.SignFlip.P, 2/math.Exp2(float64(n)))
		require.Equal(rt, ab.Test.P < 0.05, ab.Low > 1 || ab.High < 1, "the interval and p agree")

		opposite := map[Outcome]Outcome{Faster: Slower, Slower: Faster}
		vab, vba := ab.Verdict("B", DefaultCriteria(HigherIsBetter)).Outcome, ba.Verdict("A", DefaultCriteria(HigherIsBetter)).Outcome
		if o, ok := opposite[vab]; ok {
			require.Equal(rt, o, vba)
		} else {
			require.Equal(rt, vab, vba)
		}
	})
}

func TestHolm_properties(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		p := rapid.SliceOfN(rapid.Float64Range(0, 1), 1, 30).Draw(rt, "p")
		adjusted, err := Holm(p)
		require.NoError(rt, err)
		for i := range p {
			require.GreaterOrEqual(rt, adjusted[i], p[i])
			require.LessOrEqual(rt, adjusted[i], 1.0)
			for j := range p {
				if p[i] <= p[j] {
					require.LessOrEqual(rt, adjusted[i], adjusted[j], "the order of the p-values stays")
				}
			}
		}
	})
}

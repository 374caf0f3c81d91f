package stats

import (
	"math"
	"math/rand/v2"
)

const (
	exactPairs  = 15 // all 2^n flips up to here
	randomFlips = 100_000
)

// Flips is the result of a sign-flip test.
type Flips struct {
	P     float64 // two-sided
	Flips int     // how many choices of signs were tried
	Exact bool    // whether those were all 2^n
}

// signFlip is Fisher's randomisation test for pairs: the share of choices of signs for
// which |sum of d| is at least the observed one (R. A. Fisher, The Design of Experiments,
// 1935, section 21). With up to 15 pairs it tries all of them. With more it draws 100 000
// from a generator with a fixed seed and counts the observed one as one more, so that P is
// never 0. The standard error of P is then at most 0.0016.
func signFlip(d []float64) Flips {
	seen, scale := 0.0, 0.0
	for _, x := range d {
		seen += x
		scale += math.Abs(x)
	}
	// Sums of the same numbers in another order may differ by rounding.
	seen = math.Abs(seen) - rounding*scale
	extreme := 0
	if len(d) <= exactPairs {
		all := 1 << len(d)
		for signs := range uint64(all) {
			if math.Abs(flipped(d, func(i int) bool { return signs>>i&1 != 0 })) >= seen {
				extreme++
			}
		}
		return Flips{P: float64(extreme) / float64(all), Flips: all, Exact: true}
	}
	random := rand.NewPCG(uint64(len(d)), randomFlips)
	for range randomFlips {
		signs := uint64(0)
		sum := flipped(d, func(i int) bool {
			if i%64 == 0 {
				signs = random.Uint64()
			}
			return signs>>(i%64)&1 != 0
		})
		if math.Abs(sum) >= seen {
			extreme++
		}
	}
	return Flips{P: float64(extreme+1) / (randomFlips + 1), Flips: randomFlips}
}

// flipped is the sum of d with the chosen signs flipped.
func flipped(d []float64, turn func(i int) bool) (sum float64) {
	for i, x := range d {
		if turn(i) {
			x = -x
		}
		sum += x
	}
	return sum
}

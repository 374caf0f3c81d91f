package stats

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
)

// Blocks draws the order of an experiment: randomised complete blocks. There are
// repeats blocks, each with every configuration 0 to configs-1 once; blocks[i][j] is
// the j-th to run in block i. The same arguments give the same order.
//
// With more than two configurations each block is a random permutation. With two the
// order is balanced as well: blocks come in pairs, one AB and one BA, and the seed
// decides which is first. AB and BA then occur equally often (an odd last block is
// random), so that running second is neither an advantage nor a disadvantage.
func Blocks(configs, repeats int, seed uint64) ([][]int, error) {
	if configs < 1 || repeats < 1 {
		return nil, fmt.Errorf("draw blocks: %d configurations and %d repeats, at least 1 of each is needed", configs, repeats)
	}
	random := rand.New(rand.NewPCG(seed, 0))
	blocks := make([][]int, repeats)
	for i := range blocks {
		if configs == 2 && i%2 == 1 {
			blocks[i] = slices.Clone(blocks[i-1])
			slices.Reverse(blocks[i])
			continue
		}
		blocks[i] = random.Perm(configs)
	}
	return blocks, nil
}

// The upper quantiles of the normal distribution for a two-sided level of 5 % and a
// power of 80 %, with two decimals as in published tables of sample sizes.
const (
	zLevel = 1.96
	zPower = 0.84
)

// PairsNeeded is how many pairs show a difference of effect (a fraction) with a power
// of 80 % at a two-sided 5 %, if the runs of each configuration vary by cv (a
// fraction): (1.96+0.84)²·2cv²/effect² + 1.96²/2, rounded up, at least MinPairs. A
// pair's log ratio varies by √2·cv; the last term accounts for the t-distribution's
// wider tails (W. C. Guenther, The American Statistician 35, 1981). It is an
// approximation: if it gives 3 pairs, the real power can be as low as 70 %. Pairs that
// share a seed vary less, and fewer are needed.
//
// effect and cv lie from 1e-6 to 10.
func PairsNeeded(effect, cv float64) (int, error) {
	for _, a := range []struct {
		name string
		x    float64
	}{{"effect", effect}, {"coefficient of variation", cv}} {
		if !(a.x >= 1e-6 && a.x <= 10) {
			return 0, fmt.Errorf("plan repeats: the %s is %v, not from 1e-6 to 10", a.name, a.x)
		}
	}
	relative := (zLevel + zPower) * cv / effect
	n := 2*relative*relative + zLevel*zLevel/2
	return max(MinPairs, int(math.Ceil(n))), nil
}

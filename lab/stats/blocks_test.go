package stats

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// A seed must always give the same order, since stored experiments depend on it.
func TestBlocks_orderOfAStoredSeed(t *testing.T) {
	two, err := Blocks(2, 6, 7)
	require.NoError(t, err)
	require.Equal(t, [][]int{{1, 0}, {0, 1}, {1, 0}, {0, 1}, {0, 1}, {1, 0}}, two)
	four, err := Blocks(4, 3, 7)
	require.NoError(t, err)
	require.Equal(t, [][]int{{3, 1, 0, 2}, {0, 3, 2, 1}, {0, 2, 1, 3}}, four)
}

func TestBlocks_properties(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		configs, repeats := rapid.IntRange(1, 8).Draw(rt, "configs"), rapid.IntRange(1, 21).Draw(rt, "repeats")
		seed := rapid.Uint64().Draw(rt, "seed")
		blocks, err := Blocks(configs, repeats, seed)
		require.NoError(rt, err)
		require.Len(rt, blocks, repeats)
		again, err := Blocks(configs, repeats, seed)
		require.NoError(rt, err)
		require.Equal(rt, blocks, again)
		ab := 0
		for _, block := range blocks {
			require.Len(rt, block, configs)
			for i, c := range slices.Sorted(slices.Values(block)) {
				require.Equal(rt, i, c, "each configuration once")
			}
			if block[0] == 0 {
				ab++
			}
		}
		if configs == 2 {
			require.InDelta(rt, float64(repeats)/2, ab, 0.5, "AB and BA occur equally often")
		}
	})
}

// Each of the 6 orders of 3 configurations occurs about equally often: of 600 blocks, 100
// times with a standard deviation of 9.
func TestBlocks_ordersAreEquallyLikely(t *testing.T) {
	blocks, err := Blocks(3, 600, 1)
	require.NoError(t, err)
	count := map[[3]int]int{}
	for _, b := range blocks {
		count[[3]int(b)]++
	}
	require.Len(t, count, 6)
	for order, n := range count {
		require.InDelta(t, 100, n, 36, "order %v", order)
	}
	first := 0
	for seed := range uint64(400) {
		two, err := Blocks(2, 2, seed)
		require.NoError(t, err)
		first += two[0][0]
	}
	require.InDelta(t, 200, first, 40, "the seed says which of AB and BA comes first")
}

func TestBlocks_refuses(t *testing.T) {
	for _, c := range [][2]int{{0, 1}, {1, 0}, {-1, 5}} {
		_, err := Blocks(c[0], c[1], 1)
		require.ErrorContains(t, err, "at least 1 of each")
	}
}

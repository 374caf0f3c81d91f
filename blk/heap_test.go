package blk

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// A heap gives what a sorted list gives.
func TestHeap_isASortedList(t *testing.T) {
	type entry struct {
		at   Instant
		rank uint64
	}
	before := func(a, b entry) int {
		if a.at < b.at || a.at == b.at && a.rank < b.rank {
			return -1
		}
		return 1
	}
	rapid.Check(t, func(t *rapid.T) {
		var h Heap[entry]
		h.Grow(rapid.IntRange(0, 8).Draw(t, "room"))
		var list []entry
		for rank := range rapid.Uint64Range(0, 200).Draw(t, "pushes") {
			e := entry{Instant(rapid.IntRange(0, 9).Draw(t, "at")), rank}
			h.Push(e.at, rank, e)
			list = append(list, e)
			slices.SortFunc(list, before)
			for len(list) > 0 && rapid.IntRange(0, 2).Draw(t, "pop") == 0 {
				require.Equal(t, list[0], h.First())
				require.Equal(t, list[0], h.Pop())
				list = list[1:]
			}
			require.Equal(t, len(list), h.Len())
			if len(list) > 0 {
				require.Equal(t, list[0].at, h.Next())
			} else {
				require.Equal(t, Never, h.Next())
			}
		}
		for _, e := range list {
			require.Equal(t, e, h.Pop())
		}
	})
}

// The order of pushes is kept where the ranks say so.
func TestHeap_stableByRank(t *testing.T) {
	var h Heap[int]
	for i := range 100 {
		h.Push(7, uint64(i), i)
	}
	for i := range 100 {
		require.Equal(t, i, h.Pop())
	}
}

func TestHeap_allocatesNothing(t *testing.T) {
	var h Heap[*int]
	h.Grow(64)
	v := new(int)
	require.Zero(t, testing.AllocsPerRun(100, func() {
		for i := range 64 {
			h.Push(Instant(i*7919%64), uint64(i), v)
		}
		for h.Len() > 0 {
			h.Pop()
		}
	}))
	for _, item := range h.items[:64] {
		require.Nil(t, item.value, "a value that is out is not kept alive")
	}
}

func BenchmarkHeap(b *testing.B) {
	var h Heap[int32]
	h.Grow(64)
	for i := range 64 {
		h.Push(Instant(i), uint64(i), int32(i))
	}
	for b.Loop() {
		at := h.Next()
		v := h.Pop()
		h.Push(at+1+at*7919%100, uint64(v), v)
	}
}

package blk

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// A List is a slice, whatever is done to it.
func TestList(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var l List
		var model []*Request
		at := func() int { return rapid.IntRange(0, len(model)-1).Draw(t, "at") }
		for range rapid.IntRange(0, 40).Draw(t, "steps") {
			r := &Request{}
			switch a := rapid.IntRange(0, 5).Draw(t, "action"); {
			case a == 0:
				l.PushFront(r)
				model = slices.Insert(model, 0, r)
			case a == 1:
				l.InsertAfter(r, nil)
				model = slices.Insert(model, 0, r)
			case a == 2 || len(model) == 0:
				l.PushBack(r)
				model = append(model, r)
			case a == 3:
				i := at()
				l.InsertAfter(r, model[i])
				model = slices.Insert(model, i+1, r)
			case a == 4:
				i := at()
				l.Remove(model[i])
				require.Nil(t, model[i].Prev)
				require.Nil(t, model[i].Next)
				model = slices.Delete(model, i, i+1)
			default:
				require.Same(t, model[0], l.PopFront())
				model = model[1:]
			}
			require.Equal(t, len(model), l.Len())
			x := l.Front()
			for _, m := range model {
				require.Same(t, m, x)
				x = x.Next
			}
			require.Nil(t, x)
			x = l.Back()
			for _, m := range slices.Backward(model) {
				require.Same(t, m, x)
				x = x.Prev
			}
			require.Nil(t, x)
		}
		for range model {
			l.PopFront()
		}
		require.Nil(t, l.PopFront())
	})
}

package blk

// Heap holds values, each until an instant: the earliest one comes out first, of those
// of one instant the one of the lowest rank. Equal ranks at one instant come out in
// no order that means anything, so a caller who needs one gives out different ranks;
// counting the pushes makes them come out as they went in.
//
// The zero value is empty and ready. Push allocates only where there are more values
// than ever before, or than Grow was told of.
type Heap[T any] struct{ items []heapItem[T] }

type heapItem[T any] struct {
	at    Instant
	rank  uint64
	value T
}

func (a *heapItem[T]) before(b *heapItem[T]) bool {
	return a.at < b.at || a.at == b.at && a.rank < b.rank
}

// Grow makes room for n values in all.
func (h *Heap[T]) Grow(n int) {
	if n > cap(h.items) {
		h.items = append(make([]heapItem[T], 0, n), h.items...)
	}
}

// Len is how many values there are.
func (h *Heap[T]) Len() int { return len(h.items) }

// Next is the instant of the first value; Never: there is none.
func (h *Heap[T]) Next() Instant {
	if len(h.items) == 0 {
		return Never
	}
	return h.items[0].at
}

// First is the first value. There is one.
func (h *Heap[T]) First() T { return h.items[0].value }

// Push puts v in, for the instant at.
func (h *Heap[T]) Push(at Instant, rank uint64, v T) {
	h.items = append(h.items, heapItem[T]{at, rank, v})
	s := h.items
	for i := len(s) - 1; i > 0; {
		up := (i - 1) / 2
		if !s[i].before(&s[up]) {
			return
		}
		s[i], s[up] = s[up], s[i]
		i = up
	}
}

// Pop takes the first value out. There is one.
func (h *Heap[T]) Pop() T {
	s := h.items
	first, n := s[0].value, len(s)-1
	s[0], s[n] = s[n], heapItem[T]{}
	s = s[:n]
	h.items = s
	for i := 0; ; {
		down := 2*i + 1
		if down >= n {
			return first
		}
		if down+1 < n && s[down+1].before(&s[down]) {
			down++
		}
		if !s[down].before(&s[i]) {
			return first
		}
		s[i], s[down] = s[down], s[i]
		i = down
	}
}

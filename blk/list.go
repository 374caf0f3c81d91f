package blk

// List is an intrusive doubly linked list of requests, linked through Prev and
// Next. A request is on one list at most, its owner's. The zero List is empty.
type List struct {
	head, tail *Request
	n          int
}

// Len is the number of requests on l.
func (l *List) Len() int { return l.n }

// Front is the first request, nil if l is empty. Lent.
func (l *List) Front() *Request { return l.head }

// Back is the last request, nil if l is empty. Lent.
func (l *List) Back() *Request { return l.tail }

// PushBack appends r.
func (l *List) PushBack(r *Request) {
	r.Prev, r.Next = l.tail, nil
	if l.tail == nil {
		l.head = r
	} else {
		l.tail.Next = r
	}
	l.tail = r
	l.n++
}

// PushFront inserts r at the front.
func (l *List) PushFront(r *Request) {
	r.Prev, r.Next = nil, l.head
	if l.head == nil {
		l.tail = r
	} else {
		l.head.Prev = r
	}
	l.head = r
	l.n++
}

// InsertAfter inserts r after at, which is on l, or at the front if at is nil.
func (l *List) InsertAfter(r, at *Request) {
	switch at {
	case nil:
		l.PushFront(r)
	case l.tail:
		l.PushBack(r)
	default:
		r.Prev, r.Next = at, at.Next
		at.Next.Prev, at.Next = r, r
		l.n++
	}
}

// Remove removes r, which is on l.
func (l *List) Remove(r *Request) {
	if r.Prev == nil {
		l.head = r.Next
	} else {
		r.Prev.Next = r.Next
	}
	if r.Next == nil {
		l.tail = r.Prev
	} else {
		r.Next.Prev = r.Prev
	}
	r.Prev, r.Next = nil, nil
	l.n--
}

// PopFront removes and returns the first request, nil if l is empty.
func (l *List) PopFront() *Request {
	r := l.head
	if r != nil {
		l.Remove(r)
	}
	return r
}

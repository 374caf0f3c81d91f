package sched

import "github.com/elevisor/elevisor/blk"

// tree holds requests sorted by Links.Key, and those with equal keys in the order in
// which they came. It is an intrusive red-black tree (Cormen et al., Introduction to
// Algorithms, ch. 13): it allocates nothing, and stays balanced whatever sectors guests
// choose. The zero value is empty.
//
// A child's index is its side: 0 for smaller keys, 1 for larger ones.
type tree struct {
	root *blk.Request
}

// from returns the first request whose key is at least key, nil if there is none.
func (t *tree) from(key blk.Sector) (r *blk.Request) {
	for x := t.root; x != nil; {
		if x.Links.Key >= key {
			r, x = x, x.Links.Child[0]
		} else {
			x = x.Links.Child[1]
		}
	}
	return r
}

// end returns the first request (side 0) or the last one (side 1), nil if t is empty.
func (t *tree) end(side int) (r *blk.Request) {
	for x := t.root; x != nil; x = x.Links.Child[side] {
		r = x
	}
	return r
}

// beside returns the request before r (side 0) or after it (side 1), nil if there is
// none.
func (t *tree) beside(r *blk.Request, side int) *blk.Request {
	if x := r.Links.Child[side]; x != nil {
		for x.Links.Child[1-side] != nil {
			x = x.Links.Child[1-side]
		}
		return x
	}
	for p := r.Links.Parent; p != nil; r, p = p, p.Links.Parent {
		if sideOf(r, p) != side {
			return p
		}
	}
	return nil
}

// insert adds r, whose key must not change until it is removed.
func (t *tree) insert(r *blk.Request) {
	l := &r.Links
	l.Parent, l.Child, l.Red = nil, [2]*blk.Request{}, true
	for at := &t.root; ; {
		x := *at
		if x == nil {
			*at = r
			break
		}
		l.Parent = x
		if l.Key < x.Links.Key {
			at = &x.Links.Child[0]
		} else {
			at = &x.Links.Child[1]
		}
	}
	t.grown(r)
}

// moved updates the key of g, a leader in t, if a front merge has moved the start of its
// group, and reports whether it has.
func (t *tree) moved(g *blk.Request) bool {
	key := g.Links.First.Pos
	if key == g.Links.Key {
		return false
	}
	t.remove(g)
	g.Links.Key = key
	t.insert(g)
	return true
}

// grown restores the balance after r, which is red, was added: no red request has a red
// parent.
func (t *tree) grown(r *blk.Request) {
	for {
		p := r.Links.Parent
		if p == nil || !p.Links.Red {
			break
		}
		g := p.Links.Parent // there is one: the root is black
		side := sideOf(p, g)
		if uncle := g.Links.Child[1-side]; red(uncle) {
			p.Links.Red, uncle.Links.Red, g.Links.Red = false, false, true
			r = g
			continue
		}
		if sideOf(r, p) != side {
			t.rotate(p, side)
			r, p = p, r
		}
		p.Links.Red, g.Links.Red = false, true
		t.rotate(g, 1-side)
	}
	t.root.Links.Red = false
}

// remove removes r, which is in t.
func (t *tree) remove(r *blk.Request) {
	l := &r.Links
	wasRed, under, in := l.Red, l.Parent, (*blk.Request)(nil) // in becomes a child of under
	switch {
	case l.Child[0] == nil:
		in = l.Child[1]
		t.replace(r, in)
	case l.Child[1] == nil:
		in = l.Child[0]
		t.replace(r, in)
	default:
		next := l.Child[1]
		for next.Links.Child[0] != nil {
			next = next.Links.Child[0]
		}
		n := &next.Links
		wasRed, under, in = n.Red, n.Parent, n.Child[1]
		if under == r {
			under = next
		} else {
			t.replace(next, in)
			n.Child[1] = l.Child[1]
			n.Child[1].Links.Parent = next
		}
		t.replace(r, next)
		n.Child[0], n.Red = l.Child[0], l.Red
		n.Child[0].Links.Parent = next
	}
	l.Parent, l.Child = nil, [2]*blk.Request{}
	if !wasRed {
		t.shrunk(in, under)
	}
}

// shrunk restores the balance when the paths through x, a child of p or nil, have one
// black request less than the others.
func (t *tree) shrunk(x, p *blk.Request) {
	for x != t.root && !red(x) {
		side := sideOf(x, p)
		s := p.Links.Child[1-side] // there is one: the paths through it are longer
		if s.Links.Red {
			s.Links.Red, p.Links.Red = false, true
			t.rotate(p, side)
			s = p.Links.Child[1-side]
		}
		near, far := s.Links.Child[side], s.Links.Child[1-side]
		if !red(near) && !red(far) {
			s.Links.Red = true
			x, p = p, p.Links.Parent
			continue
		}
		if !red(far) {
			near.Links.Red, s.Links.Red = false, true
			t.rotate(s, 1-side)
			s, far = near, s
		}
		s.Links.Red, p.Links.Red, far.Links.Red = p.Links.Red, false, false
		t.rotate(p, side)
		return
	}
	if x != nil {
		x.Links.Red = false
	}
}

// rotate moves x down to one side. Its child on the other side takes its place.
func (t *tree) rotate(x *blk.Request, side int) {
	up := x.Links.Child[1-side]
	x.Links.Child[1-side] = up.Links.Child[side]
	if c := x.Links.Child[1-side]; c != nil {
		c.Links.Parent = x
	}
	t.replace(x, up)
	up.Links.Child[side], x.Links.Parent = x, up
}

// replace puts y, which may be nil, in the place of x under x's parent.
func (t *tree) replace(x, y *blk.Request) {
	p := x.Links.Parent
	if p == nil {
		t.root = y
	} else {
		p.Links.Child[sideOf(x, p)] = y
	}
	if y != nil {
		y.Links.Parent = p
	}
}

func red(x *blk.Request) bool { return x != nil && x.Links.Red }

// sideOf is the side of x under p. If x is nil, p has only one other child.
func sideOf(x, p *blk.Request) int {
	if p.Links.Child[0] == x {
		return 0
	}
	return 1
}

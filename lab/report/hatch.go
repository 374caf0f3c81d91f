package report

import (
	"image/color"
	"math"

	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

// hatches is the number of patterns. Each series has a colour and a pattern, so that it
// can be recognized without colour.
const hatches = 7

// variant numbers patterns and markers: when the colours repeat, these do not.
func variant(i int) int { return i + i/len(series) }

// plain is for bars of a single series: grey, without a pattern.
const plain = -1

// hatched draws a filled rectangle with the pattern of series i.
func hatched(c draw.Canvas, r vg.Rectangle, i int) {
	if r.Max.X-r.Min.X < 0.3 {
		return
	}
	col, pattern := grey, 0
	if i != plain {
		col, pattern = series[i%len(series)], variant(i)%hatches
	}
	c.SetColor(pale(col))
	c.Fill(r.Path())
	if p := hatchPath(r, pattern); len(p) > 0 {
		c.SetLineStyle(draw.LineStyle{Color: col, Width: 1.1})
		c.Stroke(p)
	}
	c.SetLineStyle(draw.LineStyle{Color: ink, Width: 0.7})
	c.Stroke(r.Path())
}

// hatchPath returns the lines of a pattern inside r: none, rising, falling, vertical,
// horizontal, crossed, dotted.
func hatchPath(r vg.Rectangle, pattern int) vg.Path {
	var p vg.Path
	switch pattern {
	case 1:
		diagonals(&p, r, 6, false)
	case 2:
		diagonals(&p, r, 6, true)
	case 3:
		for x := r.Min.X + 3; x < r.Max.X; x += 5 {
			segment(&p, x, r.Min.Y, x, r.Max.Y)
		}
	case 4:
		for y := r.Min.Y + 2.5; y < r.Max.Y; y += 4 {
			segment(&p, r.Min.X, y, r.Max.X, y)
		}
	case 5:
		diagonals(&p, r, 8, false)
		diagonals(&p, r, 8, true)
	case 6:
		for y, row := r.Min.Y+3, 0; y < r.Max.Y-1; y, row = y+4, row+1 {
			for x := r.Min.X + 3 + vg.Length(row%2)*3; x < r.Max.X-1.5; x += 6 {
				segment(&p, x, y, x+1.2, y)
			}
		}
	}
	return p
}

func segment(p *vg.Path, x0, y0, x1, y1 vg.Length) {
	p.Move(vg.Point{X: x0, Y: y0})
	p.Line(vg.Point{X: x1, Y: y1})
}

// diagonals adds lines at 45 degrees, clipped to r.
func diagonals(p *vg.Path, r vg.Rectangle, step vg.Length, falling bool) {
	h := r.Max.Y - r.Min.Y
	for x := r.Min.X - h + step/2; x < r.Max.X; x += step {
		x0, y0 := x, vg.Length(0) // up from the lower edge
		if x0 < r.Min.X {
			x0, y0 = r.Min.X, r.Min.X-x
		}
		x1, y1 := x+h, h
		if x1 > r.Max.X {
			x1, y1 = r.Max.X, r.Max.X-x
		}
		if x1-x0 < 0.5 {
			continue
		}
		if falling {
			segment(p, x0, r.Max.Y-y0, x1, r.Max.Y-y1)
		} else {
			segment(p, x0, r.Min.Y+y0, x1, r.Min.Y+y1)
		}
	}
}

// dashes returns the dash pattern of a series.
func dashes(i int) []vg.Length {
	return [][]vg.Length{nil, {7, 3}, {2, 2}, {9, 3, 2, 3}, {4, 4}, {12, 3}, {1, 4}}[variant(i)%7]
}

// marker draws the marker of series i around a point.
func marker(c draw.Canvas, at vg.Point, i int, col color.Color) {
	const r = 3.4
	var p vg.Path
	i = variant(i) % 7
	switch i {
	case 0:
		polygon(&p, at, r, 12, 0)
	case 1:
		polygon(&p, at, r*1.2, 4, math.Pi/4)
	case 2:
		polygon(&p, at, r*1.3, 3, math.Pi/2)
	case 3:
		polygon(&p, at, r*1.3, 4, 0)
	case 4:
		polygon(&p, at, r*1.3, 3, -math.Pi/2)
	case 5:
		segment(&p, at.X-r, at.Y-r, at.X+r, at.Y+r)
		segment(&p, at.X-r, at.Y+r, at.X+r, at.Y-r)
	case 6:
		segment(&p, at.X-r, at.Y, at.X+r, at.Y)
		segment(&p, at.X, at.Y-r, at.X, at.Y+r)
	}
	if i < 5 {
		c.SetColor(color.White)
		c.Fill(p)
	}
	c.SetLineStyle(draw.LineStyle{Color: col, Width: 1.4})
	c.Stroke(p)
}

func polygon(p *vg.Path, at vg.Point, r float64, corners int, turn float64) {
	for i := range corners {
		sin, cos := math.Sincos(turn + 2*math.Pi*float64(i)/float64(corners))
		to := vg.Point{X: at.X + vg.Length(r*cos), Y: at.Y + vg.Length(r*sin)}
		if i == 0 {
			p.Move(to)
		} else {
			p.Line(to)
		}
	}
	p.Close()
}

package report

import (
	"fmt"
	"math"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"github.com/elevisor/elevisor/lab/plan"
)

// traceMax is how many requests a panel shows. They are the first ones, since a sample
// would hide the seeks.
const traceMax = 2000

// kind distinguishes points: by VM and by direction.
type kind struct {
	vm    uint16
	write bool
}

// maxKinds is how many kinds have a marker; all others share the last one.
const maxKinds = 6

// points draws a trace. It implements plot.Plotter.
type points struct {
	trace []plan.Access
	kinds []kind
	unit  float64 // of the vertical axis, in sectors
}

// Plot draws all points of a kind as one path: thousands of elements make a page slow.
func (ps points) Plot(c draw.Canvas, p *plot.Plot) {
	x, y := p.Transforms(&c)
	paths := make([]vg.Path, len(ps.kinds))
	for _, a := range ps.trace {
		k := ps.kind(a)
		at := vg.Point{X: x(finite(a.Seconds)), Y: y(float64(a.Sector) / ps.unit)}
		if c.Contains(at) {
			sign(&paths[k], at, k)
		}
	}
	for k, path := range paths {
		if len(path) > 0 {
			c.SetLineStyle(draw.LineStyle{Color: series[k%len(series)], Width: 1})
			c.Stroke(path)
		}
	}
}

func (ps points) kind(a plan.Access) int {
	for i, k := range ps.kinds {
		if k.vm == a.VM && k.write == a.Write {
			return i
		}
	}
	return len(ps.kinds) - 1
}

// sign draws a marker that takes few bytes: +, x, -, | or one of two angles.
func sign(p *vg.Path, at vg.Point, k int) {
	const r = 1.9
	at.X, at.Y = vg.Length(math.Round(float64(at.X)*10)/10), vg.Length(math.Round(float64(at.Y)*10)/10)
	switch k {
	case 0:
		segment(p, at.X-r, at.Y, at.X+r, at.Y)
		segment(p, at.X, at.Y-r, at.X, at.Y+r)
	case 1:
		segment(p, at.X-r, at.Y-r, at.X+r, at.Y+r)
		segment(p, at.X-r, at.Y+r, at.X+r, at.Y-r)
	case 2:
		segment(p, at.X-r, at.Y, at.X+r, at.Y)
	case 3:
		segment(p, at.X, at.Y-r, at.X, at.Y+r)
	default:
		down := vg.Length(r)
		if k > 4 {
			down = -down
		}
		p.Move(vg.Point{X: at.X - r, Y: at.Y - down})
		p.Line(vg.Point{X: at.X, Y: at.Y + down})
		p.Line(vg.Point{X: at.X + r, Y: at.Y - down})
	}
}

// traced is a panel: a cell's name and the beginning of its first trace.
type traced struct {
	name  string
	trace []plan.Access
}

// traces returns the panels of the cells that have the baseline's guest scheduler or its
// host scheduler; without a baseline, of all cells.
func (g *group) traces() []traced {
	base := g.base()
	var all []traced
	for _, c := range g.cells {
		if base != nil && c.guest != base.guest && c.host != base.host {
			continue
		}
		for _, o := range c.outcomes {
			if len(o.Trace) > 0 {
				all = append(all, traced{c.name, o.Trace[:min(len(o.Trace), traceMax)]})
				break
			}
		}
	}
	return all
}

// positions plots where on the disk requests were issued, and when.
func (g *group) positions() *figure {
	panels := g.traces()
	if len(panels) == 0 {
		return nil
	}
	kinds := kindsOf(panels)
	var items []legendItem
	for i, k := range kinds {
		items = append(items, legendItem{func(c draw.Canvas) { signSwatch(c, i) }, k.String()})
	}
	if len(kinds) == maxKinds {
		items[maxKinds-1].name = "all others"
	}
	low, high, end := extent(panels)
	unit, unitName := sectorUnit(high - low)
	cols, rows, w := tiles(len(panels))
	const h = 265.0
	top := legendHeight(items, figureWidth) + 4
	f := newFigure("Dispatch position over time: "+g.title,
		"Points: the position of each request on the disk, over the time when it was issued; one panel for each pair of schedulers.",
		figureWidth, top+h*float64(rows))
	f.legend(items, 0, 0, figureWidth)
	pad := math.Max((high-low)*0.03, unit*1e-6)
	for i, t := range panels {
		x, y := float64(i%cols)*(w+tileGap), top+h*float64(i/cols)
		f.write(x+64, y+titleHeight/2, labelSize, true, t.name)
		label := ""
		if i%cols == 0 {
			label = "position on the disk, " + unitName
		}
		p := newPlot("time since the end of the ramp, s", label)
		p.X.Min, p.X.Max, p.X.Tick.Marker = 0, end*1.02, ticks{6, short}
		p.Y.Min, p.Y.Max, p.Y.Tick.Marker = (low-pad)/unit, (high+pad)/unit, ticks{5, short}
		grid := plotter.NewGrid()
		grid.Horizontal = draw.LineStyle{Color: faint, Width: 0.8}
		grid.Vertical.Width = 0
		p.Add(grid, points{t.trace, kinds, unit})
		p.Draw(f.area(x+labelInset, y+titleHeight, w-labelInset, h-titleHeight-8))
	}
	return f
}

// String names a kind for a legend.
func (k kind) String() string {
	direction := "reads"
	if k.write {
		direction = "writes"
	}
	return fmt.Sprintf("%s of VM %d", direction, k.vm)
}

// kindsOf lists the kinds that occur, by VM, reads first.
func kindsOf(panels []traced) []kind {
	seen := map[kind]bool{}
	for _, p := range panels {
		for _, a := range p.trace {
			seen[kind{a.VM, a.Write}] = true
		}
	}
	var all []kind
	for vm := 0; vm <= math.MaxUint16 && len(all) < maxKinds && len(all) < len(seen); vm++ {
		for _, write := range []bool{false, true} {
			if k := (kind{uint16(vm), write}); seen[k] && len(all) < maxKinds {
				all = append(all, k)
			}
		}
	}
	return all
}

// extent returns the scales of all panels: first and last sector, and the last time.
func extent(panels []traced) (low, high, end float64) {
	low, high = math.Inf(1), math.Inf(-1)
	for _, p := range panels {
		for _, a := range p.trace {
			low, high = math.Min(low, float64(a.Sector)), math.Max(high, float64(a.Sector))
			end = math.Max(end, finite(a.Seconds))
		}
	}
	if end == 0 {
		end = 1
	}
	return low, high, end
}

// sectorUnit chooses a unit for a range of sectors.
func sectorUnit(sectors float64) (unit float64, name string) {
	switch {
	case sectors >= 2<<21:
		return 1 << 21, "GiB"
	case sectors >= 2<<11:
		return 1 << 11, "MiB"
	}
	return 2, "KiB"
}

func signSwatch(c draw.Canvas, k int) {
	var p vg.Path
	for i := range 4 {
		sign(&p, vg.Point{X: c.Min.X + 5 + vg.Length(i)*8, Y: c.Center().Y + vg.Length(i%2*4-2)}, k)
	}
	c.SetLineStyle(draw.LineStyle{Color: series[k%len(series)], Width: 1.2})
	c.Stroke(p)
}

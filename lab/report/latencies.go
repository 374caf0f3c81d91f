package report

import (
	"math"
	"slices"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"github.com/elevisor/elevisor/lab/plan"
)

// nines is the upper end of the scale of quantiles: 99.99 %.
const nines = 4.0

// curve is the latency distribution of one cell.
type curve struct {
	series int
	points plotter.XYs // log10 of the latency in µs, -log10(1-quantile)
}

// median computes, for each quantile that most runs have, the median over the runs. Runs
// are not pooled: a single slow run cannot dominate the tail.
func median(outcomes []*plan.Outcome, of func(*plan.Outcome) *plan.Direction) plotter.XYs {
	runs, at := 0, map[float64][]float64{}
	for _, o := range outcomes {
		if len(of(o).CDF) > 0 {
			runs++
		}
		for _, q := range of(o).CDF {
			if q.US > 0 && q.Q >= 0 && q.Q <= 1 {
				at[q.Q] = append(at[q.Q], finite(q.US))
			}
		}
	}
	var points plotter.XYs
	for q, us := range at {
		if 2*len(us) <= runs {
			continue
		}
		slices.Sort(us)
		m := (us[(len(us)-1)/2] + us[len(us)/2]) / 2
		if y := -math.Log10(1 - q); y <= nines+1e-9 {
			points = append(points, plotter.XY{X: math.Log10(math.Max(m, 1e-3)), Y: math.Max(0, y)})
		}
	}
	slices.SortFunc(points, func(a, b plotter.XY) int {
		if a.Y != b.Y {
			return int(math.Copysign(1, a.Y-b.Y))
		}
		return int(math.Copysign(1, a.X-b.X))
	})
	return points
}

// curves draws distributions. It implements plot.Plotter.
type curves []curve

// Plot draws each curve with its dashes. Markers of different curves are offset.
func (cs curves) Plot(c draw.Canvas, p *plot.Plot) {
	x, y := p.Transforms(&c)
	for n, cv := range cs {
		var path vg.Path
		for i, pt := range cv.points {
			at := vg.Point{X: x(pt.X), Y: y(pt.Y)}
			if i == 0 {
				path.Move(at)
			} else {
				path.Line(at)
			}
		}
		col := series[cv.series%len(series)]
		c.SetLineStyle(draw.LineStyle{Color: col, Width: 1.6, Dashes: dashes(cv.series)})
		c.Stroke(path)
		c.SetLineDash(nil, 0)
		for _, level := range []float64{0.3, 1.3, 2.3, 3.3} {
			level += 0.6 * float64(n) / float64(len(cs))
			if at, ok := crossing(cv.points, level); ok {
				marker(c, vg.Point{X: x(at), Y: y(level)}, cv.series, col)
			}
		}
	}
}

// crossing returns where a curve crosses a level.
func crossing(points plotter.XYs, level float64) (float64, bool) {
	for i := 1; i < len(points); i++ {
		a, b := points[i-1], points[i]
		if a.Y <= level && level <= b.Y && b.Y > a.Y {
			return a.X + (b.X-a.X)*(level-a.Y)/(b.Y-a.Y), true
		}
	}
	return 0, false
}

// distributions returns the latency figures: one per direction, with one panel per guest.
func (g *group) distributions() []*figure {
	var all []*figure
	for _, d := range []struct {
		name string
		of   func(*plan.Outcome) *plan.Direction
	}{
		{"Read", func(o *plan.Outcome) *plan.Direction { return &o.Read }},
		{"Write", func(o *plan.Outcome) *plan.Direction { return &o.Write }},
	} {
		panels, low, high := make([]curves, len(g.guests)), math.Inf(1), math.Inf(-1)
		for _, c := range g.cells {
			points := median(c.outcomes, d.of)
			if len(points) < 2 {
				continue
			}
			panels[c.guest] = append(panels[c.guest], curve{c.host, points})
			for _, p := range points {
				low, high = math.Min(low, p.X), math.Max(high, p.X)
			}
		}
		if low <= high {
			all = append(all, g.distribution(d.name, panels, low, high))
		}
	}
	return all
}

func (g *group) distribution(direction string, panels []curves, low, high float64) *figure {
	used := map[int]bool{}
	for _, p := range panels {
		for _, c := range p {
			used[c.series] = true
		}
	}
	var items []legendItem
	for i, name := range g.hosts {
		if used[i] {
			items = append(items, legendItem{func(c draw.Canvas) { lineSwatch(c, i) }, "host: " + name})
		}
	}
	top := legendHeight(items, figureWidth) + 4
	cols, rows, w := tiles(len(panels))
	const h = 290.0
	f := newFigure(direction+" latencies: "+g.title,
		"Cumulative latency distributions: one panel for each guest scheduler, one line for each host scheduler.",
		figureWidth, top+h*float64(rows))
	f.legend(items, 0, 0, figureWidth)
	pad := math.Max(0.03*(high-low), 0.05)
	for i, lines := range panels {
		x, y := float64(i%cols)*(w+tileGap), top+h*float64(i/cols)
		f.write(x+64, y+titleHeight/2, labelSize, true, "guest: "+g.guests[i])
		label := ""
		if i%cols == 0 {
			label = "requests completed within, %"
		}
		p := newPlot(direction+" latency (logarithmic)", label)
		p.X.Min, p.X.Max, p.X.Tick.Marker = low-pad, high+pad, latencyTicks(low-pad, high+pad)
		p.Y.Min, p.Y.Max = 0, nines
		p.Y.Tick.Marker = plot.ConstantTicks{
			{Value: 0, Label: "0"}, {Value: -math.Log10(0.5), Label: "50"}, {Value: 1, Label: "90"},
			{Value: 2, Label: "99"}, {Value: 3, Label: "99.9"}, {Value: 4, Label: "99.99"},
		}
		grid := plotter.NewGrid()
		grid.Horizontal = draw.LineStyle{Color: faint, Width: 0.8}
		grid.Vertical = grid.Horizontal
		p.Add(grid, lines)
		p.Draw(f.area(x+labelInset, y+titleHeight, w-labelInset, h-titleHeight-8))
	}
	return f
}

const tileGap = 12.0

// tiles lays out n panels, up to three in a row; w is the width of each.
func tiles(n int) (cols, rows int, w float64) {
	cols = min(max(n, 2), 3)
	return cols, (n + cols - 1) / cols, (figureWidth - tileGap*float64(cols-1)) / float64(cols)
}

func lineSwatch(c draw.Canvas, i int) {
	col := series[i%len(series)]
	y := c.Center().Y
	c.StrokeLine2(draw.LineStyle{Color: col, Width: 1.6, Dashes: dashes(i)}, c.Min.X, y, c.Max.X, y)
	c.SetLineDash(nil, 0)
	marker(c, c.Center(), i, col)
}

// latencyTicks are powers of ten or, if few of them are in view, also 2 and 5 times these.
func latencyTicks(low, high float64) plot.Ticker {
	if high-low > 2.2 {
		return decades{latencyRound}
	}
	var all plot.ConstantTicks
	for e := math.Floor(low); e <= high; e++ {
		for m := 1.0; m < 10; m++ {
			t := plot.Tick{Value: e + math.Log10(m)}
			if m == 1 || m == 2 || m == 5 {
				t.Label = latencyRound(m * math.Pow(10, e))
			}
			all = append(all, t)
		}
	}
	if high-low < 0.5 { // less than a factor of three: even steps are easier to read
		return linearInLog{}
	}
	return all
}

// linearInLog are round numbers of µs along a logarithmic axis.
type linearInLog struct{}

// Ticks implements plot.Ticker.
func (linearInLog) Ticks(low, high float64) []plot.Tick {
	all := ticks{4, latencyRound}.Ticks(math.Pow(10, low), math.Pow(10, high))
	for i := range all {
		all[i].Value = math.Log10(math.Max(all[i].Value, 1e-9))
	}
	return all
}

// latencyRound writes a round number of µs.
func latencyRound(us float64) string {
	switch {
	case us == 0:
		return "0"
	case us >= 0.9995e6:
		return short(us/1e6) + " s"
	case us >= 999.5:
		return short(us/1e3) + " ms"
	}
	return short(us) + " µs"
}

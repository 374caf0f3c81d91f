package report

import (
	"fmt"
	"image/color"
	"math"

	"gonum.org/v1/gonum/stat/distuv"
	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"github.com/elevisor/elevisor/lab/plan"
	"github.com/elevisor/elevisor/lab/stats"
)

const (
	rowHeight = 21.0 // a bar and the gap to the next
	guestGap  = 0.45 // additional gap between guests, in rows
	axisSpace = 48.0 // for the ticks and the label of the axis below
)

// bar is one row of a panel: a stacked bar, and a confidence interval if it has one.
type bar struct {
	parts    []part
	low, hi  float64
	interval bool
	label    string // written to its right
}

type part struct {
	length float64
	series int
}

// bars draws rows at their places. It implements plot.Plotter.
type bars struct {
	rows   []bar
	places []float64
	base   float64 // where the baseline's bar ends; 0: draw no line
}

// Plot draws the bars.
func (b *bars) Plot(c draw.Canvas, p *plot.Plot) {
	x, y := p.Transforms(&c)
	half := vg.Length(rowHeight * 0.36)
	if b.base > 0 {
		c.StrokeLine2(draw.LineStyle{Color: ink, Width: 1, Dashes: []vg.Length{4, 3}}, x(b.base), c.Min.Y, x(b.base), c.Max.Y)
	}
	sty := textStyle(tickSize, false)
	sty.YAlign = text.YCenter
	for i, r := range b.rows {
		at, end := y(b.places[i]), 0.0
		for _, s := range r.parts {
			hatched(c, vg.Rectangle{Min: vg.Point{X: x(end), Y: at - half}, Max: vg.Point{X: x(end + s.length), Y: at + half}}, s.series)
			end += s.length
		}
		if r.interval {
			whisker(c, x(r.low), x(r.hi), at)
			end = math.Max(end, r.hi)
		}
		to := vg.Point{X: x(end) + 5, Y: at}
		width := sty.Width(r.label)
		c.SetColor(color.White) // hides grid lines behind the number
		c.Fill(vg.Rectangle{Min: vg.Point{X: to.X - 1, Y: at - 6}, Max: vg.Point{X: to.X + width + 1, Y: at + 7}}.Path())
		c.FillText(sty, to, r.label)
	}
}

// whisker draws an interval, with a white outline so that it shows on a hatched bar.
func whisker(c draw.Canvas, lo, hi, y vg.Length) {
	var p vg.Path
	segment(&p, lo, y, hi, y)
	segment(&p, lo, y-4, lo, y+4)
	segment(&p, hi, y-4, hi, y+4)
	c.SetLineStyle(draw.LineStyle{Color: color.White, Width: 4})
	c.Stroke(p)
	c.SetLineStyle(draw.LineStyle{Color: ink, Width: 1.5})
	c.Stroke(p)
}

// rowPlaces returns the places of a group's rows, from the top down, and the axis' minimum.
func (g *group) rowPlaces() (places []float64, low float64) {
	at := 0.0
	for i, c := range g.cells {
		if i > 0 && c.guest != g.cells[i-1].guest {
			at -= guestGap
		}
		places = append(places, at)
		at--
	}
	return places, min(at+0.35, 0.65-4) // room for the axis label next to few rows
}

// rowNames returns ticks that name the rows.
func (g *group) rowNames(places []float64) plot.ConstantTicks {
	var t plot.ConstantTicks
	for i, c := range g.cells {
		name := c.name
		if c.base {
			name += " (baseline)"
		}
		t = append(t, plot.Tick{Value: places[i], Label: name})
	}
	return t
}

// barPanel makes a plot of rows.
func (g *group) barPanel(xLabel string, rows []bar, named bool, scale func(float64) string) *plot.Plot {
	places, low := g.rowPlaces()
	p := newPlot(xLabel, "")
	p.Y.Min, p.Y.Max = low, 0.65
	p.Y.Tick.Length, p.Y.Tick.Width = 0, 0
	p.Y.Tick.Marker = plot.ConstantTicks{}
	if named {
		p.Y.Label.Text = "guest / host scheduler"
		if textWidth(p.Y.Label.Text, labelSize) > (0.65-low)*rowHeight {
			p.Y.Label.Text = "guest / host"
		}
		p.Y.Tick.Marker = g.rowNames(places)
	}
	most, b := 0.0, &bars{rows: rows, places: places}
	for i, r := range rows {
		end := 0.0
		for _, s := range r.parts {
			end += s.length
		}
		if g.cells[i].base && r.interval {
			b.base = end
		}
		if r.interval {
			end = math.Max(end, r.hi)
		}
		most = math.Max(most, end)
	}
	if most == 0 {
		most = 1
	}
	p.X.Min, p.X.Max = 0, most*1.25
	p.X.Tick.Marker = ticks{5, scale}
	grid := plotter.NewGrid()
	grid.Horizontal.Width = 0
	grid.Vertical = draw.LineStyle{Color: faint, Width: 0.8}
	p.Add(grid, b)
	return p
}

// barsHeight is the height of a panel of the group's rows.
func (g *group) barsHeight() float64 {
	_, low := g.rowPlaces()
	return (0.65-low)*rowHeight + axisSpace
}

// nameSpace is the width that the rows' names take.
func (g *group) nameSpace() float64 {
	widest := 0.0
	for _, t := range g.rowNames(make([]float64, len(g.cells))) {
		widest = math.Max(widest, textWidth(t.Label, tickSize))
	}
	return widest + 26
}

// twoPanels draws two panels of the group's rows side by side. The left one has the names.
func (g *group) twoPanels(f *figure, y float64, left, right *plot.Plot) {
	names, h := g.nameSpace(), g.barsHeight()
	each := (f.w - names - 18) / 2
	left.Draw(f.area(labelInset, y, names+each-labelInset, h))
	right.Draw(f.area(names+each+18, y, each, h))
}

// performance plots IOPS and p99 latency of a group's cells.
func (g *group) performance() *figure {
	f := newFigure("IOPS and p99 latency: "+g.title,
		"Bars: mean over runs for each guest and host scheduler; whiskers: 95 % confidence interval of the mean; dashed line: baseline.",
		figureWidth, g.barsHeight())
	var iops, p99 []bar
	for _, c := range g.cells {
		iops = append(iops, meanBar(c.stats.IOPS, c.host, digits))
		p99 = append(p99, meanBar(c.stats.P99, c.host, func(us float64) string { return latency(us, "µs") }))
	}
	g.twoPanels(f, 0,
		g.barPanel("IOPS, mean over runs (higher is better)", iops, true, short),
		g.barPanel("p99 latency, mean over runs (lower is better)", p99, false, latencyRound))
	return f
}

// meanBar shows a sample's mean and its confidence interval.
func meanBar(s plan.Sample, series int, format func(float64) string) bar {
	if s.N == 0 {
		return bar{label: "no data"}
	}
	m := finite(s.Mean)
	b := bar{parts: []part{{m, series}}, label: format(m)}
	if s.N > 1 && s.SD > 0 {
		half := finite(distuv.StudentsT{Sigma: 1, Nu: float64(s.N - 1)}.Quantile(0.5+stats.DefaultLevel/2) * s.SD / math.Sqrt(float64(s.N)))
		b.interval, b.low, b.hi = true, math.Max(0, m-half), m+half
	}
	return b
}

// Series of merges.
const (
	byGuest = iota
	bySameQueue
	byCrossQueue
	byCrossVM
)

var mergeNames = []string{"merged in the guest", "in the host, same queue", "in the host, across queues", "in the host, across VMs"}

// merging plots where requests were merged, and how often the disk had to seek.
func (g *group) merging() *figure {
	var items []legendItem
	for i, name := range mergeNames {
		items = append(items, legendItem{func(c draw.Canvas) { hatched(c, c.Rectangle, i) }, name})
	}
	top := legendHeight(items, figureWidth) + 4
	f := newFigure("Merges and seeks: "+g.title,
		"Bars, left: share of the jobs' requests that were merged in the guest and in the host; right: seeks per GiB at the disk.",
		figureWidth, g.barsHeight()+top)
	f.legend(items, 0, 0, figureWidth)
	var merges, seeks []bar
	for _, c := range g.cells {
		merges = append(merges, c.mergeBar())
		seeks = append(seeks, meanBar(c.stats.SeeksPerGiB, plain, digits))
	}
	percent := func(x float64) string {
		if x > 100.01 { // beyond 100 % the axis only makes room for labels
			return ""
		}
		return short(x) + " %"
	}
	left := g.barPanel("share of submitted requests that were merged", merges, true, percent)
	g.twoPanels(f, top, left, g.barPanel("seeks per GiB at the disk, mean over runs", seeks, false, short))
	return f
}

// mergeBar shows the shares of requests that were merged in each place, means over runs.
func (c *cell) mergeBar() bar {
	sums, n, unknown := [len(mergeParts)]float64{}, 0, false
	for _, o := range c.outcomes {
		total := o.Host.Submitted
		if o.Guest.Known {
			total = o.Guest.Submitted
		}
		unknown = unknown || !o.Guest.Known
		if total == 0 {
			continue
		}
		n++
		for i, of := range mergeParts {
			sums[i] += 100 * float64(of(o)) / float64(total)
		}
	}
	if n == 0 {
		return bar{label: "no data"}
	}
	b, sum := bar{}, 0.0
	for i, s := range sums {
		s = math.Min(s/float64(n), 100)
		b.parts = append(b.parts, part{s, i})
		sum += s
	}
	b.label = fmt.Sprintf("%s %%", digits(sum))
	if unknown {
		b.label += ", guest unknown"
	}
	return b
}

var mergeParts = [4]func(*plan.Outcome) uint64{
	byGuest: func(o *plan.Outcome) uint64 {
		if !o.Guest.Known {
			return 0
		}
		return o.Guest.Merged
	},
	bySameQueue:  func(o *plan.Outcome) uint64 { return o.Host.SameQueue },
	byCrossQueue: func(o *plan.Outcome) uint64 { return o.Host.CrossQueue },
	byCrossVM:    func(o *plan.Outcome) uint64 { return o.Host.CrossVM },
}

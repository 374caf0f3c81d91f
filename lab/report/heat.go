package report

import (
	"fmt"
	"html"
	"html/template"
	"image/color"
	"math"
	"strings"

	"github.com/elevisor/elevisor/lab/plan"
)

// heat is a heat map of ratios, guest by host scheduler, with the numbers in it. It is
// written as SVG directly: a coloured table needs no plot library.
type heat struct {
	g           *group
	title, unit string
	metric      func(*cell) *plan.Comparison
	more        string // what a ratio above 1 means
	less        string
	lowIsGood   bool
}

const (
	heatMostWidth = 118.0 // maximum, of an element
	heatHeight    = 50.0
	heatTop       = 62.0 // for the hosts' names
	heatLegend    = 46.0
	heatRange     = 4.0 // ratios from here on have the full colour
)

// heats returns the maps of a group: ratios to the baseline of IOPS and of p99 latency.
func (g *group) heats() []*heat {
	if g.base() == nil {
		return nil
	}
	var all []*heat
	for _, h := range []*heat{
		{g: g, title: "IOPS as a ratio to the baseline", unit: "IOPS", metric: func(c *cell) *plan.Comparison { return c.iops },
			more: "more IOPS", less: "fewer IOPS"},
		{g: g, title: "p99 latency as a ratio to the baseline", unit: "p99 latency", metric: func(c *cell) *plan.Comparison { return c.p99 },
			more: "longer latency", less: "shorter latency", lowIsGood: true},
	} {
		for _, c := range g.cells {
			if h.metric(c) != nil {
				all = append(all, h)
				break
			}
		}
	}
	return all
}

// width is half of the page, so that two maps fit side by side, or the whole page if the
// numbers would get too small.
func (h *heat) width() float64 {
	if len(h.g.hosts) > 5 {
		return figureWidth
	}
	return figureWidth/2 - 24
}

// SVG draws the map.
func (h *heat) SVG(id string) template.HTML {
	left := 0.0
	for _, n := range h.g.guests {
		left = math.Max(left, textWidth(n, tickSize))
	}
	left += 32
	w := math.Min(heatMostWidth, (h.width()-left-4)/float64(len(h.g.hosts)))
	height := heatTop + heatHeight*float64(len(h.g.guests)) + heatLegend
	var b strings.Builder
	b.WriteString(opening(id, h.title+": "+h.g.title,
		"A grid: rows are guest schedulers, columns are host schedulers; each element has the ratio and its 95 % confidence interval.",
		math.Max(left+w*float64(len(h.g.hosts))+4, 430), height))
	svgWrite(&b, 0, 14, labelSize, "start", true, h.title)
	svgWrite(&b, left+w*float64(len(h.g.hosts))/2, 35, tickSize, "middle", false, "host scheduler")
	for i, n := range h.g.hosts {
		svgFit(&b, left+w*(float64(i)+0.5), 53, tickSize, w-8, false, n)
	}
	middle := heatTop + heatHeight*float64(len(h.g.guests))/2
	side := "guest scheduler"
	if len(h.g.guests) == 1 { // too little room for the full label
		side = "guest"
	}
	fmt.Fprintf(&b, `<g transform="translate(13 %.1f) rotate(-90)">`, middle)
	svgWrite(&b, 0, 0, tickSize, "middle", false, side)
	b.WriteString("</g>\n")
	for i, n := range h.g.guests {
		y := heatTop + heatHeight*float64(i)
		svgWrite(&b, left-6, y+heatHeight/2+4, tickSize, "end", false, n)
		for j := range h.g.hosts {
			h.element(&b, h.g.at(i, j), left+w*float64(j), y, w)
		}
	}
	h.legend(&b, left, height-heatLegend+14)
	b.WriteString("</svg>\n")
	return template.HTML(b.String())
}

// element draws one cell.
func (h *heat) element(b *strings.Builder, c *cell, x, y, w float64) {
	box := func(fill string) {
		fmt.Fprintf(b, `<rect x="%.1f" y="%.1f" width="%.1f" height="%.1f" fill="%s" stroke="#fff" stroke-width="2"/>`+"\n",
			x, y, w, heatHeight, fill)
	}
	middle, room := x+w/2, w-8
	if c == nil {
		box("#f2f2f2")
		svgFit(b, middle, y+heatHeight/2+4, tickSize, room, false, "not run")
		return
	}
	r := h.metric(c)
	switch {
	case r == nil && c.base:
		box("#fff")
		fmt.Fprintf(b, `<rect x="%.1f" y="%.1f" width="%.1f" height="%.1f" fill="none" stroke="#222" stroke-dasharray="4 3"/>`+"\n",
			x+3, y+3, w-6, heatHeight-6)
		svgFit(b, middle, y+heatHeight/2+4, tickSize, room-6, false, "baseline")
	case r == nil:
		box("#f2f2f2")
		svgFit(b, middle, y+heatHeight/2+4, tickSize, room, false, "no ratio")
	default:
		box(hex(h.colour(r.Ratio)))
		svgFit(b, middle, y+22, 15, room, true, strings.TrimSpace(arrow(r)+" "+ratio(r.Ratio)+" "+printable(clip(r.Mark, 2))))
		svgFit(b, middle, y+39, 11, room, false, "["+ratio(r.Low)+", "+ratio(r.High)+"]")
	}
}

// arrow shows the direction of a ratio without colour, if its interval excludes 1.
func arrow(r *plan.Comparison) string {
	switch {
	case r.Low > 1:
		return "▲"
	case r.High < 1:
		return "▼"
	}
	return ""
}

// colour is blue for better, orange for worse and white for equal, on a logarithmic scale.
func (h *heat) colour(ratio float64) color.NRGBA {
	if !(ratio > 0) {
		return color.NRGBA{0xf2, 0xf2, 0xf2, 0xff}
	}
	t := math.Log(ratio) / math.Log(heatRange)
	if h.lowIsGood {
		t = -t
	}
	to := color.NRGBA{0x6a, 0xae, 0xd6, 0xff}
	if t < 0 {
		to = color.NRGBA{0xf2, 0xa0, 0x5c, 0xff}
	}
	t = math.Min(math.Abs(t), 1)
	mix := func(c uint8) uint8 { return uint8(255 - t*(255-float64(c)) + 0.5) }
	return color.NRGBA{mix(to.R), mix(to.G), mix(to.B), 0xff}
}

// legend draws the colour scale and explains the arrows.
func (h *heat) legend(b *strings.Builder, x, y float64) {
	const steps, w = 9, 18.0
	for i := range steps {
		r := math.Pow(heatRange, float64(i-steps/2)/float64(steps/2))
		fmt.Fprintf(b, `<rect x="%.1f" y="%.1f" width="%.1f" height="12" fill="%s" stroke="#bbb" stroke-width="0.5"/>`+"\n",
			x+w*float64(i), y, w, hex(h.colour(r)))
	}
	svgWrite(b, x, y+25, 11, "start", false, fmt.Sprintf("1/%g", heatRange))
	svgWrite(b, x+w*steps/2, y+25, 11, "middle", false, "1")
	svgWrite(b, x+w*steps, y+25, 11, "end", false, fmt.Sprintf("%g", heatRange))
	svgWrite(b, x+w*steps+12, y+10, 11, "start", false, "▲ "+h.more+", ▼ "+h.less)
	svgWrite(b, x+w*steps+12, y+25, 11, "start", false, "(the interval excludes 1)")
}

func hex(c color.NRGBA) string { return fmt.Sprintf("#%02x%02x%02x", c.R, c.G, c.B) }

// svgWrite writes a text; anchor is start, middle or end. It has the width of the layout,
// whatever font the reader has.
func svgWrite(b *strings.Builder, x, y, size float64, anchor string, bold bool, s string) {
	s = printable(s)
	if s == "" {
		return
	}
	weight := ""
	if bold {
		weight = ` font-weight="bold"`
	}
	fmt.Fprintf(b, `<text x="%.1f" y="%.1f" font-size="%.1f" text-anchor="%s" textLength="%.1f" lengthAdjust="spacingAndGlyphs"%s fill="#222">%s</text>`+"\n",
		x, y, size, anchor, textStyle(size, bold).Width(s).Points(), weight, html.EscapeString(s))
}

// svgFit writes a text centred at x, smaller than size if it is wider than room.
func svgFit(b *strings.Builder, x, y, size, room float64, bold bool, s string) {
	if w := textStyle(size, bold).Width(printable(s)).Points(); w > room {
		size *= room / w
	}
	svgWrite(b, x, y, size, "middle", bold, s)
}

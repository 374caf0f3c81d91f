package report

import (
	"bytes"
	"fmt"
	"html"
	"html/template"
	"image/color"
	"math"
	"regexp"
	"strings"

	xfont "golang.org/x/image/font"
	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

// Sizes are in CSS pixels. A page that fits a window 1280 wide has figureWidth.
const (
	figureWidth = 1200.0
	labelSize   = 13.0
	tickSize    = 12.0
	titleHeight = 22.0
	labelInset  = 5.0 // a rotated label is larger than gonum computes
)

// fontFamily starts with fonts of the same metrics as the one that the layout is computed
// with. If a reader has none of them, textLength stretches another one.
const fontFamily = "Liberation Sans, Arial, Helvetica, sans-serif"

// figure is made of panels. Its coordinates start at the upper left corner.
type figure struct {
	Title, Description string
	w, h               float64
	canvas             *measured
}

// measured is an SVG canvas that records the width of each text in the layout.
type measured struct {
	*vgsvg.Canvas
	widths []float64
}

// FillString draws a text.
func (m *measured) FillString(f font.Face, at vg.Point, s string) {
	m.widths = append(m.widths, f.Width(s).Points())
	m.Canvas.FillString(f, at, s)
}

func newFigure(title, description string, w, h float64) *figure {
	c := vgsvg.NewWith(vgsvg.UseWH(vg.Length(w), vg.Length(h)))
	return &figure{Title: title, Description: description, w: w, h: h, canvas: &measured{Canvas: c}}
}

// area returns a part of the figure to draw in.
func (f *figure) area(x, y, w, h float64) draw.Canvas {
	c := draw.New(f.canvas)
	c.Min = vg.Point{X: vg.Length(x), Y: vg.Length(f.h - y - h)}
	c.Max = vg.Point{X: vg.Length(x + w), Y: vg.Length(f.h - y)}
	return c
}

// textStyle is the one font of all figures, in a size and a weight.
func textStyle(size float64, bold bool) text.Style {
	s := text.Style{
		Color:   ink,
		Font:    font.Font{Typeface: "Liberation", Variant: "Sans", Size: vg.Length(size)},
		Handler: plot.DefaultTextHandler,
	}
	if bold {
		s.Font.Weight = xfont.WeightBold
	}
	return s
}

// textWidth is the width of s in the layout.
func textWidth(s string, size float64) float64 {
	return textStyle(size, false).Width(s).Points()
}

// write draws a text, left-aligned and vertically centred at a point.
func (f *figure) write(x, y, size float64, bold bool, s string) {
	sty := textStyle(size, bold)
	sty.YAlign = text.YCenter
	c := draw.New(f.canvas)
	c.FillText(sty, vg.Point{X: vg.Length(x), Y: vg.Length(f.h - y)}, printable(s))
}

// newPlot makes a plot in the style of all figures.
func newPlot(xLabel, yLabel string) *plot.Plot {
	p := plot.New()
	p.BackgroundColor = nil
	for _, a := range []*plot.Axis{&p.X, &p.Y} {
		a.Label.TextStyle.Font = textStyle(labelSize, false).Font
		a.Label.TextStyle.Color = ink
		a.Tick.Label.Font = textStyle(tickSize, false).Font
		a.Tick.Label.Color = ink
		a.Color, a.Tick.Color = ink, ink
		a.Width, a.Tick.Width = 0.8, 0.8
		a.Tick.Length = 4
		a.Padding = 0
		a.Label.Padding = 4
	}
	p.X.Label.Text, p.Y.Label.Text = printable(xLabel), printable(yLabel)
	return p
}

// printable replaces the characters that XML does not allow.
func printable(s string) string { return clean(s) }

var (
	svgOpening = regexp.MustCompile(`(?s)^.*?<svg .*?>`)
	svgFont    = regexp.MustCompile(`font-family:Liberation Sans;font-variant:[a-z-]+;(font-weight:(?:normal;)?)?`)
	svgText    = regexp.MustCompile(`<text `)
	svgNoStyle = regexp.MustCompile(`font-style:normal;`)
)

// SVG returns the figure for use inside an HTML page: without an XML declaration, and with
// a title and a description for readers who cannot see it. id makes its ids unique in the
// page.
func (f *figure) SVG(id string) (template.HTML, error) {
	var b bytes.Buffer
	if _, err := f.canvas.WriteTo(&b); err != nil {
		return "", fmt.Errorf("draw %s: %w", f.Title, err)
	}
	s := svgFont.ReplaceAllStringFunc(b.String(), func(m string) string {
		if strings.HasSuffix(m, "font-weight:") { // bold
			return "font-weight:"
		}
		return ""
	})
	s = svgNoStyle.ReplaceAllString(s, "")
	n := 0
	s = svgText.ReplaceAllStringFunc(s, func(m string) string {
		n++
		return fmt.Sprintf(`%stextLength="%.1f" lengthAdjust="spacingAndGlyphs" `, m, f.canvas.widths[n-1])
	})
	loc := svgOpening.FindStringIndex(s)
	if loc == nil {
		return "", fmt.Errorf("draw %s: there is no <svg> element", f.Title)
	}
	return template.HTML(opening(id, f.Title, f.Description, f.w, f.h) + s[loc[1]:]), nil
}

// opening writes the start of an inline SVG.
func opening(id, title, description string, w, h float64) string {
	return fmt.Sprintf(`<svg role="img" aria-labelledby="%s-t %s-d" width="%.0f" height="%.0f" viewBox="0 0 %.0f %.0f" font-family="%s">`+
		"\n"+`<title id="%s-t">%s</title><desc id="%s-d">%s</desc>`,
		id, id, w, h, w, h, fontFamily, id, html.EscapeString(printable(title)), id, html.EscapeString(printable(description)))
}

// legendItem is an entry of a legend: a swatch and its meaning.
type legendItem struct {
	draw func(c draw.Canvas) // into a box of swatchWidth x swatchHeight
	name string
}

const swatchWidth, swatchHeight, legendRow = 34.0, 14.0, 21.0

// legendHeight is the height of a legend in a figure of width w.
func legendHeight(items []legendItem, w float64) float64 {
	x, rows := 0.0, 1.0
	for _, i := range items {
		step := swatchWidth + 6 + textWidth(printable(i.name), tickSize) + 22
		if x > 0 && x+step > w {
			x, rows = 0, rows+1
		}
		x += step
	}
	return rows * legendRow
}

// legend draws items in rows, starting at (x0, y).
func (f *figure) legend(items []legendItem, x0, y, w float64) {
	x := 0.0
	for _, i := range items {
		step := swatchWidth + 6 + textWidth(printable(i.name), tickSize) + 22
		if x > 0 && x+step > w {
			x, y = 0, y+legendRow
		}
		i.draw(f.area(x0+x, y+(legendRow-swatchHeight)/2, swatchWidth, swatchHeight))
		f.write(x0+x+swatchWidth+6, y+legendRow/2, tickSize, false, i.name)
		x += step
	}
}

// ticks are round numbers along an axis.
type ticks struct {
	count  int // roughly how many
	format func(float64) string
}

// Ticks implements plot.Ticker.
func (t ticks) Ticks(lo, hi float64) []plot.Tick {
	if !(hi > lo) || math.IsInf(hi-lo, 0) {
		return nil
	}
	raw := (hi - lo) / float64(t.count)
	step := math.Pow(10, math.Floor(math.Log10(raw)))
	for _, f := range []float64{1, 2, 5, 10} {
		if f*step >= raw {
			step *= f
			break
		}
	}
	var all []plot.Tick
	for i := math.Ceil(lo / step); i*step <= hi*(1+1e-12) && len(all) < 50; i++ {
		all = append(all, plot.Tick{Value: i * step, Label: t.format(i * step)})
	}
	return all
}

// short writes a number for an axis.
func short(x float64) string {
	switch a := math.Abs(x); {
	case a >= 1e7:
		return trimZero(fmt.Sprintf("%.3g", x/1e6)) + "M"
	case a >= 1e4:
		return trimZero(fmt.Sprintf("%.4g", x/1e3)) + "k"
	}
	return trimZero(fmt.Sprintf("%.4g", x))
}

func trimZero(s string) string {
	if s == "-0" {
		return "0"
	}
	return s
}

// decades are powers of ten along an axis of common logarithms.
type decades struct{ format func(float64) string }

// Ticks implements plot.Ticker.
func (d decades) Ticks(lo, hi float64) []plot.Tick {
	var all []plot.Tick
	for e := math.Floor(lo); e <= hi+1 && len(all) < 300; e++ {
		all = append(all, plot.Tick{Value: e, Label: d.format(math.Pow(10, e))})
		for m := 2.0; m < 10; m++ {
			all = append(all, plot.Tick{Value: e + math.Log10(m)})
		}
	}
	return all
}

// finite limits a number from a file to what can be drawn.
func finite(x float64) float64 {
	switch {
	case math.IsNaN(x) || x < 0:
		return 0
	case x > 1e15:
		return 1e15
	}
	return x
}

// Colours: ink for lines and text, and one for each series, after the palette of M. Okabe
// and K. Ito, which can be distinguished with any kind of colour vision.
var (
	ink    = color.NRGBA{0x22, 0x22, 0x22, 0xff}
	faint  = color.NRGBA{0xdd, 0xdd, 0xdd, 0xff}
	grey   = color.NRGBA{0x90, 0x90, 0x90, 0xff}
	series = []color.NRGBA{
		{0x00, 0x72, 0xb2, 0xff}, {0xd5, 0x5e, 0x00, 0xff}, {0x00, 0x9e, 0x73, 0xff}, {0xb0, 0x4a, 0x86, 0xff},
		{0xa6, 0x76, 0x00, 0xff}, {0x56, 0xb4, 0xe9, 0xff}, {0x55, 0x55, 0x55, 0xff},
	}
)

// pale mixes a colour with white, for large areas.
func pale(c color.NRGBA) color.NRGBA {
	mix := func(x uint8) uint8 { return uint8((2*int(x) + 3*255) / 5) }
	return color.NRGBA{mix(c.R), mix(c.G), mix(c.B), 0xff}
}

package report

import (
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"github.com/elevisor/elevisor/lab/plan"
	"github.com/elevisor/elevisor/lab/stats"
)

// Width is the number of columns that Text and Against use at most.
const Width = 100

// Text writes tables, verdicts, notes and warnings, for a terminal.
func Text(w io.Writer, r *plan.Results) error {
	if err := check(r); err != nil {
		return err
	}
	m := newModel(r)
	var b strings.Builder
	if len(m.groups) == 0 {
		b.WriteString("The plan has no cells.\n")
	}
	headline := "The results have no summary."
	if m.Summary != nil {
		headline = m.Summary.Headline
	}
	for _, l := range wrap(headline, Width, "") {
		b.WriteString(l + "\n")
	}
	for _, g := range m.groups {
		b.WriteByte('\n')
		g.text(&b)
	}
	m.legend(&b)
	m.verdicts(&b)
	paragraphs(&b, "Notes", r.Notes)
	if r.Summary != nil {
		paragraphs(&b, "Warnings", r.Summary.Warnings)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// line writes fields into columns of the given widths; a negative width aligns left. A
// field too wide for its column shifts those after it, but nothing goes beyond Width.
func line(b *strings.Builder, widths []int, fields []string) {
	var out strings.Builder
	for i, f := range fields {
		if i > 0 {
			out.WriteByte(' ')
		}
		pad := strings.Repeat(" ", max(0, max(widths[i], -widths[i])-utf8.RuneCountInString(f)))
		if widths[i] < 0 {
			out.WriteString(f + pad)
		} else {
			out.WriteString(pad + f)
		}
	}
	b.WriteString(clip(strings.TrimRight(out.String(), " "), Width) + "\n")
}

var (
	textWidths = []int{-nameMax, -nameMax, 16, -20, -2, 8, 6, 6, 9}
	textHeads  = [][]string{
		{"guest", "host", "IOPS", "ratio to", "", "p99", "merged, %", "", "seeks"},
		{"scheduler", "scheduler", "mean (sd)", "baseline [95 % CI]", "", "latency", "guest", "host", "per GiB"},
	}
)

func (g *group) text(b *strings.Builder) {
	b.WriteString(g.title + "\n")
	head := textHeads[0]
	// "merged, %" spans two columns.
	wide := []int{-nameMax, -nameMax, 16, -20, -2, 8, 13, 0, 8}
	line(b, wide, head)
	line(b, textWidths, textHeads[1])
	for _, c := range g.cells {
		s := c.stats
		p99 := none
		if s.P99.N > 0 {
			p99 = latency(s.P99.Mean, "us")
		}
		change, mark := none, ""
		switch {
		case c.iops != nil:
			change, mark = interval(c.iops.Ratio, c.iops.Low, c.iops.High), clip(clean(c.iops.Mark), 2)
		case c.base:
			change = "(baseline)"
		}
		line(b, textWidths, []string{
			g.guests[c.guest], g.hosts[c.host], meanSD(s.IOPS), change, mark, p99,
			mean(s.GuestMergePct), mean(s.HostMergePct), mean(s.SeeksPerGiB),
		})
	}
}

// legend explains the ratio, if there is one, and the short names.
func (m *model) legend(b *strings.Builder) {
	for _, g := range m.groups {
		if g.base() != nil {
			b.WriteString("\nRatios are of IOPS, geometric means over blocks. * p < 0.05; ** also after Holm's correction.\n")
			break
		}
	}
	for _, k := range m.keys {
		for _, l := range wrap(k, Width, "  ") {
			b.WriteString(l + "\n")
		}
	}
}

// verdicts writes the comparisons in words.
func (m *model) verdicts(b *strings.Builder) {
	for _, g := range m.groups {
		said := g.said()
		if len(said) > 0 {
			fmt.Fprintf(b, "\n%s, guest / host:\n", g.title)
		}
		for _, text := range said {
			for _, l := range wrap(text, Width-2, "    ") {
				b.WriteString("  " + l + "\n")
			}
		}
	}
}

// said returns the verdicts of a group; those that say "equivalent" are only counted.
func (g *group) said() (all []string) {
	same := 0
	for _, c := range g.cells {
		for _, x := range []*plan.Comparison{c.iops, c.p99} {
			switch {
			case x == nil:
			case strings.HasPrefix(x.Verdict, string(stats.Equivalent)):
				same++
			default:
				all = append(all, fmt.Sprintf("%s, %s: %s (%s)", c.name, metricName(x.Metric), c.verdict(x), evidence(x)))
			}
		}
	}
	if same > 0 {
		all = append(all, fmt.Sprintf("equivalent within 2 %%: %d comparisons", same))
	}
	return all
}

func metricName(metric string) string {
	switch metric {
	case plan.MetricIOPS:
		return "IOPS"
	case plan.MetricP99:
		return "p99"
	}
	return clean(metric)
}

// evidence is what a verdict is based on.
func evidence(x *plan.Comparison) string {
	return fmt.Sprintf("p %s, Holm %s", probability(x.P), probability(x.PHolm))
}

// verdict returns x's verdict, without the cell's name: the caller has written that.
func (c *cell) verdict(x *plan.Comparison) string {
	s, short := strings.CutPrefix(x.Verdict, c.name+" ")
	if !short {
		s = strings.TrimPrefix(x.Verdict, c.full+" ")
	}
	return s
}

// paragraphs writes a list under a title, unless it is empty.
func paragraphs(b *strings.Builder, title string, list []string) {
	if len(list) == 0 {
		return
	}
	fmt.Fprintf(b, "\n%s:\n", title)
	for _, s := range list {
		for _, l := range wrap("- "+s, Width-2, "  ") {
			b.WriteString("  " + l + "\n")
		}
	}
}

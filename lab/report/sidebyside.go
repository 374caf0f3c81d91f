package report

import (
	"fmt"
	"slices"
	"strings"

	"github.com/elevisor/elevisor/lab/plan"
)

// origin describes where results come from.
func origin(name string, r *plan.Results) string {
	return fmt.Sprintf("%s: elevisor %s, world %s, disk %s, %d runs, seed %d: %s",
		name, r.Version, r.Plan.World, r.Plan.Disk, len(r.Runs), r.Plan.Seed, shell(r.Command))
}

// environments lists the differences between two environments.
func environments(a, b map[string]string) []string {
	both := map[string]string{}
	for k := range a {
		both[k] = ""
	}
	for k := range b {
		both[k] = ""
	}
	var lines []string
	for _, k := range sorted(both) {
		if a[k] != b[k] {
			lines = append(lines, fmt.Sprintf("Environment differs: %s: A %q, B %q", k, a[k], b[k]))
		}
	}
	return lines
}

var againstWidths = []int{-nameMax, -nameMax, 18, 18, -21, -2, 8}

// against writes the tables of one of A's groups.
func (g *group) against(b *strings.Builder, d *Difference) {
	for _, metric := range []string{plan.MetricIOPS, plan.MetricP99} {
		unit := "IOPS"
		if metric == plan.MetricP99 {
			unit = "p99 latency"
		}
		var rows []Pair
		for _, c := range g.cells {
			at := slices.IndexFunc(d.Pairs, func(p Pair) bool { return p.A == c.index && p.Metric == metric })
			if at >= 0 && d.Pairs[at].MeanA+d.Pairs[at].MeanB > 0 {
				rows = append(rows, d.Pairs[at])
			}
		}
		if len(rows) == 0 {
			continue
		}
		fmt.Fprintf(b, "\n%s: %s\n", g.title, unit)
		line(b, againstWidths, []string{"guest", "host", "A, mean (sd)", "B, mean (sd)", "B/A [95 % CI]", "", "p, Holm"})
		for _, p := range rows {
			g.againstRow(b, p)
		}
		for _, p := range rows {
			at := slices.IndexFunc(g.cells, func(c *cell) bool { return c.index == p.A })
			for _, l := range wrap(g.cells[at].name+": "+p.Verdict, Width-2, "  ") {
				b.WriteString("  " + l + "\n")
			}
		}
	}
}

func (g *group) againstRow(b *strings.Builder, p Pair) {
	at := slices.IndexFunc(g.cells, func(c *cell) bool { return c.index == p.A })
	c := g.cells[at]
	change, holm := none, none
	if p.Tested {
		change, holm = interval(p.Ratio, p.Low, p.High), probability(p.PHolm)
	} else if p.Ratio > 0 {
		change = ratio(p.Ratio)
	}
	figure := digits
	if p.Metric == plan.MetricP99 {
		figure = func(us float64) string { return latency(us, "us") }
	}
	line(b, againstWidths, []string{
		g.guests[c.guest], g.hosts[c.host],
		figure(p.MeanA) + " (" + figure(p.SDA) + ")", figure(p.MeanB) + " (" + figure(p.SDB) + ")",
		change, p.Mark, holm,
	})
}

// unmatched lists cells that the other results do not have.
func (m *model) unmatched(b *strings.Builder, title string, cells []int) {
	if len(cells) == 0 {
		return
	}
	fmt.Fprintf(b, "\n%s\n", title)
	for _, g := range m.groups {
		var names []string
		for _, c := range g.cells {
			if slices.Contains(cells, c.index) {
				x := m.Plan.Cells[c.index]
				names = append(names, strings.TrimSpace(x.Guest.Name+" "+knobs(x.Guest))+" / "+strings.TrimSpace(x.Host.Name+" "+knobs(x.Host)))
			}
		}
		if len(names) == 0 {
			continue
		}
		s := fmt.Sprintf("%s (%s), guest / host: %s", g.title, settings(g.cell), strings.Join(names, "; "))
		for _, l := range wrap(s, Width-2, "  ") {
			b.WriteString("  " + l + "\n")
		}
	}
}

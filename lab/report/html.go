package report

import (
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"slices"
	"strings"
	"unicode"

	"github.com/elevisor/elevisor/lab/plan"
	"github.com/elevisor/elevisor/sched"
)

//go:embed report.html.tmpl
var pageText string

var page = template.Must(template.New("report").Parse(pageText))

// view is the data of the page's template. The template escapes all strings except SVG,
// which is made here and has escaped them itself.
type view struct {
	Headline string
	Warnings []string
	Notes    []string
	Groups   []groupView
	Keys     []string
	Facts    []fact // how the figures were measured
	Env      []fact
	Jobs     []fact
}

type fact struct{ Name, Value string }

type groupView struct {
	ID, Title string
	Verdicts  []string
	Pictures  []picture
	Tables    []table
}

// picture is one figure element: plots with a caption.
type picture struct {
	SVG     []template.HTML
	Caption string
}

type table struct {
	Caption string
	Names   int // number of columns at the beginning that hold names
	Text    int // number of columns at the end that hold words
	Head    []string
	Rows    [][]string
}

// Words reports whether column i holds words.
func (t table) Words(i int) bool { return i >= len(t.Head)-t.Text }

// HTML writes report.html, a page without scripts that loads nothing.
func HTML(w io.Writer, r *plan.Results) error {
	if err := check(r); err != nil {
		return err
	}
	m := newModel(r)
	v := &view{
		Headline: "The results have no summary.", Notes: r.Notes, Keys: m.keys,
		Facts: m.facts(), Jobs: m.jobFacts(),
	}
	if r.Summary != nil {
		v.Headline, v.Warnings = r.Summary.Headline, r.Summary.Warnings
	}
	if m.incomplete() {
		v.Warnings = append(slices.Clone(v.Warnings), "Latency distributions and dispatch positions are missing: they are in runs.jsonl, and these results were read from results.json alone.")
	}
	for _, k := range sorted(r.Environment) {
		v.Env = append(v.Env, fact{k, r.Environment[k]})
	}
	for i, g := range m.groups {
		gv, err := g.view(fmt.Sprintf("g%d", i+1))
		if err != nil {
			return err
		}
		v.Groups = append(v.Groups, gv)
	}
	var b strings.Builder
	if err := page.Execute(&b, v); err != nil {
		return fmt.Errorf("write the page: %w", err)
	}
	_, err := io.WriteString(w, visible(b.String()))
	return err
}

// incomplete reports whether the runs have latencies, and none has their distribution.
func (m *model) incomplete() bool {
	some := false
	for _, g := range m.groups {
		for _, c := range g.cells {
			for _, o := range c.outcomes {
				if len(o.Read.CDF)+len(o.Write.CDF) > 0 {
					return false
				}
				some = some || o.Read.IOs+o.Write.IOs > 0
			}
		}
	}
	return some
}

// visible replaces characters that HTML does not allow, or that change the direction of
// text, by question marks.
func visible(page string) string {
	return strings.Map(func(r rune) rune {
		if r != '\n' && r != '\t' && (unicode.IsControl(r) || unicode.Is(unicode.Cf, r)) {
			return '?'
		}
		return r
	}, page)
}

// facts describes what was run and how.
func (m *model) facts() []fact {
	p := m.Plan
	base := "none"
	if p.BaseGuest != "" || p.BaseHost != "" {
		base = fmt.Sprintf("guest %s, host %s", p.BaseGuest, p.BaseHost)
	}
	return []fact{
		{"Command", shell(m.Command)},
		{"Elevisor", m.Version},
		{"World", p.World},
		{"Disk", p.Disk},
		{"Plan", fmt.Sprintf("%d cells, %d repeats of each; a block has every cell of one configuration once, in an order drawn from the seed", len(p.Cells), p.Repeats)},
		{"Runs", fmt.Sprintf("%d of %d", len(m.Runs), len(p.Cells)*p.Repeats)},
		{"Seed", fmt.Sprint(p.Seed)},
		{"Baseline", base},
	}
}

// jobFacts lists the jobs of each group.
func (m *model) jobFacts() []fact {
	var all []fact
	for _, g := range m.groups {
		lines := []string{settings(g.cell)}
		for i, j := range g.cell.Workload.Jobs {
			name := j.Name
			if name == "" {
				name = fmt.Sprint(i + 1)
			}
			lines = append(lines, fmt.Sprintf("job %s: %s", name, jobWords(j)))
		}
		all = append(all, fact{g.title, strings.Join(lines, "\n")})
	}
	return all
}

func (g *group) view(id string) (groupView, error) {
	v := groupView{ID: id, Title: g.title, Verdicts: g.said()}
	pictures, err := g.pictures(id)
	if err != nil {
		return v, err
	}
	v.Pictures = pictures
	v.Tables = []table{g.performanceTable(), g.comparisonTable(), g.diskTable(), g.countsTable()}
	return v, nil
}

func (g *group) pictures(id string) ([]picture, error) {
	var all []picture
	add := func(f *figure, caption string) error {
		svg, err := f.SVG(fmt.Sprintf("%s-p%d", id, len(all)))
		all = append(all, picture{[]template.HTML{svg}, caption})
		return err
	}
	if err := add(g.performance(), "IOPS and p99 latency for each guest and host scheduler. Bars: mean over runs; whiskers: 95 % confidence interval of the "+
		"mean; dashed line: baseline; patterns: host schedulers. The p99 latency is computed for each run, and is that of its slower direction."); err != nil {
		return nil, err
	}
	heats := picture{Caption: "Ratios to the baseline, guest by host scheduler: geometric means over blocks with 95 % confidence intervals. " +
		"Blue is better, orange is worse. * p < 0.05; ** also after Holm's correction for all comparisons."}
	for i, h := range g.heats() {
		heats.SVG = append(heats.SVG, h.SVG(fmt.Sprintf("%s-h%d", id, i)))
	}
	if len(heats.SVG) > 0 {
		all = append(all, heats)
	}
	if err := add(g.merging(), "Left: requests merged in the guest and in the host, as a share of the requests that the jobs submitted (of those that "+
		"reached the host if the guest's count is unknown). Right: seeks per GiB transferred. Means over runs; whiskers: 95 % confidence interval."); err != nil {
		return nil, err
	}
	for _, f := range g.distributions() {
		if err := add(f, f.Title+". One panel for each guest scheduler. Each point is the median over runs of that quantile; runs are not pooled. "+
			"On the vertical axis each additional nine takes the same space."); err != nil {
			return nil, err
		}
	}
	if f := g.positions(); f != nil {
		if err := add(f, fmt.Sprintf("Dispatch position over time (guest / host scheduler): the position of each request on the disk, for at most the first %d "+
			"requests of the first run that has a trace. Only pairs that share a scheduler with the baseline are shown. All panels have the same scales.", traceMax)); err != nil {
			return nil, err
		}
	}
	return all, nil
}

func (g *group) table(caption string, head []string, row func(*cell) []string) table {
	t := table{Caption: caption, Names: 2, Head: append([]string{"Guest", "Host"}, head...)}
	for _, c := range g.cells {
		if cols := row(c); cols != nil {
			t.Rows = append(t.Rows, append([]string{g.guests[c.guest], g.hosts[c.host]}, cols...))
		}
	}
	return t
}

func (g *group) performanceTable() table {
	return g.table("Throughput and latency: mean over runs, standard deviation in brackets; latencies in µs, computed for each run",
		[]string{"Runs", "IOPS", "IOPS min", "IOPS median", "IOPS max", "MiB/s", "p50", "p99", "Max latency", "Jain's index"},
		func(c *cell) []string {
			s := c.stats
			return []string{
				fmt.Sprint(s.Runs), meanSD(s.IOPS), one(s.IOPS, s.IOPS.Min), one(s.IOPS, s.IOPS.Median), one(s.IOPS, s.IOPS.Max),
				meanSD(s.BW), meanSD(s.P50), meanSD(s.P99), meanSD(s.Max), one(s.Jain, s.Jain.Mean),
			}
		})
}

// one writes a figure of a sample, unless the sample is empty.
func one(s plan.Sample, x float64) string {
	if s.N == 0 {
		return none
	}
	return digits(x)
}

func (g *group) comparisonTable() table {
	t := table{
		Caption: "Comparison with the baseline: paired tests of the logarithms of the ratios in each block", Names: 3, Text: 2,
		Head: []string{"Guest", "Host", "Metric", "Pairs", "Ratio [95 % CI]", "t", "p", "p, sign flips", "p, Holm", "Mark", "Verdict"},
	}
	for _, c := range g.cells {
		for _, x := range []*plan.Comparison{c.iops, c.p99} {
			if x != nil {
				t.Rows = append(t.Rows, []string{
					g.guests[c.guest], g.hosts[c.host], metricName(x.Metric), fmt.Sprint(x.Pairs), interval(x.Ratio, x.Low, x.High),
					digits(x.T), probability(x.P), probability(x.PFlip), probability(x.PHolm), x.Mark, c.verdict(x),
				})
			}
		}
	}
	return t
}

func (g *group) diskTable() table {
	return g.table("Merges, and requests at the disk: mean over runs, standard deviation in brackets",
		[]string{"Merged in guest, %", "Merged in host, %", "of which across queues, %", "across VMs, %", "Requests per GiB", "Mean size, KiB",
			"Seeks per GiB", "Mean seek, MiB", "Lost merges per GiB"},
		func(c *cell) []string {
			s := c.stats
			return []string{
				meanSD(s.GuestMergePct), meanSD(s.HostMergePct), meanSD(s.CrossQueuePct), meanSD(s.CrossVMPct), meanSD(s.RequestsPerGiB),
				meanSD(s.MeanKiB), meanSD(s.SeeksPerGiB), meanSD(s.MeanSeekMiB), meanSD(s.LostPerGiB),
			}
		})
}

// countsTable adds up the counts, of which the summary has only shares.
func (g *group) countsTable() table {
	head := []string{"Submitted", "Merged in guest", "Merged in host: same queue", "Merged in host: across queues", "Merged in host: across VMs"}
	for _, reason := range sched.ReasonNames {
		head = append(head, "Refused: "+reason)
	}
	head = append(head, "Lost: same queue", "Lost: across queues", "Lost: across VMs")
	caption := fmt.Sprintf("Merge counts in requests, summed over runs. Refused: the host found a neighbour and could not merge with it, by reason. "+
		"Lost: the request adjoined one of the last %d issued and was issued separately", plan.LostWindow)
	return g.table(caption, head, func(c *cell) []string {
		if len(c.outcomes) == 0 {
			return nil
		}
		sums := make([]uint64, len(head))
		known := true
		for _, o := range c.outcomes {
			known = known && o.Guest.Known
			counts := []uint64{o.Guest.Submitted, o.Guest.Merged, o.Host.SameQueue, o.Host.CrossQueue, o.Host.CrossVM}
			counts = append(counts, o.Host.Refused[:]...)
			counts = append(counts, o.Disk.LostSameQueue, o.Disk.LostCrossQueue, o.Disk.LostCrossVM)
			for i, n := range counts {
				sums[i] += n
			}
		}
		row := make([]string, len(sums))
		for i, n := range sums {
			row[i] = count(n)
		}
		if !known {
			row[0], row[1] = "unknown", "unknown"
		}
		return row
	})
}

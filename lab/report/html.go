package report

import (
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"strings"
	"unicode"

	"github.com/elevisor/elevisor/lab/plan"
	"github.com/elevisor/elevisor/sched"
)

//go:embed report.html.tmpl
var pageText string

var page = template.Must(template.New("report").Parse(pageText))

// view is what the page's template shows. All strings in it are text, save for SVG, which
// is made here and has escaped what is not its own.
type view struct {
	Headline string
	Warnings []string
	Notes    []string
	Groups   []groupView
	Keys     []string
	Facts    []fact // how it was measured
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

// picture is one figure element: drawings with a caption.
type picture struct {
	SVG     []template.HTML
	Caption string
}

type table struct {
	Caption string
	Names   int // columns that hold names, not numbers
	Text    int // columns of words at the end
	Head    []string
	Rows    [][]string
}

// Words is whether column i holds words.
func (t table) Words(i int) bool { return i >= len(t.Head)-t.Text }

// HTML writes report.html: one page that needs nothing but itself.
func HTML(w io.Writer, r *plan.Results) error {
	if err := check(r); err != nil {
		return err
	}
	m := newModel(r)
	v := &view{
		Headline: "The results hold no summary.", Notes: r.Notes, Keys: m.keys,
		Facts: m.facts(), Jobs: m.jobFacts(),
	}
	if r.Summary != nil {
		v.Headline, v.Warnings = r.Summary.Headline, r.Summary.Warnings
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

// visible puts question marks in the place of characters that HTML does not allow, or
// that turn the direction of what follows: no place of the page has a use for them.
func visible(page string) string {
	return strings.Map(func(r rune) rune {
		if r != '\n' && r != '\t' && (unicode.IsControl(r) || unicode.Is(unicode.Cf, r)) {
			return '?'
		}
		return r
	}, page)
}

// facts say what was run and how.
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
		{"Plan", fmt.Sprintf("%d cells, %d repeats each; a block holds each cell once, in an order drawn from the seed", len(p.Cells), p.Repeats)},
		{"Runs", fmt.Sprintf("%d of %d", len(m.Runs), len(p.Cells)*p.Repeats)},
		{"Seed", fmt.Sprint(p.Seed)},
		{"Baseline", base},
	}
}

// jobFacts are the jobs of each group.
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
	if err := add(g.performance(), "IOPS and p99 latency of each guest and host scheduler. Bars are means over runs, whiskers the 95 % confidence interval "+
		"of the mean, the dashed line is the baseline. Patterns stand for host schedulers. The p99 is each run's own, of its slower direction."); err != nil {
		return nil, err
	}
	heats := picture{Caption: "Ratios to the baseline, geometric means of the blocks' ratios with 95 % confidence intervals, guest by host scheduler. " +
		"Blue is better, orange worse. * is p < 0.05, ** also after Holm's correction over the whole table."}
	for i, h := range g.heats() {
		heats.SVG = append(heats.SVG, h.SVG(fmt.Sprintf("%s-h%d", id, i)))
	}
	if len(heats.SVG) > 0 {
		all = append(all, heats)
	}
	if err := add(g.merging(), "Where requests were merged, of those that the jobs submitted (of those that reached the host where the guest's count is "+
		"unknown), and how often the disk had to seek per GiB moved. Means over runs; whiskers are the 95 % confidence interval."); err != nil {
		return nil, err
	}
	for _, f := range g.distributions() {
		if err := add(f, f.Title+". A panel for each guest scheduler; for each quantile the median of the runs, which are not pooled. "+
			"The scale of quantiles gives each further nine the same room."); err != nil {
			return nil, err
		}
	}
	if f := g.positions(); f != nil {
		if err := add(f, fmt.Sprintf("Dispatch position over time (guest / host scheduler): where on the disk each request began, in the first run of each pair "+
			"that has a trace, its first %d requests at most. Shown are the pairs that share a scheduler with the baseline. All panels have the same scales.", traceMax)); err != nil {
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
	return g.table("What the jobs got: over runs, the mean and in brackets the standard deviation; latencies are in µs, each run's own",
		[]string{"Runs", "IOPS", "IOPS min", "IOPS median", "IOPS max", "MiB/s", "p50", "p99", "Max latency", "Jain's index"},
		func(c *cell) []string {
			s := c.stats
			return []string{
				fmt.Sprint(s.Runs), meanSD(s.IOPS), one(s.IOPS, s.IOPS.Min), one(s.IOPS, s.IOPS.Median), one(s.IOPS, s.IOPS.Max),
				meanSD(s.BW), meanSD(s.P50), meanSD(s.P99), meanSD(s.Max), one(s.Jain, s.Jain.Mean),
			}
		})
}

// one is a figure of a sample, if it has any.
func one(s plan.Sample, x float64) string {
	if s.N == 0 {
		return none
	}
	return digits(x)
}

func (g *group) comparisonTable() table {
	t := table{
		Caption: "Against the baseline: paired tests of the logarithms of the blocks' ratios", Names: 3, Text: 2,
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
	return g.table("What reached the disk: means over runs, in brackets standard deviations",
		[]string{"Guest merges, %", "Host merges, %", "of these across queues, %", "across VMs, %", "Requests per GiB", "Mean size, KiB",
			"Seeks per GiB", "Mean seek, MiB", "Lost merges per GiB"},
		func(c *cell) []string {
			s := c.stats
			return []string{
				meanSD(s.GuestMergePct), meanSD(s.HostMergePct), meanSD(s.CrossQueuePct), meanSD(s.CrossVMPct), meanSD(s.RequestsPerGiB),
				meanSD(s.MeanKiB), meanSD(s.SeeksPerGiB), meanSD(s.MeanSeekMiB), meanSD(s.LostPerGiB),
			}
		})
}

// countsTable sums up counts, which the summary has only as shares.
func (g *group) countsTable() table {
	head := []string{"Submitted", "Merged in guest", "Host: same queue", "Host: across queues", "Host: across VMs"}
	for _, reason := range sched.ReasonNames {
		head = append(head, "Refused: "+reason)
	}
	head = append(head, "Lost: same queue", "Lost: across queues", "Lost: across VMs")
	caption := fmt.Sprintf("Who merged what, in requests, summed over runs. Refused: neighbours that the host found and did not merge, by reason. "+
		"Lost: requests that adjoined one of the last %d issued and were issued apart", plan.LostWindow)
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

package report

import (
	"fmt"
	"strings"

	"github.com/elevisor/elevisor/guest/fio"
	"github.com/elevisor/elevisor/lab/plan"
)

// model is the results, sorted for display.
type model struct {
	*plan.Results
	groups []*group
	keys   []string // explanations of the short names of schedulers
}

// group is what one table and one set of figures show: the cells that differ only in their
// schedulers.
type group struct {
	title  string
	cell   plan.Cell // one of them: all are equal but for the schedulers
	guests []string  // short names, in the plan's order
	hosts  []string
	cells  []*cell // by guest, then by host
}

// cell is one cell with its runs and its summary.
type cell struct {
	index       int
	guest, host int    // indexes of the group's guests and hosts
	name        string // short names: guest / host
	full        string // the same, unabridged
	base        bool
	stats       plan.CellStats
	iops, p99   *plan.Comparison // with the baseline; nil for the baseline itself
	outcomes    []*plan.Outcome  // of its runs, in their order
}

// at returns the cell of a guest and a host scheduler; nil if the plan has none.
func (g *group) at(guest, host int) *cell {
	for _, c := range g.cells {
		if c.guest == guest && c.host == host {
			return c
		}
	}
	return nil
}

// base returns the cell that the others are compared with; nil if there is none.
func (g *group) base() *cell {
	for _, c := range g.cells {
		if c.base {
			return c
		}
	}
	return nil
}

// newModel sorts results that check has passed.
func newModel(r *plan.Results) *model {
	m := &model{Results: r}
	names := m.schedulers(r.Plan.Cells)
	byKey := map[string]*group{}
	for i := range r.Plan.Cells {
		c := r.Plan.Cells[i]
		k := groupKey(c)
		g := byKey[k]
		if g == nil {
			g = &group{cell: c}
			byKey[k] = g
			m.groups = append(m.groups, g)
		}
		guest, host := names[schedulerKey(c.Guest)], names[schedulerKey(c.Host)]
		v := &cell{index: i, guest: place(&g.guests, guest), host: place(&g.hosts, host), name: guest + " / " + host, full: c.Name()}
		g.cells = append(g.cells, v)
	}
	for _, g := range m.groups {
		g.sort()
	}
	m.titles()
	m.fill()
	return m
}

// groupKey is everything in a cell except its schedulers.
func groupKey(c plan.Cell) string {
	c.Guest, c.Host = plan.Scheduler{}, plan.Scheduler{}
	return fmt.Sprintf("%+v", c)
}

func schedulerKey(s plan.Scheduler) string { return fmt.Sprintf("%q", s) }

// place returns the index of name in list, and appends it if it is missing.
func place(list *[]string, name string) int {
	for i, n := range *list {
		if n == name {
			return i
		}
	}
	*list = append(*list, name)
	return len(*list) - 1
}

// schedulers gives each scheduler of the plan a short name: its own name, followed by a
// number from the second set of knobs on.
func (m *model) schedulers(cells []plan.Cell) map[string]string {
	names, taken := map[string]string{}, map[string]int{}
	add := func(s plan.Scheduler) {
		k := schedulerKey(s)
		if _, known := names[k]; known {
			return
		}
		short := clip(clean(s.Name), nameMax)
		taken[short]++
		if n := taken[short]; n > 1 {
			suffix := fmt.Sprintf("#%d", n)
			short = clip(short, nameMax-len(suffix)) + suffix
		}
		names[k] = short
		if len(s.Knobs) > 0 || short != s.Name {
			m.keys = append(m.keys, strings.TrimSpace(fmt.Sprintf("%s: %s %s", short, clean(s.Name), clean(knobs(s)))))
		}
	}
	for _, c := range cells {
		add(c.Guest)
	}
	for _, c := range cells {
		add(c.Host)
	}
	return names
}

// sort orders the cells by guest, then by host.
func (g *group) sort() {
	sorted := make([]*cell, 0, len(g.cells))
	for guest := range g.guests {
		for host := range g.hosts {
			for _, c := range g.cells {
				if c.guest == guest && c.host == host {
					sorted = append(sorted, c)
				}
			}
		}
	}
	g.cells = sorted
}

// titles names each group after its workload and the settings in which groups differ.
func (m *model) titles() {
	for _, d := range []struct {
		name string
		of   func(plan.Cell) int
	}{
		{"VMs", func(c plan.Cell) int { return c.VMs }},
		{"queues", func(c plan.Cell) int { return c.Queues }},
		{"queue size", func(c plan.Cell) int { return c.QSize }},
		{"queue depth", func(c plan.Cell) int { return c.Depth }},
		{"nomerges", func(c plan.Cell) int { return c.NoMerges }},
	} {
		differ := false
		for _, g := range m.groups {
			differ = differ || d.of(g.cell) != d.of(m.groups[0].cell)
		}
		for _, g := range m.groups {
			if differ {
				g.title += fmt.Sprintf(", %s %d", d.name, d.of(g.cell))
			}
		}
	}
	seen := map[string]int{}
	for _, g := range m.groups {
		g.title = clip(clean(g.cell.Workload.Name), 60) + g.title
		if seen[g.title]++; seen[g.title] > 1 { // another workload of the same name
			g.title += fmt.Sprintf(" (%d)", seen[g.title])
		}
	}
}

// fill adds the runs and the summary to the cells.
func (m *model) fill() {
	cells := make([]*cell, len(m.Plan.Cells))
	for _, g := range m.groups {
		for _, c := range g.cells {
			cells[c.index] = c
		}
	}
	for i := range m.Runs {
		if o := m.Runs[i].Outcome; o != nil {
			c := cells[m.Runs[i].Cell]
			c.outcomes = append(c.outcomes, o)
		}
	}
	for _, g := range m.Plan.Groups() {
		if g.Base >= 0 {
			cells[g.Base].base = true
		}
	}
	if m.Summary == nil {
		return
	}
	for _, s := range m.Summary.Cells {
		cells[s.Cell].stats = s
	}
	for i := range m.Summary.Comparisons {
		c := &m.Summary.Comparisons[i]
		switch at := cells[c.Cell]; {
		case c.Metric == plan.MetricIOPS && at.iops == nil:
			at.iops = c
		case c.Metric == plan.MetricP99 && at.p99 == nil:
			at.p99 = c
		}
	}
}

// jobWords writes a job in fio's words; those that have fio's default are left out.
func jobWords(j fio.Job) string {
	var b strings.Builder
	word := func(show bool, key string, value any) {
		if show {
			fmt.Fprintf(&b, " %s=%v", key, value)
		}
	}
	word(true, "rw", j.RW)
	word(len(j.BSSplit) == 0, "bs", j.BS)
	for i, s := range j.BSSplit {
		sep := ":"
		if i == 0 {
			sep = " bssplit="
		}
		fmt.Fprintf(&b, "%s%d/%d", sep, s.BS, s.Percent)
	}
	word(true, "iodepth", j.IODepth)
	word(j.Batch > 0, "iodepth_batch", j.Batch)
	word(true, "numjobs", j.NumJobs)
	word(j.Offset != 0, "offset", j.Offset)
	word(j.OffsetIncrement != 0, "offset_increment", j.OffsetIncrement)
	word(j.Size != 0, "size", j.Size)
	word(j.Runtime != 0, "runtime", j.Runtime)
	word(j.Ramp != 0, "ramp_time", j.Ramp)
	word(j.TimeBased, "time_based", 1)
	word(j.MixRead != 0, "rwmixread", j.MixRead)
	word(j.RateIOPS != 0, "rate_iops", j.RateIOPS)
	word(j.ThinkTime != 0, "thinktime", j.ThinkTime)
	word(j.Seed != 0, "randseed", j.Seed)
	word(j.Verify, "verify", 1)
	word(j.Direct, "direct", 1)
	word(j.Fsync != 0, "fsync", j.Fsync)
	word(j.Stride != 0, "stride", j.Stride)
	return clean(strings.TrimSpace(b.String()))
}

// settings describes what a group's cells share besides the workload.
func settings(c plan.Cell) string {
	depth := "the scheduler's default"
	if c.Depth != 0 {
		depth = fmt.Sprint(c.Depth)
	}
	return fmt.Sprintf("VMs: %d, virtqueues per VM: %d, queue size: %d, queue depth: %s, nomerges: %d",
		c.VMs, c.Queues, c.QSize, depth, c.NoMerges)
}

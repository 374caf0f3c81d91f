package report

import (
	"fmt"
	"strings"

	"github.com/elevisor/elevisor/guest/fio"
	"github.com/elevisor/elevisor/lab/plan"
)

// Metrics of comparisons, as expt has them.
const (
	metricIOPS = "iops"
	metricP99  = "p99_us"
)

// model is results in the order in which they are shown.
type model struct {
	*plan.Results
	groups []*group
	keys   []string // what the short names of schedulers with knobs stand for
}

// group is what is shown in one table and one set of pictures: the cells that differ in
// their schedulers only.
type group struct {
	title  string
	cell   plan.Cell // one of them; all but the schedulers is the same in all
	guests []string  // short names, in the order of the plan
	hosts  []string
	cells  []*cell // by guest, then by host
}

// cell is one cell with all there is of it.
type cell struct {
	index       int
	guest, host int    // of the group's
	name        string // short names: guest / host
	full        string // the same unabridged
	base        bool
	stats       plan.CellStats
	iops, p99   *plan.Comparison // with the baseline; nil of the baseline itself
	outcomes    []*plan.Outcome  // in the order of the runs
}

// at is the cell of a guest's and a host's scheduler, nil if the plan has none.
func (g *group) at(guest, host int) *cell {
	for _, c := range g.cells {
		if c.guest == guest && c.host == host {
			return c
		}
	}
	return nil
}

// base is the cell that the others are compared with, nil if there is none.
func (g *group) base() *cell {
	for _, c := range g.cells {
		if c.base {
			return c
		}
	}
	return nil
}

// newModel sorts checked results.
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

// groupKey is all of a cell but its schedulers.
func groupKey(c plan.Cell) string {
	c.Guest, c.Host = plan.Scheduler{}, plan.Scheduler{}
	return fmt.Sprintf("%+v", c)
}

func schedulerKey(s plan.Scheduler) string { return fmt.Sprintf("%q", s) }

// place is where name is in list, at whose end it is put if it is not there.
func place(list *[]string, name string) int {
	for i, n := range *list {
		if n == name {
			return i
		}
	}
	*list = append(*list, name)
	return len(*list) - 1
}

// schedulers gives each scheduler of the plan a short name: its own, and from the second
// one of that name on, with other knobs, a number behind it.
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

// sort brings cells into the order of guests, then hosts.
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

// titles names groups by their workload and by whatever else not all of them share.
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
		if seen[g.title]++; seen[g.title] > 1 { // the same name for other jobs
			g.title += fmt.Sprintf(" (%d)", seen[g.title])
		}
	}
}

// fill adds to each cell what the runs and the summary have of it.
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
		case c.Metric == metricIOPS && at.iops == nil:
			at.iops = c
		case c.Metric == metricP99 && at.p99 == nil:
			at.p99 = c
		}
	}
}

// jobWords are a job in fio's words, those that are not fio's defaults.
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

// settings say what a group's cells share besides the workload.
func settings(c plan.Cell) string {
	depth := "the scheduler's default"
	if c.Depth != 0 {
		depth = fmt.Sprint(c.Depth)
	}
	return fmt.Sprintf("VMs: %d, virtqueues of each: %d, entries of each virtqueue: %d, requests on the disk at a time: %s, nomerges: %d",
		c.VMs, c.Queues, c.QSize, depth, c.NoMerges)
}

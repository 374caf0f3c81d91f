package plan

import (
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/elevisor/elevisor/guest/fio"
	"github.com/elevisor/elevisor/lab/stats"
	"github.com/elevisor/elevisor/sched"
)

// Matrix is what a plan is made of: every guest scheduler with every host scheduler, for
// every load.
type Matrix struct {
	World   string
	Disk    string // in backend.Open's words
	IOPS    uint64 // what it is slowed down to; 0: not
	Guests  []Scheduler
	Hosts   []Scheduler
	Loads   []Load
	Repeats int
	Seed    uint64
	// BaseGuest and BaseHost name the cells that others are compared with; both empty:
	// none and none if the matrix has them, else the first of each.
	BaseGuest, BaseHost string
	Trace               int               // requests kept of each cell's first run
	Options             map[string]string // of the world, for the record
}

// Load is a workload with what is around it: every combination of the lists' values. An
// empty list stands for one default: 1 VM, 1 queue of 128 entries, the scheduler's depth,
// all merges.
type Load struct {
	fio.Workload
	VMs, Queues, QSizes, Depths, NoMerges []int
	MaxSectorsKB                          int // of a merged request, guest and host; 0: their default
}

// Bounds of a plan.
const (
	RepeatsMax = 1000
	VMsMax     = 256
	TraceMax   = 1 << 20
	cellsMax   = 100_000
	runsMax    = 1_000_000
)

// NewPlan makes the plan of a matrix, with cells in the order of the loads, then of their
// lists, then of guests, then of hosts. An error names the word that is wrong and what is
// valid.
func NewPlan(m Matrix) (*Plan, error) {
	if err := m.check(); err != nil {
		return nil, err
	}
	p := &Plan{
		World: m.World, Disk: m.Disk, IOPS: m.IOPS, Repeats: m.Repeats, Seed: m.Seed,
		BaseGuest: m.BaseGuest, BaseHost: m.BaseHost, Trace: m.Trace, Options: m.Options,
	}
	for i := range m.Loads {
		if err := m.addLoad(p, &m.Loads[i]); err != nil {
			return nil, fmt.Errorf("workload %s: %w", m.Loads[i].Name, err)
		}
	}
	if err := p.checkSize(); err != nil {
		return nil, err
	}
	return p, p.chooseBase(&m)
}

// checkSize bounds what is run.
func (p *Plan) checkSize() error {
	if len(p.Cells) > cellsMax || len(p.Cells)*p.Repeats > runsMax {
		return fmt.Errorf("%d cells with %d repeats: more than %d cells or %d runs", len(p.Cells), p.Repeats, cellsMax, runsMax)
	}
	return nil
}

func checkCounts(repeats, trace int) error {
	switch {
	case repeats < 1 || repeats > RepeatsMax:
		return fmt.Errorf("repeats=%d is out of range 1 to %d", repeats, RepeatsMax)
	case trace < 0 || trace > TraceMax:
		return fmt.Errorf("trace=%d is out of range 0 to %d", trace, TraceMax)
	}
	return nil
}

// check says whether a plan that was read from a file is one that NewPlan makes, as far as
// others rely on it. What schedulers, jobs and the disk are is checked by the world.
func (p *Plan) check() error {
	if err := cmp.Or(checkCounts(p.Repeats, p.Trace), p.checkSize()); err != nil {
		return err
	}
	if len(p.Cells) == 0 {
		return errors.New("the plan has no cells")
	}
	for i := range p.Cells {
		c := &p.Cells[i]
		if len(c.Workload.Jobs) == 0 {
			return fmt.Errorf("cell %d: it has no jobs", i)
		}
		for _, a := range axesOf([]int{c.VMs}, []int{c.Queues}, []int{c.QSize}, []int{c.Depth}, []int{c.NoMerges}) {
			if err := a.check(); err != nil {
				return fmt.Errorf("cell %d: %w", i, err)
			}
		}
	}
	return nil
}

func (m *Matrix) check() error {
	if err := checkCounts(m.Repeats, m.Trace); err != nil {
		return err
	}
	switch {
	case len(m.Guests) == 0 || len(m.Hosts) == 0:
		return errors.New("want at least one guest and one host scheduler")
	case len(m.Loads) == 0:
		return errors.New("no workload: want at least one")
	case (m.BaseGuest == "") != (m.BaseHost == ""):
		return errors.New("the baseline is a guest and a host scheduler: want both")
	}
	if err := cmp.Or(apart("guest", m.Guests, 0), apart("host", m.Hosts, 0)); err != nil {
		return err
	}
	for _, s := range m.Hosts {
		if err := CheckHost(s); err != nil {
			return fmt.Errorf("host: %w", err)
		}
	}
	return nil
}

// apart refuses schedulers of one side that are the same under a load's limit; 0: none.
func apart(side string, list []Scheduler, maxKB int) error {
	for i, s := range list {
		same := limited(s, maxKB).String()
		if slices.ContainsFunc(list[:i], func(o Scheduler) bool { return limited(o, maxKB).String() == same }) {
			return fmt.Errorf("%s scheduler %s is given twice", side, same)
		}
	}
	return nil
}

func (m *Matrix) addLoad(p *Plan, l *Load) error {
	if len(l.Jobs) == 0 {
		return errors.New("it has no jobs")
	}
	same := func(c Cell) bool { return c.Workload.Name == l.Name }
	if slices.ContainsFunc(p.Cells, same) {
		return errors.New("there are two of that name")
	}
	if l.MaxSectorsKB != 0 {
		if err := maxSectorsKB.check(fmt.Sprint(l.MaxSectorsKB)); err != nil {
			return err
		}
		if err := cmp.Or(apart("guest", m.Guests, l.MaxSectorsKB), apart("host", m.Hosts, l.MaxSectorsKB)); err != nil {
			return err
		}
	}
	axes := axesOf(l.VMs, l.Queues, l.QSizes, l.Depths, l.NoMerges)
	for i := range axes {
		if err := axes[i].check(); err != nil {
			return err
		}
	}
	m.combine(p, l, axes, nil)
	return nil
}

// combine adds a cell for each combination of the axes' values that begins with chosen.
func (m *Matrix) combine(p *Plan, l *Load, axes []axis, chosen []int) {
	if len(chosen) < len(axes) {
		for _, v := range axes[len(chosen)].values {
			m.combine(p, l, axes, append(slices.Clip(chosen), v))
		}
		return
	}
	for _, g := range m.Guests {
		for _, h := range m.Hosts {
			p.Cells = append(p.Cells, Cell{
				Guest: limited(g, l.MaxSectorsKB), Host: limited(h, l.MaxSectorsKB), Workload: l.Workload,
				VMs: chosen[0], Queues: chosen[1], QSize: chosen[2], Depth: chosen[3], NoMerges: chosen[4],
				MaxSectorsKB: l.MaxSectorsKB,
			})
		}
	}
}

// limited is s with a limit on the size of requests, unless it has one of its own.
func limited(s Scheduler, kb int) Scheduler {
	if kb == 0 || slices.ContainsFunc(s.Knobs, func(k sched.Knob) bool { return k.Key == maxSectorsKB.key }) {
		return s
	}
	s.Knobs = append(slices.Clip(s.Knobs), sched.Knob{Key: maxSectorsKB.key, Value: fmt.Sprint(kb)})
	return s
}

// chooseBase settles what is compared with what.
func (p *Plan) chooseBase(m *Matrix) error {
	if m.BaseGuest != "" {
		return p.checkBase(m)
	}
	pick := func(list []Scheduler) string {
		for _, s := range list {
			if k, err := sched.Find(s.Name); err == nil && !k.Meets && len(s.Knobs) == 0 {
				return s.String()
			}
		}
		return list[0].String()
	}
	p.BaseGuest, p.BaseHost = pick(m.Guests), pick(m.Hosts)
	return nil
}

func (p *Plan) checkBase(m *Matrix) error {
	for _, side := range []struct {
		name string
		base *string
		list []Scheduler
	}{{"guest", &p.BaseGuest, m.Guests}, {"host", &p.BaseHost, m.Hosts}} {
		s, err := ParseScheduler(*side.base)
		if err != nil {
			return fmt.Errorf("baseline: %w", err)
		}
		*side.base = s.String()
		if !slices.ContainsFunc(side.list, func(o Scheduler) bool { return o.String() == s.String() }) {
			return fmt.Errorf("baseline: %s is none of the %s schedulers", s, side.name)
		}
	}
	return nil
}

// Group is what is compared with each other: cells that differ in their schedulers only.
type Group struct {
	Cells []int // of Plan.Cells
	Base  int   // the one that the others are compared with
}

// Groups are the plan's, in the order of their first cells.
func (p *Plan) Groups() []Group {
	var groups []Group
	at := map[string]int{}
	for i, c := range p.Cells {
		key := fmt.Sprint(c.Workload.Name, "\x00", c.VMs, c.Queues, c.QSize, c.Depth, c.NoMerges)
		n, known := at[key]
		if !known {
			n = len(groups)
			at[key] = n
			groups = append(groups, Group{Base: -1})
		}
		g := &groups[n]
		g.Cells = append(g.Cells, i)
		if g.Base < 0 && based(c.Guest, p.BaseGuest, c.MaxSectorsKB) && based(c.Host, p.BaseHost, c.MaxSectorsKB) {
			g.Base = i
		}
	}
	return groups
}

// based says whether s is the scheduler that base names, where a load may have added a
// limit to it.
func based(s Scheduler, base string, maxKB int) bool {
	b, err := ParseScheduler(base)
	return err == nil && s.String() == limited(b, maxKB).String()
}

// Order is the order in which all is run: in each repeat every group, and in each group
// every cell, once, drawn from the plan's seed. The runs of one group in one repeat are a
// block: they come one after the other, and have one seed.
func (p *Plan) Order() ([]Run, error) {
	groups := p.Groups()
	turns, err := stats.Blocks(len(groups), p.Repeats, p.Seed)
	if err != nil {
		return nil, err
	}
	within := make([][][]int, len(groups))
	for i, g := range groups {
		if within[i], err = stats.Blocks(len(g.Cells), p.Repeats, drawn(p.Seed, uint64(i), streamOrder)); err != nil {
			return nil, err
		}
	}
	var runs []Run
	for block, turn := range turns {
		for _, g := range turn {
			seed := drawn(p.Seed, uint64(g)<<32|uint64(block), streamSeeds)
			for _, c := range within[g][block] {
				runs = append(runs, Run{Cell: groups[g].Cells[c], Block: block, Order: len(runs), Seed: seed})
			}
		}
	}
	return runs, nil
}

// What numbers are drawn for, so that they do not depend on each other.
const (
	streamOrder = 1 << 56
	streamSeeds = 2 << 56
)

// drawn is number n of a stream, from 1 to 2^31: what every program that takes a seed
// takes.
func drawn(seed, n, stream uint64) uint64 {
	return 1 + rand.New(rand.NewPCG(seed, stream+n)).Uint64()>>33
}

// Name is how people call a cell: its guest and its host scheduler.
func (c *Cell) Name() string { return c.Guest.String() + " / " + c.Host.String() }

// String is all that tells a cell from others; settings that are the default are left out.
func (c *Cell) String() string {
	s := c.Workload.Name + ": " + c.Name()
	for _, v := range []struct {
		name     string
		n, usual int
	}{{"vms", c.VMs, 1}, {"queues", c.Queues, 1}, {"queue-size", c.QSize, 128}, {"depth", c.Depth, 0}, {"nomerges", c.NoMerges, 0}} {
		if v.n != v.usual {
			s += fmt.Sprintf(", %s=%d", v.name, v.n)
		}
	}
	return s
}

// Difference says in what q is not p, or nothing: the first thing that a reader should
// look at.
func (p *Plan) Difference(q *Plan) string {
	for _, d := range []struct {
		name string
		a, b any
	}{
		{"world", p.World, q.World}, {"disk", p.Disk, q.Disk}, {"iops", p.IOPS, q.IOPS}, {"repeats", p.Repeats, q.Repeats}, {"seed", p.Seed, q.Seed},
		{"baseline", p.BaseGuest + "/" + p.BaseHost, q.BaseGuest + "/" + q.BaseHost}, {"trace", p.Trace, q.Trace},
		{"number of cells", len(p.Cells), len(q.Cells)},
	} {
		if d.a != d.b {
			return fmt.Sprintf("%s is %v, not %v", d.name, d.a, d.b)
		}
	}
	for i := range p.Cells {
		if a, b := fmt.Sprintf("%+v", p.Cells[i]), fmt.Sprintf("%+v", q.Cells[i]); a != b {
			if p.Cells[i].String() == q.Cells[i].String() {
				return fmt.Sprintf("the jobs of workload %s are %+v, not %+v", p.Cells[i].Workload.Name, p.Cells[i].Workload.Jobs, q.Cells[i].Workload.Jobs)
			}
			return fmt.Sprintf("cell %d is %s, not %s", i, &p.Cells[i], &q.Cells[i])
		}
	}
	return differentOptions(p.Options, q.Options)
}

func differentOptions(a, b map[string]string) string {
	var keys []string
	for _, m := range []map[string]string{a, b} {
		for k := range m {
			keys = append(keys, k)
		}
	}
	slices.SortFunc(keys, cmp.Compare[string])
	for _, k := range keys {
		if a[k] != b[k] {
			return fmt.Sprintf("%s is %q, not %q", k, a[k], b[k])
		}
	}
	return ""
}

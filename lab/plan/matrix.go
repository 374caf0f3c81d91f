package plan

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/elevisor/elevisor/guest/fio"
	"github.com/elevisor/elevisor/sched"
)

// Matrix is what NewPlan makes a plan of: every guest scheduler with every host scheduler,
// for every load.
type Matrix struct {
	World   string
	Disk    string // as backend.Open takes it
	IOPS    uint64 // what the disk is slowed down to; 0: not at all
	Guests  []Scheduler
	Hosts   []Scheduler
	Loads   []Load
	Repeats int
	Seed    uint64
	// BaseGuest and BaseHost name the cells that others are compared with. If both are
	// empty, they are none and none, or the first of each if the matrix has no none.
	BaseGuest, BaseHost string
	Trace               int               // requests kept of each cell's first run
	Options             map[string]string // the world's own flags, to be stored with the plan
}

// Load is a workload and the configurations in which it runs: every combination of the
// lists' values. An empty list means the default: 1 VM, 1 queue of 128 entries, the
// scheduler's own depth, all merges.
type Load struct {
	fio.Workload
	VMs, Queues, QSizes, Depths, NoMerges []int
	MaxSectorsKB                          int // limit on a merged request, in guest and host; 0: their defaults
}

// Bounds of a plan.
const (
	RepeatsMax = 1000
	VMsMax     = 256
	TraceMax   = 1 << 20
	cellsMax   = 100_000
	runsMax    = 1_000_000
)

// NewPlan makes the plan of a matrix. Cells are in the order of the loads, then of their
// lists, then of guests, then of hosts. An error names what is wrong and what is valid.
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

func (m *Matrix) check() error {
	if err := checkCounts(m.Repeats, m.Trace); err != nil {
		return err
	}
	switch {
	case len(m.Guests) == 0 || len(m.Hosts) == 0:
		return errors.New("want at least one guest and one host scheduler")
	case len(m.Loads) == 0:
		return errors.New("want at least one workload")
	case (m.BaseGuest == "") != (m.BaseHost == ""):
		return errors.New("the baseline is a pair of a guest and a host scheduler: want both")
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

// apart refuses schedulers of one side that a load's limit makes equal; 0: no limit.
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
		return errors.New("another workload has that name")
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

// combine adds a cell for each combination of the axes' values that starts with chosen.
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

// limited adds a limit on the size of requests to s, unless it has its own.
func limited(s Scheduler, kb int) Scheduler {
	if kb == 0 || slices.ContainsFunc(s.Knobs, func(k sched.Knob) bool { return k.Key == maxSectorsKB.key }) {
		return s
	}
	s.Knobs = append(slices.Clip(s.Knobs), sched.Knob{Key: maxSectorsKB.key, Value: fmt.Sprint(kb)})
	return s
}

// chooseBase sets the baseline.
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
			return fmt.Errorf("baseline: %s is not one of the %s schedulers", s, side.name)
		}
	}
	return nil
}

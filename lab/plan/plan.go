// Package plan describes experiments that compare I/O schedulers in the guest with I/O
// schedulers in the host: it plans the runs, has a [World] carry them out, stores each one
// when it has ended, and summarizes them.
//
// A [Plan] is a matrix of guest schedulers, host schedulers and workloads, with whatever
// else is varied (VMs, queues, queue size, queue depth). One element is a [Cell]. It is
// run Repeats times, in randomised complete blocks: a block holds every cell of one
// comparison once, in an order drawn from the plan's seed. The cells of a block share
// their job seed, so that all schedulers see the same requests.
//
// Worlds run in virtual time, with the built-in guest over a real socket (loopback), or
// in a real VM (qemu). All take their workloads from guest/fio and give the same
// [Outcome]. docs/RESULTS_FORMAT.md documents what is stored.
package plan

import (
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/elevisor/elevisor/lab/stats"
)

// Plan is what is to be run.
type Plan struct {
	World   string `json:"world"`
	Disk    string `json:"disk"`
	IOPS    uint64 `json:"disk_iops_limit,omitempty"` // see Spec
	Cells   []Cell `json:"cells"`
	Repeats int    `json:"repeats"`
	Seed    uint64 `json:"seed"`
	// BaseGuest and BaseHost are the schedulers of the cell that the others of the same
	// workload are compared with, as Scheduler.String has them.
	BaseGuest string `json:"baseline_guest_scheduler"`
	BaseHost  string `json:"baseline_host_scheduler"`
	// Trace is how many requests of each cell's first run are kept: Spec.Trace of block 0.
	Trace int `json:"trace_requests"`
	// Options are the world's own flags: what else the figures depend on.
	Options map[string]string `json:"options,omitempty"`
}

// checkSize bounds the number of cells and runs.
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

// check validates a plan that was read from a file: everything that other code takes for
// granted. The world checks schedulers, jobs and the disk.
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

// Group holds the cells that are compared with each other: they differ only in their
// schedulers.
type Group struct {
	Cells []int // indexes of Plan.Cells
	Base  int   // the one that the others are compared with; -1: none
}

// Groups returns the plan's groups, in the order of their first cells.
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

// based reports whether s is the scheduler that base names, apart from the limit that a
// load may have added.
func based(s Scheduler, base string, maxKB int) bool {
	b, err := ParseScheduler(base)
	return err == nil && s.String() == limited(b, maxKB).String()
}

// Order returns all runs in the order in which they are carried out. Each repeat has every
// group once, and each group every cell once, in an order drawn from the plan's seed. The
// runs of one group in one repeat are a block: they follow each other and share a seed.
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

// Streams keep numbers that are drawn for different purposes independent.
const (
	streamOrder = 1 << 56
	streamSeeds = 2 << 56
)

// drawn is number n of a stream, from 1 to 2^31, a range that every program with a seed
// accepts.
func drawn(seed, n, stream uint64) uint64 {
	return 1 + rand.New(rand.NewPCG(seed, stream+n)).Uint64()>>33
}

// Difference describes the first difference between two plans; it is empty if there is
// none.
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

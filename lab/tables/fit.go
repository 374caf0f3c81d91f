package tables

import (
	"context"
	"fmt"
	"strings"
)

// Fit refits a drive's parameters to the odd job counts of a group of tables, and says
// how far off the even ones are, which it never looks at.
//
// It is a pattern search: one parameter after the other is moved up and down by a
// step, what makes the RMS residual smaller stays, and when nothing does, the step is
// halved. All runs use the same seeds, so that two sets of parameters see the same
// chances; the same options give the same result.
type Fit struct {
	Group string // rfc-2016 or bfq-2017
	Free  []string
	Suite Suite // Machine is the start, if set
	Steps []float64
	Tried func(n int, rms float64) // if set: told of each set of parameters
}

// FitGroups are the groups that can be fitted to.
var FitGroups = []string{"rfc-2016", "bfq-2017"}

// FreeByDefault are the parameters that are moved where nobody says: those that nobody
// has published.
var FreeByDefault = []string{
	"settle_us", "stream_switch_us", "direction_switch_us", "segment_blocks", "read_cache_blocks",
	"read_ahead_min", "read_ahead_small", "destage_blocks",
}

// StepsByDefault are fractions of a parameter's value.
var StepsByDefault = []float64{0.1, 0.04, 0.015}

// Fitted is what came of it.
type Fitted struct {
	Machine       Machine
	Tried         int
	Before, After Errors
	Moved         []Move
}

// Errors are RMS residuals, in per cent.
type Errors struct{ Odd, Even float64 }

// Move is a parameter that changed.
type Move struct {
	Name     string
	From, To float64
}

// Run searches. A cancelled ctx ends it early, with ctx's error.
func (f *Fit) Run(ctx context.Context) (*Fitted, error) {
	tables, err := f.tables()
	if err != nil {
		return nil, err
	}
	m, err := f.start()
	if err != nil {
		return nil, err
	}
	out := &Fitted{}
	first := m.Drive.HDD
	odd := func(c Cell) bool { return groupOf(c) == f.Group && fitted(c) }
	even := func(c Cell) bool { return groupOf(c) == f.Group && !fitted(c) }
	best, err := f.score(ctx, tables, m, odd)
	if err != nil {
		return nil, err
	}
	out.Before.Odd = best
	if out.Before.Even, err = f.score(ctx, tables, m, even); err != nil {
		return nil, err
	}
	for _, step := range f.Steps {
		for moved := true; moved; {
			moved = false
			for _, name := range f.Free {
				better, rms, err := f.move(ctx, tables, m, name, step, best, out)
				if err != nil {
					return nil, err
				}
				if rms < best {
					m, best, moved = better, rms, true
				}
			}
		}
	}
	out.Machine, out.After.Odd = m, best
	if out.After.Even, err = f.score(ctx, tables, m, even); err != nil {
		return nil, err
	}
	for _, name := range f.Free {
		if from, to := *first.Parameter(name), *m.Drive.HDD.Parameter(name); from != to {
			out.Moved = append(out.Moved, Move{name, from, to})
		}
	}
	return out, nil
}

// move tries a parameter a step up and, if that is no better, a step down.
func (f *Fit) move(ctx context.Context, tables []Table, m Machine, name string, step, best float64, out *Fitted) (Machine, float64, error) {
	for _, by := range []float64{1 + step, 1 - step} {
		try := m
		v := try.Drive.HDD.Parameter(name)
		*v = round(*v*by, 1)
		if try.Drive.HDD.Check() != nil {
			continue // out of its range
		}
		rms, err := f.score(ctx, tables, try, func(c Cell) bool { return groupOf(c) == f.Group && fitted(c) })
		if err != nil {
			return m, best, err
		}
		out.Tried++
		if f.Tried != nil {
			f.Tried(out.Tried, min(rms, best))
		}
		if rms < best {
			return try, rms, nil
		}
	}
	return m, best, nil
}

func (f *Fit) score(ctx context.Context, tables []Table, m Machine, some func(Cell) bool) (float64, error) {
	s := f.Suite
	s.Machine = func(string) (Machine, error) { return m, nil }
	results, err := s.Run(ctx, tables, some)
	if err != nil {
		return 0, err
	}
	return *rms(results, func(Result) bool { return true }), nil
}

func (f *Fit) start() (Machine, error) {
	owns := f.Suite.Machine
	if owns == nil {
		owns = LoadMachine
	}
	m, err := owns(f.Group)
	if err != nil {
		return m, err
	}
	for _, name := range f.Free {
		if m.Drive.HDD.Parameter(name) == nil {
			return m, fmt.Errorf("the drive has no parameter %q; there are %s", name, strings.Join(m.Drive.HDD.Parameters(), ", "))
		}
	}
	return m, nil
}

func (f *Fit) tables() ([]Table, error) {
	all, err := Load()
	if err != nil {
		return nil, err
	}
	var some []Table
	for _, t := range all {
		if groupOf(t.Cells[0]) == f.Group {
			some = append(some, t)
		}
	}
	if len(some) == 0 || f.Group == "two-file-copy" || f.Group == "random-access" {
		return nil, fmt.Errorf("cannot fit to %q; valid: %s", f.Group, strings.Join(FitGroups, ", "))
	}
	return some, nil
}

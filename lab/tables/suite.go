package tables

import (
	"context"
	"fmt"
	"sync"

	"github.com/elevisor/elevisor/lab/virtual"
)

// Suite says how the tables are run.
type Suite struct {
	Seeds   int // runs of each cell, with the seeds 1, 2, ...
	Length  Length
	Workers int // runs at a time; the results do not depend on it
	// Machine, if set, takes the place of each group's own.
	Machine func(group string) (Machine, error)
	// Progress, if set, is told how many of the runs are done.
	Progress func(done, of int)
}

// Run simulates the cells of tables for which some says yes; nil means all. A cancelled
// ctx ends it early, with ctx's error.
func (s *Suite) Run(ctx context.Context, tables []Table, some func(Cell) bool) ([]Result, error) {
	var cells []Cell
	var runs []run
	at := map[run]int{}
	for _, t := range tables {
		for _, c := range t.Cells {
			if some != nil && !some(c) {
				continue
			}
			cells = append(cells, c)
			if r := runOf(c); at[r] == 0 {
				runs = append(runs, r)
				at[r] = len(runs)
			}
		}
	}
	outcomes, err := s.simulate(ctx, runs)
	if err != nil {
		return nil, err
	}
	results := make([]Result, len(cells))
	for i, c := range cells {
		var values []float64
		all := outcomes[at[runOf(c)]-1]
		for _, o := range all {
			values = append(values, value(c, o, s.Length))
		}
		virtual := s.Length.Total.Seconds()
		if c.Table == "rfc-two-file-copy" {
			virtual = all[0].Elapsed.Seconds()
		}
		results[i] = result(c, values, virtual)
	}
	return results, nil
}

// simulate runs each of runs with every seed.
func (s *Suite) simulate(ctx context.Context, runs []run) ([][]*virtual.Result, error) {
	owns := s.Machine
	if owns == nil {
		owns = LoadMachine
	}
	machines := map[string]Machine{}
	for _, r := range runs {
		if _, ok := machines[r.group]; ok {
			continue
		}
		m, err := owns(r.group)
		if err != nil {
			return nil, err
		}
		machines[r.group] = m
	}
	out := make([][]*virtual.Result, len(runs))
	for i := range out {
		out[i] = make([]*virtual.Result, s.Seeds)
	}
	err := s.each(len(runs)*s.Seeds, func(i int) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		r, seed := runs[i/s.Seeds], i%s.Seeds
		m := machines[r.group]
		o, err := r.options(&m, uint64(seed+1), s.Length)
		if err == nil {
			out[i/s.Seeds][seed], err = virtual.RunContext(ctx, o)
		}
		if err != nil {
			return fmt.Errorf("%s, %s, %d jobs, seed %d: %w", r.group, r.config, r.numJobs, seed+1, err)
		}
		return nil
	})
	return out, err
}

// each does n things, some at a time, and returns the error of the first of them that
// had one.
func (s *Suite) each(n int, do func(i int) error) error {
	var mu sync.Mutex
	next, done := 0, 0
	errs := make([]error, n)
	var wg sync.WaitGroup
	for range max(1, s.Workers) {
		wg.Go(func() {
			for {
				mu.Lock()
				i := next
				next++
				mu.Unlock()
				if i >= n {
					return
				}
				errs[i] = do(i)
				mu.Lock()
				done++
				if s.Progress != nil {
					s.Progress(done, n)
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

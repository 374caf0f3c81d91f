package plan

import (
	"context"
	"fmt"
	"sync"
)

// Concurrent is a World in which runs do not disturb each other, so that several can run
// at a time.
type Concurrent interface {
	World
	// Concurrent is how many may run at a time; at least 1.
	Concurrent() int
}

// Runner carries out a plan.
type Runner struct {
	World World
	Plan  *Plan
	State *State // stores finished runs, and has those of earlier programs; nil: nothing is stored
	// Progress is called after each run; it may be nil. Calls do not overlap.
	Progress func(Progress)
	// Stream is Spec.Stream; it also receives a line when a run starts.
	Stream func(line string)
}

// Progress is how many runs are done.
type Progress struct {
	Done, Total int
	Before      int // how many of those an earlier program did
}

// Run carries out what is left of the plan, and returns all runs in the plan's order. If
// the world's outcomes do not depend on how many runs there are at a time, and on
// interruptions, neither do the results. Run ends early when ctx is cancelled, with ctx's
// error, or when a run fails, with an error that names it. The state then has what had
// finished.
func (r *Runner) Run(ctx context.Context) ([]Run, error) {
	runs, err := r.Plan.Order()
	if err != nil {
		return nil, err
	}
	if r.State != nil {
		for i := range r.State.Finished {
			f := &r.State.Finished[i]
			runs[f.Order].Outcome = f.Outcome
		}
	}
	w := &work{Runner: r, runs: runs}
	for i := range runs {
		if runs[i].Outcome == nil {
			w.todo = append(w.todo, i)
		}
	}
	w.progress = Progress{Done: len(runs) - len(w.todo), Total: len(runs), Before: len(runs) - len(w.todo)}
	return runs, w.run(ctx)
}

// work is the state of Runner.Run.
type work struct {
	*Runner
	runs []Run
	todo []int // indexes of runs, in order

	mu       sync.Mutex
	next     int // index of todo
	progress Progress
	err      error // the first one
}

// run keeps as many runs going at a time as the world allows.
func (w *work) run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	workers := 1
	if c, ok := w.World.(Concurrent); ok {
		workers = c.Concurrent()
	}
	var all sync.WaitGroup
	for range min(workers, len(w.todo)) {
		all.Go(func() {
			for {
				i, ok := w.take(ctx)
				if !ok {
					return
				}
				if err := w.one(ctx, &w.runs[i]); err != nil {
					w.fail(err)
					cancel() // the other runs' outcomes would not be used
					return
				}
			}
		})
	}
	all.Wait()
	return w.err
}

// take returns the index of the next run.
func (w *work) take(ctx context.Context) (int, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.next == len(w.todo) || w.err != nil {
		return 0, false
	}
	if w.err = ctx.Err(); w.err != nil {
		return 0, false
	}
	w.next++
	return w.todo[w.next-1], true
}

func (w *work) fail(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err == nil {
		w.err = err
	}
}

// one carries out one run.
func (w *work) one(ctx context.Context, r *Run) error {
	cell := &w.Plan.Cells[r.Cell]
	spec := Spec{Cell: *cell, Disk: w.Plan.Disk, IOPS: w.Plan.IOPS, Seed: r.Seed, Stream: w.Stream}
	if r.Block == 0 {
		spec.Trace = w.Plan.Trace
	}
	if w.Stream != nil {
		w.Stream(fmt.Sprintf("run %d of %d: %s, block %d, seed %d", r.Order+1, len(w.runs), cell, r.Block+1, r.Seed))
	}
	outcome, err := w.World.Run(ctx, spec)
	if err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return fmt.Errorf("run %d of %d (%s, seed %d): %w", r.Order+1, len(w.runs), cell, r.Seed, err)
	}
	return w.finished(r, outcome)
}

func (w *work) finished(r *Run, o *Outcome) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	r.Outcome = o
	if w.State != nil {
		if err := w.State.finish(r); err != nil {
			return err
		}
	}
	w.progress.Done++
	if w.Progress != nil {
		w.Progress(w.progress)
	}
	return nil
}

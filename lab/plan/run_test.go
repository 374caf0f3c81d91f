package plan

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// fake is a world whose outcomes follow from cell and seed. Run number fail fails, and run
// number stop cancels its own context.
type fake struct {
	workers    int
	runs       atomic.Int64
	fail, stop int64
	cancel     func()
}

func (f *fake) Check(*Plan) error              { return nil }
func (f *fake) Environment() map[string]string { return nil }
func (f *fake) Notes(*Plan) []string           { return nil }
func (f *fake) Close() error                   { return nil }
func (f *fake) Concurrent() int                { return f.workers }

func (f *fake) Run(ctx context.Context, s Spec) (*Outcome, error) {
	switch f.runs.Add(1) {
	case f.fail:
		return nil, errors.New("the disk is on fire")
	case f.stop:
		f.cancel()
		return nil, ctx.Err()
	}
	iops := float64(1000 + s.Seed%97 + uint64(len(s.Name())))
	o := &Outcome{Read: Direction{IOs: 1, IOPS: iops, P99: 1e6 / iops}, Seconds: 1, Trace: make([]Access, s.Trace)}
	if s.Trace == 0 {
		o.Trace = nil
	}
	return o, nil
}

func testPlan(t *testing.T) *Plan {
	m := matrix()
	m.Trace = 2
	p, err := NewPlan(m)
	require.NoError(t, err)
	return p
}

func encode(t *testing.T, runs []Run) string {
	text, err := json.Marshal(runs)
	require.NoError(t, err)
	return string(text)
}

// The results are in the plan's order and the same, however many run at a time.
func TestRunner(t *testing.T) {
	p := testPlan(t)
	var want string
	for _, workers := range []int{1, 2, 7} {
		var seen []Progress
		w := &fake{workers: workers}
		r := Runner{World: w, Plan: p, Progress: func(p Progress) { seen = append(seen, p) }}
		runs, err := r.Run(context.Background())
		require.NoError(t, err)
		require.EqualValues(t, len(runs), w.runs.Load())
		for i, r := range runs {
			require.Equal(t, i, r.Order)
			require.NotNil(t, r.Outcome)
			require.Equal(t, r.Block == 0, len(r.Outcome.Trace) == 2, "the first block is traced")
		}
		require.Len(t, seen, len(runs))
		require.Equal(t, Progress{Done: len(runs), Total: len(runs)}, seen[len(seen)-1])
		if want == "" {
			want = encode(t, runs)
		}
		require.Equal(t, want, encode(t, runs))
	}
}

func TestRunner_nameOfTheRunThatFails(t *testing.T) {
	r := Runner{World: &fake{workers: 1, fail: 5}, Plan: testPlan(t)}
	runs, err := r.Run(context.Background())
	require.ErrorContains(t, err, "run 5 of 72 (")
	require.ErrorContains(t, err, ", seed ")
	require.ErrorContains(t, err, "): the disk is on fire")
	require.NotNil(t, runs[3].Outcome)
	require.Nil(t, runs[4].Outcome)
}

// An experiment that is interrupted twice, once while a line is being written, ends with
// the same results.
func TestState_resumes(t *testing.T) {
	p := testPlan(t)
	whole, err := (&Runner{World: &fake{workers: 1}, Plan: p}).Run(context.Background())
	require.NoError(t, err)

	dir := filepath.Join(t.TempDir(), "new")
	_, err = OpenState(dir)
	require.ErrorIs(t, err, ErrNoState)
	s, err := CreateState(dir, Experiment{Version: "v", Plan: *p})
	require.NoError(t, err)
	_, err = OpenState(dir)
	require.ErrorContains(t, err, "another program is running the experiment")

	ctx, cancel := context.WithCancel(context.Background())
	w := &fake{workers: 2, stop: 20, cancel: cancel}
	_, err = (&Runner{World: w, Plan: p, State: s}).Run(ctx)
	require.ErrorIs(t, err, context.Canceled)
	require.NoError(t, s.Close())
	_, err = CreateState(dir, Experiment{Plan: *p})
	require.ErrorContains(t, err, "already has an experiment: continue it with --resume")

	s, err = OpenState(dir)
	require.NoError(t, err)
	first := len(s.Finished)
	require.GreaterOrEqual(t, first, 18)
	require.LessOrEqual(t, first, 21)
	require.Empty(t, s.Plan.Difference(p))
	_, err = (&Runner{World: &fake{workers: 1, fail: 9}, Plan: &s.Plan, State: s}).Run(context.Background())
	require.ErrorContains(t, err, "on fire")
	require.NoError(t, s.Close())

	f, err := os.OpenFile(filepath.Join(dir, runsName), os.O_WRONLY|os.O_APPEND, 0)
	require.NoError(t, err)
	_, err = f.WriteString(`{"cell":1,"blo`)
	require.NoError(t, err)
	require.NoError(t, f.Close())

	s, err = OpenState(dir)
	require.NoError(t, err)
	require.Len(t, s.Finished, first+8)
	w = &fake{workers: 2}
	var last Progress
	runs, err := (&Runner{World: w, Plan: &s.Plan, State: s, Progress: func(p Progress) { last = p }}).Run(context.Background())
	require.NoError(t, err)
	require.Equal(t, Progress{Done: 72, Total: 72, Before: first + 8}, last)
	require.EqualValues(t, 72-first-8, w.runs.Load(), "what had finished is not run again")
	require.Equal(t, encode(t, whole), encode(t, runs))
	require.NoError(t, s.Close())

	s, err = OpenState(dir)
	require.NoError(t, err)
	require.Len(t, s.Finished, 72)
	require.NoError(t, s.Close())
}

func TestOpenState_refuses(t *testing.T) {
	p := testPlan(t)
	order, err := p.Order()
	require.NoError(t, err)
	line := func(change func(r *Run)) string {
		r := order[3]
		r.Outcome = &Outcome{}
		change(&r)
		text, err := json.Marshal(r)
		require.NoError(t, err)
		return string(text) + "\n"
	}
	const head = `{"schema":"elevisor-runs","schema_version":2}` + "\n"
	good := line(func(*Run) {})
	for want, text := range map[string]string{
		"line 1: no schema is given; this program reads elevisor-runs version 2": good,
		"line 1: it is elevisor-runs version 3; this program reads version 2":    strings.Replace(head, "2", "3", 1),
		"line 2: it is none of the plan's 72 runs":                               head + line(func(r *Run) { r.Order = 72 }),
		"line 3: it is none of the plan's":                                       head + good + good,
		"line 2: it is none":                                                     head + line(func(r *Run) { r.Outcome = nil }),
		"line 2: run 3 is not the plan's":                                        head + line(func(r *Run) { r.Seed++ }),
		"line 3: invalid character":                                              head + good + "x\n",
	} {
		dir := t.TempDir()
		s, err := CreateState(dir, Experiment{Plan: *p})
		require.NoError(t, err)
		require.NoError(t, s.Close())
		require.NoError(t, os.WriteFile(filepath.Join(dir, runsName), []byte(text), 0o644))
		_, err = OpenState(dir)
		assert.ErrorContains(t, err, want)
	}
}

// A plan of an older version, or a file that is no plan, is refused before anything is
// written to the directory.
func TestOpenState_refusesOtherSchemas(t *testing.T) {
	for text, want := range map[string]string{
		`{"format":1,"version":"0.1","plan":{}}`:           "it is in format 1, of an older Elevisor; this program reads elevisor-plan version 2 only",
		`{"schema":"elevisor-plan","schema_version":3}`:    "it is elevisor-plan version 3; this program reads version 2 only",
		`{"schema":"elevisor-plan"}`:                       "it is elevisor-plan version 0; this program reads version 2 only",
		`{"schema":"elevisor-results","schema_version":2}`: `its schema is "elevisor-results"; elevisor-plan is wanted here`,
		`{}`: "no schema is given; this program reads elevisor-plan version 2 only",
		`[]`: "not elevisor-plan",
		`{"schema":"elevisor-plan","schema_version":2} {`:   "not elevisor-plan",
		`{"schema":"elevisor-plan","schema_version":"two"}`: "not elevisor-plan",
	} {
		dir := t.TempDir()
		path := filepath.Join(dir, planName)
		require.NoError(t, os.WriteFile(path, []byte(text), 0o644))
		_, err := OpenState(dir)
		assert.ErrorContains(t, err, path+": "+want)
		require.NoFileExists(t, filepath.Join(dir, runsName))
	}
}

// A runs.jsonl without a plan is not overwritten.
func TestCreateState_refusesRunsWithoutAPlan(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, runsName)
	require.NoError(t, os.WriteFile(path, []byte("somebody's\n"), 0o644))
	_, err := CreateState(dir, Experiment{Plan: *testPlan(t)})
	require.ErrorContains(t, err, "has a runs.jsonl without a plan.json")
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, "somebody's\n", string(text))
	require.NoFileExists(t, filepath.Join(dir, planName))
}

// After a crash while the first line of runs.jsonl was being written, there is an experiment
// without runs.
func TestOpenState_withoutTheFirstLine(t *testing.T) {
	for _, torn := range []string{"", `{"schema":"elev`} {
		dir := t.TempDir()
		s, err := CreateState(dir, Experiment{Plan: *testPlan(t)})
		require.NoError(t, err)
		require.NoError(t, s.Close())
		require.NoError(t, os.WriteFile(filepath.Join(dir, runsName), []byte(torn), 0o644))
		for range 2 { // the first repairs it
			s, err = OpenState(dir)
			require.NoError(t, err)
			require.Empty(t, s.Finished)
			require.NoError(t, s.Close())
		}
		text, err := os.ReadFile(filepath.Join(dir, runsName))
		require.NoError(t, err)
		require.Equal(t, `{"schema":"elevisor-runs","schema_version":2}`+"\n", string(text))
	}
}

func TestOpenState_refusesAPlanThatNobodyMade(t *testing.T) {
	for want, change := range map[string]func(p *Plan){
		"repeats=1000000000 is out of range": func(p *Plan) { p.Repeats = 1_000_000_000 },
		"trace=-1 is out of range":           func(p *Plan) { p.Trace = -1 },
		"the plan has no cells":              func(p *Plan) { p.Cells = nil },
		"cell 1: it has no jobs":             func(p *Plan) { p.Cells[1].Workload.Jobs = nil },
		"cell 1: vms=0 is out of range":      func(p *Plan) { p.Cells[1].VMs = 0 },
		"cell 1: queue-size=3 is not":        func(p *Plan) { p.Cells[1].QSize = 3 },
	} {
		p, dir := testPlan(t), t.TempDir()
		change(p)
		s, err := CreateState(dir, Experiment{Plan: *p})
		require.NoError(t, err)
		require.NoError(t, s.Close())
		_, err = OpenState(dir)
		assert.ErrorContains(t, err, filepath.Join(dir, planName)+": "+want)
	}
}

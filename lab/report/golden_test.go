package report

import (
	"context"
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/elevisor/elevisor/lab/plan"
	"github.com/elevisor/elevisor/lab/report/reporttest"
)

// made is a world with made-up outcomes.
type made func(plan.Spec) *plan.Outcome

func (m made) Run(_ context.Context, s plan.Spec) (*plan.Outcome, error) { return m(s), nil }
func (made) Check(*plan.Plan) error                                      { return nil }
func (made) Environment() map[string]string                              { return nil }
func (made) Notes(*plan.Plan) []string                                   { return nil }
func (made) Close() error                                                { return nil }

// store runs an experiment that is stored in dir.
func store(t *testing.T, dir string, e *plan.Experiment, world made) []plan.Run {
	t.Helper()
	s, err := plan.CreateState(dir, *e)
	require.NoError(t, err)
	runs, err := (&plan.Runner{World: world, Plan: &e.Plan, State: s}).Run(t.Context())
	require.NoError(t, err)
	require.NoError(t, s.Close())
	return runs
}

// experiment runs a small experiment, and writes all files that compare writes to dir.
func experiment(t *testing.T, dir string) *plan.Results {
	t.Helper()
	shape := reporttest.Full()
	shape.Guests, shape.Hosts, shape.Workloads, shape.Repeats, shape.Trace = shape.Guests[:1], shape.Hosts[:2], shape.Workloads[1:], 3, 2
	r := reporttest.Results(shape)
	at := map[string]int{} // runs so far, by host scheduler
	e := &plan.Experiment{Version: r.Version, Command: r.Command, Environment: r.Environment, Plan: r.Plan}
	runs := store(t, dir, e, func(s plan.Spec) *plan.Outcome {
		block := at[s.Host.Name]
		at[s.Host.Name]++
		for i := range r.Runs {
			if r.Plan.Cells[r.Runs[i].Cell].Host.Name == s.Host.Name && r.Runs[i].Block == block {
				return r.Runs[i].Outcome
			}
		}
		return nil
	})
	summary, err := plan.Summarize(&r.Plan, runs)
	require.NoError(t, err)
	r.Runs, r.Summary = runs, summary
	require.NoError(t, WriteDir(dir, r))
	return r
}

const golden = "testdata/experiment"

// TestGolden pins the files byte for byte. -rewrite writes them again: read the difference,
// and decide whether plan.SchemaVersion has to change.
func TestGolden(t *testing.T) {
	dir := t.TempDir()
	r := experiment(t, dir)
	for _, name := range []string{JSONName, CSVName, "plan.json", "runs.jsonl"} {
		is, err := os.ReadFile(filepath.Join(dir, name))
		require.NoError(t, err)
		path := filepath.Join(golden, name)
		if flag.Lookup("rewrite").Value.String() == "true" {
			require.NoError(t, os.MkdirAll(golden, 0o755))
			require.NoError(t, os.WriteFile(path, is, 0o644))
		}
		want, err := os.ReadFile(path)
		require.NoError(t, err)
		require.Equal(t, string(want), string(is), name)
	}

	loaded, err := Load(filepath.Join(golden, JSONName))
	require.NoError(t, err)
	for i := range r.Runs {
		r.Runs[i].Outcome = r.Runs[i].Outcome.Figures()
	}
	require.Equal(t, r, loaded)
}

// TestGolden_resumes loads the experiment again, with everything that only runs.jsonl has.
func TestGolden_resumes(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.CopyFS(dir, os.DirFS(golden)))
	s, err := plan.OpenState(dir)
	require.NoError(t, err)
	r := experiment(t, t.TempDir())
	require.Equal(t, r.Plan, s.Plan)
	require.Equal(t, r.Runs, s.Finished)
	require.NotEmpty(t, s.Finished[0].Outcome.Read.CDF)
	require.NoError(t, s.Close())
}

// TestLoad_refusesFormat1 has files that the version before schemas wrote.
func TestLoad_refusesFormat1(t *testing.T) {
	_, err := Load("testdata/format-1/results.json")
	require.EqualError(t, err, "testdata/format-1/results.json: it is in format 1, of an older Elevisor; this program reads elevisor-results version 2 only")
	dir := t.TempDir()
	require.NoError(t, os.CopyFS(dir, os.DirFS("testdata/format-1")))
	_, err = plan.OpenState(dir)
	require.EqualError(t, err, dir+"/plan.json: it is in format 1, of an older Elevisor; this program reads elevisor-plan version 2 only")
}

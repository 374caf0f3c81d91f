package report

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/cockroachdb/datadriven"
	"github.com/stretchr/testify/require"

	"github.com/elevisor/elevisor/lab/plan"
	"github.com/elevisor/elevisor/lab/report/reporttest"
	"github.com/elevisor/elevisor/sched"
)

// TestText runs the transcripts in testdata/text: each command makes results up and shows
// one of the forms that have lines.
func TestText(t *testing.T) {
	datadriven.RunTest(t, "testdata/text", func(t *testing.T, d *datadriven.TestData) string {
		s := reporttest.Full()
		repeats, workloads, guests, hosts := s.Repeats, len(s.Workloads), len(s.Guests), len(s.Hosts)
		for name, n := range map[string]*int{"repeats": &repeats, "workloads": &workloads, "guests": &guests, "hosts": &hosts} {
			d.MaybeScanArgs(t, name, n)
		}
		s.Repeats, s.Workloads, s.Guests, s.Hosts, s.Trace = repeats, s.Workloads[:workloads], s.Guests[:guests], s.Hosts[:hosts], 0
		r := reporttest.Results(s)
		var b strings.Builder
		switch d.Cmd {
		case "text":
			require.NoError(t, Text(&b, r))
		case "csv":
			require.NoError(t, CSV(&b, r))
			return b.String()
		case "against":
			other := s
			other.Seed, other.Factor, other.Repeats = 9, 1.1, 6
			other.Hosts = append([]string{"bfq"}, s.Hosts[1:]...)
			require.NoError(t, Against(&b, r, reporttest.Results(other)))
		default:
			d.Fatalf(t, "no command %s", d.Cmd)
		}
		for _, l := range strings.Split(b.String(), "\n") {
			require.LessOrEqual(t, utf8.RuneCountInString(l), Width, l)
			require.Equal(t, strings.TrimRight(l, " "), l)
		}
		return b.String()
	})
}

// TestSameBytes has results that went through a file give the same bytes in every form.
func TestSameBytes(t *testing.T) {
	r := reporttest.Results(reporttest.Full())
	r.Summary.Comparisons[0].T = math.Inf(-1)
	dir := filepath.Join(t.TempDir(), "out")
	require.NoError(t, WriteDir(dir, r))
	require.True(t, math.IsInf(r.Summary.Comparisons[0].T, -1), "writing changed the results")
	again, err := Load(filepath.Join(dir, JSONName))
	require.NoError(t, err)
	require.Equal(t, r, again)
	for name, write := range map[string]func(io.Writer, *plan.Results) error{JSONName: JSON, CSVName: CSV, HTMLName: HTML} {
		var b bytes.Buffer
		require.NoError(t, write(&b, again))
		first, err := os.ReadFile(filepath.Join(dir, name))
		require.NoError(t, err)
		require.True(t, bytes.Equal(first, b.Bytes()), name)
	}
}

func TestWriteDir(t *testing.T) {
	s := reporttest.Full()
	s.Repeats, s.Trace = 1, 0
	r := reporttest.Results(s)
	r.Runs[1].Outcome.Fio = nil
	r.Runs[2].Outcome = nil
	dir := filepath.Join(t.TempDir(), "a", "b")
	require.NoError(t, WriteDir(dir, r))
	require.NoError(t, WriteDir(dir, r), "once more, over the first")
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	require.Equal(t, []string{HTMLName, CSVName, JSONName, RunsDir}, names, "and nothing half-written beside")
	runs, err := filepath.Glob(filepath.Join(dir, RunsDir, "*"))
	require.NoError(t, err)
	require.Len(t, runs, len(r.Runs)-2)
	b, err := os.ReadFile(filepath.Join(dir, RunsDir, "run-0001.json"))
	require.NoError(t, err)
	require.JSONEq(t, string(r.Runs[0].Outcome.Fio), string(b))
	require.NoFileExists(t, filepath.Join(dir, RunsDir, "run-0002.json"))

	f, err := os.Open(filepath.Join(dir, CSVName))
	require.NoError(t, err)
	defer f.Close()
	rows, err := csv.NewReader(f).ReadAll()
	require.NoError(t, err)
	require.Len(t, rows, 1+len(r.Runs)-1, "a row a run that has an outcome")
	require.Equal(t, "4", rows[3][0], "a run keeps its number")

	r.Runs[0].Outcome.Fio = json.RawMessage("{")
	require.ErrorContains(t, WriteDir(dir, r), "run-0001.json")
}

func TestLoadRefuses(t *testing.T) {
	for text, want := range map[string]string{
		``:                                 "not a results.json",
		`[]`:                               "not a results.json",
		`{}`:                               "no format is given",
		`{"format":"1"}`:                   "not a results.json",
		`{"format":2}`:                     "format 2; this program reads format 1 only",
		`{"format":0}`:                     "format 0",
		`{"format":1}x`:                    "not a results.json",
		`{"format":1,"runs":[{"cell":0}]}`: "run 1 is of cell 0",
		`{"format":1,"plan":{"cells":[{}]},"runs":[{"cell":-1}]}`:                         "run 1 is of cell -1, and there are cells 0 to 0",
		`{"format":1,"plan":{"cells":[{}]},"summary":{"cells":[{"cell":1}]}}`:             "summary 0 is of cell 1",
		`{"format":1,"plan":{"cells":[{}]},"summary":{"comparisons":[{"Cell":1}]}}`:       "comparison 0 is of cell 1",
		`{"format":1,"plan":{"cells":[{}]},"summary":{"comparisons":[{"Base":7}]}}`:       "baseline of comparison 0 is of cell 7",
		`{"format":1,"plan":{"cells":[{"guest":{"name":1}}]},"summary":{"headline":"x"}}`: "not a results.json",
	} {
		path := filepath.Join(t.TempDir(), "results.json")
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		_, err := Load(path)
		require.ErrorContains(t, err, want, text)
		require.ErrorContains(t, err, path)
	}
	_, err := Load(filepath.Join(t.TempDir(), "none"))
	require.ErrorIs(t, err, os.ErrNotExist)
}

// FuzzLoad has every file that is read be shown too.
func FuzzLoad(f *testing.F) {
	s := reporttest.Full()
	s.Repeats, s.Trace, s.Guests, s.Hosts, s.Workloads = 1, 1, s.Guests[:1], s.Hosts[:2], s.Workloads[1:] // small: go minimizes every find
	var b bytes.Buffer
	require.NoError(f, JSON(&b, reporttest.Results(s)))
	f.Add(b.Bytes())
	f.Add([]byte(`{"format":1,"plan":{"cells":[{}],"repeats":-1},"runs":[{"outcome":{"trace":[{"t":-1,"sector":18446744073709551615}]}}]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := decode(b)
		if err != nil || len(r.Plan.Cells) > 50 {
			return
		}
		for _, write := range []func(io.Writer, *plan.Results) error{Text, CSV, HTML} {
			require.NoError(t, write(io.Discard, r))
		}
		require.NoError(t, Against(io.Discard, r, r))
	})
}

// TestBaseline_ofSeveralWithItsName has the plan say which cell is the baseline: others
// have schedulers of the same name with knobs.
func TestBaseline_ofSeveralWithItsName(t *testing.T) {
	none := plan.Scheduler{Name: "none"}
	limited := plan.Scheduler{Name: "none", Knobs: []sched.Knob{{Key: "max_sectors_kb", Value: "64"}}}
	r := &plan.Results{Plan: plan.Plan{
		Cells: []plan.Cell{{Guest: none, Host: limited}, {Guest: none, Host: none}}, BaseGuest: "none", BaseHost: "none",
	}}
	var based []int
	for _, c := range newModel(r).groups[0].cells {
		if c.base {
			based = append(based, c.index)
		}
	}
	require.Equal(t, []int{1}, based)

	r.Plan.BaseHost = limited.String()
	require.Equal(t, 0, newModel(r).groups[0].base().index)
}

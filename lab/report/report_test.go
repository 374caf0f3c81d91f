package report

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"io"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/cockroachdb/datadriven"
	"github.com/stretchr/testify/require"

	"github.com/elevisor/elevisor/lab/plan"
	"github.com/elevisor/elevisor/lab/report/reporttest"
	"github.com/elevisor/elevisor/sched"
)

// TestText runs the transcripts in testdata/text: each command makes up results and shows
// one of the formats that have lines.
func TestText(t *testing.T) {
	t.Parallel()
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

// TestSameBytes loads results.json again and writes everything from it: all is the same,
// except that the page lacks the plots of what only runs.jsonl has, and says so.
func TestSameBytes(t *testing.T) {
	t.Parallel()
	s := reporttest.Full()
	s.Repeats, s.Trace = 3, 20
	r := reporttest.Results(s)
	c := &r.Summary.Comparisons[0]
	c.Ratio, c.T = 0.5, math.Inf(-1)
	dir := filepath.Join(t.TempDir(), "out")
	require.NoError(t, WriteDir(dir, r))
	again, err := Load(filepath.Join(dir, JSONName))
	require.NoError(t, err)
	require.NotEmpty(t, r.Runs[0].Outcome.Fio, "writing changed the results")
	short := *r
	short.Runs = slices.Clone(r.Runs)
	for i := range short.Runs {
		short.Runs[i].Outcome = r.Runs[i].Outcome.Figures()
	}
	require.True(t, reflect.DeepEqual(&short, again))
	for name, write := range map[string]func(io.Writer, *plan.Results) error{JSONName: JSON, CSVName: CSV} {
		var b bytes.Buffer
		require.NoError(t, write(&b, again))
		first, err := os.ReadFile(filepath.Join(dir, name))
		require.NoError(t, err)
		require.True(t, bytes.Equal(first, b.Bytes()), name)
	}
	full, alone := render(t, r), render(t, again)
	const missing = "Latency distributions and dispatch positions are missing: they are in runs.jsonl"
	require.Contains(t, alone, missing)
	require.NotContains(t, full, missing)
	require.Equal(t, elements(full, "table"), elements(alone, "table"))
	gone := 0
	for _, f := range elements(full, "figure>") {
		if !strings.Contains(alone, f[strings.Index(f, "<figcaption>"):]) {
			require.Regexp(t, "atencies:|Dispatch position", f)
			gone++
		}
	}
	require.Equal(t, 1+2+2, gone, "latencies of 1 and 2 directions, positions of 2 workloads")
}

// TestSize bounds results.json at 2 MB for 800 runs.
func TestSize(t *testing.T) {
	t.Parallel()
	s := reporttest.Full()
	s.Guests, s.Trace = append(s.Guests, "kyber", "deadline", "cfq", "timeslice", "stream"), 50
	var b bytes.Buffer
	r := reporttest.Results(s)
	require.GreaterOrEqual(t, len(r.Runs), 800)
	require.NoError(t, JSON(&b, r))
	require.Less(t, b.Len()*800/len(r.Runs), 2_000_000)
}

func TestWriteDir(t *testing.T) {
	t.Parallel()
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
	t.Parallel()
	const head = `{"schema":"elevisor-results","schema_version":2`
	for text, want := range map[string]string{
		``:             "not elevisor-results: unexpected end",
		`[]`:           "not elevisor-results",
		`{}`:           "no schema is given; this program reads elevisor-results version 2 only",
		`{"format":1}`: "it is in format 1, of an older Elevisor; this program reads elevisor-results version 2 only",
		`{"schema":"elevisor-results","schema_version":3}`:   "it is elevisor-results version 3; this program reads version 2 only",
		`{"schema":"elevisor-results","schema_version":"2"}`: "not elevisor-results",
		`{"schema":"elevisor-plan","schema_version":2}`:      `its schema is "elevisor-plan"; elevisor-results is wanted here`,
		head + `}x`:                    "not elevisor-results",
		head + `,"runs":[{"cell":0}]}`: "run 1 is of cell 0",
		head + `,"plan":{"cells":[{}]},"runs":[{"cell":-1}]}`:                            "run 1 is of cell -1; there are cells 0 to 0",
		head + `,"plan":{"cells":[{}]},"summary":{"cells":[{"cell":1}]}}`:                "summary 0 is of cell 1",
		head + `,"plan":{"cells":[{}]},"summary":{"comparisons":[{"cell":1}]}}`:          "comparison 0 is of cell 1",
		head + `,"plan":{"cells":[{}]},"summary":{"comparisons":[{"baseline_cell":7}]}}`: "baseline of comparison 0 is of cell 7",
		head + `,"plan":{"cells":[{"guest_scheduler":{"name":1}}]}}`:                     "not elevisor-results",
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

// FuzzLoad writes every file that can be read in every format.
func FuzzLoad(f *testing.F) {
	s := reporttest.Full()
	s.Repeats, s.Trace, s.Guests, s.Hosts, s.Workloads = 1, 1, s.Guests[:1], s.Hosts[:2], s.Workloads[1:] // small: go minimizes every find
	var b bytes.Buffer
	require.NoError(f, JSON(&b, reporttest.Results(s)))
	f.Add(b.Bytes())
	f.Add([]byte(`{"schema":"elevisor-results","schema_version":2,"plan":{"cells":[{}],"repeats":-1},` +
		`"runs":[{"outcome":{"trace":[{"time_s":-1,"sector":18446744073709551615}]}}]}`))
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

// TestBaseline_ofSeveralWithItsName has the plan say which cell is the baseline, if others
// have schedulers of the same name with knobs.
func TestBaseline_ofSeveralWithItsName(t *testing.T) {
	t.Parallel()
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

package main

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/elevisor/elevisor/lab/plan"
	"github.com/stretchr/testify/require"
)

// short is a matrix that takes little time.
var short = []string{
	"compare", "--guest=none,deadline", "--host=none,cfq", "--preset=linear4k", "--only=read-2,write-4", "--queues=2",
	"--runtime=150ms", "--ramp-time=50ms", "--repeats=3", "--trace=20",
}

func compareInto(t *testing.T, dir string, args ...string) (stdout string, files map[string]string) {
	t.Helper()
	out, err := run(t.Context(), append(append([]string{}, short...), append(args, "--output="+dir)...)...)
	require.NoError(t, err)
	return out, read(t, dir)
}

// read returns the results in a directory, without the files that --resume reads.
func read(t *testing.T, dir string) map[string]string {
	files := map[string]string{}
	for _, name := range []string{"results.json", "results.csv", "report.html", "runs/run-0024.json"} {
		text, err := os.ReadFile(filepath.Join(dir, name))
		require.NoError(t, err)
		files[name] = string(text)
	}
	return files
}

// One seed gives one result, byte for byte, however many processors there are. Another seed
// gives another one.
func TestCompareIsDeterministic(t *testing.T) {
	var out [2]string
	var files [2]map[string]string
	for i := range out {
		func() {
			defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1 + i))
			out[i], files[i] = compareInto(t, filepath.Join(t.TempDir(), "r"))
		}()
	}
	require.Contains(t, out[0], "read-2")
	require.Contains(t, out[0], "IOPS against guest none / host none")
	require.Equal(t, out[0], out[1])
	require.Equal(t, files[0], files[1])
	other, _ := compareInto(t, filepath.Join(t.TempDir(), "r"), "--seed=2")
	require.NotEqual(t, out[0], other)

	csv, err := run(t.Context(), append(append([]string{}, short...), "--format=csv")...)
	require.NoError(t, err)
	require.Equal(t, files[0]["results.csv"], csv)
	require.Equal(t, 1+2*2*2*3, strings.Count(csv, "\n"))
}

// An interrupted experiment continues, with the same options or with none, and gives the
// same results in the end. Other options are refused.
func TestCompareResumes(t *testing.T) {
	want, files := compareInto(t, filepath.Join(t.TempDir(), "whole"))
	for name, words := range map[string][]string{"the same words": short, "no words": {"compare"}} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "part")
			killAfterSome(t, dir)
			_, err := run(t.Context(), append(append([]string{}, short...), "--output="+dir)...)
			require.ErrorContains(t, err, "already has an experiment: continue it with --resume "+dir)
			for change, why := range map[string]string{
				"--seed=9": "seed is 1, not 9", "--repeats=4": "repeats is 3, not 4", "--cost-read=7": `cost-read is "20µs", not "7µs"`,
				"--depth=4": "cell 0 is read-2: none / none, queues=2, not read-2: none / none, queues=2, depth=4",
			} {
				_, err := run(t.Context(), append(append([]string{}, short...), change, "--resume="+dir)...)
				require.ErrorContains(t, err, "that is a different experiment: there, "+why)
			}
			out, err := run(t.Context(), append(append([]string{}, words...), "--resume="+dir)...)
			require.NoError(t, err)
			require.Equal(t, want, out)
			require.Equal(t, files, read(t, dir))

			// Once more, when nothing is left to run: this writes lost files again.
			for name := range files {
				require.NoError(t, os.Remove(filepath.Join(dir, name)))
			}
			_, err = run(t.Context(), append(append([]string{}, words...), "--resume="+dir)...)
			require.NoError(t, err)
			require.Equal(t, files, read(t, dir))
		})
	}
}

// killAfterSome leaves behind what an experiment does that was killed after 5 runs, while
// it stored the next one.
func killAfterSome(t *testing.T, dir string) {
	compareInto(t, dir)
	stored := filepath.Join(dir, "runs.jsonl")
	text, err := os.ReadFile(stored)
	require.NoError(t, err)
	lines := strings.SplitAfter(string(text), "\n")
	require.NoError(t, os.WriteFile(stored, []byte(strings.Join(lines[:6], "")+lines[6][:20]), 0o644))
	require.NoError(t, os.RemoveAll(filepath.Join(dir, "runs")))
	require.NoError(t, os.Remove(filepath.Join(dir, "results.json")))
}

// An interrupted experiment says what happens to its runs.
func TestCompareInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	dir := filepath.Join(t.TempDir(), "r")
	_, err := run(ctx, append(append([]string{}, short...), "--output="+dir)...)
	require.EqualError(t, err, "interrupted; 0 of 24 runs are stored: continue with --resume "+dir)
	_, err = run(ctx, short...)
	require.EqualError(t, err, "interrupted; 0 of 24 runs had finished and are lost: use --output DIR to keep them")
}

// Two results are compared by their results.json alone.
func TestCompareStored(t *testing.T) {
	dir := t.TempDir()
	var files []string
	for _, seed := range []string{"1", "5"} {
		_, written := compareInto(t, filepath.Join(t.TempDir(), "r"), "--seed="+seed)
		files = append(files, filepath.Join(dir, seed+".json"))
		require.NoError(t, os.WriteFile(files[len(files)-1], []byte(written["results.json"]), 0o600))
	}
	out, err := run(t.Context(), "compare", "--from", files[0], "--against", files[1])
	require.NoError(t, err)
	require.Contains(t, out, "read-2: IOPS")
	require.Contains(t, out, "p99 latency")
	_, err = run(t.Context(), "compare", "--from", filepath.Join(dir, "none.json"), "--against", files[1])
	require.ErrorContains(t, err, "none.json")
}

// Files of an older version are refused by name, with both versions.
func TestCompareRefusesOldFiles(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.CopyFS(dir, os.DirFS("../../lab/report/testdata/format-1")))
	old := filepath.Join(dir, "results.json")
	for want, args := range map[string][]string{
		old + ": it is in format 1, of an older Elevisor; this program reads elevisor-results version 2 only":                          {"--from", old, "--against", old},
		filepath.Join(dir, "plan.json") + ": it is in format 1, of an older Elevisor; this program reads elevisor-plan version 2 only": {"--resume", dir},
	} {
		before, err := os.ReadFile(filepath.Join(dir, "runs.jsonl"))
		require.NoError(t, err)
		_, err = run(t.Context(), append([]string{"compare"}, args...)...)
		require.EqualError(t, err, want)
		after, err := os.ReadFile(filepath.Join(dir, "runs.jsonl"))
		require.NoError(t, err)
		require.Equal(t, before, after)
	}
	_, err := run(t.Context(), append(append([]string{}, short...), "--output="+dir)...)
	require.ErrorContains(t, err, "already has an experiment")
}

// --world=sim is the old name of --world=virtual.
func TestCompareOldWorldName(t *testing.T) {
	args := []string{"compare", "--host=none", "--only=read-1", "--runtime=5ms", "--ramp-time=1ms", "--repeats=1", "--format=json"}
	want, err := run(t.Context(), append(args, "--world=virtual")...)
	require.NoError(t, err)
	out, err := run(t.Context(), append(args, "--world=sim")...)
	require.NoError(t, err)
	require.Equal(t, want, out)
}

func TestCompareJobFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "mixed.fio")
	require.NoError(t, os.WriteFile(file, []byte("[global]\nbs=8k\nruntime=50ms\ntime_based\nsize=1g\n[a]\nrw=randread\niodepth=4\n[b]\nrw=write\noffset=1g\n"), 0o644))
	out, err := run(t.Context(), "compare", "--host=none,deadline", "--repeats=1", "--format=json", "--vms=2", "--jobfile="+file,
		"--disk=sim:ssd?preset=sata-ssd&size=8g", "--iops=5000", "--depth=4", "--baseline=none/deadline")
	require.NoError(t, err)
	var r plan.Results
	require.NoError(t, json.Unmarshal([]byte(out), &r))
	require.Len(t, r.Runs, 2)
	require.EqualValues(t, 5000, r.Plan.IOPS)
	require.Equal(t, "deadline", r.Plan.BaseHost)
	require.Equal(t, "mixed", r.Plan.Cells[0].Workload.Name)
	require.Len(t, r.Runs[0].Outcome.Jobs, 4)
	require.InDelta(t, 5000, r.Runs[0].Outcome.IOPS(), 600)
	require.Positive(t, r.Runs[0].Outcome.Read.P99)
	require.Equal(t, 1, r.Summary.Comparisons[0].Base)
	require.Contains(t, r.Command, "--baseline=none/deadline")
}

func TestCompareRefusals(t *testing.T) {
	for _, c := range []struct {
		want string
		args []string
	}{
		{"--world=moon is neither virtual nor loopback nor qemu", []string{"--world=moon"}},
		{"--format=xml is neither text nor json nor csv", []string{"--format=xml"}},
		{`--guest: scheduler "x" is unknown; there are none, deadline`, []string{"--guest=x"}},
		{`--host: scheduler "cfq:x": "x" is not KNOB=VALUE`, []string{"--host=cfq:x"}},
		{`host: scheduler cfq:x=1: there is no knob "x"`, []string{"--host=cfq:x=1"}},
		{`none:y=1 / none: scheduler none:y=1: there is no knob "y"`, []string{"--guest=none:y=1"}},
		{`preset "x" is not known; valid: linear4k`, []string{"--preset=x"}},
		{"--only=x is not a workload of linear4k; valid: read-1", []string{"--only=x"}},
		{"exclude each other: want only one", []string{"--preset=linear4k", "rw=read"}},
		{"the presets linear4k and merge are meant for different disks", []string{"--preset=linear4k,merge"}},
		{`"speed" is not a known key; valid: name, rw`, []string{"speed=9"}},
		{"--runtime is for presets", []string{"--runtime=1", "rw=read"}},
		{"--jobfile: open", []string{"--jobfile=/does/not/exist"}},
		{"queue-size=100 is not a power of 2", []string{"--queue-size=100"}},
		{"vms=0 is out of range 1 to 256", []string{"--vms=0"}},
		{"depth=9999 is out of range 0 to 1024", []string{"--depth=9999"}},
		{"repeats=0 is out of range 1 to 1000", []string{"--repeats=0"}},
		{"--baseline=none is not GUEST/HOST", []string{"--baseline=none"}},
		{"baseline: bfq is not one of the host schedulers", []string{"--baseline=none/bfq"}},
		{"in virtual time there are sim:, null:, mem: only", []string{"--disk=/dev/null"}},
		{"seed= would make the drive the same in all runs", []string{"--disk=sim:hdd?seed=3"}},
		{"above the disk's", []string{"--disk=null:size=1g"}},
		{"direct=0", []string{"rw=read", "direct=0", "runtime=1"}},
		{"--kernel is for --world qemu; this is virtual", []string{"--kernel=x"}},
		{"--cost-read is for --world virtual; this is loopback", []string{"--world=loopback", "--cost-read=3"}},
		{"there is no experiment in it", []string{"--resume=" + t.TempDir()}},
		{"--output cannot be given as well", []string{"--resume=x", "--output=y"}},
		{"takes no other options", []string{"--from=x"}},
		{"takes no other options", []string{"--from=x", "--against=y", "--seed=3"}},
	} {
		_, err := run(t.Context(), append([]string{"compare"}, c.args...)...)
		require.ErrorContains(t, err, c.want, "%v", c.args)
	}
}

func TestProgressLine(t *testing.T) {
	require.Equal(t, "10 of 30 runs, about 40s left", progressLine(plan.Progress{Done: 10, Total: 30}, 20e9))
	require.Equal(t, "15 of 30 runs, about 1m0s left", progressLine(plan.Progress{Done: 15, Total: 30, Before: 10}, 20e9))
	require.Equal(t, "10 of 30 runs", progressLine(plan.Progress{Done: 10, Total: 30, Before: 10}, 0))
}

// Options of a workload that have no effect are named on stderr.
func TestCompare_namesIgnoredWords(t *testing.T) {
	root := newRoot()
	var out, notes strings.Builder
	root.SetOut(&out)
	root.SetErr(&notes)
	root.SetArgs([]string{"compare", "--repeats=1", "--host=none", "rw=read", "size=64k", "filename=/dev/sdx"})
	require.NoError(t, root.ExecuteContext(t.Context()))
	require.Contains(t, notes.String(), "filename=/dev/sdx: accepted, and nothing follows from it")
	require.NotContains(t, out.String(), "nothing follows")
}

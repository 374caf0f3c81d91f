// Package report turns the results of an experiment into what people and programs read:
// a table for a terminal, results.csv, results.json and report.html.
//
// All of it is drawn from [expt.Results] alone: the same results give the same bytes, and
// nothing is measured or tested here (that is in the [expt.Summary]), save for [Against],
// which compares two results. Names in results come from outside, as do whole files:
// none of them breaks a table, leaves its place in a page or reaches a panic.
package report

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/elevisor/elevisor/lab/plan"
	"github.com/google/renameio/v2"
)

// Names of what WriteDir writes. Each run with fio's output has a file in RunsDir, called
// after its place in the results as results.csv counts it.
const (
	JSONName = "results.json"
	CSVName  = "results.csv"
	HTMLName = "report.html"
	RunsDir  = "runs"
)

// WriteDir writes everything into dir, which it creates: results.json, results.csv,
// report.html and runs/run-0001.json and so on. A file is there whole or not at all.
func WriteDir(dir string, r *plan.Results) error {
	if err := check(r); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Join(dir, RunsDir), 0o755); err != nil {
		return fmt.Errorf("create the report's directory: %w", err)
	}
	for i := range r.Runs {
		if o := r.Runs[i].Outcome; o != nil && len(o.Fio) > 0 {
			if err := writeFio(filepath.Join(dir, RunsDir, runName(i)), o.Fio); err != nil {
				return err
			}
		}
	}
	for _, f := range []struct {
		name  string
		write func(io.Writer, *plan.Results) error
	}{{JSONName, JSON}, {CSVName, CSV}, {HTMLName, HTML}} {
		write := func(w io.Writer) error { return f.write(w, r) }
		if err := writeFile(filepath.Join(dir, f.name), write); err != nil {
			return err
		}
	}
	return nil
}

// runName is the file of the run at index i, which results.csv counts from 1.
func runName(i int) string { return fmt.Sprintf("run-%04d.json", i+1) }

// writeFio indents as fio does.
func writeFio(path string, fio json.RawMessage) error {
	var b bytes.Buffer
	if err := json.Indent(&b, fio, "", "  "); err != nil {
		return fmt.Errorf("fio's output for %s: %w", filepath.Base(path), err)
	}
	b.WriteByte('\n')
	return writeFile(path, func(w io.Writer) error {
		_, err := b.WriteTo(w)
		return err
	})
}

// writeFile replaces path as a whole: whoever reads meanwhile, or after a crash, finds
// the old file or the new one.
func writeFile(path string, write func(io.Writer) error) error {
	f, err := renameio.NewPendingFile(path, renameio.WithTempDir(filepath.Dir(path)), renameio.WithStaticPermissions(0o644))
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	defer f.Cleanup()
	if err = write(f); err == nil {
		err = f.CloseAtomicallyReplace()
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}

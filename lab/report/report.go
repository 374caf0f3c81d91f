// Package report writes the results of an experiment for people and for programs: tables
// for a terminal, results.csv, results.json and report.html.
//
// It uses nothing but the [plan.Results]: the same results give the same bytes. Statistics
// come from their [plan.Summary], except that [Against] compares two results by itself.
//
// Names in results, and whole files, come from outside. None of them may break a table,
// inject markup into a page or cause a panic.
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

// Names of what WriteDir writes. Each run with fio's output has a file in RunsDir, numbered
// as in results.csv.
const (
	JSONName = "results.json"
	CSVName  = "results.csv"
	HTMLName = "report.html"
	RunsDir  = "runs"
)

// WriteDir writes results.json, results.csv, report.html and runs/run-0001.json and so on
// into dir, which it creates if needed. Each file is replaced as a whole.
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

// runName is the file of the run at index i. It is numbered from 1, as in results.csv.
func runName(i int) string { return fmt.Sprintf("run-%04d.json", i+1) }

// writeFio writes fio's output, indented as fio does.
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

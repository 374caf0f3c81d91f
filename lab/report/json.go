package report

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"

	"github.com/elevisor/elevisor/lab/plan"
)

// JSON writes results.json, one run a line. Quantiles, traces and fio's output are not in
// it: runs.jsonl has them.
func JSON(w io.Writer, r *plan.Results) error {
	if err := check(r); err != nil {
		return err
	}
	top := *r
	top.Runs = nil
	b, err := plan.Marshal(&struct {
		plan.Schema
		*plan.Results
	}{plan.Schema{Name: plan.ResultsSchema, Version: plan.SchemaVersion}, &top})
	if err != nil {
		return fmt.Errorf("encode results: %w", err)
	}
	var out bytes.Buffer
	if err := oneALine(&out, b); err != nil {
		return err
	}
	if err := jsonRuns(&out, r.Runs); err != nil {
		return err
	}
	_, err = out.WriteTo(w)
	return err
}

// oneALine writes an object without its last brace and without its runs, one field a line.
func oneALine(out *bytes.Buffer, object []byte) error {
	in := json.NewDecoder(bytes.NewReader(object))
	if _, err := in.Token(); err != nil { // the brace
		return err
	}
	out.WriteByte('{')
	for in.More() {
		name, err := in.Token()
		var value json.RawMessage
		if err == nil {
			err = in.Decode(&value)
		}
		if err != nil {
			return err
		}
		if name != "runs" {
			fmt.Fprintf(out, "\n%q: %s,", name, value)
		}
	}
	return nil
}

func jsonRuns(out *bytes.Buffer, runs []plan.Run) error {
	out.WriteString("\n\"runs\": [")
	for i, r := range runs {
		r.Outcome = r.Outcome.Figures()
		b, err := plan.Marshal(&r)
		if err != nil {
			return fmt.Errorf("encode run %d: %w", i+1, err)
		}
		comma := ","
		if i == len(runs)-1 {
			comma = ""
		}
		fmt.Fprintf(out, "\n%s%s", b, comma)
	}
	out.WriteString("\n]\n}\n")
	return nil
}

// Load reads a results.json. It refuses other schemas and versions, and results that refer
// to cells they do not have.
func Load(path string) (*plan.Results, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	r, err := decode(b)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return r, nil
}

func decode(b []byte) (*plan.Results, error) {
	if err := plan.CheckSchema(b, plan.ResultsSchema); err != nil {
		return nil, err
	}
	r := new(plan.Results)
	if err := json.Unmarshal(b, r); err != nil {
		return nil, fmt.Errorf("not %s: %w", plan.ResultsSchema, err)
	}
	return r, check(r)
}

// check refuses results that refer to cells they do not have.
func check(r *plan.Results) error {
	if r == nil {
		return fmt.Errorf("no results")
	}
	cells := len(r.Plan.Cells)
	inside := func(what string, i, cell int) error {
		if cell < 0 || cell >= cells {
			return fmt.Errorf("%s %d is of cell %d; there are cells 0 to %d", what, i, cell, cells-1)
		}
		return nil
	}
	for i := range r.Runs {
		if err := inside("run", i+1, r.Runs[i].Cell); err != nil {
			return err
		}
	}
	if r.Summary == nil {
		return nil
	}
	for i := range r.Summary.Cells {
		if err := inside("summary", i, r.Summary.Cells[i].Cell); err != nil {
			return err
		}
	}
	for i, c := range r.Summary.Comparisons {
		if err := inside("comparison", i, c.Cell); err != nil {
			return err
		}
		if err := inside("baseline of comparison", i, c.Base); err != nil {
			return err
		}
	}
	return nil
}

package report

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"slices"

	"github.com/elevisor/elevisor/lab/plan"
)

// Format is the version of results.json that is written, and the only one that is read.
const Format = 1

// infinite stands in results.json for a t that is infinite, which JSON has no number
// for: pairs that do not vary and yet differ have one.
const infinite = math.MaxFloat64

// JSON writes results.json: the encoding of expt.Results, a run a line.
func JSON(w io.Writer, r *plan.Results) error {
	if err := check(r); err != nil {
		return err
	}
	top := *r
	top.Format, top.Runs, top.Summary = Format, nil, finiteT(r.Summary)
	var fields map[string]json.RawMessage
	b, err := json.Marshal(&top)
	if err == nil {
		err = json.Unmarshal(b, &fields)
	}
	if err != nil {
		return fmt.Errorf("encode results: %w", err)
	}
	if _, err := io.WriteString(w, "{"); err != nil {
		return err
	}
	for _, name := range []string{"format", "version", "command", "environment", "notes", "plan", "summary"} {
		if v, ok := fields[name]; ok {
			if _, err := fmt.Fprintf(w, "\n%q: %s,", name, v); err != nil {
				return err
			}
		}
	}
	return jsonRuns(w, r.Runs)
}

func jsonRuns(w io.Writer, runs []plan.Run) error {
	if _, err := io.WriteString(w, "\n\"runs\": ["); err != nil {
		return err
	}
	for i := range runs {
		b, err := json.Marshal(&runs[i])
		if err != nil {
			return fmt.Errorf("encode run %d: %w", i+1, err)
		}
		comma := ","
		if i == len(runs)-1 {
			comma = ""
		}
		if _, err := fmt.Fprintf(w, "\n%s%s", b, comma); err != nil {
			return err
		}
	}
	_, err := io.WriteString(w, "\n]\n}\n")
	return err
}

// finiteT is s with numbers in the place of infinite t; s itself stays as it is.
func finiteT(s *plan.Summary) *plan.Summary {
	if s == nil {
		return nil
	}
	c := *s
	c.Comparisons = slices.Clone(s.Comparisons)
	for i := range c.Comparisons {
		if t := &c.Comparisons[i].T; math.IsInf(*t, 0) {
			*t = math.Copysign(infinite, *t)
		}
	}
	return &c
}

// Load reads a results.json. It refuses other formats, and results that refer to cells
// they do not have.
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
	var version struct {
		Format *int `json:"format"`
	}
	if err := json.Unmarshal(b, &version); err != nil {
		return nil, fmt.Errorf("not a results.json: %w", err)
	}
	if version.Format == nil {
		return nil, fmt.Errorf("not a results.json: no format is given")
	}
	if *version.Format != Format {
		return nil, fmt.Errorf("results are in format %d; this program reads format %d only", *version.Format, Format)
	}
	r := new(plan.Results)
	if err := json.Unmarshal(b, r); err != nil {
		return nil, fmt.Errorf("not a results.json: %w", err)
	}
	if r.Summary != nil {
		for i := range r.Summary.Comparisons {
			if t := &r.Summary.Comparisons[i].T; math.Abs(*t) == infinite {
				*t = math.Inf(int(math.Copysign(1, *t)))
			}
		}
	}
	return r, check(r)
}

// check refuses results whose parts do not fit each other.
func check(r *plan.Results) error {
	if r == nil {
		return fmt.Errorf("no results")
	}
	cells := len(r.Plan.Cells)
	inside := func(what string, i, cell int) error {
		if cell < 0 || cell >= cells {
			return fmt.Errorf("%s %d is of cell %d, and there are cells 0 to %d", what, i, cell, cells-1)
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

package plan

import (
	"bytes"
	"encoding/json"
	"fmt"
)

// Schemas of the files that an experiment leaves behind. docs/RESULTS_FORMAT.md documents
// every field.
const (
	ResultsSchema = "elevisor-results" // results.json
	PlanSchema    = "elevisor-plan"    // plan.json
	RunsSchema    = "elevisor-runs"    // runs.jsonl
)

// SchemaVersion is that of all three schemas: the one that is written, and the only one
// that is read. It grows when a field is removed or renamed, or changes its unit or its
// meaning; a new field does not change it.
const SchemaVersion = 2

// Schema says what a file holds. Its fields are the first in the file.
type Schema struct {
	Name    string `json:"schema"`
	Version int    `json:"schema_version"`
}

// CheckSchema says whether a JSON object has a schema that this program reads.
func CheckSchema(text []byte, name string) error {
	var got struct {
		Schema
		Format json.RawMessage `json:"format"` // in the place of a schema before version 2
	}
	if err := json.Unmarshal(text, &got); err != nil {
		return fmt.Errorf("not %s: %w", name, err)
	}
	switch {
	case got.Name == "" && got.Format != nil:
		return fmt.Errorf("it is in format %s, of an older Elevisor; this program reads %s version %d only", got.Format, name, SchemaVersion)
	case got.Name == "":
		return fmt.Errorf("no schema is given; this program reads %s version %d only", name, SchemaVersion)
	case got.Name != name:
		return fmt.Errorf("its schema is %q; %s is wanted here", got.Name, name)
	case got.Version != SchemaVersion:
		return fmt.Errorf("it is %s version %d; this program reads version %d only", name, got.Version, SchemaVersion)
	}
	return nil
}

// Marshal encodes v in JSON on one line. It leaves <, > and & as they are, which
// encoding/json writes as \u003c and so on for the sake of HTML.
func Marshal(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}

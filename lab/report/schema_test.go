package report

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/elevisor/elevisor/lab/plan"
)

// documented is a row of a table in docs/RESULTS_FORMAT.md.
type documented struct {
	kind, unit, meaning string
	seen                bool // it was in a file
}

// reference is docs/RESULTS_FORMAT.md: the tables of objects, and that of the columns of
// results.csv.
type reference struct {
	objects map[string]map[string]*documented
	columns map[string]*documented
}

const pagePath = "../../docs/RESULTS_FORMAT.md"

var (
	heading = regexp.MustCompile("^### ([a-z-]+)$")
	entry   = regexp.MustCompile("^\\| `([^`]+)` \\| (.*) \\|$")
	link    = regexp.MustCompile(`^\[([a-z-]+)\]\(#([a-z-]+)\)$`)
	snake   = regexp.MustCompile(`^[a-z][a-z0-9]*(_[a-z0-9]+)*$`)
)

func readReference(t *testing.T) *reference {
	t.Helper()
	text, err := os.ReadFile(pagePath)
	require.NoError(t, err)
	p := &reference{map[string]map[string]*documented{}, map[string]*documented{}}
	var table map[string]*documented
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		if h := heading.FindStringSubmatch(line); h != nil {
			require.NotContains(t, p.objects, h[1], "documented twice")
			table = map[string]*documented{}
			p.objects[h[1]] = table
		} else if strings.HasPrefix(line, "#") {
			table = nil
		} else if line == "| Column | Unit | Meaning |" {
			table = p.columns
		}
		if e := entry.FindStringSubmatch(line); e != nil && table != nil {
			require.NotContains(t, table, e[1], "documented twice")
			cols := strings.Split("column | "+e[2], " | ")
			cols = cols[len(cols)-3:]
			table[e[1]] = &documented{kind: cols[0], unit: cols[1], meaning: cols[2]}
		}
	}
	return p
}

// each calls a function for every row.
func (p *reference) each(do func(object, name string, d *documented)) {
	for object, fields := range p.objects {
		for name, d := range fields {
			do(object, name, d)
		}
	}
	for name, d := range p.columns {
		do("results.csv", name, d)
	}
}

// units are the units that a name's last part implies.
var units = []struct{ end, unit string }{
	{"_us", "µs"}, {"mib_per_s", "MiB/s"}, {"_s", "s"}, {"_bytes", "bytes"}, {"sectors", "sectors"}, {"iops", "requests/s"}, {"_pct", "%"},
	{"percent", "%"}, {"_per_gib", "requests/GiB"}, {"_kib", "KiB"}, {"_mib", "MiB"}, {"_kb", "KiB"},
}

// fioNames are fio's job options and names in its JSON output, with fio's units. Those with
// an empty unit must not be used: their unit is not in the name, or fio has different ones
// in different places.
var fioNames = map[string]string{
	"iops": "requests/s", "total_ios": "requests", "io_bytes": "bytes", "iodepth": "requests", "iodepth_batch": "requests", "numjobs": "jobs",
	"rwmixread": "%", "rate_iops": "requests/s", "randseed": "seed", "fsync": "writes", "time_based": "-", "direct": "-", "rw": "-", "name": "-",
	"bssplit": "-", "read": "-", "write": "-", "jobs": "-",
	"bs": "", "blocksize": "", "io_size": "", "offset": "", "offset_increment": "", "runtime": "", "job_runtime": "", "ramp_time": "",
	"thinktime": "", "verify": "", "bw": "", "bw_bytes": "", "io_kbytes": "", "slat_ns": "", "clat_ns": "", "lat_ns": "", "percentile": "",
	"elapsed": "", "error": "", "timestamp": "", "rate": "", "short_ios": "", "drop_ios": "", "slat": "", "clat": "", "lat": "",
}

// misnamed returns what is wrong with a name; empty: nothing.
func misnamed(name string, d *documented) string {
	at := slices.IndexFunc(units, func(u struct{ end, unit string }) bool { return strings.HasSuffix(name, u.end) })
	fio, fios := fioNames[name]
	switch {
	case !snake.MatchString(name):
		return "not in snake_case"
	case d.unit == "" || d.unit == "-" && (d.kind == "integer" || d.kind == "number"):
		return "a number without a unit"
	case at >= 0 && d.unit != units[at].unit:
		return "the name says " + units[at].unit
	case fios && fio == "":
		return "a name of fio's that has no unit of its own"
	case fios && d.unit != fio:
		return "fio's unit is " + fio
	}
	return ""
}

// TestReference_units requires that names end in their units, and that fio's names have
// fio's units.
func TestReference_units(t *testing.T) {
	readReference(t).each(func(object, name string, d *documented) {
		require.Empty(t, misnamed(name, d), "%s: %s", object, name)
	})
	require.Equal(t, "the name says µs", misnamed("clat_p99_us", &documented{kind: "number", unit: "ns"}))
	require.Equal(t, "a number without a unit", misnamed("seeks", &documented{kind: "integer", unit: "-"}))
	require.Equal(t, "fio's unit is jobs", misnamed("numjobs", &documented{kind: "integer", unit: "threads"}))
	require.Equal(t, "a name of fio's that has no unit of its own", misnamed("runtime", &documented{kind: "number", unit: "s"}))
	require.Equal(t, "not in snake_case", misnamed("PHolm", &documented{kind: "number", unit: "probability"}))
}

// fill sets every field to something other than zero; slices have two elements.
func fill(v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem())
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				fill(v.Field(i))
			}
		}
	case reflect.Slice, reflect.Array:
		if v.Type() == reflect.TypeFor[json.RawMessage]() {
			v.SetBytes([]byte(`{"fio version":"fio-3.33"}`))
			return
		}
		if v.Kind() == reflect.Slice {
			v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		}
		for i := range v.Len() {
			fill(v.Index(i))
		}
	case reflect.Map:
		v.Set(reflect.ValueOf(map[string]string{"x": "y"}))
	case reflect.String:
		v.SetString("x")
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Float64:
		v.SetFloat(1.5)
	case reflect.Int, reflect.Int64:
		v.SetInt(1)
		if v.Type() == reflect.TypeFor[time.Duration]() {
			v.SetInt(1500)
		}
	default:
		v.SetUint(1)
	}
}

func filled[T any]() *T {
	v := new(T)
	fill(reflect.ValueOf(v).Elem())
	return v
}

// compare returns in what a value from a file differs from the reference.
func (p *reference) compare(path, kind string, value any) error {
	wrong := func() error { return fmt.Errorf("%s is %v, and not a %s", path, value, kind) }
	if of, is := strings.CutPrefix(kind, "list of "); is {
		list, is := value.([]any)
		if !is || len(list) == 0 {
			return wrong()
		}
		for _, element := range list {
			if err := p.compare(path+"[]", of, element); err != nil {
				return err
			}
		}
		return nil
	}
	if l := link.FindStringSubmatch(kind); l != nil {
		object, is := value.(map[string]any)
		if !is || l[1] != l[2] || p.objects[l[1]] == nil {
			return wrong()
		}
		return p.compareObject(path, l[1], object)
	}
	is := false
	switch v := value.(type) {
	case string:
		is = kind == "text"
	case bool:
		is = kind == "boolean"
	case json.Number:
		is = kind == "number" && strings.Contains(v.String(), ".") || kind == "integer" && !strings.Contains(v.String(), ".")
	case map[string]any:
		is = kind == "map of text" && v["x"] == "y" || kind == "fio's JSON" && v["fio version"] != nil
	}
	if !is {
		return wrong()
	}
	return nil
}

func (p *reference) compareObject(path, object string, fields map[string]any) error {
	for name, v := range fields {
		d := p.objects[object][name]
		if d == nil {
			return fmt.Errorf("%s.%s is not documented", path, name)
		}
		d.seen = true
		if err := p.compare(path+"."+name, d.kind, v); err != nil {
			return err
		}
	}
	return nil
}

// file compares a file, or a line of one, with the reference.
func (p *reference) file(object string, text []byte) error {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	var value any
	if err := d.Decode(&value); err != nil {
		return err
	}
	return p.compare(object, fmt.Sprintf("[%s](#%s)", object, object), value)
}

// unseen lists what is documented, but was in no file since the last call.
func (p *reference) unseen() (all []string) {
	for object, fields := range p.objects {
		for name, d := range fields {
			if !d.seen {
				all = append(all, object+"."+name)
			}
			d.seen = false
		}
	}
	return all
}

// written returns all files with all fields set: results.json, plan.json and the lines of
// runs.jsonl.
func written(t *testing.T) (results, planned []byte, runs [][]byte) {
	t.Helper()
	var b bytes.Buffer
	require.NoError(t, JSON(&b, filled[plan.Results]()))
	dir := t.TempDir()
	e := filled[plan.Experiment]()
	e.Plan.Cells[1].Workload.Name = "other"
	for i := range e.Plan.Cells {
		e.Plan.Cells[i].QSize = 2 // 1 is none
	}
	store(t, dir, e, func(plan.Spec) *plan.Outcome { return filled[plan.Outcome]() })
	planned, err := os.ReadFile(filepath.Join(dir, "plan.json"))
	require.NoError(t, err)
	lines, err := os.ReadFile(filepath.Join(dir, "runs.jsonl"))
	require.NoError(t, err)
	return b.Bytes(), planned, bytes.Split(lines, []byte("\n"))
}

// TestReference requires that every field of every file is documented with its type, and
// that everything documented is in a file.
func TestReference(t *testing.T) {
	p := readReference(t)
	results, planned, runs := written(t)
	require.NoError(t, p.file("plan-file", planned))
	require.NoError(t, p.file("runs-header", runs[0]))
	require.NoError(t, p.file("results", results))
	require.ElementsMatch(t, []string{
		"outcome.trace", "access.time_s", "access.sector", "access.sectors", "access.vm", "access.queue", "access.write",
		"outcome.fio", "direction.clat_quantiles", "quantile.quantile", "quantile.clat_us",
	}, p.unseen(), "only in runs.jsonl")

	require.NoError(t, p.file("plan-file", planned))
	require.NoError(t, p.file("runs-header", runs[0]))
	require.NoError(t, p.file("results", results))
	require.NoError(t, p.file("run", runs[1]))
	require.Empty(t, p.unseen())
	p.each(func(object, name string, d *documented) {
		if p.columns[name] == nil {
			only := slices.Contains([]string{"outcome.trace", "outcome.fio", "direction.clat_quantiles"}, object+"."+name)
			require.Equal(t, only, strings.Contains(d.meaning, "only in `runs.jsonl`"), "%s: %s", object, name)
		}
	})
}

// TestReference_seesGaps adds a row, changes one and removes one.
func TestReference_seesGaps(t *testing.T) {
	results, _, _ := written(t)
	p := readReference(t)
	p.objects["disk"]["colour"] = &documented{kind: "text", unit: "-"}
	require.NoError(t, p.file("results", results))
	require.Contains(t, p.unseen(), "disk.colour")
	p.objects["disk"]["seeks"].kind = "number"
	require.EqualError(t, p.file("results", results), "results.runs[].outcome.disk.seeks is 1, and not a number")
	delete(p.objects["disk"], "seeks")
	require.EqualError(t, p.file("results", results), "results.runs[].outcome.disk.seeks is not documented")
}

// TestReference_columns requires that every column of results.csv is documented, and the
// reverse, and that the columns of an outcome are named after their path in results.json.
func TestReference_columns(t *testing.T) {
	p := readReference(t)
	r := filled[plan.Results]()
	var b bytes.Buffer
	require.NoError(t, CSV(&b, r))
	rows, err := csv.NewReader(&b).ReadAll()
	require.NoError(t, err)
	var all []string
	for name := range p.columns {
		all = append(all, name)
	}
	require.ElementsMatch(t, all, rows[0])

	text, err := json.Marshal(r.Runs[0].Outcome.Figures())
	require.NoError(t, err)
	var outcome map[string]any
	require.NoError(t, json.Unmarshal(text, &outcome))
	paths := map[string]bool{}
	join(paths, "", outcome)
	for _, name := range rows[0][slices.Index(rows[0], "iops")+1:] {
		require.Contains(t, paths, name)
	}
}

// join collects the paths of everything that is not an object.
func join(paths map[string]bool, prefix string, object map[string]any) {
	for name, v := range object {
		if o, is := v.(map[string]any); is {
			join(paths, prefix+name+"_", o)
		} else {
			paths[prefix+name] = true
		}
	}
}

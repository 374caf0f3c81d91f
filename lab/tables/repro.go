// Package repro holds published measurements of I/O schedulers on rotational disks,
// and the experiments that repeat them in virtual time: the same jobs, the real
// schedulers, a model of the disk.
//
// Nothing is tuned for a cell. There is one parameter file for each drive
// (backend/sim/presets) and one for each of the machines that were measured on
// (hosts); docs/EXPERIMENTS.md says which of their numbers were in view when.
package tables

import (
	"bytes"
	"embed"
	"encoding/csv"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

//go:embed tables/*.csv
var files embed.FS

// Cell is one published figure: a mean and its standard deviation over repeats.
type Cell struct {
	Table   string
	Config  string
	NumJobs int
	Mean    float64 // in the table's unit
	SD      float64 // 0: none was published
}

// Table is one published table.
type Table struct {
	Name   string
	Unit   string // IOPS, or s
	Source string // the comments of its file
	Cells  []Cell // row by row
}

// sources are the tables, in the order in which they are shown.
var sources = []Table{
	{Name: "rfc-read", Unit: "IOPS"},
	{Name: "rfc-write", Unit: "IOPS"},
	{Name: "rfc-rw-read", Unit: "IOPS"},
	{Name: "rfc-rw-write", Unit: "IOPS"},
	{Name: "rfc-two-file-copy", Unit: "s"},
	{Name: "bfq-vs-cfq-seqread", Unit: "IOPS"},
	{Name: "bfq-vs-cfq-seqwrite", Unit: "IOPS"},
	{Name: "random-access", Unit: "IOPS"},
}

// Names are the tables' names.
func Names() []string {
	names := make([]string, len(sources))
	for i, t := range sources {
		names[i] = t.Name
	}
	return names
}

// Load reads the published tables; names chooses some of them, none means all.
func Load(names ...string) ([]Table, error) {
	for _, name := range names {
		if !slices.Contains(Names(), name) {
			return nil, fmt.Errorf("there is no table %q; there are %s", name, strings.Join(Names(), ", "))
		}
	}
	var tables []Table
	for _, t := range sources {
		if len(names) > 0 && !slices.Contains(names, t.Name) {
			continue
		}
		raw, err := files.ReadFile("tables/" + t.Name + ".csv")
		if err != nil {
			return nil, err
		}
		if err := t.read(raw); err != nil {
			return nil, fmt.Errorf("table %s: %w", t.Name, err)
		}
		tables = append(tables, t)
	}
	return tables, nil
}

// read takes in a file: comments, a header, rows.
func (t *Table) read(raw []byte) error {
	var source []string
	for line := range strings.Lines(string(raw)) {
		if c, ok := strings.CutPrefix(line, "# "); ok {
			source = append(source, strings.TrimSpace(c))
		}
	}
	t.Source = strings.Join(source, "\n")
	r := csv.NewReader(bytes.NewReader(raw))
	r.Comment = '#'
	rows, err := r.ReadAll()
	if err != nil {
		return err
	}
	for _, row := range rows[1:] {
		if t.Name == "rfc-two-file-copy" || t.Name == "random-access" {
			err = t.long(row)
		} else {
			err = t.wide(rows[0], row)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// wide reads a row with a pair of columns, mean and deviation, for each configuration.
func (t *Table) wide(header, row []string) error {
	n, err := strconv.Atoi(row[0])
	if err != nil {
		return err
	}
	for i := 1; i+1 < len(row); i += 2 {
		mean, err := strconv.ParseFloat(row[i], 64)
		if err != nil {
			return err
		}
		sd, err := strconv.ParseFloat(row[i+1], 64)
		if err != nil {
			return err
		}
		t.Cells = append(t.Cells, Cell{
			Table: t.Name, Config: strings.TrimSuffix(header[i], "_mean"), NumJobs: n, Mean: mean, SD: sd,
		})
	}
	return nil
}

// copyConfigs are what the table of copies calls its configurations.
var copyConfigs = map[string]string{
	"cfq slice_idle=8": "cfq_idle8", "cfq slice_idle=0": "cfq_idle0",
	"blk-mq time_slice_usec=0": "blkmq_ts0", "blk-mq time_slice_usec=250": "blkmq_ts250",
}

// long reads a row that has one configuration: its name, mean and, if it has one, its
// deviation.
func (t *Table) long(row []string) error {
	c := Cell{Table: t.Name, Config: row[0], NumJobs: 1}
	if name, ok := copyConfigs[row[0]]; ok {
		c.Config, c.NumJobs = name, 2
	}
	var err error
	if c.Mean, err = strconv.ParseFloat(row[1], 64); err != nil {
		return err
	}
	if len(row) > 2 {
		c.SD, err = strconv.ParseFloat(row[2], 64)
	}
	t.Cells = append(t.Cells, c)
	return err
}

package stats

import (
	"encoding/csv"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

// table is a published table: rows of named columns. Its comments say whose it is.
type table []map[string]string

func readTable(t *testing.T, name string, rows int) table {
	t.Helper()
	f, err := os.Open(filepath.Join("testdata", name))
	require.NoError(t, err)
	defer f.Close()
	r := csv.NewReader(f)
	r.Comment = '#'
	records, err := r.ReadAll()
	require.NoError(t, err)
	require.Len(t, records, rows+1)
	var out table
	for _, record := range records[1:] {
		row := map[string]string{}
		for i, column := range records[0] {
			row[column] = record[i]
		}
		out = append(out, row)
	}
	return out
}

// where keeps the rows that match column, value, column, value, …
func (tb table) where(conditions ...string) (out table) {
	for _, row := range tb {
		keep := true
		for i := 0; i < len(conditions); i += 2 {
			keep = keep && row[conditions[i]] == conditions[i+1]
		}
		if keep {
			out = append(out, row)
		}
	}
	return out
}

func number(t *testing.T, row map[string]string, column string) float64 {
	t.Helper()
	x, err := strconv.ParseFloat(row[column], 64)
	require.NoError(t, err, "column %s", column)
	return x
}

func (tb table) column(t *testing.T, name string) (out []float64) {
	t.Helper()
	for _, row := range tb {
		out = append(out, number(t, row, name))
	}
	return out
}

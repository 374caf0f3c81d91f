package ctl

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/cockroachdb/datadriven"
	"github.com/elevisor/elevisor/device"
	"github.com/stretchr/testify/require"
)

// The names and numbers of stat on the wire, and the tables of describe, for
// statistics in which no two numbers are the same.
func TestStat(t *testing.T) {
	b := sample()
	b.ID = "b"
	s := NewStat(12345, []DiskStat{sample(), b})
	require.Len(t, s.Domains, 1, "a domain once, not for every disk")
	datadriven.RunTest(t, "testdata/stat", func(t *testing.T, d *datadriven.TestData) string {
		var out bytes.Buffer
		switch d.Cmd {
		case "json":
			one := *s
			one.Disks = s.Disks[:1]
			e := json.NewEncoder(&out)
			e.SetIndent("", " ")
			require.NoError(t, e.Encode(&one))
		case "text":
			require.NoError(t, s.Domains[0].WriteText(&out))
		}
		return out.String()
	})
}

// A disk that nobody has used has no histograms, and its JSON has all names.
func TestStat_unused(t *testing.T) {
	s := NewStat(0, []DiskStat{{ID: "a", Domain: "a", Queues: make([]device.Stats, 1)}})
	require.Equal(t, Latency{}, s.Disks[0].Latency["disk"])
	require.Equal(t, [17]uint64{}, s.Disks[0].Queues[0].Stat)
	none, err := json.Marshal(NewStat(0, nil))
	require.NoError(t, err)
	require.JSONEq(t, `{"uptime_ns":0,"disks":[],"domains":[]}`, string(none))
}

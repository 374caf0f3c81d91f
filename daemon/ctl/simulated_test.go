package ctl

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/elevisor/elevisor/backend"
	"github.com/elevisor/elevisor/backend/drive"
	"github.com/elevisor/elevisor/blk"
	"github.com/stretchr/testify/require"
)

// A simulated drive's counts on the wire and in describe, and a real one has none.
func TestSimulated(t *testing.T) {
	x := &backend.SimStats{Deviation: hdrhistogram.New(1, 1e9, 2), Model: drive.Stats{
		Hits: 1, Streamed: 2, Seeks: 3, SeekSum: 4000, HeadTime: 5_000_000, Switches: 6, Destaged: 7, Stalls: 8,
	}}
	empty := NewStat(0, []DiskStat{{ID: "a", Simulated: x}}).Disks[0].Simulated
	require.Equal(t, Deviation{}, empty.Deviation)
	x.Model.Commands[blk.OpWrite], x.Model.Sectors[blk.OpWrite] = 9, 72
	for range 98 {
		require.NoError(t, x.Deviation.RecordValue(100))
	}
	require.NoError(t, x.Deviation.RecordValues(30_000, 2))
	s := NewStat(0, []DiskStat{{ID: "a", Simulated: x}, {ID: "b"}})
	got, err := json.Marshal(s.Disks[0].Simulated)
	require.NoError(t, err)
	require.JSONEq(t, `{
		"commands": {"read": 0, "write": 9, "flush": 0, "discard": 0, "write-zeroes": 0},
		"sectors": {"read": 0, "write": 72, "flush": 0, "discard": 0, "write-zeroes": 0},
		"cache_hits": 1, "streamed": 2, "seeks": 3, "seek_sectors": 4000, "head_time_ns": 5000000,
		"stream_switches": 6, "destaged_sectors": 7, "stalls": 8,
		"deviation": {"count": 100, "p50_us": 0.1, "p99_us": 30.079, "max_us": 30.079}}`, string(got))
	real, err := json.Marshal(s.Disks[1])
	require.NoError(t, err)
	require.NotContains(t, string(real), "simulated")
	var out bytes.Buffer
	require.NoError(t, s.Disks[0].Simulated.WriteText(&out))
	require.Equal(t, `
  simulated drive  commands  sectors
             read         0        0
            write         9       72
            flush         0        0
          discard         0        0
     write-zeroes         0        0

  seeks  distance  head time  cache hits  streamed  stream switches  destaged  stalls
      3      4000        5ms           1         2                6         7       8

  later than the model  commands  p50   p99   max
                    us       100  0.1  30.1  30.1
`, out.String())
}

// What was issued to an image, on the wire and in describe, and of others nothing.
func TestRecorded(t *testing.T) {
	x := &backend.RecorderStats{
		Requests: 1, Sectors: 2, Others: 3, Seeks: 4, SeekSectors: 5, LostSameQueue: 6, LostOtherQueue: 7, LostOtherVM: 8, LostLate: 9,
	}
	s := NewStat(0, []DiskStat{{ID: "a", Recorded: x}, {ID: "b"}})
	got, err := json.Marshal(s.Disks[0].Recorded)
	require.NoError(t, err)
	require.JSONEq(t, `{
		"requests": 1, "sectors": 2, "others": 3, "seeks": 4, "seek_sectors": 5,
		"lost_same_queue": 6, "lost_other_queue": 7, "lost_other_vm": 8, "lost_late": 9}`, string(got))
	none, err := json.Marshal(s.Disks[1])
	require.NoError(t, err)
	require.NotContains(t, string(none), "recorded")
	var out bytes.Buffer
	require.NoError(t, s.Disks[0].Recorded.WriteText(&out))
	require.Equal(t, `
  issued  sectors  others  seeks  distance
       1        2       3      4         5

  lost merges  same queue  other queue  other VM  of them late
                        6            7         8             9
`, out.String())
}

package ctl

import (
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/elevisor/elevisor/backend"
	"github.com/elevisor/elevisor/blk"
)

// Simulated is what the model of a simulated drive has counted, and how well real time
// kept to it. Disks that are windows of one drive have the same one. A model leaves at
// zero what it does not have.
type Simulated struct {
	Commands  map[string]uint64 `json:"commands"` // by operation; a merged group is one
	Sectors   map[string]uint64 `json:"sectors"`  // by operation
	Hits      uint64            `json:"cache_hits"`
	Streamed  uint64            `json:"streamed"` // reads that caught up with the medium
	Seeks     uint64            `json:"seeks"`
	SeekSum   uint64            `json:"seek_sectors"` // their distances
	HeadTime  int64             `json:"head_time_ns"` // moving, and waiting for the platter
	Switches  uint64            `json:"stream_switches"`
	Destaged  uint64            `json:"destaged_sectors"`
	Stalls    uint64            `json:"stalls"`
	Deviation Deviation         `json:"deviation"`
}

// Deviation is by how much commands ended later than the model says; microseconds.
type Deviation struct {
	Count int64   `json:"count"` // commands that ended
	P50   float64 `json:"p50_us"`
	P99   float64 `json:"p99_us"`
	Max   float64 `json:"max_us"`
}

// NewSimulated puts what a drive has counted into these words; nil of nil.
func NewSimulated(s *backend.SimStats) *Simulated {
	if s == nil {
		return nil
	}
	m, late := &s.Model, s.Deviation
	x := &Simulated{
		Commands: map[string]uint64{}, Sectors: map[string]uint64{},
		Hits: m.Hits, Streamed: m.Streamed, Seeks: m.Seeks, SeekSum: uint64(m.SeekSum), HeadTime: int64(m.HeadTime),
		Switches: m.Switches, Destaged: m.Destaged, Stalls: m.Stalls,
	}
	for op := range blk.OpCount {
		x.Commands[op.String()], x.Sectors[op.String()] = m.Commands[op], m.Sectors[op]
	}
	if n := late.TotalCount(); n > 0 { // an empty histogram has a largest value all the same
		us := func(ns int64) float64 { return float64(ns) / 1e3 }
		x.Deviation = Deviation{Count: n, P50: us(late.ValueAtQuantile(50)), P99: us(late.ValueAtQuantile(99)), Max: us(late.Max())}
	}
	return x
}

// WriteText prints it as a table.
func (s *Simulated) WriteText(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(w, "\nsimulated drive\tcommands\tsectors\t\n")
	for op := range blk.OpCount {
		fmt.Fprintf(w, "%s\t%d\t%d\t\n", op, s.Commands[op.String()], s.Sectors[op.String()])
	}
	fmt.Fprintf(w, "\nseeks\tdistance\thead time\tcache hits\tstreamed\tstream switches\tdestaged\tstalls\t\n")
	fmt.Fprintf(w, "%d\t%d\t%v\t%d\t%d\t%d\t%d\t%d\t\n", s.Seeks, s.SeekSum, time.Duration(s.HeadTime).Round(time.Microsecond),
		s.Hits, s.Streamed, s.Switches, s.Destaged, s.Stalls)
	fmt.Fprint(w, "\nlater than the model\tcommands\tp50\tp99\tmax\t\n")
	d := &s.Deviation
	fmt.Fprintf(w, "us\t%d\t%.1f\t%.1f\t%.1f\t\n", d.Count, d.P50, d.P99, d.Max)
	return w.Flush()
}

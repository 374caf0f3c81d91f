package ctl

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/elevisor/elevisor/device"
	"github.com/elevisor/elevisor/sched"
)

// WriteText prints the domain's counts, merges, refusals and latencies as tables.
func (d *DomainStat) WriteText(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(w, "\nscheduler\tqueue depth\tqueued\ton the disk\theld\tbusy\tcalls\tbroken rings\t\n%s\t%d\t%d\t%d\t%d\t%v\t%d\t%d\t\n",
		d.Scheduler, d.Depth, d.Queued, d.InFlight, d.Held, micros(int64(d.IOTime)), d.Calls, d.BrokenRings)
	d.writeOperations(w)
	d.Counters.write(w)
	d.writeMerges(w)
	for i, fault := range slices.Sorted(maps.Keys(d.Malformed)) {
		if i == 0 {
			fmt.Fprint(w, "\nmalformed chains\tcount\t\n")
		}
		fmt.Fprintf(w, "%s\t%d\t\n", fault, d.Malformed[fault])
	}
	d.writeLatencies(w)
	return w.Flush()
}

func micros(ns int64) time.Duration { return time.Duration(ns).Round(time.Microsecond) }

func (c *Counts) writeOperations(w io.Writer) {
	fmt.Fprint(w, "\noperation\trequests\tfailed\tmerged\tKiB\ttotal time\t\n")
	for _, op := range []struct {
		name                                  string
		requests, failed, merged, bytes, time uint64
	}{
		{"read", c.RdOperations, c.RdFailed, c.RdMerged, c.RdBytes, c.RdTotalTime},
		{"write", c.WrOperations, c.WrFailed, c.WrMerged, c.WrBytes, c.WrTotalTime},
		{"unmap", c.UnmapOperations, c.UnmapFailed, c.UnmapMerged, c.UnmapBytes, c.UnmapTotalTime},
		{"flush", c.FlushOperations, c.FlushFailed, 0, 0, c.FlushTotalTime},
	} {
		fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%g\t%v\t\n", op.name, op.requests, op.failed, op.merged, float64(op.bytes)/1024, micros(int64(op.time)))
	}
	if c.WriteZeroes > 0 {
		fmt.Fprintf(w, "of the writes, write-zeroes\t%d\t\n", c.WriteZeroes)
	}
}

// write prints what the scheduler has counted, but for what it does not count.
func (c *Counters) write(w io.Writer) {
	first := true
	for _, n := range []struct {
		name  string
		count uint64
	}{
		{"batches", c.Batches}, {"expired dispatches", c.Expired}, {"writes starved", c.Starved}, {"aged", c.Aged},
		{"slices", c.Slices}, {"slices extended", c.Extensions}, {"slices ended early", c.EarlyEnds},
		{"idled", c.Idled}, {"preempted", c.Preempted},
	} {
		if n.count == 0 {
			continue
		}
		if first {
			fmt.Fprint(w, "\nscheduler\tcount\t\n")
			first = false
		}
		fmt.Fprintf(w, "%s\t%d\t\n", n.name, n.count)
	}
	if c.LongestWait > 0 {
		fmt.Fprintf(w, "\nlongest wait in the scheduler\t%v\t\n", micros(c.LongestWait))
	}
}

func (d *DomainStat) writeMerges(w io.Writer) {
	fmt.Fprint(w, "\nmerged\t")
	for _, who := range sched.WhoNames {
		fmt.Fprintf(w, "%s\t", who)
	}
	for _, place := range sched.PlaceNames {
		fmt.Fprintf(w, "\n%s\t", place)
		for _, who := range sched.WhoNames {
			fmt.Fprintf(w, "%d\t", d.Merged[place][who])
		}
	}
	fmt.Fprintf(w, "\n\nKiB in merged requests\t%g\t\n", float64(d.MergedBytes)/1024)
	fmt.Fprint(w, "\nnot merged\trequests\t\n")
	for _, reason := range sched.ReasonNames {
		fmt.Fprintf(w, "%s\t%d\t\n", reason, d.Refused[reason])
	}
}

func (c *Counts) writeLatencies(w io.Writer) {
	fmt.Fprint(w, "\nlatency\trequests\tp50\tp90\tp99\tp99.9\tmax\t\n")
	for _, stage := range device.StageNames {
		l := c.Latency[stage]
		fmt.Fprintf(w, "%s\t%d\t", stage, l.Count)
		for _, ns := range []int64{l.P50, l.P90, l.P99, l.P999, l.Max} {
			if l.Count == 0 {
				fmt.Fprint(w, "-\t")
			} else {
				fmt.Fprintf(w, "%v\t", micros(ns))
			}
		}
		fmt.Fprintln(w)
	}
}

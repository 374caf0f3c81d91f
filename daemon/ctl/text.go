package ctl

import (
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/elevisor/elevisor/device"
	"github.com/elevisor/elevisor/sched"
)

// WriteText prints merges, refusals and latencies as tables.
func (d *DomainStat) WriteText(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
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
	fmt.Fprint(w, "\n\nnot merged\trequests\t\n")
	for _, reason := range sched.ReasonNames {
		fmt.Fprintf(w, "%s\t%d\t\n", reason, d.Refused[reason])
	}
	fmt.Fprint(w, "\nlatency\trequests\tp50\tp90\tp99\tp99.9\tmax\t\n")
	for _, stage := range device.StageNames {
		l := d.Latency[stage]
		fmt.Fprintf(w, "%s\t%d\t", stage, l.Count)
		for _, ns := range []int64{l.P50, l.P90, l.P99, l.P999, l.Max} {
			if l.Count == 0 {
				fmt.Fprint(w, "-\t")
			} else {
				fmt.Fprintf(w, "%v\t", time.Duration(ns).Round(time.Microsecond))
			}
		}
		fmt.Fprintln(w)
	}
	return w.Flush()
}

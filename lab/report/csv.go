package report

import (
	"encoding/csv"
	"io"
	"strconv"
	"strings"

	"github.com/elevisor/elevisor/lab/plan"
	"github.com/elevisor/elevisor/sched"
)

// row is one run, for the columns to take from.
type row struct {
	at   int
	run  *plan.Run
	cell *plan.Cell
	*plan.Outcome
}

type column struct {
	name string
	of   func(row) string
}

// CSV writes results.csv (RFC 4180, but for bare line feeds): one row a run, in the
// order of the results, raw; numbers are as exact as results.json has them. The first row
// names the columns:
//
//   - run counts from 1 and names the run's file in runs/; order is its place in time;
//     block holds the runs that are compared with each other; cell is an index of the
//     plan's cells.
//   - workload to host_knobs are the cell, queue_depth 0 being the scheduler's default;
//     knobs are key=value with spaces between.
//   - *_us are latencies of the run's requests in µs, mean and quantiles; iops is of both
//     directions.
//   - guest_* and host_* count requests: submitted to the guest's block layer or the host's
//     scheduler, merged there, issued by it; guest_known is 0 where the guest could not be
//     asked. host_refused_* are neighbours that were found and not merged, by reason.
//   - disk_* are what reached the disk. disk_lost_* adjoined one of the last 64 requests
//     issued and were issued apart. disk_head_* are of simulated drives only.
func CSV(w io.Writer, r *plan.Results) error {
	if err := check(r); err != nil {
		return err
	}
	out, columns := csv.NewWriter(w), csvColumns()
	record := make([]string, len(columns))
	for i, c := range columns {
		record[i] = c.name
	}
	if err := out.Write(record); err != nil {
		return err
	}
	for at := range r.Runs {
		run := &r.Runs[at]
		o := run.Outcome
		if o == nil {
			continue
		}
		for i, c := range columns {
			record[i] = c.of(row{at, run, &r.Plan.Cells[run.Cell], o})
		}
		if err := out.Write(record); err != nil {
			return err
		}
	}
	out.Flush()
	return out.Error()
}

func csvColumns() []column {
	all := []column{
		{"run", func(r row) string { return strconv.Itoa(r.at + 1) }},
		{"order", func(r row) string { return strconv.Itoa(r.run.Order) }},
		{"block", func(r row) string { return strconv.Itoa(r.run.Block) }},
		{"cell", func(r row) string { return strconv.Itoa(r.run.Cell) }},
		{"seed", func(r row) string { return count(r.run.Seed) }},
		{"workload", func(r row) string { return r.cell.Workload.Name }},
		{"vms", func(r row) string { return strconv.Itoa(r.cell.VMs) }},
		{"queues", func(r row) string { return strconv.Itoa(r.cell.Queues) }},
		{"queue_size", func(r row) string { return strconv.Itoa(r.cell.QSize) }},
		{"queue_depth", func(r row) string { return strconv.Itoa(r.cell.Depth) }},
		{"nomerges", func(r row) string { return strconv.Itoa(r.cell.NoMerges) }},
		{"guest", func(r row) string { return r.cell.Guest.Name }},
		{"guest_knobs", func(r row) string { return knobs(r.cell.Guest) }},
		{"host", func(r row) string { return r.cell.Host.Name }},
		{"host_knobs", func(r row) string { return knobs(r.cell.Host) }},
		{"seconds", func(r row) string { return exact(r.Seconds) }},
		{"iops", func(r row) string { return exact(r.IOPS()) }},
	}
	all = append(all, directionColumns("read", func(r row) *plan.Direction { return &r.Read })...)
	all = append(all, directionColumns("write", func(r row) *plan.Direction { return &r.Write })...)
	all = append(all, mergingColumns()...)
	return append(all, diskColumns()...)
}

func directionColumns(name string, d func(row) *plan.Direction) []column {
	return []column{
		{name + "_ios", func(r row) string { return count(d(r).IOs) }},
		{name + "_bytes", func(r row) string { return count(d(r).Bytes) }},
		{name + "_iops", func(r row) string { return exact(d(r).IOPS) }},
		{name + "_mean_us", func(r row) string { return exact(d(r).Mean) }},
		{name + "_p50_us", func(r row) string { return exact(d(r).P50) }},
		{name + "_p99_us", func(r row) string { return exact(d(r).P99) }},
		{name + "_max_us", func(r row) string { return exact(d(r).Max) }},
	}
}

func mergingColumns() []column {
	all := []column{
		{"guest_known", func(r row) string {
			if r.Guest.Known {
				return "1"
			}
			return "0"
		}},
		{"guest_submitted", func(r row) string { return count(r.Guest.Submitted) }},
		{"guest_merged", func(r row) string { return count(r.Guest.Merged) }},
		{"guest_issued", func(r row) string { return count(r.Guest.Issued) }},
		{"host_submitted", func(r row) string { return count(r.Host.Submitted) }},
		{"host_merged", func(r row) string { return count(r.Host.Merged) }},
		{"host_issued", func(r row) string { return count(r.Host.Issued) }},
		{"host_same_queue", func(r row) string { return count(r.Host.SameQueue) }},
		{"host_cross_queue", func(r row) string { return count(r.Host.CrossQueue) }},
		{"host_cross_vm", func(r row) string { return count(r.Host.CrossVM) }},
	}
	for i, reason := range sched.ReasonNames {
		all = append(all, column{"host_refused_" + reason, func(r row) string { return count(r.Host.Refused[i]) }})
	}
	return all
}

func diskColumns() []column {
	return []column{
		{"disk_requests", func(r row) string { return count(r.Disk.Requests) }},
		{"disk_sectors", func(r row) string { return count(r.Disk.Sectors) }},
		{"disk_seeks", func(r row) string { return count(r.Disk.Seeks) }},
		{"disk_seek_sectors", func(r row) string { return count(r.Disk.SeekSum) }},
		{"disk_lost_same_queue", func(r row) string { return count(r.Disk.LostSameQueue) }},
		{"disk_lost_cross_queue", func(r row) string { return count(r.Disk.LostCrossQueue) }},
		{"disk_lost_cross_vm", func(r row) string { return count(r.Disk.LostCrossVM) }},
		{"disk_head_moves", func(r row) string { return count(r.Disk.HeadMoves) }},
		{"disk_head_seconds", func(r row) string { return exact(r.Disk.HeadSeconds) }},
	}
}

func count(n uint64) string { return strconv.FormatUint(n, 10) }

// exact has as many digits as it takes to read the same number again.
func exact(x float64) string { return strconv.FormatFloat(x, 'g', -1, 64) }

func knobs(s plan.Scheduler) string {
	words := make([]string, len(s.Knobs))
	for i, k := range s.Knobs {
		words[i] = k.Key + "=" + k.Value
	}
	return strings.Join(words, " ")
}

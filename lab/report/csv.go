package report

import (
	"encoding/csv"
	"io"
	"strconv"
	"strings"

	"github.com/elevisor/elevisor/lab/plan"
	"github.com/elevisor/elevisor/sched"
)

// row is what the columns take a run's values from.
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

// CSV writes results.csv (RFC 4180, but with bare line feeds): a row for each run that has
// an outcome, in the order of the results. Numbers are as exact as in results.json. The
// first row names the columns, which docs/RESULTS_FORMAT.md documents: those of an outcome
// are named after their path in results.json.
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
		{"guest_scheduler", func(r row) string { return r.cell.Guest.Name }},
		{"guest_knobs", func(r row) string { return knobs(r.cell.Guest) }},
		{"host_scheduler", func(r row) string { return r.cell.Host.Name }},
		{"host_knobs", func(r row) string { return knobs(r.cell.Host) }},
		{"duration_s", func(r row) string { return exact(r.Seconds) }},
		{"iops", func(r row) string { return exact(r.IOPS()) }},
	}
	all = append(all, directionColumns("read", func(r row) *plan.Direction { return &r.Read })...)
	all = append(all, directionColumns("write", func(r row) *plan.Direction { return &r.Write })...)
	all = append(all, requestColumns()...)
	return append(all, diskColumns()...)
}

func directionColumns(name string, d func(row) *plan.Direction) []column {
	return []column{
		{name + "_total_ios", func(r row) string { return count(d(r).IOs) }},
		{name + "_io_bytes", func(r row) string { return count(d(r).Bytes) }},
		{name + "_iops", func(r row) string { return exact(d(r).IOPS) }},
		{name + "_clat_mean_us", func(r row) string { return exact(d(r).Mean) }},
		{name + "_clat_p50_us", func(r row) string { return exact(d(r).P50) }},
		{name + "_clat_p99_us", func(r row) string { return exact(d(r).P99) }},
		{name + "_clat_max_us", func(r row) string { return exact(d(r).Max) }},
	}
}

func requestColumns() []column {
	all := []column{
		{"guest_requests_known", func(r row) string {
			if r.Guest.Known {
				return "1"
			}
			return "0"
		}},
		{"guest_requests_submitted", func(r row) string { return count(r.Guest.Submitted) }},
		{"guest_requests_merged", func(r row) string { return count(r.Guest.Merged) }},
		{"guest_requests_issued", func(r row) string { return count(r.Guest.Issued) }},
		{"host_requests_submitted", func(r row) string { return count(r.Host.Submitted) }},
		{"host_requests_merged", func(r row) string { return count(r.Host.Merged) }},
		{"host_requests_issued", func(r row) string { return count(r.Host.Issued) }},
		{"host_requests_merged_same_queue", func(r row) string { return count(r.Host.SameQueue) }},
		{"host_requests_merged_cross_queue", func(r row) string { return count(r.Host.CrossQueue) }},
		{"host_requests_merged_cross_vm", func(r row) string { return count(r.Host.CrossVM) }},
	}
	for i, reason := range sched.ReasonNames {
		all = append(all, column{"host_requests_refused_" + reason, func(r row) string { return count(r.Host.Refused[i]) }})
	}
	return all
}

func diskColumns() []column {
	return []column{
		{"disk_requests", func(r row) string { return count(r.Disk.Requests) }},
		{"disk_sectors", func(r row) string { return count(r.Disk.Sectors) }},
		{"disk_seeks", func(r row) string { return count(r.Disk.Seeks) }},
		{"disk_seek_sectors", func(r row) string { return count(r.Disk.SeekSum) }},
		{"disk_lost_merges_same_queue", func(r row) string { return count(r.Disk.LostSameQueue) }},
		{"disk_lost_merges_cross_queue", func(r row) string { return count(r.Disk.LostCrossQueue) }},
		{"disk_lost_merges_cross_vm", func(r row) string { return count(r.Disk.LostCrossVM) }},
		{"disk_lost_merges_late", func(r row) string { return count(r.Disk.LostLate) }},
		{"disk_head_moves", func(r row) string { return count(r.Disk.HeadMoves) }},
		{"disk_head_time_s", func(r row) string { return exact(r.Disk.HeadSeconds) }},
	}
}

func count(n uint64) string { return strconv.FormatUint(n, 10) }

// exact writes as many digits as are needed to read back the same number.
func exact(x float64) string { return strconv.FormatFloat(x, 'g', -1, 64) }

func knobs(s plan.Scheduler) string {
	words := make([]string, len(s.Knobs))
	for i, k := range s.Knobs {
		words[i] = k.Key + "=" + k.Value
	}
	return strings.Join(words, " ")
}

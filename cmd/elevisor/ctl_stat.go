package main

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/elevisor/elevisor/daemon/ctl"
	"github.com/spf13/cobra"
)

func (f *ctlFlags) stat() *cobra.Command {
	var extended bool
	c := &cobra.Command{
		Use:   "stat [-x] [DISK...] [INTERVAL [COUNT]]",
		Short: "print what the disks do, in iostat's columns",
		Long: `Prints a report in the columns of iostat -d, or with -x of iostat -d -x. The first
is since the server started; with an interval in seconds, each further one is since
the last, until interrupted or until there are COUNT reports. Operations count
after merging: %rrqm is merges / (merges + reads).

With --format json a report has iostat's numbers and all that was counted so far,
by disk, queue and domain: merges, refusals, scheduler, latencies.`,
		Example: "  elevisor ctl stat -x vda 1 10",
		RunE: func(c *cobra.Command, args []string) error {
			disks, interval, count, err := statArgs(args)
			if err != nil {
				return err
			}
			r := reporter{ctlFlags: f, c: c, disks: disks, extended: extended}
			return every(c.Context(), interval, count, r.report)
		},
	}
	c.Flags().BoolVarP(&extended, "extended", "x", false, "merges, waiting times, sizes, queue, utilization")
	return c
}

// statArgs takes the numbers off the end: the interval, and the number of reports.
func statArgs(args []string) (disks []string, interval time.Duration, count int, err error) {
	isNumber := func(s string) bool { _, err := strconv.ParseFloat(s, 64); return err == nil }
	n := len(args)
	for n > 0 && len(args)-n < 2 && isNumber(args[n-1]) {
		n--
	}
	numbers := args[n:]
	count = 1
	if len(numbers) > 0 {
		count = 0 // no end
		if interval, err = seconds(numbers[0]); err != nil {
			return nil, 0, 0, err
		}
	}
	if len(numbers) > 1 {
		if count, err = strconv.Atoi(numbers[1]); err != nil || count < 1 {
			return nil, 0, 0, fmt.Errorf("count %s is not a number from 1", numbers[1])
		}
	}
	return args[:n], interval, count, nil
}

// seconds reads an interval: more than a second is usual, less is for tests.
func seconds(s string) (time.Duration, error) {
	const low, high = 0.01, 1e6
	v, err := strconv.ParseFloat(s, 64)
	if err != nil || !(v >= low && v <= high) {
		return 0, fmt.Errorf("interval %s is not a number of seconds from %v to %v", s, low, high)
	}
	return time.Duration(v * float64(time.Second)), nil
}

// every does something at once and then once in an interval, count times in all (0:
// without end), until ctx ends, which is no error.
func every(ctx context.Context, interval time.Duration, count int, do func() error) error {
	if err := do(); err != nil || count == 1 {
		return err
	}
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for n := 1; n != count; n++ {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		if err := do(); err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
	}
	return nil
}

// reporter prints one report after the other.
type reporter struct {
	*ctlFlags
	c        *cobra.Command
	disks    []string // to be shown; none: all
	extended bool
	last     ctl.Stat // zero: since the start
}

func (r *reporter) report() error {
	var s ctl.Stat
	if err := r.call(r.c, "stat", nil, &s); err != nil {
		return err
	}
	if s.Uptime < r.last.Uptime { // another server than last time
		r.last = ctl.Stat{}
	}
	interval := time.Duration(s.Uptime - r.last.Uptime)
	rows, err := r.rows(&s, interval)
	if err != nil {
		return err
	}
	r.last = s
	out := r.c.OutOrStdout()
	if r.format == "text" {
		return ctl.WriteIostat(out, rows, r.extended)
	}
	return json.NewEncoder(out).Encode(struct {
		Interval time.Duration `json:"interval_ns"`
		Iostat   []ctl.Iostat  `json:"iostat"`
		*ctl.Stat
	}{interval, rows, &s})
}

func (r *reporter) rows(s *ctl.Stat, interval time.Duration) (rows []ctl.Iostat, err error) {
	find := func(s *ctl.Stat, id string) int {
		return slices.IndexFunc(s.Disks, func(d ctl.DiskCounts) bool { return d.Disk == id })
	}
	var ids []string
	for _, d := range s.Disks {
		ids = append(ids, d.Disk)
	}
	for _, id := range r.disks {
		if find(s, id) < 0 {
			return nil, fmt.Errorf("there is no disk %q; there are: %s", id, strings.Join(ids, ", "))
		}
	}
	if len(r.disks) > 0 {
		ids = r.disks
	}
	for _, id := range ids {
		var before [17]uint64
		if i := find(&r.last, id); i >= 0 {
			before = r.last.Disks[i].Stat
		}
		rows = append(rows, ctl.NewIostat(id, before, s.Disks[find(s, id)].Stat, interval))
	}
	return rows, nil
}

func (f *ctlFlags) export() *cobra.Command {
	return &cobra.Command{
		Use:   "export DIR [INTERVAL]",
		Short: "write the statistics where iostat -f DIR reads them",
		Long: `Writes /sys/block/X/stat of every disk X to DIR/block/X/stat, for iostat -f DIR.
With an interval in seconds, again and again until interrupted. iostat divides its
first report by the time since the system was booted, not since the server was
started: leave it out with -y.`,
		Example: "  elevisor ctl export /run/vdisks 0.5 &\n  iostat -d -x -y -f /run/vdisks 10",
		Args:    cobra.RangeArgs(1, 2),
		RunE: func(c *cobra.Command, args []string) (err error) {
			interval, count := time.Duration(0), 1
			if len(args) == 2 {
				count = 0
				if interval, err = seconds(args[1]); err != nil {
					return err
				}
			}
			return every(c.Context(), interval, count, func() error {
				var s ctl.Stat
				if err := f.call(c, "stat", nil, &s); err != nil {
					return err
				}
				return ctl.Export(args[0], &s)
			})
		},
	}
}

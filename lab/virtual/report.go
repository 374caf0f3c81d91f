package virtual

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/elevisor/elevisor/blk"
	"github.com/elevisor/elevisor/daemon/ctl"
	"github.com/elevisor/elevisor/device"
	"github.com/elevisor/elevisor/guest"
	"github.com/elevisor/elevisor/guest/load"
	"github.com/elevisor/elevisor/sched"
)

// report is a result in JSON: jobs in fio's words, as bench prints them, and beside
// them what only the world can tell.
type report struct {
	Version string  `json:"fio version"`
	Jobs    []any   `json:"jobs"`
	Virtual virtual `json:"virtual"`
}

type virtual struct {
	Elapsed int64          `json:"elapsed_ns"`
	Seed    uint64         `json:"seed"`
	Costs   costs          `json:"costs"`
	Knobs   []sched.Knob   `json:"knobs"`
	VMs     []vmReport     `json:"vms"`
	Host    ctl.DomainStat `json:"host"`            // as stat has it, without the ramp
	Drive   *ctl.Simulated `json:"drive,omitempty"` // with the ramp
}

type costs struct {
	PerRead     int64   `json:"read_ns"`
	PerWrite    int64   `json:"write_ns"`
	PerRequest  int64   `json:"request_ns"`
	Jitter      float64 `json:"jitter"`
	PerSwitch   int64   `json:"switch_ns"`
	SwitchAfter int64   `json:"switch_after_ns"`
}

type vmReport struct {
	Jobs  []int          `json:"jobs"` // places in the list of jobs
	Guest *guestReport   `json:"guest,omitempty"`
	Disk  ctl.DiskCounts `json:"disk"`
}

type guestReport struct {
	Scheduler string                       `json:"scheduler"`
	Submitted uint64                       `json:"submitted"`
	Issued    uint64                       `json:"issued"`
	Retried   uint64                       `json:"retried"`
	Merged    map[string]map[string]uint64 `json:"merged"` // by place, by who
}

// WriteJSON prints r; version is the program's.
func (r *Result) WriteJSON(w io.Writer, version string) error {
	c := &r.Options.Costs
	out := report{Version: version, Virtual: virtual{
		Elapsed: int64(r.Elapsed), Seed: r.Options.Seed, Knobs: append([]sched.Knob{}, r.Options.Knobs...),
		Costs: costs{
			PerRead: int64(c.PerRead), PerWrite: int64(c.PerWrite), PerRequest: int64(c.PerRequest), Jitter: c.Jitter,
			PerSwitch: int64(c.PerSwitch), SwitchAfter: int64(c.SwitchAfter),
		},
		Drive: ctl.NewSimulated(r.Drive),
	}}
	for i := range r.Results {
		out.Jobs = append(out.Jobs, r.Results[i].Report(&r.Jobs[i].Options, r.Jobs[i].words()))
	}
	stat := r.stat()
	out.Virtual.Host = stat.Domains[0]
	for i := range r.VMs {
		v := vmReport{Jobs: r.VMs[i].Jobs, Disk: stat.Disks[i]}
		if g := r.Options.VMs[i].Guest; g != nil {
			v.Guest = guestOf(g, &r.VMs[i].Guest)
		}
		out.Virtual.VMs = append(out.Virtual.VMs, v)
	}
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(out)
}

// stat puts the host's counts into the words of the control socket.
func (r *Result) stat() *ctl.Stat {
	var disks []ctl.DiskStat
	for i := range r.VMs {
		v := &r.VMs[i]
		disks = append(disks, ctl.DiskStat{
			ID: "vm" + strconv.Itoa(i), Domain: "host", Total: v.Device, Queues: v.Queues, DomainStats: r.Host,
		})
	}
	return ctl.NewStat(blk.Instant(r.Elapsed), disks)
}

func guestOf(o *guest.BlockOptions, s *guest.BlockStats) *guestReport {
	g := &guestReport{
		Scheduler: o.Scheduler, Submitted: s.Submitted, Issued: s.Issued, Retried: s.Retried, Merged: map[string]map[string]uint64{},
	}
	for p, by := range s.Merges.Merged {
		g.Merged[sched.PlaceNames[p]] = map[string]uint64{}
		for who, n := range by {
			g.Merged[sched.PlaceNames[p]][sched.WhoNames[who]] = n
		}
	}
	return g
}

// words are the options that bench does not have, as fio would have been given them.
func (j *Job) words() map[string]string {
	m := map[string]string{}
	if j.Loops != 0 {
		m["loops"] = strconv.Itoa(j.Loops)
	}
	return m
}

// WriteText prints r for people: jobs as fio does, and then the world.
func (r *Result) WriteText(w io.Writer) error {
	out := bufio.NewWriter(w)
	for i := range r.Results {
		r.Results[i].WriteText(out, &r.Jobs[i].Options, len(r.Results))
	}
	load.WriteTotal(out, r.Results)
	fmt.Fprintf(out, "\nVirtual time %v, seed %d, scheduler %s, queue-depth %d\n", r.Elapsed, r.Options.Seed, r.Host.Scheduler, r.Host.Depth)
	for i := range r.VMs {
		v := &r.VMs[i]
		fmt.Fprintf(out, "  vm %d: %s", i, operations(&v.Device))
		if g := r.Options.VMs[i].Guest; g != nil {
			fmt.Fprintf(out, "; guest %s: %d submitted, %d merged, %d issued", g.Scheduler, v.Guest.Submitted, v.Guest.Merged(), v.Guest.Issued)
		}
		fmt.Fprintln(out)
	}
	c := &r.Host.Counters
	fmt.Fprintf(out, "  host: %s; %d slices, %d extended, %d ended early; longest wait %v\n",
		operations(&r.Host.Stats), c.Slices, c.Extensions, c.EarlyEnds, time.Duration(c.LongestWait))
	if r.Drive != nil {
		d, commands := &r.Drive.Model, uint64(0)
		for _, n := range d.Commands {
			commands += n
		}
		fmt.Fprintf(out, "  drive: %d commands, %d seeks over %d sectors, %d cache hits, %d streamed, %d stalls\n",
			commands, d.Seeks, d.SeekSum, d.Hits, d.Streamed, d.Stalls)
	}
	return out.Flush()
}

// operations sums up what a disk was asked for: requests, and what is left of them
// after merging.
func operations(s *device.Stats) string {
	rd, wr := &s.Op[blk.OpRead], &s.Op[blk.OpWrite]
	return fmt.Sprintf("%d reads in %d, %d writes in %d, %d flushes", rd.Requests(), rd.IOs, wr.Requests(), wr.IOs, s.Op[blk.OpFlush].IOs)
}

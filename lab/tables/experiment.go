package tables

import (
	"bytes"
	"embed"
	"fmt"
	"slices"
	"time"

	"github.com/elevisor/elevisor/backend"
	drives "github.com/elevisor/elevisor/backend/drive"
	"github.com/elevisor/elevisor/guest/load"
	"github.com/elevisor/elevisor/lab/virtual"
	"github.com/elevisor/elevisor/sched"
	"github.com/pelletier/go-toml/v2"
)

//go:embed hosts/*.toml
var hosts embed.FS

// Host is what a machine that was measured on took for a request, in microseconds,
// beside the disk.
type Host struct {
	Name        string               `toml:"name"`
	Read        float64              `toml:"read_us"`
	Write       float64              `toml:"write_us"`
	Jitter      float64              `toml:"jitter"`
	Copy        float64              `toml:"copy_us"`
	Switch      float64              `toml:"switch_us"`
	SwitchAfter float64              `toml:"switch_after_us"`
	Scheduler   map[string]schedCost `toml:"scheduler"`
}

type schedCost struct {
	Read  float64 `toml:"read_us"`
	Write float64 `toml:"write_us"`
}

// LoadHost reads one of the machines' files.
func LoadHost(name string) (Host, error) {
	var h Host
	raw, err := hosts.ReadFile("hosts/" + name + ".toml")
	if err != nil {
		return h, err
	}
	if err := toml.NewDecoder(bytes.NewReader(raw)).DisallowUnknownFields().Decode(&h); err != nil {
		return h, fmt.Errorf("host %s: %w", name, err)
	}
	return h, nil
}

// Machine is a drive in a host.
type Machine struct {
	Drive drives.Preset
	Host  Host
}

// machines are those of each group of tables.
var machines = map[string]struct{ drive, host string }{
	"rfc-2016":      {"hd155ui", "rfc-2016"},
	"two-file-copy": {"hd155ui", "rfc-2016"},
	"random-access": {"hd155ui", "rfc-2016"},
	"bfq-2017":      {"hd103sj", "bfq-2017"},
	"bfq-2017-dent": {"hd103sj", "bfq-2017"},
}

// Drives names the drives that the tables were measured on, sorted.
func Drives() (names []string) {
	for _, m := range machines {
		names = append(names, m.drive)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// LoadMachine is the one that the tables of a group were measured on.
func LoadMachine(group string) (m Machine, err error) {
	which := machines[group]
	if m.Drive, err = drives.Load(which.drive); err != nil {
		return m, err
	}
	m.Host, err = LoadHost(which.host)
	return m, err
}

// configuration is how a published configuration is set up here.
type configuration struct {
	scheduler string
	knobs     []sched.Knob
}

// configurations, by their names in the tables. Jobs have a virtqueue each, which
// stands for the RFC's software queue and for CFQ's and BFQ's process. BFQ of 2017
// did not end weight raising by service received.
var configurations = map[string]configuration{
	"cfq_idle8":   {"cfq", []sched.Knob{{Key: "slice_idle", Value: "8"}}},
	"cfq_idle0":   {"cfq", []sched.Knob{{Key: "slice_idle", Value: "0"}}},
	"blkmq_ts0":   {"none", nil},
	"blkmq_ts250": {"timeslice", []sched.Knob{{Key: "slice_by", Value: "queue"}, {Key: "time_slice_us", Value: "250"}}},
	"cfq":         {"cfq", []sched.Knob{{Key: "slice_idle", Value: "8"}}},
	"bfq_ll0":     {"bfq", []sched.Knob{{Key: "slice_idle", Value: "8"}, {Key: "low_latency", Value: "0"}}},
	"bfq_ll1":     {"bfq", []sched.Knob{{Key: "slice_idle", Value: "8"}, {Key: "low_latency", Value: "1"}, {Key: "wr_max_service", Value: "0"}}},
	"whole_disk":  {"none", nil},
}

// loads are the tables' jobs.
var loads = map[string]load.RW{
	"rfc-read": load.Read, "rfc-write": load.Write, "rfc-rw-read": load.ReadWrite, "rfc-rw-write": load.ReadWrite,
	"rfc-two-file-copy": load.Read, "bfq-vs-cfq-seqread": load.Read, "bfq-vs-cfq-seqwrite": load.Write,
	"random-access": load.RandRead,
}

const (
	fileSize  = 5 << 30   // bytes of each job's file, as size=5G
	copySize  = 750e6     // bytes of each copied file
	copyBlock = 128 << 10 // bytes of a request of a copy: the kernel's read-ahead
	// tags are the commands that Linux has in a SATA drive.
	tags = 31
)

// Length is how long a run is in virtual time; copies run to their end.
type Length struct {
	Total, Ramp time.Duration // nothing is counted in the ramp, which is part of the total
}

// run is one simulation; some serve two cells.
type run struct {
	load    load.RW
	config  string
	numJobs int
	copies  bool
	group   string
}

// runOf is the simulation that a cell is a figure of.
func runOf(c Cell) run {
	return run{load: loads[c.Table], config: c.Config, numJobs: c.NumJobs, copies: c.Table == "rfc-two-file-copy", group: groupOf(c)}
}

// options sets a run up on a machine.
func (r run) options(m *Machine, seed uint64, length Length) (virtual.Options, error) {
	c := configurations[r.config]
	data, err := backend.Open(fmt.Sprintf("null:size=%d", m.Drive.Capacity.Bytes()), backend.Options{})
	if err != nil {
		return virtual.Options{}, err
	}
	drive, err := m.Drive.New(m.Drive.Capacity, seed)
	if err != nil {
		return virtual.Options{}, err
	}
	p := backend.Physical{Rotational: true, Believed: true}
	return virtual.Options{
		Image: backend.NewSim(data, drive, p, backend.Options{}), Seed: seed,
		Scheduler: c.scheduler, Knobs: c.knobs, QueueDepth: tags,
		VMs:   []virtual.VM{{NumQueues: r.numJobs, QueueSize: 4, Jobs: []virtual.Job{r.job(length)}}},
		Costs: r.costs(&m.Host, c.scheduler),
	}, nil
}

// job is the load, as fio would be told.
func (r run) job(length Length) virtual.Job {
	o := load.Options{RW: r.load, MixRead: 50, BlockSize: 4096, Depth: 1, Jobs: r.numJobs, Size: fileSize, Increment: fileSize}
	switch {
	case r.copies:
		o.BlockSize, o.IOSize = copyBlock, copySize/copyBlock*copyBlock
		return virtual.Job{Options: o}
	case r.group == "random-access":
		o.Size, o.Increment = 0, 0
	}
	o.TimeBased, o.Runtime = true, length.Total-length.Ramp
	o.RampTime = length.Ramp
	return virtual.Job{Options: o}
}

// costs are what the host takes with a scheduler.
func (r run) costs(h *Host, scheduler string) virtual.Costs {
	extra := h.Scheduler[scheduler]
	c := virtual.Costs{
		PerRead: micro(h.Read + extra.Read), PerWrite: micro(h.Write + extra.Write), Jitter: h.Jitter,
		PerSwitch: micro(h.Switch), SwitchAfter: micro(h.SwitchAfter),
	}
	if r.copies {
		c.PerRead = micro(h.Copy)
	}
	return c
}

func micro(us float64) time.Duration { return time.Duration(us * 1000) }

// value is the figure of a cell in what came of its run. What is in the queue when time
// is up counts, as fio counts it, but not the time that it takes: schedulers that idle
// for jobs which have ended would be charged for the end of the run.
func value(c Cell, res *virtual.Result, length Length) float64 {
	if c.Table == "rfc-two-file-copy" {
		return res.Elapsed.Seconds()
	}
	total := res.Total()
	n := total.Stats[load.Reading].IOs
	if c.Table == "rfc-write" || c.Table == "rfc-rw-write" || c.Table == "bfq-vs-cfq-seqwrite" {
		n = total.Stats[load.Writing].IOs
	}
	return float64(n) / (length.Total - length.Ramp).Seconds()
}

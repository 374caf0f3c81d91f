package main

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/elevisor/elevisor/blk"
	"github.com/elevisor/elevisor/cmd/cli"
	"github.com/elevisor/elevisor/guest/fio"
	"github.com/elevisor/elevisor/lab/plan"
	"github.com/spf13/pflag"
)

// matrixFlags describe what is to be run.
type matrixFlags struct {
	world, disk    string
	guests, hosts  []string
	presets, only  []string
	jobFile        string
	baseline       string
	runtime, ramp  time.Duration
	iops           uint64
	seed           uint64
	repeats, trace int

	queues, sizes, depths, vms, noMerges []int
	set                                  *pflag.FlagSet

	notes []string // on options of the workload that have no effect
}

func (m *matrixFlags) flags(fl *pflag.FlagSet) {
	m.set = fl
	fl.StringVar(&m.world, "world", worldNames[0], "where the experiment runs: "+strings.Join(worldNames, ", "))
	fl.StringVar(&m.disk, "disk", "", "disk that the VMs share in equal parts, as in serve --disk path= (default: the preset's)")
	fl.Uint64Var(&m.iops, "iops", 0, "slow the disk down to this many requests per second (default: the preset's)")
	fl.StringSliceVar(&m.guests, "guest", []string{"none"}, "schedulers in the guest")
	fl.StringSliceVar(&m.hosts, "host", []string{"none", "deadline", "timeslice"}, "schedulers in the host; NAME:KNOB=VALUE+KNOB=VALUE")
	fl.StringSliceVar(&m.presets, "preset", nil, "built-in workloads: "+presetNames()+" (default linear4k)")
	fl.StringSliceVar(&m.only, "only", nil, "run only these of the presets' workloads")
	fl.StringVar(&m.jobFile, "jobfile", "", "fio job file with the workload")
	fl.StringVar(&m.baseline, "baseline", "", "GUEST/HOST pair that all others are compared with (default: none/none if it is run, else the first of each)")
	cli.TimeVar(fl, &m.runtime, time.Second, "runtime", "runtime of the presets' workloads (default: their own)")
	cli.TimeVar(fl, &m.ramp, time.Second, "ramp-time", "ramp time of the presets' workloads (default: their own)")
	fl.IntVar(&m.repeats, "repeats", 10, "runs of each combination; a verdict needs at least 3")
	fl.Uint64Var(&m.seed, "seed", 1, "seed of the order of runs, the jobs and the simulated drives")
	fl.IntVar(&m.trace, "trace", 2000, "requests of each combination's first run that are kept for the plot of positions")
	fl.IntSliceVar(&m.vms, "vms", nil, "list of numbers of VMs that share the disk (default 1 or the preset's)")
	fl.IntSliceVar(&m.queues, "queues", nil, "list of numbers of virtqueues per VM (default 1 or the preset's)")
	fl.IntSliceVar(&m.sizes, "queue-size", nil, "list of virtqueue sizes (default 128 or the preset's)")
	fl.IntSliceVar(&m.depths, "depth", nil, "list of queue depths: requests on the disk at a time (default 0: the scheduler's own)")
	fl.IntSliceVar(&m.noMerges, "nomerges", nil, "list of values of nomerges in the guest: 0 all merges, 1 only simple ones, 2 none (default 0)")
}

// plan makes the plan. words are job options; options are the world's.
func (m *matrixFlags) plan(words []string, options map[string]string) (*plan.Plan, error) {
	x := plan.Matrix{World: m.world, Repeats: m.repeats, Seed: m.seed, Trace: m.trace, Options: options}
	if err := cli.OneOf("world", m.world, worldNames...); err != nil {
		return nil, err
	}
	var err error
	if x.Guests, err = parseSchedulers("guest", m.guests); err != nil {
		return nil, err
	}
	if x.Hosts, err = parseSchedulers("host", m.hosts); err != nil {
		return nil, err
	}
	if m.baseline != "" {
		var two bool
		if x.BaseGuest, x.BaseHost, two = strings.Cut(m.baseline, "/"); !two {
			return nil, fmt.Errorf("--baseline=%s is not GUEST/HOST", m.baseline)
		}
	}
	disk, err := m.loads(&x, words)
	if err != nil {
		return nil, err
	}
	x.Disk, x.IOPS = disk.Path, disk.IOPS
	if m.disk != "" {
		x.Disk, x.IOPS = m.disk, 0
	}
	if m.set.Changed("iops") {
		x.IOPS = m.iops
	}
	return plan.NewPlan(x)
}

func parseSchedulers(flag string, texts []string) (all []plan.Scheduler, err error) {
	for _, t := range texts {
		s, err := plan.ParseScheduler(t)
		if err != nil {
			return nil, fmt.Errorf("--%s: %w", flag, err)
		}
		all = append(all, s)
	}
	return all, nil
}

// loads adds the workloads, and returns the disk that they are meant for.
func (m *matrixFlags) loads(x *plan.Matrix, words []string) (disk fio.Disk, err error) {
	kinds := 0
	for _, given := range []bool{len(words) > 0, m.jobFile != "", len(m.presets) > 0} {
		if given {
			kinds++
		}
	}
	if kinds > 1 {
		return disk, errors.New("job options, --jobfile and --preset exclude each other: want only one")
	}
	if len(words) > 0 || m.jobFile != "" {
		for _, f := range []string{"only", "runtime", "ramp-time"} {
			if m.set.Changed(f) {
				return disk, fmt.Errorf("--%s is for presets: set it in the workload's own options", f)
			}
		}
		w, err := m.workload(words)
		if err != nil {
			return disk, err
		}
		x.Loads = []plan.Load{m.around(fio.Load{Workload: w})}
		return defaultDisk(m.world)
	}
	if len(m.presets) == 0 {
		m.presets = []string{defaultPreset}
	}
	for i, name := range m.presets {
		p, err := fio.Find(name)
		if err != nil {
			return disk, fmt.Errorf("--%w", err)
		}
		if d := p.Disks[m.world]; i > 0 && d != disk && m.disk == "" {
			return disk, fmt.Errorf("the presets %s and %s are meant for different disks: want --disk, or only one of them", m.presets[0], name)
		} else if i == 0 {
			disk = d
		}
		for _, l := range p.Loads {
			if len(m.only) == 0 || slices.Contains(m.only, l.Name) {
				x.Loads = append(x.Loads, m.around(l))
			}
		}
	}
	return disk, m.knowOnly(x)
}

// knowOnly refuses names in --only that no preset has.
func (m *matrixFlags) knowOnly(x *plan.Matrix) error {
	for _, name := range m.only {
		if !slices.ContainsFunc(x.Loads, func(l plan.Load) bool { return l.Name == name }) {
			var all []string
			for _, p := range m.presets {
				found, _ := fio.Find(p) // it was found before
				for _, w := range found.Workloads() {
					all = append(all, w.Name)
				}
			}
			return fmt.Errorf("--only=%s is not a workload of %s; valid: %s", name, strings.Join(m.presets, ", "), strings.Join(all, ", "))
		}
	}
	return nil
}

// defaultPreset is the default workload, on its own disk.
const defaultPreset = "linear4k"

func defaultDisk(world string) (fio.Disk, error) {
	p, err := fio.Find(defaultPreset)
	return p.Disks[world], err
}

// workload makes a workload of job options or of a job file.
func (m *matrixFlags) workload(words []string) (fio.Workload, error) {
	if m.jobFile != "" {
		text, err := os.ReadFile(m.jobFile)
		if err != nil {
			return fio.Workload{}, fmt.Errorf("--jobfile: %w", err)
		}
		w, notes, err := fio.ParseFile(m.jobFile, text)
		m.notes = notes
		return w, err
	}
	j, notes, err := fio.ParseWords(words)
	m.notes = notes
	return fio.Workload{Name: strings.Join(words, " "), Jobs: []fio.Job{j}}, err
}

// around is a preset's load, with the flags in place of its own configuration.
func (m *matrixFlags) around(l fio.Load) plan.Load {
	e := plan.Load{
		Workload: l.Workload, Queues: l.Queues, QSizes: l.QueueSizes, Depths: l.Depths, NoMerges: m.noMerges, MaxSectorsKB: l.MaxSectorsKB,
	}
	if l.VMs > 0 {
		e.VMs = []int{l.VMs}
	}
	for _, given := range []struct{ to, flag *[]int }{{&e.VMs, &m.vms}, {&e.Queues, &m.queues}, {&e.QSizes, &m.sizes}, {&e.Depths, &m.depths}} {
		if len(*given.flag) > 0 {
			*given.to = *given.flag
		}
	}
	e.Jobs = slices.Clone(e.Jobs)
	for i := range e.Jobs {
		if m.set.Changed("runtime") {
			e.Jobs[i].Runtime = m.runtime
		}
		if m.set.Changed("ramp-time") {
			e.Jobs[i].Ramp = m.ramp
		}
	}
	return e
}

func presetNames() string {
	var all []string
	for _, p := range fio.Presets() {
		all = append(all, p.Name)
	}
	return strings.Join(all, ", ")
}

// presetDocs describes the presets, in lines for a terminal.
func presetDocs() string {
	var b strings.Builder
	for _, p := range fio.Presets() {
		fmt.Fprintf(&b, "\n  %s", p.Name)
		column := 80 // the text starts on a new line
		for _, word := range strings.Fields(p.Doc) {
			if column+1+len(word) > 80 {
				b.WriteString("\n     ")
				column = 5
			}
			b.WriteString(" " + word)
			column += 1 + len(word)
		}
	}
	return b.String()
}

// progressLine describes progress, given the time since the start.
func progressLine(p plan.Progress, since blk.Instant) string {
	text := fmt.Sprintf("%d of %d runs", p.Done, p.Total)
	if mine := p.Done - p.Before; mine > 0 {
		left := time.Duration(float64(since) / float64(mine) * float64(p.Total-p.Done))
		text += fmt.Sprintf(", about %v left", max(left.Round(time.Second), time.Second))
	}
	return text
}

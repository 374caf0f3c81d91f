// Package loopback is the world of the built-in guest in real time: the disk is served in
// this process over a real vhost-user socket, and guests in this process drive its queues
// as a driver does, each with a block layer and a scheduler of its own in front.
//
// There is no kernel's overhead in it and no virtual machine's: what it measures is our
// device, our schedulers and the disk, with processors that all of them share.
package loopback

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/elevisor/elevisor/backend"
	"github.com/elevisor/elevisor/blk"
	"github.com/elevisor/elevisor/guest/load"
	"github.com/elevisor/elevisor/lab/plan"
	"github.com/elevisor/elevisor/lab/worlds/measure"
)

const (
	// windowAlign is what the VMs' parts of a disk begin at multiples of, in bytes.
	windowAlign = 4096
	// everything is where a simulated drive has its data if its words do not say: nowhere.
	everything = "null:size=64t"
	// bufferMax is how much memory a VM may have for its requests' data, in bytes.
	bufferMax = 1 << 30
	// defaultQueueSize is what a cell has that says nothing, in entries.
	defaultQueueSize = 128
)

// world is the [expt.World]. The socket directory is made with the first run.
type world struct {
	version string
	dir     string
	runs    int
	disks   map[string]disk // by its words
}

// disk is what is known of one before it is served.
type disk struct {
	bytes int64
	cache backend.Cache
	note  string // why not the cache that is best for measuring
}

// New is the world; version is the program's.
func New(version string) plan.World { return &world{version: version, disks: map[string]disk{}} }

// Check implements expt.World.
func (w *world) Check(p *plan.Plan) error {
	for i := range p.Cells {
		c := &p.Cells[i]
		err := plan.CheckGuest(c.Guest)
		if err == nil {
			err = w.checkCell(&plan.Spec{Cell: *c, Disk: p.Disk, IOPS: p.IOPS, Seed: 1})
		}
		if err != nil {
			return fmt.Errorf("%s: %w", c, err)
		}
	}
	return nil
}

func (w *world) checkCell(s *plan.Spec) error {
	d, err := w.look(s)
	if err != nil {
		return err
	}
	part := window(d.bytes, s.VMs)
	if part == 0 {
		return fmt.Errorf("disk %s of %d bytes is too small for %d VMs: want %d for each", s.Disk, d.bytes, s.VMs, windowAlign)
	}
	if s.VMs < 1 || len(s.Workload.Jobs) == 0 {
		return fmt.Errorf("%d VMs, %d jobs: want at least 1 of each", s.VMs, len(s.Workload.Jobs))
	}
	for vm := range s.VMs {
		loads, err := jobsOf(s, vm)
		if err != nil {
			return err
		}
		for i := range loads {
			if err := loads[i].Check(blk.Sector(part / blk.SectorSize)); err != nil {
				return fmt.Errorf("job %s: %w", loads[i].Name, err)
			}
			if loads[i].Verify && forgets(s) {
				return fmt.Errorf("job %s: verify on disk %s, which keeps nothing; want mem:, a file, or a simulated drive with file=", loads[i].Name, s.Disk)
			}
		}
		if slots, buffer := load.Room(queues(s), loads); slots*buffer*queues(s) > bufferMax {
			return fmt.Errorf("%d requests of up to %d bytes in each of %d queues: want at most %d bytes in all, by a lower iodepth, bs or numjobs",
				slots, buffer, queues(s), bufferMax)
		}
	}
	if _, _, err = measure.Block(&s.Cell); err != nil {
		return err
	}
	return nil
}

// jobsOf is what one VM's jobs do.
func jobsOf(s *plan.Spec, vm int) ([]load.Options, error) {
	var loads []load.Options
	for _, j := range s.Workload.Of(vm) {
		o, err := j.Bench()
		if err != nil {
			return nil, err
		}
		if o.Seed == 0 {
			o.Seed = s.Seed
		}
		loads = append(loads, o)
	}
	return loads, nil
}

func queues(s *plan.Spec) int { return max(s.Queues, 1) }

// window is the size of each VM's part of a disk.
func window(bytes int64, vms int) int64 {
	return bytes / int64(max(vms, 1)) / windowAlign * windowAlign
}

// words are the disk's for a run: a simulated drive draws from the run's seed.
func words(s *plan.Spec) string {
	is, _ := backend.IsSim(s.Disk)
	if !is {
		return s.Disk
	}
	spec := s.Disk
	if !backend.HasSimKey(spec, "seed") {
		spec = backend.AddSimKey(spec, "seed", strconv.FormatUint(s.Seed, 10))
	}
	if !backend.HasSimKey(spec, "file") {
		spec = backend.AddSimKey(spec, "file", everything)
	}
	return spec
}

// forgets says whether a disk keeps nothing of what is written.
func forgets(s *plan.Spec) bool {
	text := words(s)
	return strings.HasPrefix(text, "null:") || strings.HasPrefix(text, "sim:") && strings.Contains(text, "file=null:")
}

// look opens a disk for a moment.
func (w *world) look(s *plan.Spec) (d disk, err error) {
	if known, ok := w.disks[s.Disk]; ok {
		return known, nil
	}
	text, o := words(s), backend.Options{Discard: true}
	file := !slices.ContainsFunc([]string{"sim:", "mem:", "null:"}, func(k string) bool { return strings.HasPrefix(text, k) })
	if file {
		o.Cache = backend.CacheNone
	}
	img, err := backend.Open(text, o)
	if err != nil && file { // an old tmpfs, say, knows no O_DIRECT
		first := err
		o.Cache = backend.Options{}.Cache
		if img, err = backend.Open(text, o); err == nil {
			d.note = fmt.Sprintf("The image is in the host's page cache, because it cannot be opened with O_DIRECT (%v).", first)
		}
	}
	if err != nil {
		return d, err
	}
	d.bytes, d.cache = img.Info().Sectors.Bytes(), o.Cache
	if err := img.Close(); err != nil {
		return d, err
	}
	w.disks[s.Disk] = d
	return d, nil
}

// scratch is the directory of sockets.
func (w *world) scratch() (string, error) {
	if w.dir == "" {
		dir, err := os.MkdirTemp("", "elevisor-loopback-")
		if err != nil {
			return "", fmt.Errorf("directory of sockets: %w", err)
		}
		w.dir = dir
	}
	return w.dir, nil
}

// Run implements expt.World.
func (w *world) Run(ctx context.Context, s plan.Spec) (*plan.Outcome, error) {
	if err := w.checkCell(&s); err != nil {
		return nil, err
	}
	r := &run{world: w, spec: &s}
	o, err := r.do(ctx)
	if err == nil {
		err = ctx.Err() // jobs end early then, without an error
	}
	if err != nil {
		return nil, err
	}
	if note := w.disks[s.Disk].note; note != "" {
		o.Warnings = append(o.Warnings, note)
	}
	return o, nil
}

// Environment implements expt.World.
func (w *world) Environment() map[string]string {
	env := map[string]string{"version": w.version}
	maps.Copy(env, plan.Environment())
	return env
}

// Notes implements expt.World.
func (w *world) Notes(p *plan.Plan) []string {
	notes := []string{
		"Time is real; guests, device and disk are threads of one process, on the same processors.",
		"The guest is built in: its block layer merges and schedules by the code of the host's schedulers, and neither a kernel nor a virtual machine takes time.",
		"Each request of a job is submitted by itself, unless the job has an iodepth_batch.",
		"Seeks and lost merges are counted in the order in which requests are issued to the disk; head moves are a simulated drive's own.",
	}
	if p.IOPS > 0 {
		notes = append(notes, fmt.Sprintf("The disk is slowed down to %d requests a second.", p.IOPS))
	}
	return notes
}

// Close implements expt.World.
func (w *world) Close() error {
	if w.dir == "" {
		return nil
	}
	dir := w.dir
	w.dir = ""
	return os.RemoveAll(dir)
}

// failures are what went wrong in a run's jobs.
func failures(results [][]load.JobResult) error {
	for vm := range results {
		if total := load.Total(results[vm]); total.Errno != 0 {
			return fmt.Errorf("requests of VM %d failed (%w): %w", vm, total.Errno, errors.Join(total.Failures...))
		}
	}
	return nil
}

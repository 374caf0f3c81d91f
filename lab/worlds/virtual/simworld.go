// Package simworld is the world of virtual time: VMs, schedulers and disk are those of
// package sim. A run depends on its cell, its disk and its seed alone, so that runs do not
// disturb each other, and the same plan gives the same outcomes on every machine of one
// architecture.
package virtual

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/elevisor/elevisor/backend"
	"github.com/elevisor/elevisor/lab/plan"
	"github.com/elevisor/elevisor/lab/virtual"
	"github.com/elevisor/elevisor/lab/worlds/measure"
)

// DefaultCosts are what a request takes of processor time where nobody says: 20 µs, guest
// and host together, within ±10 %. That is the order of what a virtio-blk request takes
// through both systems of a VM; it is the same for all schedulers, so that what is compared
// is the order of requests and nothing else.
func DefaultCosts() virtual.Costs {
	return virtual.Costs{PerRead: 20 * time.Microsecond, PerWrite: 20 * time.Microsecond, Jitter: virtual.DefaultJitter}
}

// Options are of all runs of a world.
type Options struct {
	Costs   virtual.Costs
	Version string // the program's, for fio's output
	Workers int    // runs at a time; 0: GOMAXPROCS
	Fio     bool   // keep each run's output in fio's form
}

// CostNames are the costs by their flags, for Plan.Options.
func CostNames(c *virtual.Costs) map[string]string {
	return map[string]string{
		"cost-read": c.PerRead.String(), "cost-write": c.PerWrite.String(), "cost-request": c.PerRequest.String(),
		"cost-jitter": strconv.FormatFloat(c.Jitter, 'g', -1, 64),
		"cost-switch": c.PerSwitch.String(), "cost-switch-after": c.SwitchAfter.String(),
	}
}

// world is the expt.World, and expt.Concurrent.
type world struct{ o Options }

// New is the world.
func New(o Options) plan.World { return &world{o} }

// Concurrent implements expt.Concurrent.
func (w *world) Concurrent() int {
	if w.o.Workers > 0 {
		return w.o.Workers
	}
	return runtime.GOMAXPROCS(0)
}

// kinds of disks that take no real time.
var kinds = []string{"sim:", "null:", "mem:"}

// Check implements expt.World.
func (w *world) Check(p *plan.Plan) error {
	if !slices.ContainsFunc(kinds, func(k string) bool { return strings.HasPrefix(p.Disk, k) }) {
		return fmt.Errorf("disk %s: in virtual time there are %s only", p.Disk, strings.Join(kinds, ", "))
	}
	if backend.HasSimKey(p.Disk, "seed") && strings.HasPrefix(p.Disk, "sim:") {
		return fmt.Errorf("disk %s: seed= would make the drive the same in all runs; each run has a seed of its own", p.Disk)
	}
	for i := range p.Cells {
		c := &p.Cells[i]
		err := plan.CheckGuest(c.Guest)
		if err == nil {
			err = w.checkRun(plan.Spec{Cell: *c, Disk: p.Disk, IOPS: p.IOPS, Seed: 1})
		}
		if err != nil {
			return fmt.Errorf("%s: %w", c, err)
		}
	}
	return nil
}

// checkRun has a run end before it begins: sim says what does not fit.
func (w *world) checkRun(s plan.Spec) error {
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := w.simulate(ended, &s); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// Run implements expt.World.
func (w *world) Run(ctx context.Context, s plan.Spec) (*plan.Outcome, error) {
	res, err := w.simulate(ctx, &s)
	if err != nil {
		return nil, err
	}
	if total := res.Total(); total.Errno != 0 {
		return nil, fmt.Errorf("requests failed (%w): %w", total.Errno, errors.Join(total.Failures...))
	}
	return w.outcome(res)
}

// simulate sets a run up and runs it.
func (w *world) simulate(ctx context.Context, s *plan.Spec) (*virtual.Result, error) {
	img, err := open(s)
	if err != nil {
		return nil, err
	}
	defer img.Close()
	o := virtual.Options{
		Image: img, Scheduler: s.Host.Name, QueueDepth: s.Depth, Seed: s.Seed, Costs: w.o.Costs, Record: true, Keep: s.Trace,
	}
	o.Knobs = append(o.Knobs, s.Host.Knobs...)
	size := img.Info().Sectors.Bytes() / int64(s.VMs) / windowAlign * windowAlign
	for i := range s.VMs {
		vm, err := machine(s, i)
		if err != nil {
			return nil, err
		}
		vm.Offset, vm.Size = int64(i)*size, size
		o.VMs = append(o.VMs, vm)
	}
	return virtual.RunContext(ctx, o)
}

// windowAlign is what the VMs' parts of the disk are whole multiples of.
const windowAlign = 4096

// everything is more than any simulated drive has.
const everything = "null:size=64t"

// open makes the run's disk: a drive that turns to a place of its own, and keeps no data
// unless somebody asked for that.
func open(s *plan.Spec) (backend.Image, error) {
	spec := s.Disk
	if is, _ := backend.IsSim(spec); is {
		spec = backend.AddSimKey(spec, "seed", strconv.FormatUint(s.Seed, 10))
		if !backend.HasSimKey(spec, "file") {
			spec = backend.AddSimKey(spec, "file", everything)
		}
	}
	img, err := backend.Open(spec, backend.Options{Discard: true})
	if err != nil {
		return nil, err
	}
	return backend.NewRate(img, backend.RateOptions{IOPS: s.IOPS}), nil
}

// machine is one VM without its window.
func machine(s *plan.Spec, i int) (virtual.VM, error) {
	block, own, err := measure.Block(&s.Cell)
	if err != nil {
		return virtual.VM{}, err
	}
	vm := virtual.VM{NumQueues: s.Queues, QueueSize: s.QSize, SegMax: plan.Segments, Guest: block}
	vm.GuestKnobs = append(vm.GuestKnobs, own...)
	for _, j := range s.Workload.Of(i) {
		o, err := j.Bench()
		if err != nil {
			return vm, err
		}
		vm.Jobs = append(vm.Jobs, virtual.Job{Options: o})
	}
	return vm, nil
}

// Environment implements expt.World. The machine is not part of the figures; how its
// processor rounds is.
func (w *world) Environment() map[string]string {
	return map[string]string{"time": "virtual", "go": runtime.Version(), "arch": runtime.GOARCH}
}

// Notes implements expt.World.
func (w *world) Notes(p *plan.Plan) []string {
	c := &w.o.Costs
	notes := []string{
		"Time is virtual: disk and processors take the time that models say, and a plan gives the same figures again.",
		fmt.Sprintf("A request costs its job %v of processor time to read and %v to write, within %.3g %%, for both systems together; schedulers cost nothing more, so that only the order of requests is compared.",
			c.PerRead+c.PerRequest, c.PerWrite+c.PerRequest, 100*c.Jitter),
		"Seeks and lost merges are counted in the order in which requests are issued to the disk; its head moves are its model's own.",
	}
	if p.IOPS > 0 {
		notes = append(notes, fmt.Sprintf("The disk is slowed down to %d requests a second.", p.IOPS))
	}
	return notes
}

// Close implements expt.World.
func (w *world) Close() error { return nil }

package loopback

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"

	"go.uber.org/zap"

	"github.com/elevisor/elevisor/backend"
	"github.com/elevisor/elevisor/backend/drive"
	"github.com/elevisor/elevisor/daemon"
	"github.com/elevisor/elevisor/daemon/ctl"
	"github.com/elevisor/elevisor/guest"
	"github.com/elevisor/elevisor/guest/fio"
	"github.com/elevisor/elevisor/guest/load"
	"github.com/elevisor/elevisor/lab/plan"
	"github.com/elevisor/elevisor/lab/worlds/measure"
	"github.com/elevisor/elevisor/sched"
	"github.com/elevisor/elevisor/sys/clock"
)

// domainID is the scheduling domain in which all VMs' requests meet.
const domainID = "compare"

// run is one run under way.
type run struct {
	world  *world
	spec   *plan.Spec
	daemon *daemon.Daemon
	vms    []*machine
	before reading // when the ramp ended
}

// machine is one VM.
type machine struct {
	guest  *guest.Guest
	block  *guest.Block
	loads  []load.Options
	first  int // number of its first job
	before guest.BlockStats

	results []load.JobResult
	options []load.Options // of each result
}

// do serves the disk, starts the guests and runs the load.
func (r *run) do(ctx context.Context) (o *plan.Outcome, err error) {
	disks, domain, err := r.plan()
	if err != nil {
		return nil, err
	}
	if r.daemon, err = daemon.Open(disks, []daemon.Domain{domain}, zap.NewNop()); err != nil {
		return nil, err
	}
	serving, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- r.daemon.Run(serving) }()
	defer func() {
		for _, m := range r.vms {
			m.guest.Close()
		}
		stop()
		if e := <-ended; err == nil && e != nil {
			o, err = nil, e
		}
	}()
	for vm := range disks {
		if err := r.start(vm, disks[vm].Socket); err != nil {
			return nil, fmt.Errorf("VM %d: %w", vm, err)
		}
	}
	return r.measure(ctx)
}

// plan says what to serve.
func (r *run) plan() (disks []daemon.Disk, d daemon.Domain, err error) {
	w, s := r.world, r.spec
	dir, err := w.scratch()
	if err != nil {
		return nil, d, err
	}
	known := w.disks[s.Disk]
	part := window(known.bytes, s.VMs)
	w.runs++
	for vm := range s.VMs {
		size := s.QSize
		if size == 0 {
			size = defaultQueueSize
		}
		disks = append(disks, daemon.Disk{
			ID: diskID(vm), Path: words(s), Socket: filepath.Join(dir, fmt.Sprintf("%d-%d.sock", w.runs, vm)),
			NumQueues: queues(s), QueueSize: size, SegMax: plan.Segments, Offset: int64(vm) * part, Size: part,
			Cache: known.cache, Domain: domainID, Slow: backend.RateOptions{IOPS: s.IOPS}, Shared: true, Record: true,
		})
	}
	d = daemon.Domain{ID: domainID, Scheduler: s.Host.Name, QueueDepth: s.Depth}
	d.Knobs = append(d.Knobs, s.Host.Knobs...)
	return disks, d, nil
}

func diskID(vm int) string { return fmt.Sprintf("vm%d", vm) }

// start connects one VM and gives it its block layer.
func (r *run) start(vm int, socket string) error {
	s, m := r.spec, &machine{}
	for _, other := range r.vms {
		for i := range other.loads {
			m.first += other.loads[i].Jobs
		}
	}
	var err error
	if m.loads, err = jobsOf(s, vm); err != nil {
		return err
	}
	slots, buffer := load.Room(queues(s), m.loads)
	size := s.QSize
	if size == 0 {
		size = defaultQueueSize
	}
	m.guest, err = guest.Start(socket, guest.Options{Queues: queues(s), QueueSize: size, Depth: slots, MaxIO: buffer, Segments: plan.Segments})
	if err != nil {
		return err
	}
	r.vms = append(r.vms, m) // whoever is here is closed
	o, own, err := measure.Block(&s.Cell)
	if err != nil {
		return err
	}
	if m.block, err = guest.NewBlock(m.guest.Queues(), *o); err != nil {
		return err
	}
	for _, k := range own {
		if err := sched.Set(m.block.Scheduler(), k.Key, k.Value); err != nil {
			return err
		}
	}
	return nil
}

// reading is what the host has counted at one moment.
type reading struct {
	host   ctl.DiskStat
	record backend.RecorderStats
}

func (r *run) read() (x reading) {
	x.host = r.daemon.Stat()[0] // a domain's figures are those of all its disks
	x.record = *x.host.Recorded
	return x
}

// drive is what the simulated drive has counted; nil: it is none.
func (x *reading) drive() *drive.Stats {
	if x.host.Simulated == nil {
		return nil
	}
	return &x.host.Simulated.Model
}

// measure runs the load on all VMs at once. What was counted before the last VM's ramp
// was over is dropped.
func (r *run) measure(ctx context.Context) (*plan.Outcome, error) {
	r.say("%d VMs begin, guest %s, host %s", len(r.vms), r.spec.Guest, r.spec.Host)
	if err := r.begin(); err != nil {
		return nil, err
	}
	ramps := slices.ContainsFunc(r.spec.Workload.Jobs, func(j fio.Job) bool { return j.Ramp > 0 })
	var ramping atomic.Int64
	ramping.Store(int64(len(r.vms)))
	var again error
	var wg sync.WaitGroup
	errs := make([]error, len(r.vms))
	for vm, m := range r.vms {
		wg.Go(func() {
			errs[vm] = m.run(ctx, func() {
				// Here, and not by somebody who is told: on a busy machine that may be late.
				if ramping.Add(-1) == 0 && ramps {
					again = r.begin()
				}
			})
		})
	}
	wg.Wait()
	if err := errors.Join(append(errs, again)...); err != nil {
		return nil, err
	}
	after := r.read()
	if ramps && ramping.Load() > 0 { // all has ended in the ramp
		r.before = after
	}
	return r.outcome(&after)
}

// begin has everything count from now.
func (r *run) begin() error {
	r.before = r.read()
	return r.daemon.Trace(diskID(0), r.spec.Trace)
}

// run runs m's load; ramped is called when its ramp is over.
func (m *machine) run(ctx context.Context, ramped func()) (err error) {
	m.results, m.options, err = load.RunShared(ctx, m.guest.Config().Capacity, load.Shared{
		Queue: m.block, Rings: len(m.guest.Queues()), First: m.first,
		Ramped: func() {
			m.before = m.block.Stats()
			ramped()
		},
	}, m.loads)
	return err
}

func (r *run) say(format string, args ...any) {
	if r.spec.Stream != nil {
		r.spec.Stream(fmt.Sprintf(format, args...))
	}
}

// outcome puts together what was measured between r.before and after.
func (r *run) outcome(after *reading) (*plan.Outcome, error) {
	before, o := &r.before, &plan.Outcome{}
	var results [][]load.JobResult
	var options [][]load.Options
	for _, m := range r.vms {
		results, options = append(results, m.results), append(options, m.options)
		now := m.block.Stats()
		measure.Guest(&o.Guest, &m.before, &now)
	}
	if err := failures(results); err != nil {
		return nil, err
	}
	measure.Jobs(o, results, options)
	o.Host = measure.Host(&before.host.DomainStats, &after.host.DomainStats)
	record := after.record.Since(before.record)
	o.Disk = measure.Disk(&record, before.drive(), after.drive())
	kept, err := r.daemon.Traced(diskID(0))
	if err != nil {
		return nil, err
	}
	if len(kept) > 0 { // its clock is the loop's, and the first one came as the ramp ended
		o.Trace = measure.Trace(kept, kept[0].At)
	}
	o.Fio, err = r.fio(results, options)
	return o, err
}

// fio is the output in fio's form, all VMs' jobs in one list.
func (r *run) fio(results [][]load.JobResult, options [][]load.Options) (json.RawMessage, error) {
	var all []load.JobResult
	var each []load.Options
	for vm := range results {
		all, each = append(all, results[vm]...), append(each, options[vm]...)
	}
	var text, compact bytes.Buffer
	if err := load.WriteReports(&text, load.Origin{Version: "elevisor-" + r.world.version, Time: clock.Wall()}, all, each); err != nil {
		return nil, err
	}
	if err := json.Compact(&compact, text.Bytes()); err != nil {
		return nil, fmt.Errorf("fio's form: %w", err)
	}
	return compact.Bytes(), nil
}

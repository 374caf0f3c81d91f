package virtual

import (
	"reflect"
	"time"

	"github.com/elevisor/elevisor/backend"
	drives "github.com/elevisor/elevisor/backend/drive"
	"github.com/elevisor/elevisor/blk"
	"github.com/elevisor/elevisor/device"
	"github.com/elevisor/elevisor/guest"
	"github.com/elevisor/elevisor/guest/load"
	"github.com/elevisor/elevisor/sched"
)

// Result is what came of a run. All but the latencies by stage (device.Stats.Latency)
// is without the ramp: the jobs' own each, the longest of all for the rest.
type Result struct {
	Options Options // with the defaults filled in
	Jobs    []Job   // by number; each clone's
	Results []load.JobResult
	VMs     []VMResult
	Host    device.DomainStats     // without latencies
	Drive   *backend.SimStats      // of a simulated drive; nil: it is none
	Record  *backend.RecorderStats // with Options.Record
	Kept    []backend.Access       // the first Options.Keep after the ramp, in the world's time

	Elapsed time.Duration // virtual time, from the end of the ramp to the last job's end
}

// VMResult is one VM's part of it.
type VMResult struct {
	Jobs   []int            // numbers of its jobs
	Guest  guest.BlockStats // zero without a block layer in the guest
	Device device.Stats
	Queues []device.Stats
}

// Total is all jobs together.
func (r *Result) Total() load.JobResult { return load.Total(r.Results) }

// counts are what is counted besides the jobs' own.
type counts struct {
	host   device.DomainStats
	guests []guest.BlockStats
	disks  []device.Stats
	queues [][]device.Stats
	drive  drives.Stats
	record backend.RecorderStats
}

// count copies all counts.
func (w *world) count() counts {
	c := counts{host: w.loop.Stats()}
	if d, ok := backend.As[backend.Simulated](w.disk); ok {
		c.drive = d.Simulated().Model
	}
	if r, ok := backend.As[backend.Recorder](w.disk); ok {
		c.record = r.Recorded()
	}
	for _, v := range w.vms {
		var g guest.BlockStats
		if v.block != nil {
			g = v.block.Stats()
		}
		sum, queues := v.dev.Stats()
		c.guests, c.disks, c.queues = append(c.guests, g), append(c.disks, sum), append(c.queues, queues)
	}
	return c
}

func (w *world) result() *Result {
	r := &Result{Options: *w.o, Elapsed: time.Duration(max(0, w.ended-w.ramp))} // 0: all failed before that
	now, was := w.count(), &w.before
	if !w.ramped { // all ended before that
		*was = w.count()
	}
	r.Host = now.host
	r.Host.Scheduler = w.o.Scheduler
	subtractStats(&r.Host.Stats, &was.host.Stats)
	subtractMerges(&r.Host.Merges, &was.host.Merges)
	subtractCounters(&r.Host.Counters, &was.host.Counters)
	if d, ok := backend.As[backend.Simulated](w.disk); ok {
		s := d.Simulated()
		subtractDrive(&s.Model, &was.drive)
		r.Drive = &s
	}
	if d, ok := backend.As[backend.Recorder](w.disk); ok {
		s := now.record.Since(was.record)
		r.Record, r.Kept = &s, d.Traced()
	}
	for i := range w.vms {
		v := VMResult{Guest: now.guests[i], Device: now.disks[i], Queues: now.queues[i]}
		subtractStats(&v.Device, &was.disks[i])
		for q := range v.Queues {
			subtractStats(&v.Queues[q], &was.queues[i][q])
		}
		g := &was.guests[i]
		v.Guest.Submitted -= g.Submitted
		v.Guest.Issued -= g.Issued
		v.Guest.Sectors -= g.Sectors
		v.Guest.Retried -= g.Retried
		subtractMerges(&v.Guest.Merges, &g.Merges)
		r.VMs = append(r.VMs, v)
	}
	for n, j := range w.jobs {
		r.Jobs, r.Results = append(r.Jobs, *j.o), append(r.Results, j.res)
		for i, v := range w.vms {
			if v == j.vm {
				r.VMs[i].Jobs = append(r.VMs[i].Jobs, n)
			}
		}
	}
	return r
}

func subtractStats(s, was *device.Stats) {
	for op := range blk.OpCount {
		a, b := &s.Op[op], &was.Op[op]
		a.IOs -= b.IOs
		a.Merges -= b.Merges
		a.Sectors -= b.Sectors
		a.Time -= b.Time
		a.Errors -= b.Errors
	}
	s.IOTime -= was.IOTime
	s.Calls -= was.Calls
	s.Broken -= was.Broken
	for i := range s.Faults {
		s.Faults[i] -= was.Faults[i]
	}
}

func subtractMerges(s, was *sched.MergeStats) {
	for p := range s.Merged {
		for who := range s.Merged[p] {
			s.Merged[p][who] -= was.Merged[p][who]
		}
	}
	for why := range s.Refused {
		s.Refused[why] -= was.Refused[why]
	}
	s.Sectors -= was.Sectors
}

func subtractDrive(s, was *drives.Stats) {
	for op := range blk.OpCount {
		s.Commands[op] -= was.Commands[op]
		s.Sectors[op] -= was.Sectors[op]
	}
	s.Hits -= was.Hits
	s.Streamed -= was.Streamed
	s.Seeks -= was.Seeks
	s.SeekSum -= was.SeekSum
	s.HeadTime -= was.HeadTime
	s.Switches -= was.Switches
	s.Destaged -= was.Destaged
	s.Stalls -= was.Stalls
}

// subtractCounters leaves what is no count, but a longest time.
func subtractCounters(s, was *sched.Counters) {
	to, from := reflect.ValueOf(s).Elem(), reflect.ValueOf(was).Elem()
	for i := range to.NumField() {
		if f := to.Field(i); f.Kind() == reflect.Uint64 {
			f.SetUint(f.Uint() - from.Field(i).Uint())
		}
	}
}

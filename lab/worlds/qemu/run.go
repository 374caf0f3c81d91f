package qemu

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/elevisor/elevisor/daemon/ctl"
	"github.com/elevisor/elevisor/guest/fio"
	"github.com/elevisor/elevisor/lab/plan"
	"github.com/elevisor/elevisor/lab/worlds/measure"
)

// Run implements plan.World.
func (w *world) Run(ctx context.Context, s plan.Spec) (o *plan.Outcome, err error) {
	if err := w.checkCell(&s.Cell); err != nil {
		return nil, err
	}
	srv, err := w.serve(&s)
	if err != nil {
		return nil, err
	}
	defer func() {
		if closed := srv.close(); err == nil && closed != nil {
			o, err = nil, closed
		}
	}()
	if err := w.machines(ctx, s.VMs, s.Queues); err != nil {
		w.discard()
		return nil, err
	}
	r := &run{spec: &s, server: srv, loads: make([]*load, s.VMs)}
	if o, err = r.do(ctx, w.vms); err != nil {
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		err = errors.Join(err, r.abandon())
		w.discard()
		return nil, err
	}
	if i := w.sizes[s.Disk]; i.note != "" {
		o.Warnings = append(o.Warnings, i.note)
	}
	maps.Copy(w.env, r.loads[0].env)
	return o, nil
}

// discard throws machines of ours away, whose state is not known after an error.
func (w *world) discard() {
	ctx, stop := context.WithTimeout(context.Background(), quitTime)
	defer stop()
	_ = w.release(ctx, 0) // the error that led here counts
}

// run is one run under way.
type run struct {
	spec   *plan.Spec
	server *server
	loads  []*load // by VM; nil where no disk was plugged
}

func (r *run) do(ctx context.Context, vms []machine) (*plan.Outcome, error) {
	if err := r.prepare(ctx, vms); err != nil {
		return nil, err
	}
	r.say("fio begins in %d VMs, guest %s, host %s", len(vms), r.spec.Guest.Name, r.spec.Host.Name)
	o, err := r.measure(ctx)
	if err != nil {
		return nil, err
	}
	step, stop := context.WithTimeout(ctx, stepTime)
	defer stop()
	err = each(step, len(vms), func(ctx context.Context, i int) error {
		l := r.loads[i]
		if err := l.tidy(ctx); err != nil {
			return err
		}
		return l.Unplug(ctx)
	})
	if err != nil {
		return nil, err
	}
	for _, l := range r.loads {
		o.Warnings = append(o.Warnings, l.warnings...)
	}
	return o, nil
}

// say tells what goes on.
func (r *run) say(format string, args ...any) {
	if r.spec.Stream != nil {
		r.spec.Stream(fmt.Sprintf(format, args...))
	}
}

// prepare plugs the disks and sets the guests up.
func (r *run) prepare(ctx context.Context, vms []machine) error {
	ctx, stop := context.WithTimeout(ctx, stepTime)
	defer stop()
	return each(ctx, len(vms), func(ctx context.Context, i int) error {
		l := &load{machine: vms[i]}
		r.loads[i] = l
		var err error
		if l.disk, err = l.Plug(ctx, r.server.sockets[i], max(r.spec.Queues, 1), queueSize(&r.spec.Cell)); err != nil {
			return err
		}
		return l.prepare(ctx, r.spec, r.spec.Seed+uint64(i))
	})
}

// measured is what came from one guest.
type measured struct {
	before, after sysStat
	out           []byte
	fio           *fioOutput
}

// measure runs the load.
func (r *run) measure(ctx context.Context) (*plan.Outcome, error) {
	ramp, length := times(&r.spec.Workload)
	ctx, stop := context.WithTimeout(ctx, length)
	defer stop()
	before := r.server.counts() // with a ramp, this is not the one that counts
	if err := r.trace(); err != nil {
		return nil, err
	}
	err := each(ctx, len(r.loads), func(ctx context.Context, i int) error { return r.loads[i].begin(ctx, ramp) })
	if err != nil {
		return nil, err
	}
	if ramp > 0 {
		before = r.server.counts()
		if err := r.trace(); err != nil {
			return nil, err
		}
	}
	got := make([]measured, len(r.loads))
	err = each(ctx, len(got), func(ctx context.Context, i int) (err error) {
		m := &got[i]
		m.before, m.after, m.out, err = r.loads[i].end(ctx)
		if err == nil {
			m.fio, err = parseFio(m.out)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	after := r.server.counts()
	return r.outcome(got, &before, &after, ramp)
}

// trace has the first requests from now on kept.
func (r *run) trace() error { return r.server.Trace(serverDisk(0), r.spec.Trace) }

// traced are the requests that were kept; their time begins with the first.
func (r *run) traced() ([]plan.Access, error) {
	kept, err := r.server.Traced(serverDisk(0))
	if err != nil || len(kept) == 0 {
		return nil, err
	}
	return measure.Trace(kept, kept[0].At), nil
}

// times are a load's ramp and the longest that it may take.
func times(w *fio.Workload) (ramp, limit time.Duration) {
	var length time.Duration
	bounded := true
	for _, j := range w.Jobs {
		ramp = max(ramp, j.Ramp)
		length = max(length, j.Ramp+j.Runtime)
		bounded = bounded && j.Runtime > 0 && !j.Verify
	}
	if !bounded {
		return ramp, unboundedTime
	}
	return ramp, 2*length + stepTime
}

// outcome puts together what was measured.
func (r *run) outcome(got []measured, before, after *ctl.DiskStat, ramp time.Duration) (o *plan.Outcome, err error) {
	o = &plan.Outcome{Disk: diskCounts(before, after)}
	if o.Trace, err = r.traced(); err != nil {
		return nil, err
	}
	var disk plan.Disk
	o.Host, disk = hostCounts(&before.DomainStats, &after.DomainStats)
	o.Disk.Requests, o.Disk.Sectors = disk.Requests, disk.Sectors
	all := make([]*fioOutput, len(got))
	outputs := make([][]byte, len(got))
	o.Guest.Known = true
	for i := range got {
		m := &got[i]
		all[i], outputs[i] = m.fio, m.out
		one := m.merging(r.loads[i].cached)
		o.Guest.Submitted += one.Submitted
		o.Guest.Merged += one.Merged
		o.Guest.Issued += one.Issued
		if why := mismatch(&one, &r.spec.Workload, r.loads[i].splits, ramp); why != "" {
			o.Warnings = append(o.Warnings, fmt.Sprintf("VM %d: %s", i, why))
		}
	}
	if why := lost(&o.Guest, &o.Host, &r.spec.Workload, len(got), ramp); why != "" {
		o.Warnings = append(o.Warnings, why)
	}
	o.Seconds = seconds(all)
	o.Jobs = shares(all)
	if o.Read, err = total(all, func(j *fioJob) *fioDirection { return &j.Read }, o.Seconds); err != nil {
		return nil, err
	}
	if o.Write, err = total(all, func(j *fioJob) *fioDirection { return &j.Write }, o.Seconds); err != nil {
		return nil, err
	}
	o.Fio, err = stored(outputs)
	return o, err
}

// merging is what became of one guest's requests: fio says what it submitted, and the
// kernel what it merged and what completed. A flush of the disk's cache is to the kernel an
// empty write that completes, too.
func (m *measured) merging(cached bool) plan.Merging {
	issued := m.after.IOs - m.before.IOs
	if cached {
		issued -= min(issued, m.fio.syncs())
	}
	return plan.Merging{Known: true, Submitted: m.fio.submitted(), Merged: m.after.Merges - m.before.Merges, Issued: issued}
}

// abandon leaves a machine that is not ours as it was, in time of its own: the run's is over.
func (r *run) abandon() error {
	ctx, stop := context.WithTimeout(context.Background(), stepTime)
	defer stop()
	var errs []error
	for _, l := range r.loads {
		if l != nil && !l.Ours() && l.disk != "" {
			errs = append(errs, l.tidy(ctx), l.Unplug(ctx))
		}
	}
	return errors.Join(errs...)
}

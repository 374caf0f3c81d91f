package qemu

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/elevisor/elevisor/guest/fio"
	"github.com/elevisor/elevisor/lab/plan"
	"github.com/elevisor/elevisor/qemu/qmp/qmptest"
	"github.com/elevisor/elevisor/qemu/vm"
	"github.com/elevisor/elevisor/sched"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if how := os.Getenv(qmptest.ProgramVariable); how != "" {
		os.Exit(qmptest.Program(how))
	}
	goleak.VerifyTestMain(m)
}

// rig is a world of machines that are played.
type rig struct {
	*world
	mu       sync.Mutex
	machines []*fakeMachine // that were opened, in order
	next     func() *fakeMachine
}

func newRig(t *testing.T, o Options) *rig {
	t.Helper()
	w, err := newWorld(o)
	require.NoError(t, err)
	r := &rig{world: w, next: func() *fakeMachine { return &fakeMachine{guest: newFakeGuest(t)} }}
	w.guest = vm.Guest{Kernel: "kernel", Initrd: "initrd"}
	w.open = func(context.Context) (machine, error) { // by several goroutines at once
		r.mu.Lock()
		defer r.mu.Unlock()
		m := r.next()
		r.machines = append(r.machines, m)
		return m, nil
	}
	t.Cleanup(func() { require.NoError(t, w.Close()) })
	return r
}

// spec is one run on a small disk.
func spec() plan.Spec {
	return plan.Spec{
		Cell: plan.Cell{
			Guest: plan.Scheduler{Name: "deadline"}, Host: plan.Scheduler{Name: "deadline"}, VMs: 1, Queues: 2, NoMerges: 1,
			Workload: fio.Workload{Name: "w", Jobs: []fio.Job{{Name: "a", RW: "randread", BS: 4096, Direct: true, IODepth: 4, Runtime: time.Second}}},
		},
		Disk: "mem:?size=8M", Seed: 5,
	}
}

func TestRun(t *testing.T) {
	r := newRig(t, Options{})
	o, err := r.Run(t.Context(), spec())
	require.NoError(t, err)
	m := r.machines[0]
	require.Equal(t, map[string]string{"/sys/block/vda/queue/scheduler": "mq-deadline", "/sys/block/vda/queue/nomerges": "1"}, m.guest.files)
	require.Equal(t, fio.Fio(spec().Workload, "/dev/vda", 5), m.guest.job)
	require.Equal(t, []int{2, 128, 1, 0}, []int{m.queues, m.size, m.unplugged, m.closed})
	require.Equal(t, plan.Merging{Known: true, Submitted: 640, Merged: 140, Issued: 500}, o.Guest)
	require.Equal(t, plan.Merging{Known: true}, o.Host, "nothing came to the server")
	require.Len(t, o.Warnings, 1, "%v", o.Warnings)
	require.Contains(t, o.Warnings[0], "500 requests completed in the guests, and the host counted 0, which is 500 apart (at most 0")

	require.InDelta(t, 0.017, o.Seconds, 1e-9, "the longest of the jobs")
	require.EqualValues(t, 512, o.Read.IOs)
	require.EqualValues(t, 2<<20, o.Read.Bytes)
	require.InDelta(t, 512/0.017, o.Read.IOPS, 1e-6)
	require.InDelta(t, (39.893648438+68.940460938)/2, o.Read.Mean, 1e-6)
	require.InDelta(t, 2194.123, o.Read.Max, 1e-9)
	require.Equal(t, plan.Quantile{Q: 0, US: 4.539}, o.Read.CDF[0])
	require.Equal(t, plan.Quantile{Q: 1, US: 2194.123}, o.Read.CDF[len(o.Read.CDF)-1])
	for i := 1; i < len(o.Read.CDF); i++ {
		require.LessOrEqual(t, o.Read.CDF[i-1].US, o.Read.CDF[i].US)
	}
	require.InDelta(t, 41.728, o.Write.P50, 1e-9, "fio's own, of one job")
	require.InDelta(t, 436.224, o.Write.P99, 1e-9)
	require.Equal(t, []plan.Share{{Job: 0, IOPS: 51200}, {Job: 1, IOPS: 36571.428571}, {Job: 2, IOPS: 7529.411765}}, o.Jobs)
	require.Contains(t, string(o.Fio), `"percentile"`)
	require.NotContains(t, string(o.Fio), `"bins"`)

	_, err = r.Run(t.Context(), spec())
	require.NoError(t, err)
	require.Len(t, r.machines, 1, "the machine stays up")
	require.Equal(t, 2, m.unplugged)
	env := r.Environment()
	require.Equal(t, "6.1.0-cloud", env["guest_kernel"])
	require.Equal(t, "fio-3.33", env["guest_fio"])
}

// TestMachines wants as many as a run needs, with as many CPUs.
func TestMachines(t *testing.T) {
	r := newRig(t, Options{})
	s := spec()
	s.VMs = 2
	o, err := r.Run(t.Context(), s)
	require.NoError(t, err)
	require.Len(t, r.machines, 2)
	require.NotEqual(t, r.machines[0].plugged, r.machines[1].plugged)
	require.EqualValues(t, 1280, o.Guest.Submitted, "of both")
	require.Equal(t, 1, o.Jobs[3].VM)
	var seeds []string
	for _, m := range r.machines {
		seeds = append(seeds, m.guest.job)
	}
	require.ElementsMatch(t, []string{fio.Fio(s.Workload, "/dev/vda", 5), fio.Fio(s.Workload, "/dev/vda", 6)}, seeds)

	_, err = r.Run(t.Context(), spec())
	require.NoError(t, err)
	require.Equal(t, 1, r.machines[0].closed+r.machines[1].closed, "one is not needed any more")
	s = spec()
	s.Queues = 4
	_, err = r.Run(t.Context(), s)
	require.NoError(t, err)
	require.Equal(t, 2, r.machines[0].closed+r.machines[1].closed, "the other has too few CPUs")
	require.Len(t, r.machines, 3)
	require.Equal(t, "4", r.Environment()["guest_cpus"])
}

// TestSmallQueue gives a scheduler requests to choose from, unless somebody else says how many.
func TestSmallQueue(t *testing.T) {
	for name, c := range map[string]struct {
		guest string
		knobs []sched.Knob
		want  string // nr_requests
	}{
		"a scheduler":  {"mq-deadline", nil, "128"},
		"none":         {"none", nil, ""},
		"a given knob": {"kyber", []sched.Knob{{Key: "nr-requests", Value: "32"}}, "32"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, Options{})
			r.next = func() *fakeMachine {
				g := newFakeGuest(t)
				g.tags = 8
				return &fakeMachine{guest: g}
			}
			s := spec()
			s.QSize, s.Guest = 8, plan.Scheduler{Name: c.guest, Knobs: c.knobs}
			_, err := r.Run(t.Context(), s)
			require.NoError(t, err)
			require.Equal(t, 8, r.machines[0].size)
			require.Equal(t, c.want, r.machines[0].guest.files["/sys/block/vda/queue/nr_requests"])
		})
	}
}

func TestRunFails(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*fakeMachine, *plan.Spec)
		want   string
	}{
		"scheduler": {func(m *fakeMachine, _ *plan.Spec) { m.guest.stubborn = true },
			"the guest's kernel does not take the scheduler mq-deadline for vda: it says sh: write error: Invalid argument\n[none]"},
		"knob": {func(_ *fakeMachine, s *plan.Spec) { s.Guest.Knobs = []sched.Knob{{Key: "nonsense", Value: "1"}} },
			`the guest's scheduler has no knob "nonsense"`},
		"fio":          {func(m *fakeMachine, _ *plan.Spec) { m.guest.status = "1" }, "fio in the guest: status 1: fio: what went wrong"},
		"fio's output": {func(m *fakeMachine, _ *plan.Spec) { m.guest.out = []byte("fio: killed") }, `fio's output has no JSON: "fio: killed"`},
		"stat":         {func(m *fakeMachine, _ *plan.Spec) { m.guest.after = "1 2" }, `the guest's stat "1 2" has 2 numbers: want 11 or more`},
		"plug":         {func(m *fakeMachine, _ *plan.Spec) { m.refuse = errors.New("no bus") }, "no bus"},
		"disk":         {func(_ *fakeMachine, s *plan.Spec) { s.Disk = "/nonexistent/disk" }, "/nonexistent/disk"},
		"windows":      {func(_ *fakeMachine, s *plan.Spec) { s.VMs = 9 }, "too small for 9 VMs"},
		"host knob":    {func(_ *fakeMachine, s *plan.Spec) { s.Host.Knobs = []sched.Knob{{Key: "bogus", Value: "1"}} }, "bogus"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, Options{})
			s := spec()
			r.next = func() *fakeMachine {
				m := &fakeMachine{guest: newFakeGuest(t)}
				c.change(m, &s)
				return m
			}
			c.change(&fakeMachine{guest: newFakeGuest(t)}, &s)
			_, err := r.Run(t.Context(), s)
			require.ErrorContains(t, err, c.want)
			for _, m := range r.machines {
				require.Equal(t, 1, m.closed, "nobody knows what state it is in")
			}
			require.Empty(t, r.vms)
		})
	}
}

func TestRunEndsEarly(t *testing.T) {
	r := newRig(t, Options{})
	ends := make(chan struct{})
	defer close(ends)
	r.next = func() *fakeMachine {
		g := newFakeGuest(t)
		g.blocks = ends
		return &fakeMachine{guest: g}
	}
	ctx, stop := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer stop()
	_, err := r.Run(ctx, spec())
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.Equal(t, 1, r.machines[0].closed)
}

// Case: of two guests one failed, and its error was told when the other had ended: never.
func TestRunEndsWithFirstError(t *testing.T) {
	r := newRig(t, Options{})
	ends := make(chan struct{})
	defer close(ends)
	r.next = func() *fakeMachine {
		g := newFakeGuest(t)
		if len(r.machines) == 0 {
			g.status = "1"
		} else {
			g.blocks = ends
		}
		return &fakeMachine{guest: g}
	}
	s := spec()
	s.VMs = 2
	_, err := r.Run(t.Context(), s)
	require.ErrorContains(t, err, "fio in the guest: status 1: fio: what went wrong")
	require.NotContains(t, err.Error(), "canceled")
	require.Equal(t, 2, r.machines[0].closed+r.machines[1].closed)
}

// TestWarnings wants a reader of one run to be told.
func TestWarnings(t *testing.T) {
	r := newRig(t, Options{})
	r.next = func() *fakeMachine {
		g := newFakeGuest(t)
		g.tags, g.after = 1024, "400 100 0 0 162 24 0 0 0 0 0 0 0 0 0 0 0"
		return &fakeMachine{guest: g}
	}
	s := spec()
	s.Queues, s.Guest.Knobs = 1, []sched.Knob{{Key: "fifo_batch", Value: "3"}}
	o, err := r.Run(t.Context(), s)
	require.NoError(t, err)
	o.Warnings = slices.DeleteFunc(o.Warnings, func(w string) bool { return strings.Contains(w, "the host counted 0") })
	require.Equal(t, []string{
		"VM 0: fio submitted 640 requests, and the guest's kernel counted 113 merged and 500 completed, which is 27 apart (at most 0 were expected).",
		"The guest's disk has 1024 requests in a queue, not the 128 that were asked for.",
		"The guest uses 2 queues, not 1: it has no use for more than it has CPUs.",
	}, o.Warnings)
	require.Equal(t, "3", r.machines[0].guest.files["/sys/block/vda/queue/iosched/fifo_batch"])
}

// TestRunningVM takes a machine that is not ours: by QMP and the guest agent, both played.
func TestRunningVM(t *testing.T) {
	dir := t.TempDir()
	g := newFakeGuest(t)
	v := qmptest.New()
	a := &qmptest.Agent{Disk: "/dev/vdb", Slot: 4, Choices: []string{"none", "mq-deadline"}, Exec: g.sh}
	o := Options{Attach: filepath.Join(dir, "qmp.sock"), GuestAgent: filepath.Join(dir, "ga.sock")}
	require.NoError(t, v.Listen(o.Attach))
	defer v.Close()
	require.NoError(t, a.Listen(o.GuestAgent))
	defer a.Close()
	w, err := newWorld(o)
	require.NoError(t, err)
	defer func() { require.NoError(t, w.Close()) }()
	s := spec()
	p := &plan.Plan{Disk: s.Disk, Cells: []plan.Cell{s.Cell}}

	g.lacks = "fio"
	require.ErrorContains(t, w.Check(p), "the guest lacks fio: install Debian's packages fio,")
	g.lacks = ""
	require.NoError(t, w.Check(p))
	out, err := w.Run(t.Context(), s)
	require.NoError(t, err)
	require.EqualValues(t, 140, out.Guest.Merged)
	require.Equal(t, "mq-deadline", g.files["/sys/block/vdb/queue/scheduler"])
	require.NotContains(t, v.State(), diskID, "it is unplugged")
	require.Contains(t, g.scripts[len(g.scripts)-1], "rm -rf /tmp/elevisor.fake")

	g.status = "1"
	_, err = w.Run(t.Context(), s)
	require.ErrorContains(t, err, "fio in the guest: status 1")
	require.NotContains(t, v.State(), diskID, "also after an error")
	require.Contains(t, strings.Join(v.Log(), "\n"), "device_add")

	g.status, g.blocks = "0", make(chan struct{})
	go func() {
		for !g.ran("cat status") {
			time.Sleep(time.Millisecond)
		}
		v.Stop("internal-error")
	}()
	_, err = w.Run(t.Context(), s)
	require.ErrorContains(t, err, "the guest has stopped: QEMU's run state is internal-error", "an agent that does not answer is not waited for")
	close(g.blocks)
	v.Resume()

	p.Cells[0].VMs = 2
	require.ErrorContains(t, w.Check(p), "want --vms 1")
	require.Contains(t, w.Environment()["guest"], o.Attach)
	require.NoError(t, os.Remove(o.GuestAgent))
	p.Cells[0].VMs = 1
	require.ErrorContains(t, w.Check(p), "guest agent socket "+o.GuestAgent)
}

package qemu

import (
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/elevisor/elevisor/guest/fio"
	"github.com/elevisor/elevisor/lab/plan"
	"github.com/elevisor/elevisor/qemu/qmp/qmptest"
	"github.com/elevisor/elevisor/qemu/vm"
	"github.com/elevisor/elevisor/sched"
	"github.com/stretchr/testify/require"
)

func TestNew(t *testing.T) {
	for want, o := range map[string]Options{
		"both, its QMP socket (--attach) and its guest agent's": {Attach: "x"},
		"has its own kernel":               {Attach: "x", GuestAgent: "y", Kernel: "k", Initrd: "i"},
		"want one of them":                 {Kernel: "k", Initrd: "i", Modules: "m"},
		"want --kernel together with":      {Kernel: "k"},
		"with --initrd, or with --modules": {Initrd: "k"},
		`--accel: accelerator "hvf" is unknown; there are auto, kvm, tcg`: {Accel: "hvf"},
		"65 CPUs: want 1 to 64":              {CPUs: 65},
		"64 MiB of memory: want 128 or more": {MemoryMiB: 64},
	} {
		w, err := New(o)
		require.ErrorContains(t, err, want)
		require.Nil(t, w)
	}
}

func TestCheck(t *testing.T) {
	w, err := newWorld(Options{Program: "/nonexistent/qemu"})
	require.NoError(t, err)
	planOf := func(change func(*plan.Cell)) *plan.Plan {
		s := spec()
		change(&s.Cell)
		return &plan.Plan{Disk: s.Disk, Cells: []plan.Cell{spec().Cell, s.Cell}}
	}
	for want, change := range map[string]func(*plan.Cell){
		`a Linux guest has no I/O scheduler "cfq"; it has: none, mq-deadline, bfq, kyber`: func(c *plan.Cell) { c.Guest.Name = "cfq" },
		`scheduler "x" is unknown`:       func(c *plan.Cell) { c.Host.Name = "x" },
		"0 VMs: want at least 1":         func(c *plan.Cell) { c.VMs = 0 },
		"65 queues: want 1 to 64":        func(c *plan.Cell) { c.Queues = 65 },
		"queue-size 12: want a power of": func(c *plan.Cell) { c.QSize = 12 },
		"nomerges 3: want 0, 1 or 2":     func(c *plan.Cell) { c.NoMerges = 3 },
		`workload "w" has no jobs`:       func(c *plan.Cell) { c.Workload.Jobs = nil },
		`knob "a;b"="1" of the guest`:    func(c *plan.Cell) { c.Guest.Knobs = []sched.Knob{{Key: "a;b", Value: "1"}} },
		`knob "a"="$(x)" of the guest`:   func(c *plan.Cell) { c.Guest.Knobs = []sched.Knob{{Key: "a", Value: "$(x)"}} },
		`knob "../a"="1" of the guest`:   func(c *plan.Cell) { c.Guest.Knobs = []sched.Knob{{Key: "../a", Value: "1"}} },
		"it reaches to byte 9437184, and": func(c *plan.Cell) {
			c.Workload.Jobs = []fio.Job{{Size: 1 << 20, NumJobs: 9, OffsetIncrement: 1 << 20}}
		},
		"and each of 2 VMs has 4194304":                                            func(c *plan.Cell) { c.VMs = 2; c.Workload.Jobs = []fio.Job{{Size: 5 << 20}} },
		"missing: /nonexistent/qemu (the machine; Debian package qemu-system-x86)": func(*plan.Cell) {},
	} {
		require.ErrorContains(t, w.Check(planOf(change)), want)
	}
	p := planOf(func(*plan.Cell) {})
	p.Disk = "mem:"
	require.ErrorContains(t, w.Check(p), "mem:")
}

// TestCheckGuest wants files that were named to be there before anything runs.
func TestCheckGuest(t *testing.T) {
	w, err := newWorld(Options{Program: "true", Kernel: "/nonexistent/vmlinux", Initrd: "/nonexistent/initrd"})
	require.NoError(t, err)
	s := spec()
	require.ErrorContains(t, w.Check(&plan.Plan{Disk: s.Disk, Cells: []plan.Cell{s.Cell}}), "guest: open /nonexistent/vmlinux")
}

func TestNotes(t *testing.T) {
	w, err := newWorld(Options{Accel: "tcg"})
	require.NoError(t, err)
	s := spec()
	notes := func(change func()) string {
		change()
		return strings.Join(w.Notes(&plan.Plan{Cells: []plan.Cell{s.Cell}}), "\n")
	}
	always := notes(func() {})
	require.Contains(t, always, "The VMs are emulated (TCG: forced): the guest's CPU is the limit")
	require.Contains(t, always, "its scheduler merges next to nothing")
	require.Contains(t, always, "Seeks and lost merges are counted in the order")
	for _, not := range []string{"ignores queue-size", "nr_requests", "page cache", "ramp"} {
		require.NotContains(t, always, not)
	}
	small := notes(func() { s.QSize = 8 })
	require.Contains(t, small, "its nr_requests is 128")
	require.NotContains(t, small, "merges next to nothing")
	require.Contains(t, notes(func() { w.version = vm.Version{Major: 10} }), "QEMU 10.0 ignores queue-size and gives every queue 1024 entries")
	require.NotContains(t, notes(func() { w.version = vm.Version{Major: 11, Minor: 1} }), "ignores queue-size")
	require.Contains(t, notes(func() { s.Workload.Jobs = []fio.Job{{Direct: false}} }), "page cache")
	require.Contains(t, notes(func() { s.Workload.Jobs = []fio.Job{{Direct: true, Ramp: time.Second}} }), "end of its ramp")
	require.NotContains(t, notes(func() { w.accel = vm.Accel{Name: vm.AccelKVM} }), "TCG")
}

// TestAccelerator wants the choice, and its reason, in the description of the machine: here
// KVM is there, and stops the guest.
func TestAccelerator(t *testing.T) {
	o := playedQEMU(t, qmptest.KVMStops)
	var said []string
	o.Say = func(line string) { said = append(said, line) }
	w, err := newWorld(o)
	require.NoError(t, err)
	defer func() { require.NoError(t, w.Close()) }()
	s := spec()
	p := &plan.Plan{Disk: s.Disk, Cells: []plan.Cell{s.Cell}}
	for range 2 {
		require.NoError(t, w.Check(p))
	}
	reason := "the probe's guest failed under KVM: the guest has stopped: QEMU's run state is internal-error; QEMU said: KVM internal error. Suberror: 1"
	require.Equal(t, []string{"KVM is not used, guests are emulated (TCG): " + reason}, said)
	env := w.Environment()
	require.Equal(t, []string{"tcg", reason}, []string{env["qemu_accelerator"], env["qemu_accelerator_reason"]})
	require.Contains(t, strings.Join(w.Notes(p), "\n"), "The VMs are emulated (TCG: "+reason+")")

	t.Setenv(vm.AccelVariable, "hvf")
	_, err = New(Options{})
	require.EqualError(t, err, `ELEVISOR_ACCEL: accelerator "hvf" is unknown; there are auto, kvm, tcg`)
	_, err = New(Options{Accel: "tcg"})
	require.NoError(t, err)
}

// TestForcedKVM fails where KVM stops the guest, soon, and quotes the console.
func TestForcedKVM(t *testing.T) {
	o := playedQEMU(t, qmptest.KVMStops)
	o.Accel = vm.AccelKVM
	w, err := newWorld(o)
	require.NoError(t, err)
	defer func() { require.NoError(t, w.Close()) }()
	_, err = w.Run(t.Context(), spec())
	require.ErrorContains(t, err, "boot: the guest has stopped: QEMU's run state is internal-error")
	require.ErrorContains(t, err, qmptest.Words)
	require.Equal(t, "forced", w.Environment()["qemu_accelerator_reason"])
}

// playedQEMU is a world whose QEMU is this test's program, on a machine with a /dev/kvm.
func playedQEMU(t *testing.T, how string) Options {
	t.Helper()
	t.Setenv(qmptest.ProgramVariable, how)
	t.Setenv("GORACE", "atexit_sleep_ms=0") // or each played QEMU takes a second to end
	t.Setenv(vm.AccelVariable, "")
	program, err := os.Executable()
	require.NoError(t, err)
	file := func(name, text string) string {
		name = filepath.Join(t.TempDir(), name)
		require.NoError(t, os.WriteFile(name, []byte(text), 0o600))
		return name
	}
	return Options{Program: program, Kernel: file("vmlinux", ""), Initrd: file("initrd", ""),
		Probe: vm.Probe{CPUInfo: file("cpuinfo", "flags\t\t: fpu vmx\n"), KVM: file("kvm", "")}}
}

func TestMismatch(t *testing.T) {
	job := func(change func(*fio.Job)) *fio.Workload {
		j := fio.Job{BS: 4096, IODepth: 4, NumJobs: 2, Direct: true}
		change(&j)
		return &fio.Workload{Jobs: []fio.Job{j}}
	}
	plain := job(func(*fio.Job) {})
	const split = 504 << 10
	m := func(submitted, merged, issued uint64) *plan.Merging {
		return &plan.Merging{Submitted: submitted, Merged: merged, Issued: issued}
	}
	require.Empty(t, mismatch(m(1000, 400, 600), plain, split, 0))
	require.Contains(t, mismatch(m(1000, 400, 599), plain, split, 0), "1 apart (at most 0")
	require.Contains(t, mismatch(m(1000, 401, 600), plain, split, 0), "1 apart")
	require.Empty(t, mismatch(m(1000, 400, 600+16+50), plain, split, time.Second), "a ramp: twice 8 in flight, and a twentieth")
	require.Contains(t, mismatch(m(1000, 400, 600+16+51), plain, split, time.Second), "67 apart (at most 66")
	require.Contains(t, mismatch(m(1000, 400, 600-16-51), plain, split, time.Second), "67 apart")
	for _, change := range []func(*fio.Job){
		func(j *fio.Job) { j.Direct = false },
		func(j *fio.Job) { j.Verify = true },
		func(j *fio.Job) { j.BS = split + 512 },
		func(j *fio.Job) { j.BSSplit = []fio.Split{{BS: 4096, Percent: 50}, {BS: 1 << 20, Percent: 50}} },
	} {
		require.Empty(t, mismatch(m(1000, 0, 0), job(change), split, 0))
	}
}

func TestLost(t *testing.T) {
	w := &fio.Workload{Jobs: []fio.Job{{IODepth: 4, NumJobs: 2, Direct: true}}}
	guest := &plan.Merging{Issued: 1000}
	host := func(n uint64) *plan.Merging { return &plan.Merging{Submitted: n} }
	require.Empty(t, lost(guest, host(1000), w, 1, 0))
	require.Contains(t, lost(guest, host(999), w, 1, 0), "1 apart (at most 0")
	require.Empty(t, lost(guest, host(1000-2*2*8-50), w, 2, time.Second))
	require.Contains(t, lost(guest, host(1000-2*2*8-51), w, 2, time.Second), "83 apart (at most 82")
	w.Jobs[0].Direct = false
	require.Empty(t, lost(guest, host(0), w, 1, 0), "through the page cache")
}

// TestFlushes are no requests, unless there is no cache to flush.
func TestFlushes(t *testing.T) {
	m := measured{before: sysStat{10, 1}, after: sysStat{110, 5}, fio: &fioOutput{Jobs: make([]fioJob, 1)}}
	m.fio.Jobs[0].Write.IOs, m.fio.Jobs[0].Sync.IOs = 80, 24
	require.Equal(t, plan.Merging{Known: true, Submitted: 80, Merged: 4, Issued: 76}, m.merging(true))
	require.EqualValues(t, 100, m.merging(false).Issued)
}

// TestQuantiles are fio's own, of every job of its output.
func TestQuantiles(t *testing.T) {
	out, err := os.ReadFile("testdata/fio.json")
	require.NoError(t, err)
	f, err := parseFio(out)
	require.NoError(t, err)
	require.Equal(t, "fio-3.33", f.Version)
	for i, want := range []map[float64]float64{
		{0.01: 13.248, 0.5: 18.560, 0.9: 92.672, 0.99: 272.384},
		{0.01: 12.736, 0.5: 13.248, 0.9: 125.440, 0.99: 2179.072},
		{0.01: 3.632, 0.5: 41.728, 0.9: 150.528, 0.99: 436.224, 0.999: 485.376},
	} {
		one := []*fioOutput{{Jobs: f.Jobs[i : i+1]}}
		of := func(j *fioJob) *fioDirection { return &j.Read }
		if i == 2 {
			of = func(j *fioJob) *fioDirection { return &j.Write }
		}
		d, err := total(one, of, 1)
		require.NoError(t, err)
		seen := 0
		for _, q := range d.CDF {
			if us, asked := want[math.Round(q.Q*1e6)/1e6]; asked {
				require.InDelta(t, min(us, d.Max), q.US, 1e-9, "job %d, quantile %v", i, q.Q)
				seen++
			}
		}
		require.Equal(t, len(want), seen)
		require.InDelta(t, want[0.5], d.P50, 1e-9)
		require.InDelta(t, want[0.99], d.P99, 1e-9)
	}
	_, err = parseFio([]byte(`{"jobs":[{"jobname":"x","error":5}]}`))
	require.ErrorContains(t, err, "fio's job x: error 5")
	_, err = parseFio([]byte(`{"jobs":[]}`))
	require.ErrorContains(t, err, "no jobs")
	_, err = parseFio([]byte(`{"jobs":`))
	require.ErrorContains(t, err, "fio's output: unexpected end")
}

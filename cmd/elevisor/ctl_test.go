package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"github.com/elevisor/elevisor/blk"
	"github.com/elevisor/elevisor/daemon"
	"github.com/elevisor/elevisor/daemon/ctl"
	"github.com/elevisor/elevisor/device"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
)

// house has the disks vda and vdb in domain hdd, and vdc alone. It has done one
// read more each time that it is asked.
type house struct {
	active map[string]string // by domain
	expire string
	reads  atomic.Uint64
}

var (
	domains = map[string]string{"vda": "hdd", "vdb": "hdd", "vdc": "vdc"}
	// available is the house's own list: a new kind of scheduler changes no transcript.
	available = []string{"none", "deadline", "timeslice", "cfq", "bfq", "kyber"}
)

func newHouse() *house {
	return &house{active: map[string]string{"hdd": "deadline", "vdc": "none"}, expire: "500"}
}

func (h *house) List() (disks []ctl.Disk) {
	for i, id := range []string{"vda", "vdb", "vdc"} {
		disks = append(disks, ctl.Disk{ID: id, Path: id + ".img", Socket: "/run/" + id, Bytes: int64(i+1) << 30, ReadOnly: i == 1,
			NumQueues: i + 1, Engine: "io_uring", Domain: domains[id], Scheduler: h.active[domains[id]], Connected: i == 0})
	}
	disks[2].Socket = ""
	return disks
}

func (h *house) Stat() (stats []ctl.DiskStat) {
	var s device.Stats
	n := h.reads.Add(1)
	s.Op[blk.OpRead] = device.OpStats{IOs: n, Merges: 3 * n, Sectors: 8 * n, Time: 2e6 * n}
	s.IOTime = 1e6 * n
	for _, d := range h.List() {
		stats = append(stats, ctl.DiskStat{ID: d.ID, Domain: d.Domain, Total: s, Queues: []device.Stats{s},
			DomainStats: device.DomainStats{Stats: s, Scheduler: d.Scheduler, Depth: 32}})
	}
	return stats
}

func (h *house) Scheduler(disk string) (s ctl.Scheduler, err error) {
	s = ctl.Scheduler{Domain: domains[disk], Active: h.active[domains[disk]], Available: available, Reason: "it spins"}
	for _, d := range h.List() {
		if d.Domain == s.Domain {
			s.Disks = append(s.Disks, d.ID)
		}
	}
	return s, nil
}

func (h *house) SetScheduler(disk, name string) error {
	if !slices.Contains(available, name) {
		return fmt.Errorf("scheduler %q is unknown; there are %s", name, strings.Join(available, ", "))
	}
	h.active[domains[disk]] = name
	return nil
}

func (h *house) Set(_, key, value string) error {
	if key != "read_expire" {
		return fmt.Errorf("there is no knob %q; there are: read_expire", key)
	}
	h.expire = value
	return nil
}

func (h *house) Tunables(string) ([]ctl.Tunable, error) {
	return []ctl.Tunable{{Name: "read_expire", Value: h.expire, Valid: "0 to 2147483647", Unit: "ms", ByHand: h.expire != "500"}, {Name: "fifo_batch", Value: "16", Valid: "0 to 64"}}, nil
}

func (h *house) Describe(disk string, w io.Writer) error {
	_, err := fmt.Fprintf(w, "%s: 0 queued\n", h.active[domains[disk]])
	return err
}

// control serves c on a control socket until the test ends.
func control(t *testing.T, c ctl.Control) (path string) {
	path = filepath.Join(t.TempDir(), "ctl")
	s, err := ctl.Listen(path, c, zap.NewNop())
	require.NoError(t, err)
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(ctx) }()
	t.Cleanup(func() {
		stop()
		require.NoError(t, <-ended)
	})
	return path
}

// Command lines, and what they print; "error:" is what they end with.
func TestCtl(t *testing.T) {
	path := control(t, newHouse())
	t.Chdir(t.TempDir()) // so that no path is in the text
	require.NoError(t, os.Symlink(path, "ctl.sock"))
	golden := filepath.Join(source, "testdata/ctl")
	datadriven.RunTest(t, golden, func(t *testing.T, d *datadriven.TestData) string {
		out, err := run(t.Context(), append([]string{"ctl", "--control-socket=ctl.sock"}, strings.Fields(d.Input)...)...)
		if err != nil {
			out += "error: " + err.Error() + "\n"
		}
		return out
	})
}

// source is this package's directory.
var source, _ = os.Getwd()

func TestCtlStat(t *testing.T) {
	path := control(t, newHouse())
	out, err := run(t.Context(), "ctl", "stat", "-x", "vdb", "0.02", "3", "--control-socket", path)
	require.NoError(t, err)
	require.Equal(t, 3, strings.Count(out, "Device "))
	require.Equal(t, 3, strings.Count(out, "vdb "))
	require.NotContains(t, out, "vda")
	require.Equal(t, 3, strings.Count(out, " 75.00    2.00     4.00 "), "%%rrqm, r_await, rareq-sz, each interval anew:\n%s", out)

	out, err = run(t.Context(), "ctl", "stat", "0.02", "2", "--format=json", "--control-socket", path)
	require.NoError(t, err)
	reports := json.NewDecoder(strings.NewReader(out))
	var before uint64
	for n := range 2 {
		var r struct {
			Interval uint64 `json:"interval_ns"`
			Uptime   uint64 `json:"uptime_ns"`
			Iostat   []map[string]any
			Disks    []struct {
				Stat   [17]uint64
				Queues []map[string]any
			}
			Domains []map[string]any
		}
		require.NoError(t, reports.Decode(&r))
		require.Len(t, r.Iostat, 3)
		require.Len(t, r.Disks, 3)
		require.Len(t, r.Domains, 2)
		require.Len(t, r.Disks[0].Queues, 1)
		require.Equal(t, r.Uptime-before, r.Interval)
		before = r.Uptime
		require.EqualValues(t, 4+n, r.Disks[0].Stat[0], "counts are since the start")
		if n == 1 {
			require.InEpsilon(t, 1/(float64(r.Interval)/1e9), r.Iostat[0]["r/s"], 1e-6, "rates are of the interval")
		}
	}
	require.False(t, reports.More())
}

// Without a count it goes on until it is interrupted, which is no error.
func TestCtlStat_interrupted(t *testing.T) {
	h := newHouse()
	path := control(t, h)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := run(ctx, "ctl", "stat", "0.01", "--control-socket", path)
		ended <- err
	}()
	require.Eventually(t, func() bool { return h.reads.Load() > 3 }, time.Minute, time.Millisecond)
	stop()
	require.NoError(t, <-ended)
}

func TestCtlExport(t *testing.T) {
	h := newHouse()
	path, dir := control(t, h), filepath.Join(t.TempDir(), "x")
	reads := func() (n int) {
		text, err := os.ReadFile(filepath.Join(dir, "block/vdc/stat"))
		require.NoError(t, err)
		_, err = fmt.Sscan(string(text), &n)
		require.NoError(t, err)
		return n
	}
	_, err := run(t.Context(), "ctl", "export", dir, "--control-socket", path)
	require.NoError(t, err)
	require.Equal(t, 1, reads())
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := run(ctx, "ctl", "export", dir, "0.01", "--control-socket", path)
		ended <- err
	}()
	require.Eventually(t, func() bool { return reads() > 5 }, time.Minute, time.Millisecond)
	stop()
	require.NoError(t, <-ended)
	_, err = run(t.Context(), "ctl", "export", path, "--control-socket", path)
	require.ErrorContains(t, err, "not a directory")
}

func TestDefaultControlSocket(t *testing.T) {
	t.Setenv("XDG_RUNTIME_DIR", "/run/user/7")
	require.Equal(t, "/run/user/7/elevisor.sock", defaultControlSocket())
	t.Setenv("XDG_RUNTIME_DIR", "")
	require.Equal(t, "/run/elevisor.sock", defaultControlSocket())
	dir := t.TempDir()
	t.Setenv("XDG_RUNTIME_DIR", dir)
	_, err := run(t.Context(), "ctl", "list")
	require.ErrorContains(t, err, "elevisor serve --control-socket="+dir+"/elevisor.sock")
}

// serve has its control socket as long as it serves.
func TestServe_controlSocket(t *testing.T) {
	defer func(f func(*daemon.Daemon) ctl.Control) { controlled = f }(controlled)
	controlled = func(*daemon.Daemon) ctl.Control { return newHouse() }
	dir := t.TempDir()
	disk := "path=mem:?size=1M,socket=" + filepath.Join(dir, "s")
	path := filepath.Join(dir, "ctl")
	_, err := run(t.Context(), "--disk", disk, "--control-socket", filepath.Join(dir, "no/ctl"))
	require.ErrorContains(t, err, "control socket: listen on")
	require.NoFileExists(t, filepath.Join(dir, "s"), "nothing stays open")

	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := run(ctx, "--disk", disk, "--control-socket", path)
		ended <- err
	}()
	require.Eventually(t, func() bool {
		out, err := run(t.Context(), "ctl", "scheduler", "vda", "--control_socket", path)
		return err == nil && out == "none [deadline] timeslice cfq bfq kyber\n"
	}, time.Minute, 5*time.Millisecond)
	stop()
	require.NoError(t, <-ended)
	require.NoFileExists(t, path)
}

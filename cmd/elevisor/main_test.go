package main

import (
	"bytes"
	"context"
	"encoding/json"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/elevisor/elevisor/backend"
	"github.com/elevisor/elevisor/sched"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
)

// run executes a command line and returns what it printed.
func run(ctx context.Context, args ...string) (string, error) {
	var out bytes.Buffer
	root := newRoot()
	root.SetArgs(args)
	root.SetOut(&out)
	root.SetErr(&out)
	err := root.ExecuteContext(ctx)
	return out.String(), err
}

// docs/interop/vhost-user.json: all other arguments are ignored, and no disk is
// needed.
func TestPrintCapabilities(t *testing.T) {
	for _, args := range [][]string{{"--print-capabilities"}, {"-c", "--fd=3"}, {"serve", "--print-capabilities", "--blk-file=none"}} {
		out, err := run(t.Context(), args...)
		require.NoError(t, err)
		var c struct {
			Type     string
			Features []string
		}
		require.NoError(t, json.Unmarshal([]byte(out), &c))
		require.Equal(t, "block", c.Type)
		require.Equal(t, []string{"read-only", "blk-file"}, c.Features)
	}
}

func TestVersion(t *testing.T) {
	out, err := run(t.Context(), "--version")
	require.NoError(t, err)
	require.Contains(t, out, "elevisor "+release)
}

func TestRefusals(t *testing.T) {
	dir := t.TempDir()
	empty := filepath.Join(dir, "empty")
	require.NoError(t, os.WriteFile(empty, nil, 0o600))
	one := filepath.Join(dir, "one")
	require.NoError(t, os.WriteFile(one, []byte{1}, 0o600))
	sock := filepath.Join(dir, "s")
	for _, c := range []struct {
		want string
		args []string
	}{
		{"no disk", nil},
		{"no disk", []string{"serve"}},
		{"--blk-file is missing", []string{"--socket-path", sock}},
		{"give one of --socket-path and --fd", []string{"--blk-file", one}},
		{"give one of --socket-path and --fd", []string{"--blk-file", one, "--socket-path", sock, "--fd", "3"}},
		{"--fd=-1: want a descriptor from 3 on", []string{"--blk-file", one, "--fd=-1"}},
		{"--fd=0: want a descriptor from 3 on", []string{"--blk-file", one, "--fd=0"}},
		{"--fd=2: want a descriptor from 3 on", []string{"--blk-file", one, "--fd=2"}},
		{"read-only=on into --disk", []string{"--disk", "path=a,socket=b", "--read-only"}},
		{"unknown key", []string{"--disk", "path=a,socket=b,colour=red"}},
		{"unknown flag: --colour", []string{"--colour=red"}},
		{"unknown command", []string{"sreve"}},
		{"no such file", []string{"--blk-file", filepath.Join(dir, "none"), "--socket-path", sock}},
		// Case MB-051: an image without a sector.
		{"512", []string{"--blk-file", empty, "--socket-path", sock}},
		{"512", []string{"--blk-file", one, "--socket-path", sock}},
		{"--socket-path is missing", []string{"bench"}},
		{"rw=sideways", []string{"bench", "-s", sock, "--rw=sideways"}},
		{"--bs", []string{"bench", "-s", sock, "--bs=4q"}},
		{"--bs=1073741824 is out of range", []string{"bench", "-s", sock, "--bs=1G"}},
		{"--iodepth=0", []string{"bench", "-s", sock, "--iodepth=0"}},
		{"neither normal nor json", []string{"bench", "-s", sock, "--output-format=xml"}},
		{"connect", []string{"bench", "-s", sock}},
		{"neither text nor json", []string{"demo", "--format=xml"}},
	} {
		_, err := run(t.Context(), c.args...)
		require.ErrorContains(t, err, c.want, "%v", c.args)
	}
}

// serve and bench together, by their command lines: fio's words, hyphens or
// underscores, and its JSON.
func TestServeAndBench(t *testing.T) {
	dir := t.TempDir()
	image, sock := filepath.Join(dir, "img"), filepath.Join(dir, "s")
	require.NoError(t, makeImage(image, 16<<20))
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := run(ctx, "--disk", "path="+image+",socket="+sock+",num-queues=2")
		ended <- err
	}()
	require.Eventually(t, func() bool { // the file is there a moment before somebody listens
		c, err := net.Dial("unix", sock)
		if err != nil {
			return false
		}
		return c.Close() == nil
	}, time.Minute, 5*time.Millisecond)
	out, err := run(t.Context(), "bench", "--socket_path", sock, "--rw=randwrite", "--bs=8k", "--iodepth=8", "--numjobs=2", "--verify", "--output-format=json")
	require.NoError(t, err, out)
	var report struct {
		Jobs []struct {
			Error int
			Write struct {
				TotalIOs int64   `json:"total_ios"`
				Bytes    int64   `json:"io_bytes"`
				IOPS     float64 `json:"iops"`
			}
		}
	}
	require.NoError(t, json.Unmarshal([]byte(out), &report))
	require.Len(t, report.Jobs, 2)
	for _, j := range report.Jobs {
		require.Zero(t, j.Error)
		require.EqualValues(t, 8<<20, j.Write.Bytes)
		require.EqualValues(t, 1024, j.Write.TotalIOs)
		require.Positive(t, j.Write.IOPS)
	}
	out, err = run(t.Context(), "bench", "--socket-path", sock, "--rw=read", "--size=4M", "--iodepth=4")
	require.NoError(t, err)
	require.Contains(t, out, "IOPS=")
	_, err = run(t.Context(), "bench", "--socket-path", sock, "--numjobs=3")
	require.ErrorContains(t, err, "3 queues wanted, the server has 2")
	stop()
	require.NoError(t, <-ended)
	require.NoFileExists(t, sock)
}

func TestPrintDemo(t *testing.T) {
	rows := []demoRow{{Scheduler: "none", RequestsIn: 10, RequestsOut: 5, IOPS: 5, P50: 1.5, MergeRate: 0.5, Verified: 10}}
	var out bytes.Buffer
	require.NoError(t, printDemo(&out, "text", rows))
	require.Contains(t, out.String(), "50.0%")
	require.Contains(t, out.String(), "merge rate = merged / (merged + dispatched)")
	out.Reset()
	require.NoError(t, printDemo(&out, "json", rows))
	var got struct{ Rows []demoRow }
	require.NoError(t, json.Unmarshal(out.Bytes(), &got))
	require.Equal(t, rows, got.Rows)
	rows[0].Errors = 1
	require.Error(t, printDemo(&out, "text", rows), "errors make the demo fail")
}

// The same load through each scheduler: all of it right, and the one that looks at
// everything merges more than the one that looks at the last few.
func TestDemo(t *testing.T) {
	out, err := run(t.Context(), "demo", "--format=json")
	require.NoError(t, err)
	var got struct{ Rows []demoRow }
	require.NoError(t, json.Unmarshal([]byte(out), &got))
	require.Len(t, got.Rows, len(sched.Names))
	rates := map[string]float64{}
	for _, r := range got.Rows {
		require.EqualValues(t, 2*demoStreams*demoBlocks, r.RequestsIn)
		require.EqualValues(t, 2*demoStreams*demoBlocks, r.Verified)
		require.Zero(t, r.Errors)
		rates[r.Scheduler] = r.MergeRate
	}
	require.Greater(t, rates["deadline"], rates["none"])
}

// makeImage makes an image of size bytes.
func makeImage(path string, size int64) error {
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		return err
	}
	return os.Truncate(path, size)
}

// A disk that hangs does not keep SIGTERM from ending the process; status 1 tells
// that requests were in flight. Run in a process of its own, since it ends it.
func TestEndInTime(t *testing.T) {
	if os.Getenv("ELEVISOR_TEST_HANG") != "" {
		ctx, stop := context.WithCancel(t.Context())
		stop()
		endInTime(ctx, make(chan struct{}), zap.NewNop())
		t.Fatal("went on")
	}
	c := exec.Command(os.Args[0], "-test.run=^TestEndInTime$")
	c.Env = append(os.Environ(), "ELEVISOR_TEST_HANG=1")
	out, err := c.CombinedOutput()
	require.Equal(t, 1, c.ProcessState.ExitCode(), "%v", err)
	require.NotContains(t, string(out), "went on")

	over := make(chan struct{})
	close(over)
	endInTime(t.Context(), over, zap.NewNop()) // all went well: it goes away
}

// SIGTERM ends a server that is still waiting for its image's lock. Run in a process
// of its own, as above; this one holds the lock.
func TestEndInTime_whileOpening(t *testing.T) {
	if image := os.Getenv("ELEVISOR_TEST_LOCKED"); image != "" {
		ctx, stop := context.WithCancel(t.Context())
		stop()
		_, err := run(ctx, "--blk-file", image, "--socket-path", image+".sock")
		t.Fatalf("waited for the lock: %v", err)
	}
	image := filepath.Join(t.TempDir(), "img")
	require.NoError(t, makeImage(image, 1<<20))
	holder, err := backend.Open(image, backend.Options{Lock: true})
	require.NoError(t, err)
	defer holder.Close()
	c := exec.Command(os.Args[0], "-test.run=^TestEndInTime_whileOpening$")
	c.Env = append(os.Environ(), "ELEVISOR_TEST_LOCKED="+image)
	out, err := c.CombinedOutput()
	require.Equal(t, 1, c.ProcessState.ExitCode(), "%v", err)
	require.NotContains(t, string(out), "waited for the lock")
}

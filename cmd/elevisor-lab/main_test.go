package main

import (
	"bytes"
	"context"
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/elevisor/elevisor/cmd/cli"
	"github.com/elevisor/elevisor/daemon"
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

func TestVersion(t *testing.T) {
	out, err := run(t.Context(), "--version")
	require.NoError(t, err)
	require.Contains(t, out, "elevisor-lab "+cli.Release)
}

func TestRefusals(t *testing.T) {
	sock := filepath.Join(t.TempDir(), "s")
	for _, c := range []struct {
		want string
		args []string
	}{
		{`unknown command "serve"; valid: demo, bench, sim, compare`, []string{"serve"}},
		{"unknown flag: --blk-file", []string{"--blk-file=x"}},
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

// bench against a server, by its command line: fio's words, hyphens or
// underscores, and its JSON.
func TestServeAndBench(t *testing.T) {
	dir := t.TempDir()
	image, sock := filepath.Join(dir, "img"), filepath.Join(dir, "s")
	require.NoError(t, os.WriteFile(image, make([]byte, 16<<20), 0o600))
	disk, err := daemon.ParseDisk("path=" + image + ",socket=" + sock + ",num-queues=2")
	require.NoError(t, err)
	d, err := daemon.Open([]daemon.Disk{disk}, nil, zap.NewNop())
	require.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- d.Run(ctx) }()
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

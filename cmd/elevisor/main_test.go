package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/elevisor/elevisor/backend"
	"github.com/elevisor/elevisor/cmd/cli"
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
	require.Contains(t, out, "elevisor "+cli.Release)
}

// The commands that moved to elevisor-lab name their new place, whatever follows them.
func TestMovedCommands(t *testing.T) {
	for _, name := range []string{"demo", "bench", "sim", "compare"} {
		for _, args := range [][]string{{name}, {name, "--help"}, {name, "tables", "--format=json"}} {
			_, err := run(t.Context(), args...)
			require.EqualError(t, err, name+" has moved to its own program: elevisor-lab "+name)
		}
	}
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
	} {
		_, err := run(t.Context(), c.args...)
		require.ErrorContains(t, err, c.want, "%v", c.args)
	}
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

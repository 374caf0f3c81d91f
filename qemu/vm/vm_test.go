package vm

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/elevisor/elevisor/qemu/qmp"
	"github.com/elevisor/elevisor/qemu/qmp/qmptest"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) {
	if how := os.Getenv(qmptest.ProgramVariable); how != "" {
		os.Exit(qmptest.Program(how))
	}
	goleak.VerifyTestMain(m)
}

// config is a machine that is played.
func config(t *testing.T, how string) Config {
	t.Helper()
	t.Setenv(qmptest.ProgramVariable, how)
	t.Setenv("GORACE", "atexit_sleep_ms=0") // or each played QEMU takes a second to end
	program, err := os.Executable()
	require.NoError(t, err)
	dir, err := os.MkdirTemp("", "vm") // short, for the sockets' names
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	g := Guest{Kernel: filepath.Join(dir, "vmlinux"), Initrd: filepath.Join(dir, "initrd")}
	require.NoError(t, os.WriteFile(g.Kernel, nil, 0o600))
	require.NoError(t, os.WriteFile(g.Initrd, nil, 0o600))
	return Config{Program: program, Guest: g, Dir: dir, Accel: "tcg"}
}

func TestMachine(t *testing.T) {
	c := config(t, qmptest.Well)
	m, err := Boot(t.Context(), c)
	require.NoError(t, err)
	defer m.Kill()
	printed, status, err := m.Ask(t.Context(), "hello there")
	require.NoError(t, err)
	require.Equal(t, "hello there", printed)
	require.Zero(t, status)
	printed, status, err = m.Ask(t.Context(), "fail")
	require.NoError(t, err)
	require.Equal(t, "bad luck", printed)
	require.Equal(t, 7, status)
	_, _, err = m.Ask(t.Context(), "two\nlines")
	require.ErrorContains(t, err, "is one line")
	require.NoError(t, m.Reboot(t.Context()))
	require.Contains(t, m.Diagnosis(), qmptest.Words)
	require.False(t, m.Ended())
	require.NoError(t, m.Quit(t.Context()))
	require.True(t, m.Ended())
	_, _, err = m.Ask(t.Context(), "still there?")
	require.Error(t, err)
}

// TestArguments are what QEMU was given.
func TestArguments(t *testing.T) {
	for want, disks := range map[string][]Disk{
		"elevisor.disk=later": nil,
		"socket,id=vu-disk,path=/s,reconnect-ms=200\n-device\nvhost-user-blk-pci,id=disk,chardev=vu-disk,num-queues=2,queue-size=128\n" +
			"-chardev\nsocket,id=vu-disk1,path=/t,reconnect-ms=200\n-device\nvhost-user-blk-pci,id=disk1,chardev=vu-disk1,num-queues=1,queue-size=8": {{"/s", 2, 0}, {"/t", 1, 8}},
	} {
		c := config(t, qmptest.Well)
		c.Disks, c.CPUs, c.More = disks, 3, []string{"-device", "x"}
		m, err := Boot(t.Context(), c)
		require.NoError(t, err)
		m.Kill()
		args, err := os.ReadFile(filepath.Join(c.Dir, "args"))
		require.NoError(t, err)
		require.Contains(t, string(args), want)
		require.Contains(t, string(args), "-smp\n3\n-m\n512\n")
		require.True(t, strings.HasSuffix(string(args), "-device\nx"))
		require.Equal(t, disks == nil, strings.Contains(string(args), "elevisor.disk=later"))
	}
	old := Config{Disks: []Disk{{"/s", 1, 0}}}
	require.Contains(t, old.diskArguments(Version{7, 2})[1], ",reconnect=1")
}

func TestBootFails(t *testing.T) {
	c := config(t, qmptest.Dies)
	_, err := Boot(t.Context(), c)
	require.ErrorContains(t, err, "qemu: no such machine")
	require.ErrorContains(t, err, qmptest.Words)
	require.ErrorContains(t, err, filepath.Join(c.Dir, "console"))

	ctx, stop := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer stop()
	_, err = Boot(ctx, config(t, qmptest.Mute))
	require.ErrorIs(t, err, context.DeadlineExceeded)

	c = config(t, qmptest.Well)
	require.NoError(t, os.Remove(c.Guest.Initrd))
	_, err = Boot(t.Context(), c)
	require.ErrorIs(t, err, os.ErrNotExist)
	c = config(t, qmptest.Well)
	c.Program = "/nonexistent/qemu"
	_, err = Boot(t.Context(), c)
	require.ErrorContains(t, err, "/nonexistent/qemu")
}

func TestShellFails(t *testing.T) {
	m, err := Boot(t.Context(), config(t, qmptest.Well))
	require.NoError(t, err)
	defer m.Kill()
	ctx, stop := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer stop()
	_, _, err = m.Ask(ctx, "hang")
	require.ErrorIs(t, err, context.DeadlineExceeded)
	_, _, err = m.Ask(t.Context(), "end")
	require.ErrorContains(t, err, "QEMU has ended (exit status 3)")
	require.ErrorContains(t, err, qmptest.Words)
	require.ErrorContains(t, m.Quit(t.Context()), "exit status 3")
}

// Case: a guest whose CPU has stopped kept a command waiting for ever, in a QEMU that stays
// up. Each way to stop ends the wait, says what happened, and quotes the console.
func TestGuestStops(t *testing.T) {
	for command, want := range map[string]string{
		"stop internal-error":                                       "the guest has stopped: QEMU's run state is internal-error",
		`tell GUEST_PANICKED {"action": "pause"}`:                   "the guest's kernel has panicked",
		`tell SHUTDOWN {"guest": true, "reason": "guest-shutdown"}`: "the guest has shut down (guest-shutdown)",
		`tell RESET {"guest": true, "reason": "guest-reset"}`:       "the guest has been reset (guest-reset)",
		`tell SHUTDOWN {"guest": false, "reason": "host-signal"}`:   "the guest has shut down (host-signal)",
	} {
		t.Run(command, func(t *testing.T) {
			m, err := Boot(t.Context(), config(t, qmptest.Well))
			require.NoError(t, err)
			defer m.Kill()
			for range 2 { // nor does a later command wait
				_, _, err = m.Ask(t.Context(), command)
				require.ErrorContains(t, err, want)
				require.ErrorAs(t, err, new(*qmp.StopError))
				require.ErrorContains(t, err, qmptest.Words)
				command = "hang"
			}
			require.NoError(t, m.Quit(t.Context()))
		})
	}
}

// What was asked for is no surprise.
func TestRestartAndPause(t *testing.T) {
	m, err := Boot(t.Context(), config(t, qmptest.Well))
	require.NoError(t, err)
	defer m.Kill()
	require.NoError(t, m.Pause(t.Context()))
	require.NoError(t, m.Continue(t.Context()))
	require.NoError(t, m.Reboot(t.Context()))
	require.NoError(t, m.Reset(t.Context()))
	printed, _, err := m.Ask(t.Context(), "still there")
	require.NoError(t, err)
	require.Equal(t, "still there", printed)
}

// Case: of a script that runs QEMU only the script was killed, and QEMU's end waited for.
func TestKillScript(t *testing.T) {
	c := config(t, qmptest.Well)
	script := filepath.Join(c.Dir, "script")
	require.NoError(t, os.WriteFile(script, []byte("#!/bin/sh\n"+c.Program+" \"$@\"\nexit 0\n"), 0o700))
	c.Program = script
	m, err := Boot(t.Context(), c)
	require.NoError(t, err)
	m.Kill()
	require.True(t, m.Ended())
}

// TestQuitFails kills a machine that does not quit.
func TestQuitFails(t *testing.T) {
	m, err := Boot(t.Context(), config(t, qmptest.Clings))
	require.NoError(t, err)
	ctx, stop := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer stop()
	require.ErrorIs(t, m.Quit(ctx), context.DeadlineExceeded)
	require.True(t, m.Ended())
}

func TestVersion(t *testing.T) {
	config(t, qmptest.Well)
	program, err := os.Executable()
	require.NoError(t, err)
	v, err := QEMUVersion(t.Context(), program)
	require.NoError(t, err)
	require.Equal(t, "10.1", v.String())
	for v, want := range map[Version]bool{{7, 2}: false, {9, 2}: false, {10, 0}: true, {10, 2}: true, {11, 0}: true, {11, 1}: false, {12, 0}: false} {
		require.Equal(t, want, v.IgnoresQueueSize(), "%v", v)
	}
	_, err = QEMUVersion(t.Context(), "true")
	require.ErrorContains(t, err, "no version in")
}

func TestMissing(t *testing.T) {
	for _, n := range needs() {
		require.NotEmpty(t, n.Package, "%v", n)
		require.NotEmpty(t, n.For, "%v", n)
	}
	empty := t.TempDir()
	t.Setenv("PATH", empty)
	list := Missing("", true)
	require.Equal(t, Need{DefaultProgram, "qemu-system-x86", machineItself}, list[0])
	require.Greater(t, len(list), 5)
	err := MissingError(list)
	require.ErrorContains(t, err, "missing: qemu-system-x86_64 (the machine; Debian package qemu-system-x86), busybox (")
	require.ErrorContains(t, err, "apt-get install --no-install-recommends qemu-system-x86 busybox-static ")
	require.NoError(t, os.WriteFile(filepath.Join(empty, "my-qemu"), nil, 0o700))
	require.NoError(t, MissingError(Missing("my-qemu", false)), "a guest that is there needs no programs")
}

// TestBuildFails passes on what the script says.
func TestBuildFails(t *testing.T) {
	var said []string
	_, err := Build(t.Context(), BuildOptions{CacheDir: t.TempDir(), Kernel: "/nonexistent/k", Modules: "/nonexistent/m", Log: func(line string) { said = append(said, line) }})
	require.ErrorContains(t, err, "build the guest: exit status 1")
	if MissingError(Missing("true", true)) == nil {
		require.ErrorContains(t, err, "no kernel to boot (tried /nonexistent/k with modules in /nonexistent/m)")
	}
	require.NotEmpty(t, said)
}

// TestBuildEnds gives up a build, and leaves nothing of it.
func TestBuildEnds(t *testing.T) {
	if err := MissingError(Missing("true", true)); err != nil {
		t.Skip(err)
	}
	cache := t.TempDir()
	kernel := filepath.Join(cache, "kernel")
	require.NoError(t, unix.Mkfifo(kernel, 0o600)) // which nobody writes to
	ctx, stop := context.WithTimeout(t.Context(), time.Second)
	defer stop()
	_, err := Build(ctx, BuildOptions{CacheDir: cache, Kernel: kernel, Modules: cache})
	require.ErrorIs(t, err, context.DeadlineExceeded)
	left, err := os.ReadDir(cache)
	require.NoError(t, err)
	require.Len(t, left, 1, "the kernel only: %v", left)
}

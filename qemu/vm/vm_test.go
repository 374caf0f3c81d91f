package vm

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

// playsQEMU is set in the environment of this test's own program, which then is QEMU: its
// value says what goes wrong.
const playsQEMU = "ELEVISOR_TEST_PLAYS_QEMU"

func TestMain(m *testing.M) {
	if how := os.Getenv(playsQEMU); how != "" {
		play(how)
		return
	}
	goleak.VerifyTestMain(m)
}

// play is QEMU with a guest whose shell knows three words.
func play(how string) {
	if slices.Contains(os.Args, "--version") {
		fmt.Println("QEMU emulator version 10.1.2 (played)")
		return
	}
	var socket, console string
	for _, a := range os.Args {
		if rest, ok := strings.CutPrefix(a, "unix:"); ok && socket == "" {
			socket, _, _ = strings.Cut(rest, ",")
		}
		if rest, ok := strings.CutPrefix(a, "file:"); ok {
			console = rest
		}
	}
	_ = os.WriteFile(console, []byte("the kernel's last words\n"), 0o600)
	_ = os.WriteFile(filepath.Join(filepath.Dir(console), "args"), []byte(strings.Join(os.Args[1:], "\n")), 0o600)
	if how == "dies" {
		fmt.Fprintln(os.Stderr, "qemu: no such machine")
		os.Exit(1)
	}
	time.Sleep(50 * time.Millisecond) // nobody can count on the socket at once
	l, err := net.Listen("unix", socket)
	if err != nil {
		os.Exit(2)
	}
	go monitor(l, how)
	if how != "mute" {
		fmt.Print("SeaBIOS\r\n=0 0\r\n")
	}
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		n, command, _ := strings.Cut(in.Text(), " ")
		switch {
		case command == "reboot -f":
			fmt.Print("=0 0\r\n")
		case command == "hang":
		case command == "end":
			os.Exit(3)
		case command == "fail":
			fmt.Printf("bad luck\n\n=%s 7\n", n)
		default:
			fmt.Printf("%s\n\n=%s 0\n", command, n)
		}
	}
}

func monitor(l net.Listener, how string) {
	c, err := l.Accept()
	if err != nil {
		return
	}
	fmt.Fprintln(c, `{"QMP": {"version": {"qemu": {"micro": 2, "minor": 1, "major": 10}, "package": ""}, "capabilities": []}}`)
	for in := bufio.NewScanner(c); in.Scan(); {
		_, id, _ := strings.Cut(in.Text(), `"id":`)
		quit := strings.Contains(in.Text(), `"quit"`)
		if quit && how == "clings" {
			continue
		}
		fmt.Fprintf(c, `{"return": {}, "id": %s`+"\n", id) // id ends with the command's bracket
		if quit {
			os.Exit(0)
		}
	}
}

// config is a machine that is played.
func config(t *testing.T, how string) Config {
	t.Helper()
	t.Setenv(playsQEMU, how)
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
	c := config(t, "well")
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
	require.Contains(t, m.Diagnosis(), "the kernel's last words")
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
		c := config(t, "well")
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
	c := config(t, "dies")
	_, err := Boot(t.Context(), c)
	require.ErrorContains(t, err, "qemu: no such machine")
	require.ErrorContains(t, err, "the kernel's last words")
	require.ErrorContains(t, err, filepath.Join(c.Dir, "console"))

	ctx, stop := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer stop()
	_, err = Boot(ctx, config(t, "mute"))
	require.ErrorIs(t, err, context.DeadlineExceeded)

	c = config(t, "well")
	require.NoError(t, os.Remove(c.Guest.Initrd))
	_, err = Boot(t.Context(), c)
	require.ErrorIs(t, err, os.ErrNotExist)
	c = config(t, "well")
	c.Program = "/nonexistent/qemu"
	_, err = Boot(t.Context(), c)
	require.ErrorContains(t, err, "/nonexistent/qemu")
}

func TestShellFails(t *testing.T) {
	m, err := Boot(t.Context(), config(t, "well"))
	require.NoError(t, err)
	defer m.Kill()
	ctx, stop := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer stop()
	_, _, err = m.Ask(ctx, "hang")
	require.ErrorIs(t, err, context.DeadlineExceeded)
	_, _, err = m.Ask(t.Context(), "end")
	require.ErrorContains(t, err, "QEMU has ended (exit status 3)")
	require.ErrorContains(t, m.Quit(t.Context()), "exit status 3")
}

// TestQuitFails kills a machine that does not quit.
func TestQuitFails(t *testing.T) {
	m, err := Boot(t.Context(), config(t, "clings"))
	require.NoError(t, err)
	ctx, stop := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer stop()
	require.ErrorIs(t, m.Quit(ctx), context.DeadlineExceeded)
	require.True(t, m.Ended())
}

func TestVersion(t *testing.T) {
	config(t, "well")
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

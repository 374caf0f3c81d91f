package qemu

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/elevisor/elevisor/qemu/vm"
	"github.com/stretchr/testify/require"
)

// guest is a running virtual machine whose disks are ours.
type guest struct {
	t *testing.T
	m *vm.Machine
}

// boot starts a machine on the servers' sockets and returns when its agent answers. The
// machine reconnects when a server goes away.
func boot(t *testing.T, disks ...disk) *guest {
	t.Helper()
	return bootMachine(t, "pc", nil, disks...)
}

// bootMachine boots one of QEMU's machines, with further arguments.
func bootMachine(t *testing.T, kind string, more []string, disks ...disk) *guest {
	t.Helper()
	files, err := guestFiles()
	require.NoError(t, err)
	host, err := situation()
	require.NoError(t, err)
	start := time.Now()
	ctx, stop := context.WithTimeout(t.Context(), patience)
	defer stop()
	c := vm.Config{Program: host.program, Guest: files, Machine: kind, Dir: t.TempDir(), More: more,
		Probe: host.probe, Log: func(line string) { t.Log(line) }}
	for _, d := range disks {
		c.Disks = append(c.Disks, vm.Disk{Socket: d.socket, NumQueues: d.queues})
	}
	m, err := vm.Boot(ctx, c)
	require.NoError(t, err)
	g := &guest{t: t, m: m}
	t.Cleanup(g.cleanup)
	t.Logf("guest is up after %.1f s", time.Since(start).Seconds())
	return g
}

// cleanup ends QEMU, and after a failure shows what it and the guest's kernel said.
func (g *guest) cleanup() {
	g.m.Kill()
	if g.t.Failed() {
		g.t.Log(g.m.Diagnosis())
	}
}

// within calls what waits for the machine.
func (g *guest) within(wait func(context.Context) error) {
	g.t.Helper()
	ctx, stop := context.WithTimeout(g.t.Context(), patience)
	defer stop()
	require.NoError(g.t, wait(ctx))
}

// ask runs a shell command in the guest, as root.
func (g *guest) ask(command string) (output string, status int) {
	g.t.Helper()
	ctx, stop := context.WithTimeout(g.t.Context(), patience)
	defer stop()
	output, status, err := g.m.Ask(ctx, command)
	require.NoError(g.t, err, "%s", command)
	return output, status
}

// try is ask, with a line in the test's log.
func (g *guest) try(command string) (output string, status int) {
	g.t.Helper()
	start := time.Now()
	output, status = g.ask(command)
	g.t.Logf("[%.1f s] status %d: %s", time.Since(start).Seconds(), status, command)
	return output, status
}

// run is try for a command that must succeed.
func (g *guest) run(command string) string {
	g.t.Helper()
	output, status := g.try(command)
	require.Zero(g.t, status, "%s\n%s", command, output)
	return output
}

// number is what a command prints; without a line in the log, since it is asked often.
func (g *guest) number(command string) int {
	g.t.Helper()
	output, status := g.ask(command)
	require.Zero(g.t, status, "%s\n%s", command, output)
	n, err := strconv.Atoi(output)
	require.NoError(g.t, err, "%s\n%s", command, output)
	return n
}

// quit ends the machine as a user would, and waits for QEMU's end.
func (g *guest) quit() {
	g.t.Helper()
	g.within(g.m.Quit)
}

// dropCaches makes the guest read from the disk what it reads next.
const dropCaches = "sync && echo 3 > /proc/sys/vm/drop_caches"

// sum is the checksum of a range of the guest's disk, in MiB.
func (g *guest) sum(offset, length int) string {
	g.t.Helper()
	return g.sumOf("/dev/vda", offset, length)
}

func (g *guest) sumOf(device string, offset, length int) string {
	g.t.Helper()
	return firstWord(g.run(fmt.Sprintf("%s && dd if=%s bs=1M skip=%d count=%d 2> /dev/null | md5sum", dropCaches, device, offset, length)))
}

func firstWord(s string) string {
	word, _, _ := strings.Cut(s, " ")
	return word
}

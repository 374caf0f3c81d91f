package qemu

import (
	"fmt"
	"net"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestAttachDetach plugs a second disk into a running guest, and unplugs it, with the
// program's own commands: on a machine with a PCI bus, and behind a PCI Express port.
func TestAttachDetach(t *testing.T) {
	needGuest(t)
	for machine, more := range map[string][]string{
		"pc":  nil,
		"q35": {"-device", "pcie-root-port,id=rp1,chassis=1,slot=1"},
	} {
		t.Run(machine, func(t *testing.T) {
			t.Parallel()
			attachDetach(t, machine, more)
		})
	}
}

func attachDetach(t *testing.T, machine string, more []string) {
	first, second := newDisk(t, 16*mib), newDisk(t, 64*mib)
	s := serve(t, first)
	if !peer {
		second.control = filepath.Join(filepath.Dir(second.socket), "ctl.sock")
	}
	s2 := serve(t, second)
	g := bootMachine(t, machine, more, first)
	const hot = "disk2" // QEMU has a "disk" already
	attach := []string{"attach", "--disk", hot, "--socket-path", second.socket}

	require.Contains(t, g.elevisor(attach...), hot+": the guest uses it; queues: 2")
	g.appears(true)
	g.run("mkfs.ext4 -q -F /dev/vdb && mount -t ext4 /dev/vdb /mnt")
	want := g.run("dd if=/dev/urandom of=/mnt/data bs=1M count=8 2> /dev/null && " + dropCaches + " && md5sum < /mnt/data")

	wrongAttaches(t, g, second)
	g.run("umount /mnt && e2fsck -fn /dev/vdb")
	require.Equal(t, hot+": detached", g.elevisor("detach", "--disk", hot))
	g.appears(false)
	require.Contains(t, g.elevisorFails("detach", "--disk", hot), "the VM has no device \""+hot+"\"; its vhost-user disks: [disk]")

	require.Contains(t, g.elevisor(attach...), hot+": the guest uses it")
	g.appears(true)
	require.Equal(t, want, g.run("mount -t ext4 /dev/vdb /mnt && md5sum < /mnt/data && umount /mnt"), "what was written before the detach")
	require.Equal(t, hot+": detached", g.elevisor("detach", "--disk", hot))
	g.run("dd if=/dev/vda of=/dev/null bs=1M count=8")
	g.quit()
	s2.stop()
	s.stop()
}

// wrongAttaches must say what is wrong, and leave the machine and the disk as they are.
func wrongAttaches(t *testing.T, g *guest, second disk) {
	require.Contains(t, g.elevisorFails("attach", "--disk", "disk2", "--socket-path", second.socket), `the VM already has a device "disk2"`)
	busy := g.elevisorFails("attach", "--disk", "disk3", "--socket-path", second.socket)
	require.Contains(t, busy, "another VM has this disk")
	nobody := filepath.Join(t.TempDir(), "nobody")
	require.Contains(t, g.elevisorFails("attach", "--socket-path", nobody), "no server listens there")
	other := filepath.Join(t.TempDir(), "other")
	l, err := net.Listen("unix", other)
	require.NoError(t, err)
	defer l.Close()
	go func() {
		if c, err := l.Accept(); err == nil {
			defer c.Close()
			fmt.Fprintln(c, "220 mail.example.org ESMTP")
			_, _ = c.Read(make([]byte, 64))
		}
	}()
	require.Contains(t, g.elevisorFails("attach", "--socket-path", other), "it is no vhost-user socket")
	if !peer {
		require.Contains(t, g.elevisorFails("attach", "--disk", "disk", "--control-socket", second.control), "disk disk is attached already")
	}
	g.run("ls /mnt > /dev/null && dd if=/dev/vda of=/dev/null bs=1M count=8")
}

// appears waits until the guest has its second disk, or has it no more: its device file
// comes a moment after the driver's start, and goes a moment after the device.
func (g *guest) appears(want bool) {
	g.t.Helper()
	condition := "! -e"
	if want {
		condition = "-b"
	}
	g.run("until [ " + condition + " /dev/vdb ]; do sleep 0.02; done")
}

// elevisor runs a command of the program on the machine, and wants it to succeed.
func (g *guest) elevisor(args ...string) string {
	g.t.Helper()
	out, err := g.runElevisor(args)
	require.NoError(g.t, err, "elevisor %v: %s", args, out)
	return out
}

// elevisorFails wants it to fail, and returns what it says.
func (g *guest) elevisorFails(args ...string) string {
	g.t.Helper()
	out, err := g.runElevisor(args)
	require.Error(g.t, err, "elevisor %v: %s", args, out)
	return out
}

func (g *guest) runElevisor(args []string) (string, error) {
	g.t.Helper()
	bin, err := elevisor()
	require.NoError(g.t, err)
	start := time.Now()
	out, err := exec.Command(bin, append(args, "--qmp", g.m.MonitorSocket(), "--timeout", patience.String())...).CombinedOutput()
	g.t.Logf("[%.1f s] elevisor %v: %s", time.Since(start).Seconds(), args, out)
	return strings.TrimSpace(string(out)), err
}

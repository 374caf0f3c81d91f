package main

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"github.com/elevisor/elevisor/qemu/qmp/qmptest"
	"github.com/stretchr/testify/require"
)

// Command lines that need no VM, at a control socket that has vda (attached), vdb, and
// vdc, which has no socket.
func TestAttach_commandLines(t *testing.T) {
	path := control(t, newHouse())
	t.Chdir(t.TempDir())
	dir, err := os.Getwd()
	require.NoError(t, err)
	require.NoError(t, os.Symlink(path, "ctl.sock"))
	datadriven.RunTest(t, filepath.Join(source, "testdata/attach"), func(t *testing.T, d *datadriven.TestData) string {
		args := []string{d.Cmd}
		if d.Cmd == "attach" {
			args = append(args, "--control-socket=ctl.sock")
		}
		out, err := run(t.Context(), append(args, strings.Fields(d.Input)...)...)
		if err != nil {
			out += "error: " + err.Error() + "\n"
		}
		return strings.ReplaceAll(out, dir, "DIR")
	})
}

// A served disk goes into a machine, through its agent gets a scheduler, and leaves.
func TestAttachDetach(t *testing.T) {
	t.Chdir(t.TempDir())
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := run(ctx, "--disk", "id=vdb,path=null:?size=1M,num-queues=4,socket=s.sock", "--control-socket=ctl.sock")
		ended <- err
	}()
	require.Eventually(t, func() bool {
		c, err := net.Dial("unix", "ctl.sock")
		if err != nil {
			return false
		}
		return c.Close() == nil
	}, time.Minute, 5*time.Millisecond)
	v := qmptest.New()
	require.NoError(t, v.Listen("qmp.sock"))
	defer v.Close()
	g := &qmptest.Agent{Disk: "/dev/vdb", Slot: 4, Choices: []string{"none", "mq-deadline"}}
	require.NoError(t, g.Listen("ga.sock"))
	defer g.Close()

	attach := []string{"attach", "--qmp=qmp.sock", "--disk=vdb", "--control-socket=ctl.sock"}
	out, err := run(t.Context(), append(attach, "--guest-agent=ga.sock", "--guest_scheduler=mq-deadline")...)
	require.NoError(t, err)
	require.Equal(t, "vdb: the guest uses it; queues: 2, bus: QEMU's default\n/dev/vdb in the guest: none [mq-deadline]\n", out)
	_, err = run(t.Context(), attach...)
	require.ErrorContains(t, err, `the VM already has a device "vdb"`)
	out, err = run(t.Context(), "detach", "--qmp=qmp.sock", "--disk=vdb")
	require.NoError(t, err)
	require.Equal(t, "vdb: detached\n", out)
	out, err = run(t.Context(), "attach", "--qmp=qmp.sock", "--socket-path=s.sock", "--num-queues=1")
	require.NoError(t, err)
	require.Equal(t, "s: the guest uses it; queues: 1, bus: QEMU's default\n", out)
	require.Equal(t, "devices map[s:vhost-user-blk-pci], chardevs map[vu-s:unix:]", v.State())
	stop()
	require.NoError(t, <-ended)
}

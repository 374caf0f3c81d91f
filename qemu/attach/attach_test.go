package attach

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"github.com/elevisor/elevisor/daemon"
	"github.com/elevisor/elevisor/qemu/qmp/qmptest"
	"github.com/elevisor/elevisor/vhost"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"go.uber.org/zap"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	ample = time.Minute
	brief = 700 * time.Millisecond // for what will not come; more than some looks take
)

// source is this package's directory.
var source, _ = os.Getwd()

// server serves a disk with two queues at path until the test ends.
func server(t *testing.T, path string) {
	d, err := daemon.Open([]daemon.Disk{parse(t, "id=d,path=null:?size=1M,num-queues=2,socket="+path)}, nil, zap.NewNop())
	require.NoError(t, err)
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- d.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		require.NoError(t, <-ended)
	})
}

func parse(t *testing.T, s string) daemon.Disk {
	d, err := daemon.ParseDisk(s)
	require.NoError(t, err)
	return d
}

// world is what a transcript plays in: a machine at qmp.sock, a server at disk.sock, and,
// if it was asked for, a guest agent at ga.sock.
type world struct {
	vm    *qmptest.VM
	agent *qmptest.Agent
}

func (w *world) close() {
	if w.vm != nil {
		w.vm.Close()
	}
	if w.agent != nil {
		w.agent.Close()
	}
	w.vm, w.agent = nil, nil
	os.Remove("qmp.sock")
	os.Remove("ga.sock")
}

// start makes a new machine as its arguments say.
func (w *world) start(t *testing.T, d *datadriven.TestData) {
	w.close()
	v := qmptest.New()
	if d.HasArg("version") {
		d.ScanArgs(t, "version", &v.Major, &v.Minor)
	}
	if d.HasArg("machine") {
		d.ScanArgs(t, "machine", &v.Machine)
	}
	if d.HasArg("status") {
		d.ScanArgs(t, "status", &v.Status)
	}
	v.Chatty, v.Unreachable, v.Deaf, v.Clinging =
		d.HasArg("chatty"), d.HasArg("unreachable"), d.HasArg("deaf"), d.HasArg("clinging")
	v.Quiet, v.Unwilling, v.Unplugging = d.HasArg("quiet"), d.HasArg("unwilling"), d.HasArg("unplugging")
	faults := map[string]qmptest.Fault{"refuse": qmptest.Refuse, "silent": qmptest.Silent, "stuck": qmptest.Stuck, "hang-up": qmptest.HangUp}
	for _, a := range d.CmdArgs {
		switch fault, known := faults[a.Key]; {
		case known:
			v.Faults[a.Vals[0]] = fault
		case a.Key == "memory":
			v.Memory = map[string]string{}
			for _, kind := range a.Vals {
				v.Memory[kind[:3]] = kind
			}
		case a.Key == "ports":
			v.Ports = a.Vals
		case a.Key == "plug": // plug=(ID,TYPE,CHARDEV,BUS)
			v.Plug(a.Vals[0], a.Vals[1], a.Vals[2], a.Vals[3])
		case a.Key == "stops": // stops=(COMMAND,RUN-STATE)
			v.StopsAt[a.Vals[0]] = a.Vals[1]
		case a.Key == "busy":
			d.ScanArgs(t, "busy", &v.Busy)
		case a.Key == "chardev":
			v.Chardevs[a.Vals[0]] = "unix:"
		}
	}
	require.NoError(t, v.Listen("qmp.sock"))
	w.vm = v
}

func (w *world) startAgent(t *testing.T, d *datadriven.TestData) {
	w.agent = &qmptest.Agent{Disk: "/dev/vdb", Slot: 4, Choices: []string{"none", "mq-deadline"},
		Dead: d.HasArg("dead"), Forbidden: d.HasArg("forbidden"), Late: 2}
	if d.HasArg("elsewhere") {
		w.agent.Slot = 9
	}
	require.NoError(t, w.agent.Listen("ga.sock"))
}

// command attaches or detaches, and says what came of it.
func (w *world) command(t *testing.T, d *datadriven.TestData) string {
	o := Options{Monitor: "qmp.sock", Timeout: ample}
	if d.HasArg("brief") {
		o.Timeout = brief
	}
	disk := Disk{ID: "vdb", Socket: "disk.sock"}
	for _, a := range d.CmdArgs {
		switch a.Key {
		case "id":
			disk.ID = a.Vals[0]
		case "socket":
			disk.Socket = a.Vals[0]
		case "bus":
			disk.Bus = a.Vals[0]
		case "num-queues":
			d.ScanArgs(t, "num-queues", &disk.NumQueues)
		case "queue-size":
			d.ScanArgs(t, "queue-size", &disk.QueueSize)
		case "scheduler":
			o.Scheduler, o.Agent = a.Vals[0], "ga.sock"
		}
	}
	if d.Cmd == "detach" {
		if err := Detach(t.Context(), disk.ID, o); err != nil {
			return "error: " + err.Error()
		}
		return "detached"
	}
	a, err := Attach(t.Context(), disk, o)
	if err != nil {
		return "error: " + err.Error()
	}
	return fmt.Sprintf("attached: %+v", *a)
}

func TestTranscripts(t *testing.T) {
	t.Chdir(t.TempDir())
	server(t, "disk.sock")
	for _, name := range []string{"attach", "undo", "detach", "refusals"} {
		t.Run(name, func(t *testing.T) {
			var w world
			defer w.close()
			datadriven.RunTest(t, filepath.Join(source, "testdata", name), func(t *testing.T, d *datadriven.TestData) string {
				return w.play(t, d)
			})
		})
	}
}

// play carries out one directive. The text is what the machine was told, what came of it,
// and what is in the machine then.
func (w *world) play(t *testing.T, d *datadriven.TestData) string {
	switch d.Cmd {
	case "vm":
		w.start(t, d)
		return ""
	case "agent":
		w.startAgent(t, d)
		return ""
	}
	result := w.command(t, d)
	var b strings.Builder
	log := slices.DeleteFunc(w.vm.Log(), func(line string) bool {
		return !d.HasArg("all") && !strings.HasPrefix(line, "chardev-") && !strings.HasPrefix(line, "device_")
	})
	for _, line := range slices.Compact(log) {
		fmt.Fprintln(&b, line)
	}
	fmt.Fprintf(&b, "%s\n%s\n", result, w.vm.State())
	return b.String()
}

// A server that another front-end has is not asked twice: QEMU would wait for it with
// the whole VM stopped.
func TestAttach_busyServer(t *testing.T) {
	t.Chdir(t.TempDir())
	server(t, "disk.sock")
	f, err := vhost.Dial("disk.sock", ample)
	require.NoError(t, err)
	_, err = f.GetFeatures()
	require.NoError(t, err)
	v := qmptest.New()
	require.NoError(t, v.Listen("qmp.sock"))
	defer v.Close()
	_, err = Attach(t.Context(), Disk{ID: "vdb", Socket: "disk.sock"}, Options{Monitor: "qmp.sock", Timeout: brief})
	require.ErrorContains(t, err, "disk.sock: it does not answer: another VM has this disk")
	require.NotContains(t, fmt.Sprint(v.Log()), "chardev-add")
	f.Close()
	_, err = Attach(t.Context(), Disk{ID: "vdb", Socket: "disk.sock"}, Options{Monitor: "qmp.sock", Timeout: ample})
	require.NoError(t, err, "the question has left the server as it was")
}

// Sockets of other kinds.
func TestAsk(t *testing.T) {
	t.Chdir(t.TempDir())
	_, err := ask("none.sock", ample)
	require.ErrorContains(t, err, "no such file or directory; no server listens there")
	l, err := net.Listen("unix", "other.sock")
	require.NoError(t, err)
	defer l.Close()
	go func() {
		c, err := l.Accept()
		if err == nil {
			fmt.Fprint(c, `{"QMP": {"version": {}}}`+"\n")
			defer c.Close()
			_, _ = c.Read(make([]byte, 64))
		}
	}()
	_, err = ask("other.sock", ample)
	require.ErrorContains(t, err, "other.sock: it is no vhost-user socket")
}

// Ctrl-C undoes, too.
func TestAttach_interrupted(t *testing.T) {
	t.Chdir(t.TempDir())
	server(t, "disk.sock")
	v := qmptest.New()
	v.Deaf = true
	require.NoError(t, v.Listen("qmp.sock"))
	defer v.Close()
	ctx, stop := context.WithCancel(t.Context())
	go func() {
		for !strings.Contains(fmt.Sprint(v.Log()), "x-query-virtio-vhost") {
			time.Sleep(time.Millisecond)
		}
		stop()
	}()
	_, err := Attach(ctx, Disk{ID: "vdb", Socket: "disk.sock"}, Options{Monitor: "qmp.sock", Timeout: ample})
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorContains(t, err, "nothing of it is left in the VM")
	require.Equal(t, "devices map[], chardevs map[]", v.State())
}

func TestPrint(t *testing.T) {
	datadriven.RunTest(t, "testdata/print", func(t *testing.T, d *datadriven.TestData) string {
		disk := Disk{ID: "a.b", Socket: "/run/it's, odd"}
		if d.HasArg("full") {
			disk = Disk{ID: "vdb", Socket: "/run/vm.sock", NumQueues: 2, QueueSize: 256, Bus: "rp1"}
		}
		var b bytes.Buffer
		if d.Cmd == "libvirt" {
			require.NoError(t, WriteLibvirt(&b, disk, "vdb"))
			return b.String()
		}
		major := 0
		d.ScanArgs(t, "major", &major)
		require.NoError(t, WriteQEMU(&b, disk, major))
		return b.String()
	})
}

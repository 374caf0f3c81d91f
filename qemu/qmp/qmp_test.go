package qmp_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/digitalocean/go-qemu/qmp/raw"
	"github.com/elevisor/elevisor/qemu/qmp"
	"github.com/elevisor/elevisor/qemu/qmp/qmptest"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	ample = time.Minute           // for what comes
	brief = 50 * time.Millisecond // for what does not
)

// vm starts a machine.
func vm(t *testing.T, v *qmptest.VM) string {
	path := filepath.Join(t.TempDir(), "qmp")
	require.NoError(t, v.Listen(path))
	t.Cleanup(v.Close)
	return path
}

func dial(t *testing.T, path string, timeout time.Duration) *qmp.Monitor {
	m, err := qmp.Dial(t.Context(), path, timeout)
	require.NoError(t, err)
	t.Cleanup(func() { _ = m.Disconnect() })
	return m
}

// script serves one client: its lines after the greeting go to answer, what that returns
// goes back.
func script(t *testing.T, greeting string, answer func(line string) string) string {
	path := filepath.Join(t.TempDir(), "script")
	l, err := net.Listen("unix", path)
	require.NoError(t, err)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		fmt.Fprint(c, greeting)
		for in := bufio.NewScanner(c); in.Scan(); {
			reply := answer(in.Text())
			if reply == "" {
				return
			}
			fmt.Fprint(c, reply)
		}
	}()
	t.Cleanup(func() {
		l.Close()
		<-ended
	})
	return path
}

func id(line string) string {
	_, rest, _ := strings.Cut(line, `"id":"`)
	id, _, _ := strings.Cut(rest, `"`)
	return id
}

// Case: go-qemu's own monitor gives out its scanner's memory, which the next line
// overwrites, and ends at 64 KiB.
func TestMonitor_repliesAreOnesOwn(t *testing.T) {
	v := qmptest.New()
	v.Chatty, v.Long = true, 256<<10
	v.Plug("big", "e1000", "", "")
	m := dial(t, vm(t, v), ample)
	first, err := m.Run([]byte(`{"execute":"query-pci"}`))
	require.NoError(t, err)
	require.Greater(t, len(first), 256<<10)
	copied := string(first)
	for range 20 {
		_, err := m.Run([]byte(`{"execute":"query-chardev","arguments":{}}`))
		require.NoError(t, err)
	}
	require.Equal(t, copied, string(first), "a reply stays what it was")
	pci, err := raw.NewMonitor(m).QueryPCI()
	require.NoError(t, err, "go-qemu's typed commands run over it")
	require.Equal(t, "big", pci[0].Devices[0].QdevID)
}

func TestMonitor_version(t *testing.T) {
	v := qmptest.New()
	v.Major, v.Minor = 11, 1
	major, minor := dial(t, vm(t, v), ample).Version()
	require.Equal(t, []int{11, 1}, []int{major, minor})
}

func TestMonitor_refusal(t *testing.T) {
	m := dial(t, vm(t, qmptest.New()), ample)
	err := m.Execute(t.Context(), "device_del", map[string]string{"id": "x"}, nil)
	refused := new(qmp.Error)
	require.ErrorAs(t, err, &refused)
	require.Equal(t, qmp.DeviceNotFound, refused.Class)
	require.EqualError(t, err, "device_del: Device 'x' not found")
	err = raw.NewMonitor(m).ChardevRemove("x")
	require.EqualError(t, err, "chardev-remove: Chardev 'x' not found", "to go-qemu's commands too")
	var wrong string
	require.ErrorContains(t, m.Execute(t.Context(), "query-status", nil, &wrong), "query-status: reply")
	_, err = m.Run([]byte("{"))
	require.Error(t, err)
}

// What would stop a ring in the running VM does not reach it.
func TestMonitor_neverHarms(t *testing.T) {
	v := qmptest.New()
	m := dial(t, vm(t, v), ample)
	v.Log()
	for _, command := range []string{"x-query-virtio-queue-status", "x-query-virtio-status"} {
		require.ErrorContains(t, m.Execute(t.Context(), command, nil, nil), "never sent")
		_, err := m.Run([]byte(`{"execute":"` + command + `"}`))
		require.ErrorContains(t, err, "never sent")
	}
	require.Empty(t, v.Log())
}

// A reply that is late answers nobody: neither its own command nor the next.
func TestMonitor_deadline(t *testing.T) {
	late := ""
	path := script(t, `{"QMP": {"version": {"qemu": {"micro": 0, "minor": 0, "major": 9}}}}`+"\n", func(line string) string {
		reply := fmt.Sprintf(`{"return": {"of": %q}, "id": %q}`+"\n", line, id(line))
		if strings.Contains(line, "slow") {
			late = reply
			return "\n{\"event\": \"NOISE\", \"data\": {}}\n"[1:]
		}
		reply, late = late+reply, ""
		return reply
	})
	m := dial(t, path, ample)
	ctx, stop := context.WithTimeout(t.Context(), brief)
	defer stop()
	err := m.Execute(ctx, "slow", nil, nil)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.EqualError(t, err, "slow: QEMU has not answered in time: context deadline exceeded")
	var r struct{ Of string }
	require.NoError(t, m.Execute(t.Context(), "quick", nil, &r))
	require.Contains(t, r.Of, "quick")
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, m.Execute(gone, "slow", nil, nil), context.Canceled)
}

// The monitor's own limit holds without any context's.
func TestMonitor_timeout(t *testing.T) {
	v := qmptest.New()
	v.Faults["query-status"] = qmptest.Silent
	m := dial(t, vm(t, v), 10*brief)
	_, err := m.Run([]byte(`{"execute":"query-status"}`))
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.NoError(t, m.Err(), "the connection lives")
}

func TestMonitor_ends(t *testing.T) {
	v := qmptest.New()
	v.Faults["query-status"] = qmptest.HangUp
	m := dial(t, vm(t, v), ample)
	for range 2 {
		err := m.Execute(t.Context(), "query-status", nil, nil)
		require.ErrorContains(t, err, "query-status: ")
		require.ErrorContains(t, err, "QEMU has closed the connection")
	}
	require.Error(t, m.Err())
	_, err := m.Events(t.Context())
	require.Error(t, err)
}

func TestMonitor_events(t *testing.T) {
	v := qmptest.New()
	v.Plug("d", "vhost-user-blk-pci", "c", "")
	m := dial(t, vm(t, v), ample)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	events, err := m.Events(ctx)
	require.NoError(t, err)
	require.NoError(t, m.Execute(t.Context(), "device_del", map[string]string{"id": "d"}, nil))
	inner, outer := <-events, <-events
	require.Equal(t, "DEVICE_DELETED", inner.Event)
	require.Equal(t, "/machine/peripheral/d/virtio-backend", inner.Data["path"])
	require.Equal(t, "d", outer.Data["device"])
}

// A listener that does not listen keeps nobody waiting.
func TestMonitor_slowListener(t *testing.T) {
	v := qmptest.New()
	v.Chatty = true
	m := dial(t, vm(t, v), ample)
	_, err := m.Events(t.Context())
	require.NoError(t, err)
	for range 50 {
		require.NoError(t, m.Execute(t.Context(), "query-status", nil, nil))
	}
}

func TestDial_refusals(t *testing.T) {
	nobody := filepath.Join(t.TempDir(), "nobody")
	_, err := qmp.Dial(t.Context(), nobody, ample)
	require.ErrorContains(t, err, "QMP socket "+nobody+": no such file or directory; want QEMU's -qmp unix:")

	silent := script(t, "", func(string) string { return "" })
	_, err = qmp.Dial(t.Context(), silent, brief)
	require.ErrorContains(t, err, "no greeting: it serves another client")

	other := script(t, "SSH-2.0-OpenSSH_9.2\r\n", func(string) string { return "" })
	_, err = qmp.Dial(t.Context(), other, ample)
	require.ErrorContains(t, err, `this is no QEMU monitor, it greets with "SSH-2.0-OpenSSH_9.2\r\n"`)

	quiet := script(t, "", func(string) string { return "" })
	ctx, stop := context.WithCancel(t.Context())
	time.AfterFunc(brief, stop)
	_, err = qmp.Dial(ctx, quiet, ample)
	require.ErrorIs(t, err, context.Canceled)
}

// A line that never ends, or is no JSON, ends the connection and not the process.
func TestMonitor_nonsense(t *testing.T) {
	path := script(t, `{"QMP": {}}`+"\n", func(line string) string {
		if strings.Contains(line, "qmp_capabilities") {
			return fmt.Sprintf(`{"return": {}, "id": %q}`+"\n", id(line))
		}
		return "nonsense\n"
	})
	m := dial(t, path, ample)
	require.ErrorContains(t, m.Execute(t.Context(), "query-status", nil, nil), `"nonsense\n"`)

	endless := script(t, strings.Repeat("x", 5<<20), func(string) string { return "" })
	_, err := qmp.Dial(t.Context(), endless, ample)
	require.ErrorContains(t, err, "a line of more than 4194304 bytes")
	require.False(t, errors.As(err, new(*qmp.Error)))
}

package qmp_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/elevisor/elevisor/qemu/qmp"
	"github.com/elevisor/elevisor/qemu/qmp/qmptest"
	"github.com/stretchr/testify/require"
)

// Each way in which a guest stops ends the wait for it, with the reason.
func TestWatch(t *testing.T) {
	for name, c := range map[string]struct {
		happens func(*qmptest.VM)
		want    string
	}{
		"internal error": {func(v *qmptest.VM) { v.Stop("internal-error") }, "the guest has stopped: QEMU's run state is internal-error"},
		"disk full":      {func(v *qmptest.VM) { v.Stop("io-error") }, "the guest has stopped: QEMU's run state is io-error"},
		"panic":          {func(v *qmptest.VM) { v.Tell("GUEST_PANICKED", `{"action": "pause"}`) }, "the guest's kernel has panicked"},
		"shutdown":       {func(v *qmptest.VM) { v.Tell("SHUTDOWN", `{"guest": true, "reason": "guest-shutdown"}`) }, "the guest has shut down (guest-shutdown)"},
		"reset":          {func(v *qmptest.VM) { v.Tell("RESET", `{"guest": true, "reason": "guest-reset"}`) }, "the guest has been reset (guest-reset)"},
	} {
		t.Run(name, func(t *testing.T) {
			v := qmptest.New()
			m := dial(t, vm(t, v), ample)
			ctx, stop := m.Watch(t.Context(), qmp.WatchOptions{})
			defer stop()
			v.Tell("RTC_CHANGE", `{"offset": 0}`)
			require.NoError(t, ctx.Err(), "another event")
			c.happens(v)
			<-ctx.Done()
			require.EqualError(t, context.Cause(ctx), c.want)
			require.ErrorAs(t, context.Cause(ctx), new(*qmp.StopError))
		})
	}
}

// Case: a guest that stopped before anyone watched it, with no event left to come.
func TestWatch_foundStopped(t *testing.T) {
	v := qmptest.New()
	v.Status = "internal-error"
	ctx, stop := dial(t, vm(t, v), ample).Watch(t.Context(), qmp.WatchOptions{})
	defer stop()
	require.EqualError(t, context.Cause(ctx), "the guest has stopped: QEMU's run state is internal-error")
}

// QEMU's end ends a watch; what QEMU said last is the better reason.
func TestWatch_QEMUEnds(t *testing.T) {
	for want, last := range map[string]func(*qmptest.VM){
		"QEMU has closed the connection": func(*qmptest.VM) {},
		"the guest has shut down (host-signal)": func(v *qmptest.VM) {
			v.Tell("SHUTDOWN", `{"guest": false, "reason": "host-signal"}`)
		},
	} {
		v := qmptest.New()
		m := dial(t, vm(t, v), ample)
		ctx, stop := m.Watch(t.Context(), qmp.WatchOptions{})
		defer stop()
		last(v)
		v.Close()
		<-ctx.Done()
		require.ErrorContains(t, context.Cause(ctx), want)

		late, stop := m.Watch(t.Context(), qmp.WatchOptions{})
		defer stop()
		require.ErrorContains(t, context.Cause(late), "QEMU has closed the connection", "a watch that begins later")
	}
}

// A pause may be short, as a snapshot's is, or asked for; one that lasts ends the watch.
func TestWatch_pause(t *testing.T) {
	v := qmptest.New()
	m := dial(t, vm(t, v), ample)
	asked := func() bool { return slices.Contains(v.Log(), "query-status") }
	ctx, stop := m.Watch(t.Context(), qmp.WatchOptions{MaxPause: time.Second})
	defer stop()
	require.True(t, asked(), "at the start")
	require.NoError(t, m.Execute(t.Context(), "stop", nil, nil))
	require.Eventually(t, asked, ample, time.Millisecond, "why it has stopped")
	require.NoError(t, m.Execute(t.Context(), "cont", nil, nil))
	require.Eventually(t, asked, ample, time.Millisecond, "whether it goes on")
	require.NoError(t, ctx.Err())

	own, stop := m.Watch(t.Context(), qmp.WatchOptions{Expected: func(event string) bool { return event == qmp.EventStop }})
	defer stop()
	require.NoError(t, m.Execute(t.Context(), "stop", nil, nil))
	<-ctx.Done()
	require.EqualError(t, context.Cause(ctx), "the guest has stopped: QEMU's run state is paused")
	require.NoError(t, own.Err())
}

// The caller's own reset is none to wonder at, and its context's end ends the watch.
func TestWatch_expectedReset(t *testing.T) {
	v := qmptest.New()
	m := dial(t, vm(t, v), ample)
	seen := make(chan string, 1)
	parent, cancel := context.WithCancelCause(t.Context())
	ctx, stop := m.Watch(parent, qmp.WatchOptions{Expected: func(event string) bool { seen <- event; return true }})
	defer stop()
	require.NoError(t, m.Execute(t.Context(), "system_reset", nil, nil))
	require.Equal(t, qmp.EventReset, <-seen)
	require.NoError(t, ctx.Err())
	cancel(context.DeadlineExceeded)
	<-ctx.Done()
	require.ErrorIs(t, context.Cause(ctx), context.DeadlineExceeded)
}

// Commands that wait on a watched context say why it ended.
func TestWatch_commandSaysWhy(t *testing.T) {
	v := qmptest.New()
	v.Faults["query-pci"], v.StopsAt["query-pci"] = qmptest.Silent, "internal-error"
	m := dial(t, vm(t, v), ample)
	ctx, stop := m.Watch(t.Context(), qmp.WatchOptions{})
	defer stop()
	go func() {
		for !slices.Contains(v.Log(), "query-pci") {
			time.Sleep(time.Millisecond)
		}
		v.Tell("STOP", "{}") // a silent VM tells of nothing by itself
	}()
	err := m.Execute(ctx, "query-pci", nil, nil)
	require.EqualError(t, err, "query-pci: the guest has stopped: QEMU's run state is internal-error")
}

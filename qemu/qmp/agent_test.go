package qmp_test

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"github.com/elevisor/elevisor/qemu/qmp"
	"github.com/elevisor/elevisor/qemu/qmp/qmptest"
	"github.com/stretchr/testify/require"
)

func agent(t *testing.T, g *qmptest.Agent) string {
	path := filepath.Join(t.TempDir(), "ga")
	require.NoError(t, g.Listen(path))
	t.Cleanup(g.Close)
	return path
}

const file = "/sys/block/vdb/queue/scheduler"

// The agent's line still holds what an earlier client has left there.
func TestAgent(t *testing.T) {
	path := agent(t, &qmptest.Agent{Disk: "/dev/vdb", Bus: 1, Choices: []string{"none", "mq-deadline"}})
	for _, scheduler := range []string{"mq-deadline", "none"} { // one client after the other
		a, err := qmp.DialAgent(t.Context(), path, ample)
		require.NoError(t, err)
		disks, err := a.Disks(t.Context())
		require.NoError(t, err)
		require.Equal(t, "/dev/vdb", disks[2].Name)
		require.EqualValues(t, 1, disks[2].Address.PCI.Bus)
		require.Nil(t, disks[1].Address)
		require.NoError(t, a.WriteFile(t.Context(), file, scheduler))
		text, err := a.ReadFile(t.Context(), file)
		require.NoError(t, err)
		require.Contains(t, text, "["+scheduler+"]")

		require.EqualError(t, a.WriteFile(t.Context(), file, "cfq"),
			file+" in the guest: guest-file-flush: failed to flush file: Invalid argument")
		_, err = a.ReadFile(t.Context(), "/etc/shadow")
		require.ErrorContains(t, err, "/etc/shadow in the guest: guest-file-open: failed to open")
		a.Close()
	}
}

func TestAgent_refusals(t *testing.T) {
	_, err := qmp.DialAgent(t.Context(), filepath.Join(t.TempDir(), "none"), ample)
	require.ErrorContains(t, err, "guest agent socket")

	_, err = qmp.DialAgent(t.Context(), agent(t, &qmptest.Agent{Dead: true}), brief)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorContains(t, err, "it does not run in the guest")

	ctx, stop := context.WithCancel(t.Context())
	time.AfterFunc(brief, stop)
	_, err = qmp.DialAgent(ctx, agent(t, &qmptest.Agent{Dead: true}), ample)
	require.ErrorIs(t, err, context.Canceled)

	_, err = qmp.DialAgent(t.Context(), script(t, "", func(string) string { return "" }), ample)
	require.ErrorContains(t, err, "EOF")

	a, err := qmp.DialAgent(t.Context(), agent(t, &qmptest.Agent{Forbidden: true}), ample)
	require.NoError(t, err)
	defer a.Close()
	require.ErrorContains(t, a.WriteFile(t.Context(), file, "none"), "guest-file-open has been disabled")
}

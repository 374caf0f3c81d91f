package qemu

import (
	"encoding/json"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// qmp is a connection to QEMU's control socket.
type qmp struct {
	t    *testing.T
	conn net.Conn
	dec  *json.Decoder
}

// dialQMP waits for the socket, since QEMU makes it a moment after its start.
func dialQMP(t *testing.T, path string, dead func() bool) *qmp {
	t.Helper()
	q := &qmp{t: t}
	eventually(t, "QEMU's control socket", func() bool {
		require.False(t, dead(), "QEMU has ended")
		conn, err := net.Dial("unix", path)
		q.conn = conn
		return err == nil
	})
	t.Cleanup(func() { q.conn.Close() })
	q.dec = json.NewDecoder(q.conn)
	require.NoError(t, q.conn.SetDeadline(time.Now().Add(patience)))
	var greeting map[string]any
	require.NoError(t, q.dec.Decode(&greeting))
	q.do("qmp_capabilities")
	return q
}

// do executes a command without arguments and waits for its answer; events that
// come before it are dropped.
func (q *qmp) do(command string) {
	q.t.Helper()
	require.NoError(q.t, q.conn.SetDeadline(time.Now().Add(patience)))
	_, err := q.conn.Write([]byte(`{"execute":"` + command + `"}`))
	require.NoError(q.t, err)
	for {
		var answer struct {
			Event  string
			Error  *struct{ Desc string }
			Return json.RawMessage
		}
		require.NoError(q.t, q.dec.Decode(&answer), "QMP %s", command)
		if answer.Event != "" {
			continue
		}
		require.Nil(q.t, answer.Error, "QMP %s", command)
		return
	}
}

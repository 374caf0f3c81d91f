package ctl

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"github.com/stretchr/testify/require"

	"github.com/elevisor/elevisor/sys/clock"
)

// Each transcript is one server's life: "send" gives it lines and prints what it
// answers; "-" is no answer.
func TestRPC(t *testing.T) {
	datadriven.Walk(t, "testdata/rpc", func(t *testing.T, path string) {
		methods := (&Server{control: newFake(), clock: clock.Start()}).methods()
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			var out strings.Builder
			for line := range strings.Lines(d.Input) {
				reply := answer(methods, []byte(line))
				if reply == nil {
					reply = []byte("-")
				}
				fmt.Fprintf(&out, "%s\n", reply)
			}
			return out.String()
		})
	})
}

// A line is one batch at most, of bounded length.
func TestRPC_longBatch(t *testing.T) {
	methods := (&Server{control: newFake()}).methods()
	batch := func(n int) []byte {
		one := `{"jsonrpc":"2.0","id":1,"method":"list"}`
		return []byte("[" + strings.Repeat(one+",", n-1) + one + "]")
	}
	var replies []response
	require.NoError(t, json.Unmarshal(answer(methods, batch(batchMax)), &replies))
	require.Len(t, replies, batchMax)
	require.Contains(t, string(answer(methods, batch(batchMax+1))), "a batch of 65 requests; want 1 to 64")
}

// Whatever comes, an answer is JSON-RPC, and the server is what it was before,
// except through a method that changes it.
func FuzzRPC(f *testing.F) {
	for _, s := range []string{
		`{"jsonrpc":"2.0","id":1,"method":"list"}`, `{"jsonrpc":"2.0","id":"x","method":"stat","params":{}}`,
		`[{"jsonrpc":"2.0","id":null,"method":"scheduler","params":{"disk":"a","name":"none"}},1]`,
		`{"jsonrpc":"2.0","id":1,"method":"set","params":{"disk":"a","key":"read_expire","value":"1"}}`,
		`{"jsonrpc":"2.0","method":"describe","params":{"disk":"b"}}`, `[]`, `[[]]`, `{`, `null`, "\xff", ` `,
	} {
		f.Add([]byte(s))
	}
	c := newFake()
	c.stat = []DiskStat{sample()}
	methods := (&Server{control: c}).methods()
	f.Fuzz(func(t *testing.T, line []byte) {
		reply := answer(methods, line)
		if reply == nil {
			return
		}
		require.NotContains(t, string(reply), "\n")
		var batch []json.RawMessage
		if reply[0] == '[' {
			require.NoError(t, json.Unmarshal(reply, &batch))
			require.NotEmpty(t, batch)
		} else {
			batch = []json.RawMessage{reply}
		}
		for _, raw := range batch {
			var r response
			d := json.NewDecoder(bytes.NewReader(raw))
			d.DisallowUnknownFields()
			require.NoError(t, d.Decode(&r))
			require.Equal(t, "2.0", r.Version)
			require.NotEqual(t, r.Error == nil, r.Result == nil, "either a result or an error")
			require.NotNil(t, r.ID)
		}
		require.Contains(t, available, c.active)
	})
}

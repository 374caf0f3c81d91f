package fio

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// Whatever a job's times are, they come back to the nanosecond.
func TestJob_JSON(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		span := rapid.Int64Range(0, int64(TimeMax))
		j := Default()
		j.Runtime, j.Ramp = time.Duration(span.Draw(rt, "runtime")), time.Duration(span.Draw(rt, "ramp"))
		j.ThinkTime = time.Duration(span.Draw(rt, "thinktime"))
		j.Size, j.Stride, j.BSSplit = 5<<30, -8192, []Split{{4096, 60}, {65536, 40}}
		text, err := json.Marshal(j)
		require.NoError(rt, err)
		var again Job
		require.NoError(rt, json.Unmarshal(text, &again))
		require.Equal(rt, j, again)
	})
	j := Job{Runtime: 1500 * time.Millisecond, ThinkTime: 20 * time.Microsecond}
	text, err := json.Marshal(j)
	require.NoError(t, err)
	require.Contains(t, string(text), `"runtime_us":1500000,"ramp_time_us":0,"thinktime_us":20`)
	for _, bad := range []string{`{"runtime_us":-1}`, `{"ramp_time_us":1e300}`, `{"thinktime_us":604800000001}`} {
		require.ErrorContains(t, json.Unmarshal([]byte(bad), &j), "out of range 0 to 6.048e+11", bad)
	}
}

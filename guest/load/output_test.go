package load

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func sample(t *testing.T) *Result {
	return run(t, Options{RW: RandReadWrite, MixRead: 50, Depth: 4, IOSize: 4 << 20, Verify: true}, newFake(make([]byte, 1<<20), 4, 4096))
}

func TestTextOutput(t *testing.T) {
	var b strings.Builder
	require.NoError(t, sample(t).WriteText(&b))
	for _, want := range []string{"randrw: (groupid=0, job=1 of 1): err= 0", "  read: IOPS=", "clat percentiles (", "99.99th=[", "verify: ", ", 0 wrong", "   READ: bw=", "  WRITE: bw="} {
		assert.Contains(t, b.String(), want)
	}
}

// TestJSONNamesAreFios compares the names, and the kinds of their values, with
// those of the real fio.
func TestJSONNamesAreFios(t *testing.T) {
	path, err := exec.LookPath("fio")
	if err != nil {
		require.NotEqual(t, "true", os.Getenv("CI"), "make test installs what is missing here")
		t.Skip("needs fio")
	}
	out, err := exec.Command(path, "--name=x", "--rw=randrw", "--bs=4k", "--size=1m", "--ioengine=null", "--continue_on_error=all", "--output-format=json").Output()
	require.NoError(t, err)
	var fios, ours map[string]any
	require.NoError(t, json.Unmarshal(out, &fios))
	var b bytes.Buffer
	require.NoError(t, sample(t).WriteJSON(&b, Origin{Version: "elevisor-test", Time: time.Unix(1e9, 0)}))
	require.NoError(t, json.Unmarshal(b.Bytes(), &ours))
	assert.Equal(t, "elevisor-test", ours["fio version"])
	job := ours["jobs"].([]any)[0].(map[string]any)
	delete(job, "verify")      // ours
	delete(job, "job options") // free words
	sameNames(t, "", fios, ours)
	read := job["read"].(map[string]any)
	clat := read["clat_ns"].(map[string]any)
	assert.Equal(t, read["total_ios"], clat["N"])
	assert.Len(t, clat["percentile"], len(percentiles))
	assert.LessOrEqual(t, clat["percentile"].(map[string]any)["1.000000"], clat["percentile"].(map[string]any)["99.990000"])
	assert.LessOrEqual(t, clat["percentile"].(map[string]any)["99.990000"], clat["max"])
}

func sameNames(t *testing.T, at string, fios, ours any) {
	switch o := ours.(type) {
	case map[string]any:
		f, ok := fios.(map[string]any)
		require.True(t, ok, "%s is no object in fio's output", at)
		for k, v := range o {
			if assert.Contains(t, f, k, "%s: not a name of fio's", at) {
				sameNames(t, at+"/"+k, f[k], v)
			}
		}
	case []any:
		sameNames(t, at+"[]", fios.([]any)[0], o[0])
	default:
		assert.IsType(t, fios, ours, at)
	}
}

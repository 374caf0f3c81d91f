package qemu

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/base64"
	"fmt"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// fakeGuest answers the scripts as a guest's shell would, with one outcome of fio.
type fakeGuest struct {
	mu       sync.Mutex
	out      []byte            // fio's output
	status   string            // fio's exit status
	before   string            // /sys/block/X/stat
	after    string            //
	tags     int               // of a queue
	stubborn bool              // the kernel knows no scheduler but none
	lacks    string            // programs
	files    map[string]string // what was written, by the end of its name
	job      string            // the job file, as it came
	scripts  []string
	blocks   chan struct{} // fio does not end before it is closed
}

func newFakeGuest(t *testing.T) *fakeGuest {
	t.Helper()
	out, err := os.ReadFile("testdata/fio.json")
	require.NoError(t, err)
	return &fakeGuest{
		out: out, status: "0", tags: 128, files: map[string]string{},
		before: "10 5 0 0 20 6 0 0 0 0 0 0 0 0 0 0 0", after: "400 127 0 0 162 24 0 0 0 0 0 0 0 0 0 0 0",
	}
}

var (
	echoed = regexp.MustCompile(`^echo '?([^' ]+)'? > (\S+?)(?:;| &&)`)
	sent   = regexp.MustCompile(`^echo (\S+) >> /tmp/elevisor.fake/job.b64$`)
)

func (g *fakeGuest) sh(script string) (string, int) {
	g.mu.Lock()
	g.scripts = append(g.scripts, script)
	blocks := g.blocks
	g.mu.Unlock()
	if blocks != nil && strings.Contains(script, "cat status") {
		<-blocks
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if m := sent.FindStringSubmatch(script); m != nil {
		g.job += m[1]
		return "", 0
	}
	if m := echoed.FindStringSubmatch(script); m != nil {
		if strings.HasSuffix(m[2], "/scheduler") {
			if g.stubborn {
				return "sh: write error: Invalid argument\n[none]", 0
			}
			g.files[m[2]] = m[1]
			return strings.ReplaceAll("none mq-deadline kyber bfq", m[1], "["+m[1]+"]"), 0
		}
		g.files[m[2]] = m[1]
		return m[1], 0
	}
	switch {
	case strings.Contains(script, "command -v"):
		return g.lacks, 0
	case strings.HasPrefix(script, "mktemp"):
		g.job = ""
		return "/tmp/elevisor.fake", 0
	case strings.Contains(script, "iosched/fifo_batch"):
		return "iosched/fifo_batch", 0
	case strings.Contains(script, "iosched/nr_requests"):
		return "nr_requests", 0
	case strings.Contains(script, "iosched/"):
		return "fifo_batch\nread_expire", 1
	case strings.Contains(script, "max_sectors_kb"):
		return fmt.Sprintf("1280\n126\n%d\n2\n6.1.0-cloud\nfio-3.33\nwrite back", g.tags), 0
	case strings.Contains(script, "base64 -d job.b64"):
		text, err := base64.StdEncoding.DecodeString(g.job)
		if err != nil {
			return "base64: invalid input", 1
		}
		g.job = string(text)
		return "", 0
	case strings.Contains(script, "fio --output=out"):
		return "", 0
	case strings.Contains(script, "cat status before after"):
		return g.status + "\n" + g.before + "\n" + g.after, 0
	case strings.Contains(script, "cat err"):
		return "fio: what went wrong", 0
	case strings.HasPrefix(script, "gzip"):
		var b bytes.Buffer
		z := gzip.NewWriter(&b)
		_, _ = z.Write(g.out)
		_ = z.Close()
		return base64.StdEncoding.EncodeToString(b.Bytes()), 0
	case strings.HasSuffix(script, "rm -rf /tmp/elevisor.fake"):
		return "", 0
	}
	return "sh: not understood: " + script, 127
}

// ran says whether the last script has that in it.
func (g *fakeGuest) ran(part string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.scripts) > 0 && strings.Contains(g.scripts[len(g.scripts)-1], part)
}

// fakeMachine is a machine around such a guest; disks are plugged in name only.
type fakeMachine struct {
	guest     *fakeGuest
	foreign   bool
	plugged   string // the socket
	unplugged int
	closed    int
	queues    int
	size      int
	refuse    error // to plug
}

func (m *fakeMachine) Sh(ctx context.Context, script string) (string, error) {
	type answer struct {
		printed string
		status  int
	}
	c := make(chan answer, 1)
	go func() {
		printed, status := m.guest.sh(script)
		c <- answer{printed, status}
	}()
	select {
	case a := <-c:
		return strings.TrimSpace(a.printed), failed(script, a.printed, a.status)
	case <-ctx.Done():
		return "", fmt.Errorf("the guest does not answer: %w", ctx.Err())
	}
}

func (m *fakeMachine) Plug(_ context.Context, socket string, queues, size int) (string, error) {
	if m.refuse != nil {
		return "", m.refuse
	}
	m.plugged, m.queues, m.size = socket, queues, size
	return "vda", nil
}

func (m *fakeMachine) Unplug(context.Context) error { m.unplugged++; return nil }
func (m *fakeMachine) Ours() bool                   { return !m.foreign }
func (m *fakeMachine) Close(context.Context) error  { m.closed++; return nil }

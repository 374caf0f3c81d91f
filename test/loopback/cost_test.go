package loopback

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/elevisor/elevisor/backend"
	"github.com/elevisor/elevisor/guest"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// A connected server without work rests: no polling, no timers, no wakes.
func TestIdleRests(t *testing.T) {
	for name, aio := range map[string]backend.AIO{"io_uring": backend.AIOAuto, "threads": backend.AIOThreads} {
		t.Run(name, func(t *testing.T) {
			d := disk(t, diskBlocks*block)
			d.AIO = aio
			s := startServer(t, d)
			m := boot(t, d.Socket, guest.Options{Depth: 8})
			time.Sleep(100 * time.Millisecond)
			m.rest(d.Path)
			time.Sleep(200 * time.Millisecond)
			const window = 2 * time.Second
			before := processorTime(t, s.cmd.Process.Pid)
			time.Sleep(window)
			used := processorTime(t, s.cmd.Process.Pid) - before
			t.Logf("%v of processor time in %v", used, window)
			require.Less(t, used, window/100, "an idle server works")
		})
	}
}

// processorTime is what all threads of a process have used.
func processorTime(t *testing.T, pid int) (sum time.Duration) {
	stats, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	require.NoError(t, err)
	require.NotEmpty(t, stats)
	for _, path := range stats {
		b, err := os.ReadFile(path)
		if err != nil {
			continue // a thread that has ended meanwhile
		}
		ns, err := strconv.ParseInt(strings.Fields(string(b))[0], 10, 64)
		require.NoError(t, err)
		sum += time.Duration(ns)
	}
	return sum
}

// At queue depth 32, submissions and completions travel in batches: at most one
// io_uring_enter for four requests.
func TestOneEnterForManyRequests(t *testing.T) {
	strace, err := exec.LookPath("strace")
	if err != nil {
		require.NotEqual(t, "true", os.Getenv("CI"), "make test installs what is missing here")
		t.Skip("strace is missing")
	}
	d := disk(t, diskBlocks*block)
	s := startServer(t, d)
	m := boot(t, d.Socket, guest.Options{Depth: 32})
	counts := filepath.Join(t.TempDir(), "counts")
	tracer := exec.Command(strace, "-f", "-c", "-e", "trace=io_uring_enter", "-o", counts, "-p", strconv.Itoa(s.cmd.Process.Pid))
	before := m.returned()
	require.NoError(t, tracer.Start())
	time.Sleep(2 * time.Second)
	require.NoError(t, tracer.Process.Signal(unix.SIGINT))
	_ = tracer.Wait() // ends by the signal
	requests := m.returned() - before
	m.rest(d.Path)
	b, err := os.ReadFile(counts)
	require.NoError(t, err)
	enters := 0
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) >= 5 && f[len(f)-1] == "io_uring_enter" {
			enters, err = strconv.Atoi(f[3])
			require.NoError(t, err)
		}
	}
	if enters == 0 {
		require.NotEqual(t, "true", os.Getenv("CI"), "make test installs what is missing here")
		t.Skipf("strace could not attach, or io_uring is refused here:\n%s", b)
	}
	t.Logf("%d io_uring_enter for %d requests", enters, requests)
	require.LessOrEqual(t, enters, requests/4)
}

// returned counts the requests that have come back so far.
func (m *machine) returned() (n int) {
	for _, l := range m.loads {
		n += int(l.finishedNow.Load())
	}
	return n
}

package qemu

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// disk is one disk to serve.
type disk struct {
	image    string
	socket   string
	queues   int
	readOnly bool
	more     string // further --disk keys; not for the peer
	control  string // the control socket; not for the peer
}

// newDisk makes an empty image of size bytes, served with two queues.
func newDisk(t *testing.T, size int64) disk {
	t.Helper()
	dir := t.TempDir()
	d := disk{image: filepath.Join(dir, "disk.img"), socket: filepath.Join(dir, "vu.sock"), queues: 2}
	require.NoError(t, os.WriteFile(d.image, nil, 0o600))
	require.NoError(t, os.Truncate(d.image, size))
	return d
}

// direct is whether the image's file system takes O_DIRECT; an old tmpfs does not.
func (d disk) direct() bool {
	fd, err := unix.Open(d.image, unix.O_RDONLY|unix.O_DIRECT, 0)
	if err != nil {
		return false
	}
	unix.Close(fd)
	return true
}

// command is the server's command line; ready is a file that the peer makes when
// it is ready.
func (d disk) command(t *testing.T, ready string) *exec.Cmd {
	t.Helper()
	if peer {
		args := []string{"-f", ready, "-n", fmt.Sprint(d.queues), "-a", "threads"}
		if !d.direct() {
			args = append(args, "-c", "off")
		}
		if d.readOnly {
			args = append(args, "-r")
		}
		return exec.Command("../peers/qsd.sh", append(args, d.image, d.socket)...)
	}
	bin, err := elevisor()
	require.NoError(t, err)
	keys := fmt.Sprintf("id=disk,path=%s,socket=%s,num-queues=%d", d.image, d.socket, d.queues)
	if d.direct() {
		keys += ",cache=none"
	}
	if d.readOnly {
		keys += ",read-only=on"
	}
	if d.more != "" {
		keys += "," + d.more
	}
	args := []string{"serve", "--disk", keys}
	if d.control != "" {
		args = append(args, "--control-socket", d.control)
	}
	return exec.Command(bin, args...)
}

// server is a running vhost-user-blk server.
type server struct {
	t    *testing.T
	disk disk
	cmd  *exec.Cmd
	log  *logBuffer
	done chan struct{} // closed when it has ended
	err  error         // how it ended; after done
}

// serve starts a server and returns when its socket can be connected to.
func serve(t *testing.T, d disk) *server {
	t.Helper()
	ready := d.socket + ".pid"
	os.Remove(ready)
	s := &server{t: t, disk: d, cmd: d.command(t, ready), log: &logBuffer{}, done: make(chan struct{})}
	s.cmd.Stdout, s.cmd.Stderr = s.log, s.log
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	require.NoError(t, s.cmd.Start())
	go func() {
		s.err = s.cmd.Wait()
		close(s.done)
	}()
	t.Cleanup(func() {
		s.kill()
		if t.Failed() {
			t.Logf("server %v printed:\n%s", s.cmd.Args, s.log)
		}
	})
	eventually(t, "the server's socket", func() bool {
		require.False(t, s.ended(), "the server has ended: %v\n%s", s.err, s.log)
		if peer {
			_, err := os.Stat(ready)
			return err == nil
		}
		return strings.Contains(s.log.String(), d.socket)
	})
	return s
}

func (s *server) ended() bool {
	select {
	case <-s.done:
		return true
	default:
		return false
	}
}

// kill is the power cut: SIGKILL, and the socket stays behind.
func (s *server) kill() {
	s.cmd.Process.Kill()
	<-s.done
}

func (s *server) signal(sig syscall.Signal) {
	s.t.Helper()
	require.NoError(s.t, s.cmd.Process.Signal(sig))
}

// diskIO is how much the server has read from and written to disks, as the kernel
// tells; a disk that is all memory moves nothing.
func (s *server) diskIO() string {
	s.t.Helper()
	io, err := os.ReadFile(fmt.Sprintf("/proc/%d/io", s.cmd.Process.Pid))
	require.NoError(s.t, err)
	_, bytes, _ := strings.Cut(string(io), "read_bytes:")
	return bytes
}

// stop asks the server to end, and wants it to end well.
func (s *server) stop() {
	s.t.Helper()
	require.False(s.t, s.ended(), "the server has ended by itself: %v\n%s", s.err, s.log)
	s.signal(syscall.SIGTERM)
	eventually(s.t, "the server's end after SIGTERM", s.ended)
	require.NoError(s.t, s.err, "%s", s.log)
}

// logBuffer collects what a process prints; any goroutine may read it.
type logBuffer struct {
	mu sync.Mutex
	b  strings.Builder
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

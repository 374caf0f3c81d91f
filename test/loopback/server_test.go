// Package loopback holds tests of the whole path: the built-in guest, a real
// socket, a daemon in a process of its own, a file.
package loopback

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"testing"
	"time"

	"github.com/elevisor/elevisor/daemon"
	"github.com/elevisor/elevisor/guest"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"
)

// asServer, in the environment, makes the test binary a daemon for the disks in
// its value: a process that a test can kill.
const asServer = "ELEVISOR_TEST_SERVE"

// patience is how long something may take before a test gives it up for hung.
const patience = 60 * time.Second

func TestMain(m *testing.M) {
	if spec := os.Getenv(asServer); spec != "" {
		if err := serve(spec); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// served is what a daemon is told.
type served struct {
	Disks   []daemon.Disk
	Domains []daemon.Domain
}

func serve(spec string) error {
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM)
	defer stop()
	var o served
	if err := json.Unmarshal([]byte(spec), &o); err != nil {
		return err
	}
	log, err := zap.NewDevelopment()
	if err != nil {
		return err
	}
	d, err := daemon.Open(o.Disks, o.Domains, log)
	if err != nil {
		return err
	}
	return d.Run(ctx)
}

// server is a daemon process.
type server struct {
	t   *testing.T
	cmd *exec.Cmd
}

// startServer starts a daemon and waits until its sockets are there.
func startServer(t *testing.T, disks ...daemon.Disk) *server {
	return startDomains(t, disks)
}

func startDomains(t *testing.T, disks []daemon.Disk, domains ...daemon.Domain) *server {
	spec, err := json.Marshal(served{disks, domains})
	require.NoError(t, err)
	s := &server{t: t, cmd: exec.Command(os.Args[0])}
	s.cmd.Env = append(os.Environ(), asServer+"="+string(spec))
	s.cmd.Stderr = os.Stderr
	if !testing.Verbose() {
		s.cmd.Stderr = nil
	}
	require.NoError(t, s.cmd.Start())
	t.Cleanup(s.kill)
	return s
}

// kill ends the daemon as a crash would.
func (s *server) kill() {
	_ = s.cmd.Process.Kill()
	_, _ = s.cmd.Process.Wait()
}

// disk is a file of size bytes and a socket path.
func disk(t *testing.T, size int64) daemon.Disk {
	dir := t.TempDir()
	d := daemon.Disk{ID: "d", Path: filepath.Join(dir, "d.img"), Socket: filepath.Join(dir, "d.sock"), NumQueues: 2}
	f, err := os.Create(d.Path)
	require.NoError(t, err)
	require.NoError(t, f.Truncate(size))
	require.NoError(t, f.Close())
	return d
}

// connect starts a guest on a server that is about to listen.
func connect(t *testing.T, socket string, o guest.Options) *guest.Guest {
	var g *guest.Guest
	eventually(t, func() (err error) {
		g, err = guest.Start(socket, o)
		return err
	})
	t.Cleanup(g.Close)
	return g
}

// eventually repeats what fails while a server is starting.
func eventually(t *testing.T, f func() error) {
	t.Helper()
	var err error
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if err = f(); err == nil {
			return
		}
	}
	require.NoError(t, err)
}

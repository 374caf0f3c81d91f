// Package peers proves that the built-in guest and the bench speak vhost-user-blk
// as others understand it: against qemu-storage-daemon.
package peers

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/elevisor/elevisor/blk"
	"github.com/elevisor/elevisor/guest"
	"github.com/elevisor/elevisor/guest/load"
	"github.com/elevisor/elevisor/vhost"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const imageSize = 16 << 20

// peer is a running qemu-storage-daemon with one disk.
type peer struct {
	socket, image string
	queues        int
	cmd           *exec.Cmd
}

func startPeer(t *testing.T, queues int) *peer {
	t.Helper()
	if _, err := exec.LookPath("qemu-storage-daemon"); err != nil {
		require.NotEqual(t, "true", os.Getenv("CI"), "make test installs what is missing here")
		t.Skip("needs qemu-storage-daemon (Debian: qemu-system-common)")
	}
	dir := t.TempDir()
	p := &peer{socket: filepath.Join(dir, "s"), image: filepath.Join(dir, "disk.img"), queues: queues}
	f, err := os.Create(p.image)
	require.NoError(t, err)
	require.NoError(t, f.Truncate(imageSize))
	require.NoError(t, f.Close())
	p.start(t)
	t.Cleanup(p.kill)
	return p
}

func (p *peer) start(t *testing.T) {
	t.Helper()
	p.cmd = exec.Command("./qsd.sh", "-a", "threads", "-c", "off", "-n", strconv.Itoa(p.queues), p.image, p.socket)
	p.cmd.Stderr = os.Stderr
	p.cmd.SysProcAttr = &unix.SysProcAttr{Pdeathsig: unix.SIGKILL}
	require.NoError(t, p.cmd.Start())
	require.Eventually(t, func() bool {
		c, err := vhost.Dial(p.socket, time.Second)
		if err == nil {
			c.Close()
		}
		return err == nil
	}, time.Minute, 5*time.Millisecond, "the daemon does not listen")
}

func (p *peer) kill() {
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait()
}

func connect(t *testing.T, p *peer, o guest.Options) *guest.Guest {
	t.Helper()
	g, err := guest.Start(p.socket, o)
	require.NoError(t, err)
	t.Cleanup(g.Close)
	return g
}

func queues(g *guest.Guest) (qs []load.Queue) {
	for _, q := range g.Queues() {
		qs = append(qs, q)
	}
	return qs
}

func TestBenchEveryWorkload(t *testing.T) {
	for jobs := 1; jobs <= 2; jobs++ {
		p := startPeer(t, jobs)
		for _, rw := range []load.RW{load.Read, load.Write, load.RandRead, load.RandWrite, load.ReadWrite, load.RandReadWrite} {
			for _, o := range []guest.Options{
				{QueueSize: 64, MaxIO: 16384, Segments: 4},
				{QueueSize: 64, MaxIO: 16384, Segments: 4, Features: guest.DefaultFeatures &^ (1<<28 | 1<<29)},
				{QueueSize: 64, MaxIO: 16384, Segments: 4, Poll: true},
			} {
				name := fmt.Sprintf("%d/%v/features=%#x/poll=%t", jobs, rw, o.Features, o.Poll)
				t.Run(name, func(t *testing.T) { runBench(t, p, o, jobs, rw) })
			}
		}
	}
}

func runBench(t *testing.T, p *peer, o guest.Options, jobs int, rw load.RW) {
	g := connect(t, p, o)
	res, err := load.Run(context.Background(), g.Config().Capacity, queues(g), load.Options{
		RW: rw, MixRead: 50, BlockSize: 16384, Depth: 16, Jobs: jobs, Segments: 4, Verify: true, Seed: 7,
		IOSize: imageSize / int64(jobs) * 3 / 2,
	})
	require.NoError(t, err)
	total := res.Total()
	assert.Empty(t, total.Failures)
	assert.Zero(t, total.Errno)
	assert.Equal(t, uint64(imageSize/16384*3/2), total.Reads().IOs+total.Writes().IOs)
	if rw == load.Write || rw == load.RandWrite {
		assert.Equal(t, uint64(imageSize/16384), total.Verified, "all was written once, half of it twice")
	}
	assert.NoError(t, g.Memory().Intact())
}

// TestMinimalProtocol uses the fewest protocol features a front-end can live
// with: no acknowledgements, the memory table in one message.
func TestMinimalProtocol(t *testing.T) {
	p := startPeer(t, 2)
	runBench(t, p, guest.Options{QueueSize: 64, MaxIO: 16384, Segments: 4, Protocol: vhost.ProtocolMQ | vhost.ProtocolConfig}, 2, load.RandReadWrite)
}

func TestStopAndResume(t *testing.T) {
	p := startPeer(t, 2)
	g := connect(t, p, guest.Options{QueueSize: 16})
	for round := range uint16(3) {
		for _, q := range g.Queues() {
			roundTrip(t, q, blk.OpWrite, byte(round))
			roundTrip(t, q, blk.OpRead, byte(round))
		}
		bases, err := g.Stop()
		require.NoError(t, err)
		assert.Equal(t, []uint32{2 * uint32(round+1), 2 * uint32(round+1)}, bases)
		require.NoError(t, g.Resume())
	}
}

// roundTrip writes a sector full of v with queue q, or reads it and compares.
func roundTrip(t *testing.T, q *guest.Queue, op blk.Op, v byte) {
	t.Helper()
	buf := q.Buffer(0).Slice(0, 512)
	for i := range buf.Bytes {
		buf.Bytes[i] = v
		if op == blk.OpRead {
			buf.Bytes[i] = ^v
		}
	}
	require.True(t, q.Submit(0, op, blk.Sector(q.Index()), []guest.Buf{buf}))
	q.Kick()
	require.NoError(t, q.Wait(time.Minute))
	n, err := q.Reap(func(d guest.Done) { assert.Equal(t, blk.StatusOK, d.Status) })
	require.NoError(t, err)
	require.Equal(t, 1, n)
	for i := range buf.Bytes {
		require.Equal(t, v, buf.Bytes[i])
	}
}

// TestReconnect kills the daemon between requests and goes on with its successor
// on the same rings. (It keeps no in-flight record, so nothing may be in flight.)
func TestReconnect(t *testing.T) {
	p := startPeer(t, 2)
	g := connect(t, p, guest.Options{QueueSize: 16})
	q := g.Queues()[1]
	for round := range byte(3) {
		roundTrip(t, q, blk.OpWrite, round)
		p.kill()
		assert.ErrorIs(t, q.Wait(time.Minute), guest.ErrGone)
		p.start(t)
		require.NoError(t, g.Reconnect(p.socket))
		roundTrip(t, q, blk.OpRead, round)
	}
	assert.NoError(t, g.Memory().Intact())
}

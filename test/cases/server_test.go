// Package cases holds the case book's inputs that a hostile or faulty guest can
// make, one subtest a case, named after it: each runs over a real socket against
// a real daemon, and beside its own answer is held to the rules that hold for
// every input (rig.finish has them).
package cases

import (
	"context"
	"encoding/binary"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/elevisor/elevisor/blk"
	"github.com/elevisor/elevisor/daemon"
	"github.com/elevisor/elevisor/guest"
)

// TestMain gives each of the two disks' loops, the two guests and the sessions a
// processor of Go's: a loop keeps its own while it sleeps in the kernel.
func TestMain(m *testing.M) {
	runtime.GOMAXPROCS(max(6, runtime.GOMAXPROCS(0)))
	goleak.VerifyTestMain(m)
}

// patience ends tests that hang; nothing is measured with it.
const patience = time.Minute

// until polls cond in the test's own goroutine, which alone may touch the guest
// memory that goes away when a test fails.
func until(t require.TestingT, what string, cond func() bool) {
	for end := time.Now().Add(patience); !cond(); time.Sleep(100 * time.Microsecond) {
		if time.Now().After(end) {
			require.Fail(t, what)
		}
	}
}

// server is a daemon in this process with two disks: the case's and another
// guest's, which must not notice anything.
type server struct {
	socket, image string
	neighbour     *neighbour
	log           *observer.ObservedLogs
	fds           int // open while only the neighbour is connected
}

// r0 is the rig's disk.
func r0() daemon.Disk {
	return daemon.Disk{
		ID: "case", Serial: "disk-0", NumQueues: 4, SegMax: 126, DiscardSeg: 4,
		MaxDiscard: 256, MaxWriteZeroes: 256, MaxWriteZeroesSeg: 4, DiscardAlignment: 8,
	}
}

// sectorPattern is an image whose sectors hold their own number 64 times.
func sectorPattern(sectors int) []byte {
	b := make([]byte, sectors*blk.SectorSize)
	for at := 0; at < len(b); at += 8 {
		binary.LittleEndian.PutUint64(b[at:], uint64(at/blk.SectorSize))
	}
	return b
}

func startServer(t *testing.T, disk daemon.Disk, image []byte) *server {
	t.Helper()
	dir := t.TempDir()
	file := func(name string, b []byte) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, b, 0o600))
		return path
	}
	s := &server{socket: filepath.Join(dir, "s"), image: file("disk.img", image)}
	disk.Path, disk.Socket = s.image, s.socket
	other := daemon.Disk{ID: "neighbour", Path: file("other.img", sectorPattern(2048)), Socket: filepath.Join(dir, "o")}
	core, logs := observer.New(zap.InfoLevel)
	s.log = logs
	d, err := daemon.Open([]daemon.Disk{disk, other}, nil, zap.New(core))
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { assert.NoError(t, d.Run(ctx)) })
	t.Cleanup(func() { cancel(); wg.Wait() })
	s.neighbour = startNeighbour(t, other.Socket)
	s.fds = openFDs(t)
	return s
}

func openFDs(t *testing.T) int {
	t.Helper()
	names, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	return len(names)
}

// neighbour is a guest of another disk of the same daemon: it reads 4 KiB at a
// time, one after the other, all the time.
type neighbour struct {
	guest *guest.Guest
	reads atomic.Uint64
	fail  atomic.Pointer[error]
	stop  atomic.Bool
	pause sync.Mutex
	wg    sync.WaitGroup
}

func startNeighbour(t *testing.T, socket string) *neighbour {
	t.Helper()
	g, err := guest.Start(socket, guest.Options{QueueSize: 8, Depth: 1})
	require.NoError(t, err)
	n := &neighbour{guest: g}
	n.wg.Go(n.run)
	t.Cleanup(func() {
		n.stop.Store(true)
		n.wg.Wait()
		g.Close()
	})
	n.progress(t)
	return n
}

func (n *neighbour) run() {
	q := n.guest.Queues()[0]
	status := blk.StatusOK
	fn := func(d guest.Done) { status = d.Status }
	data := []guest.Buf{q.Buffer(0)}
	for sector := blk.Sector(0); !n.stop.Load(); sector = (sector + 8) % 2048 {
		n.pause.Lock()
		q.Submit(0, blk.OpRead, sector, data)
		q.Kick()
		err := q.Wait(patience)
		n.pause.Unlock()
		if err == nil {
			_, err = q.Reap(fn)
		}
		if err == nil && (status != blk.StatusOK || binary.LittleEndian.Uint64(data[0].Bytes) != uint64(sector)) {
			err = errNeighbour
		}
		if err != nil {
			n.fail.Store(&err)
			return
		}
		n.reads.Add(1)
	}
}

var errNeighbour = os.ErrInvalid

// progress waits until the neighbour has read something more, and is well.
func (n *neighbour) progress(t *testing.T) {
	t.Helper()
	from := n.reads.Load()
	until(t, "the other disk's guest makes no progress", func() bool { return n.fail.Load() != nil || n.reads.Load() > from+1 })
	if err := n.fail.Load(); err != nil {
		t.Fatalf("the other disk's guest: %v", *err)
	}
}

package backend

import (
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/elevisor/elevisor/backend/uring"
	"github.com/elevisor/elevisor/blk"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const hang = 30 * time.Second // only a hang lasts as long

// rig is the loop's part: it offers requests to one backend and waits for them.
type rig struct {
	t     testing.TB
	b     Backend
	ring  *uring.Ring
	woken chan struct{}
	done  []*blk.Request
	late  *time.Timer
	now   blk.Instant // goes on from one Wake to the next
}

// attach makes a rig for img with a ring if the image's engine wants one.
func attach(t testing.TB, img Image, depth int) *rig {
	t.Helper()
	return attachWith(t, img, depth, img.Info().Engine == "io_uring")
}

func attachWith(t testing.TB, img Image, depth int, withRing bool) *rig {
	t.Helper()
	g := &rig{t: t, woken: make(chan struct{}, 1)}
	h := Host{Depth: depth, Wakeup: func() {
		select {
		case g.woken <- struct{}{}:
		default:
		}
	}}
	if withRing {
		runtime.LockOSThread()
		ring, err := uring.New(64)
		require.NoError(t, err)
		g.ring, h.Ring = ring, ring
	}
	b, err := img.Attach(h)
	require.NoError(t, err)
	g.b = b
	return g
}

func (g *rig) close() {
	require.NoError(g.t, g.b.Close())
	if g.ring != nil {
		require.NoError(g.t, g.ring.Close())
		runtime.UnlockOSThread()
	}
}

// do carries reqs out, as many at once as fit, and waits for all of them.
func (g *rig) do(reqs ...*blk.Request) {
	for left := len(reqs); left > 0; {
		for len(reqs) > 0 {
			if reqs[0].State() == blk.StateFree {
				reqs[0].Move(blk.StateFree, blk.StateQueued)
			}
			if !g.b.Submit(g.now, reqs[0]) {
				break
			}
			reqs = reqs[1:]
		}
		if err := g.b.Commit(); err != nil {
			g.t.Fatal(err)
		}
		g.done = g.b.Reap(g.now, g.done[:0])
		for _, r := range g.done {
			r.Move(blk.StateDone, blk.StateFree)
			left--
		}
		if len(g.done) == 0 {
			g.wait()
		}
	}
}

func (g *rig) wait() {
	if wake := g.b.Wake(); wake != blk.Never {
		g.now = max(g.now, wake)
		return
	}
	if g.ring == nil {
		late := g.late // made once: some tests count allocations
		if late == nil {
			late = time.NewTimer(hang)
			g.late = late
		}
		late.Reset(hang)
		select {
		case <-g.woken:
		case <-late.C:
			g.t.Fatal("no completion")
		}
		late.Stop()
		return
	}
	const slice = 20 * time.Millisecond // the rig has no eventfd through which a helper could end the wait
	for range hang / slice {
		if err := g.ring.Enter(int64(slice)); err != nil {
			g.t.Fatal(err)
		}
		if g.ring.Poll() > 0 {
			return
		}
		select {
		case <-g.woken:
			return
		default:
		}
	}
	g.t.Fatal("no completion")
}

// engines are what a file can be carried out by here.
func engines(t testing.TB) []AIO {
	if err := uring.Probe(); err != nil {
		t.Logf("only threads: needs io_uring: %v", err)
		return []AIO{AIOThreads}
	}
	return []AIO{AIOURing, AIOThreads}
}

// eachEngine runs a test once for every engine.
func eachEngine(t *testing.T, test func(t *testing.T, aio AIO)) {
	for _, aio := range engines(t) {
		t.Run(aio.String(), func(t *testing.T) { test(t, aio) })
	}
}

// sparse makes a file of size bytes and returns its path.
func sparse(t testing.TB, size int64) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "disk")
	f, err := os.Create(path)
	require.NoError(t, err)
	require.NoError(t, f.Truncate(size))
	require.NoError(t, f.Close())
	return path
}

// open opens and attaches; the test's end closes both.
func open(t testing.TB, spec string, o Options) *rig {
	t.Helper()
	img, err := Open(spec, o)
	require.NoError(t, err)
	g := attach(t, img, 8)
	t.Cleanup(func() {
		g.close()
		require.NoError(t, img.Close())
	})
	return g
}

// memory is page-aligned and zeroed, as guests' is; it lives as long as the test.
func memory(t testing.TB, n int) []byte {
	t.Helper()
	b, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_ANONYMOUS)
	require.NoError(t, err)
	t.Cleanup(func() { _ = unix.Munmap(b) })
	return b
}

func data(op blk.Op, sector blk.Sector, segs ...[]byte) *blk.Request {
	r := &blk.Request{Op: op, Sector: sector, Segs: segs}
	n := 0
	for _, s := range segs {
		n += len(s)
	}
	if n%blk.SectorSize != 0 {
		panic("segments do not add up to sectors")
	}
	r.Sectors = blk.Sector(n / blk.SectorSize)
	return r
}

func ranges(op blk.Op, flags blk.Flags, x ...blk.Range) *blk.Request {
	r := &blk.Request{Op: op, Flags: flags, Ranges: x, Sector: x[0].Sector}
	for _, e := range x {
		r.Sectors += e.Sectors
	}
	return r
}

func requireOK(t testing.TB, reqs ...*blk.Request) {
	t.Helper()
	for _, r := range reqs {
		require.Equal(t, blk.StatusOK, r.Status, "%v %d+%d: %v", r.Op, r.Sector, r.Sectors, unix.Errno(r.Errno))
	}
}

func fill(b []byte, c byte) []byte {
	for i := range b {
		b[i] = c
	}
	return b
}

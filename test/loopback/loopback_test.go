package loopback

import (
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/elevisor/elevisor/backend"
	"github.com/elevisor/elevisor/blk"
	"github.com/elevisor/elevisor/daemon"
	"github.com/elevisor/elevisor/guest"
	"github.com/elevisor/elevisor/virtqueue"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"
)

const diskBlocks = 2048

// machine is a guest with a load on each of its queues.
type machine struct {
	*guest.Guest
	t     *testing.T
	loads []*load
	stop  chan struct{}
	once  sync.Once
	wg    sync.WaitGroup
}

func boot(t *testing.T, socket string, o guest.Options) *machine {
	m := &machine{Guest: connect(t, socket, o), t: t, stop: make(chan struct{})}
	per := diskBlocks / len(m.Queues())
	for i, q := range m.Queues() {
		l := newLoad(q, uint64(i)+1, blk.Sector(i*per*sectors), per)
		m.loads = append(m.loads, l)
		m.wg.Go(func() { l.run(m.stop) })
	}
	t.Cleanup(m.halt) // before the guest's memory goes
	return m
}

// halt ends the loads.
func (m *machine) halt() {
	m.once.Do(func() { close(m.stop) })
	m.wg.Wait()
}

// rest ends the loads and requires that every request came back once and right,
// and that the image holds what was acknowledged.
func (m *machine) rest(path string) {
	m.halt()
	for _, l := range m.loads {
		require.NoError(m.t, l.err)
		require.Equal(m.t, l.submitted, l.finished)
		require.NotZero(m.t, l.finished)
		require.EqualValues(m.t, uint16(l.finished), l.q.Ring().UsedIdx())
	}
	m.checkImage(path)
}

func (m *machine) checkImage(path string) {
	image, err := os.ReadFile(path)
	require.NoError(m.t, err)
	for _, l := range m.loads {
		for b, gen := range l.gens {
			at := int(l.first)*blk.SectorSize + b*block
			require.NoError(m.t, l.check(image[at:at+block], access{block: b, gen: gen}))
		}
	}
}

func variants(t *testing.T, f func(t *testing.T, d daemon.Disk, o guest.Options)) {
	for name, set := range map[string]func(d *daemon.Disk, o *guest.Options){
		"defaults":      func(*daemon.Disk, *guest.Options) {},
		"direct":        func(d *daemon.Disk, _ *guest.Options) { d.Cache = backend.CacheNone },
		"write-through": func(d *daemon.Disk, _ *guest.Options) { d.Cache = backend.CacheWritethrough },
		"threads":       func(d *daemon.Disk, _ *guest.Options) { d.AIO = backend.AIOThreads },
		"no event idx": func(_ *daemon.Disk, o *guest.Options) {
			o.Features = guest.DefaultFeatures &^ virtqueue.FeatureEventIdx
		},
		"no indirect, small ring": func(_ *daemon.Disk, o *guest.Options) {
			o.Features, o.QueueSize, o.Depth = guest.DefaultFeatures&^virtqueue.FeatureIndirect, 16, 5
		},
		"polling driver": func(_ *daemon.Disk, o *guest.Options) { o.Poll = true },
	} {
		t.Run(name, func(t *testing.T) {
			d, o := disk(t, diskBlocks*block), guest.Options{Depth: 32}
			set(&d, &o)
			f(t, d, o)
		})
	}
}

func TestLoad(t *testing.T) {
	variants(t, func(t *testing.T, d daemon.Disk, o guest.Options) {
		startServer(t, d)
		m := boot(t, d.Socket, o)
		time.Sleep(300 * time.Millisecond)
		m.rest(d.Path)
	})
}

// The daemon is killed in mid-I/O and another takes over, again and again: every
// request completes exactly once and the contents are right.
func TestKillAndRestart(t *testing.T) {
	d := disk(t, diskBlocks*block)
	s := startServer(t, d)
	m := boot(t, d.Socket, guest.Options{Depth: 32})
	rng := rand.New(rand.NewPCG(20, 26))
	owed := 0
	for range 20 {
		time.Sleep(time.Duration(20+rng.IntN(100)) * time.Millisecond)
		s.kill()
		owed += inflight(t, m.Guest)
		s = startServer(t, d)
		eventually(t, func() error { return m.Reconnect(d.Socket) })
	}
	time.Sleep(100 * time.Millisecond)
	m.rest(d.Path)
	require.NotZero(t, owed, "no kill ever met a request in flight")
	t.Logf("%d requests, %d of them run again after a kill", m.loads[0].finished+m.loads[1].finished, owed)
}

// inflight counts the chains that a dead server owes, by its record.
func inflight(t *testing.T, g *guest.Guest) (n int) {
	record, err := g.InflightRecord()
	require.NoError(t, err)
	require.NotNil(t, record)
	defer record.Release()
	stride := len(record.Bytes()) / len(g.Queues())
	for i := range g.Queues() {
		b := record.Bytes()[i*stride : (i+1)*stride]
		for e := 16; e < len(b); e += 16 {
			n += int(b[e])
		}
	}
	return n
}

// A front-end that closes its socket in mid-I/O and comes again at once, to a
// server that lives.
func TestDisconnectAndReturn(t *testing.T) {
	variants(t, func(t *testing.T, d daemon.Disk, o guest.Options) {
		startServer(t, d)
		m := boot(t, d.Socket, o)
		for range 10 {
			time.Sleep(30 * time.Millisecond)
			m.Disconnect()
			eventually(t, func() error { return m.Reconnect(d.Socket) })
		}
		m.rest(d.Path)
	})
}

// Rings are stopped and started under load, as a VM that is paused does; the
// answer to GET_VRING_BASE is where the ring goes on.
func TestStopAndResume(t *testing.T) {
	variants(t, func(t *testing.T, d daemon.Disk, o guest.Options) {
		startServer(t, d)
		m := boot(t, d.Socket, o)
		for range 10 {
			time.Sleep(20 * time.Millisecond)
			_, err := m.Stop()
			require.NoError(t, err)
			require.Zero(t, inflight(t, m.Guest), "stopped with requests in flight")
			require.NoError(t, m.Resume())
		}
		m.rest(d.Path)
	})
}

// SIGTERM under load: the daemon ends by itself, with status 0, and what it
// acknowledged is in the image.
func TestTerminate(t *testing.T) {
	d := disk(t, diskBlocks*block)
	s := startServer(t, d)
	m := boot(t, d.Socket, guest.Options{Depth: 32})
	time.Sleep(200 * time.Millisecond)
	require.NoError(t, s.cmd.Process.Signal(unix.SIGTERM))
	state, err := s.cmd.Process.Wait()
	require.NoError(t, err)
	require.Zero(t, state.ExitCode())
	require.NoFileExists(t, d.Socket)
	// Whatever is still in flight was never acknowledged; a successor serves it.
	startServer(t, d)
	eventually(t, func() error { return m.Reconnect(d.Socket) })
	m.rest(d.Path)
}

// A second server on one image gets a clear error, and the first goes on.
func TestLock(t *testing.T) {
	d := disk(t, diskBlocks*block)
	startServer(t, d)
	m := boot(t, d.Socket, guest.Options{Depth: 4})
	_, err := daemon.Open([]daemon.Disk{{ID: "second", Path: d.Path, Socket: d.Socket + "2"}}, nil, zap.NewNop())
	require.ErrorIs(t, err, backend.ErrLocked)
	require.ErrorContains(t, err, d.Path)
	m.rest(d.Path)
}

// Discard, write-zeroes, flush and the identity, over the whole path.
func TestOtherOperations(t *testing.T) {
	d := disk(t, diskBlocks*block)
	d.Serial, d.DiscardSeg = "serial-0", 4
	startServer(t, d)
	g := connect(t, d.Socket, guest.Options{Ranges: 4})
	q := g.Queues()[0]
	one := func(submit func(slot int) bool) guest.Done {
		require.True(t, submit(0))
		q.Kick()
		var got guest.Done
		for {
			n, err := q.Reap(func(d guest.Done) { got = d })
			require.NoError(t, err)
			if n == 1 {
				return got
			}
			require.NoError(t, q.Wait(patience))
		}
	}
	data := []guest.Buf{q.Buffer(0)}
	id := []guest.Buf{q.Buffer(0).Slice(0, blk.IDSize)}
	require.Equal(t, blk.StatusOK, one(func(s int) bool { return q.SubmitType(s, blk.TypeGetID, 0, id, true) }).Status)
	require.Equal(t, "serial-0\x00", string(q.Buffer(0).Bytes[:9]))
	fillByte(q.Buffer(0).Bytes, 0x77)
	for b := range 4 {
		require.Equal(t, blk.StatusOK, one(func(s int) bool { return q.Submit(s, blk.OpWrite, blk.Sector(b*sectors), data) }).Status)
	}
	require.Equal(t, blk.StatusOK, one(func(s int) bool { return q.Submit(s, blk.OpFlush, 0, nil) }).Status)
	require.Equal(t, blk.StatusOK, one(func(s int) bool {
		return q.SubmitRanges(s, blk.OpWriteZeroes, []blk.Range{{Sector: 0, Sectors: sectors}}, false)
	}).Status)
	require.Equal(t, blk.StatusOK, one(func(s int) bool {
		return q.SubmitRanges(s, blk.OpDiscard, []blk.Range{{Sector: sectors, Sectors: sectors}, {Sector: 3 * sectors, Sectors: sectors}}, false)
	}).Status)
	image, err := os.ReadFile(d.Path)
	require.NoError(t, err)
	for b, want := range []byte{0, 0, 0x77, 0} {
		require.Equal(t, want, image[b*block], "block %d", b)
		require.Equal(t, want, image[(b+1)*block-1], "block %d", b)
	}
}

func fillByte(b []byte, v byte) {
	for i := range b {
		b[i] = v
	}
}

package guest

import (
	"cmp"
	"encoding/binary"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/elevisor/elevisor/blk"
	"github.com/elevisor/elevisor/sys/shm"
	"github.com/elevisor/elevisor/vhost"
	"github.com/elevisor/elevisor/virtqueue"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// toy is a device without a protocol: it drives the device's side of a guest's
// queue in the same process and keeps sectors in memory.
type toy struct {
	q    *Queue
	ring *virtqueue.Split
	mem  *shm.Memory
	data []byte
	bad  map[blk.Sector]bool // requests that touch them fail, and move nothing
	poll []unix.PollFd
	stop chan struct{}
	done sync.WaitGroup
}

func newGuest(t *testing.T, o Options, features uint64) *Guest {
	t.Helper()
	o.normalize()
	o.Queues = cmp.Or(o.Queues, 1)
	g := &Guest{opt: o, features: features, record: -1}
	require.NoError(t, g.build())
	t.Cleanup(g.Close)
	g.session.Store(&Session{conn: pair(t)})
	g.session.Load().Frontend = vhost.NewFrontend(g.session.Load().conn, time.Minute)
	return g
}

// pair is one end of a connection whose other end stays open.
func pair(t *testing.T) *net.UnixConn {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	t.Cleanup(func() { _ = unix.Close(fds[1]) })
	f := os.NewFile(uintptr(fds[0]), "pair")
	defer f.Close()
	c, err := net.FileConn(f)
	require.NoError(t, err)
	return c.(*net.UnixConn)
}

// mapped is the guest's memory as a device sees it.
func mapped(t *testing.T, m *Memory) *shm.Memory {
	t.Helper()
	regions, fds := m.Table()
	var maps []*shm.Mapping
	for i, r := range regions {
		mapping, err := shm.Map(fds[i], r)
		require.NoError(t, err)
		defer mapping.Release()
		maps = append(maps, mapping)
	}
	mem, err := shm.NewMemory(maps)
	require.NoError(t, err)
	t.Cleanup(mem.Release)
	return mem
}

// newToy is a device on queue q that does nothing by itself.
func newToy(t *testing.T, q *Queue, data []byte) *toy {
	t.Helper()
	g := q.guest
	d := &toy{q: q, mem: mapped(t, g.mem), data: data, stop: make(chan struct{})}
	var err error
	d.ring, err = virtqueue.NewSplit(virtqueue.Params{
		Size: q.ring.Size, Features: g.features, Memory: d.mem,
		Desc: g.mem.UVA(q.ring.Desc.Addr), Avail: g.mem.UVA(q.ring.Avail.Addr), Used: g.mem.UVA(q.ring.Used.Addr),
	})
	require.NoError(t, err)
	d.poll = []unix.PollFd{{Fd: int32(q.kick.Raw()), Events: unix.POLLIN}}
	return d
}

func startToy(t *testing.T, g *Guest) *toy {
	t.Helper()
	d := newToy(t, g.queues[0], make([]byte, 64*blk.SectorSize))
	d.start(t)
	return d
}

func (d *toy) start(t *testing.T) {
	d.done.Go(d.run)
	t.Cleanup(func() { close(d.stop); d.done.Wait() })
}

func (d *toy) run() {
	var c virtqueue.Chain
	for {
		select {
		case <-d.stop:
			return
		default:
		}
		for {
			ok, err := d.ring.Pop(&c)
			if err != nil {
				panic(err)
			}
			if !ok {
				break
			}
			d.serve(&c)
		}
		if d.ring.Publish() {
			d.q.call.Notify()
		}
		if !d.ring.EnableKicks() {
			_, _ = unix.Poll(d.poll, 1)
			d.q.kick.Take()
		}
	}
}

func (d *toy) serve(c *virtqueue.Chain) {
	head := c.Segs[0]
	sector := blk.Sector(binary.LittleEndian.Uint64(head[8:]))
	typ, data, written := binary.LittleEndian.Uint32(head), c.Segs[1:len(c.Segs)-1], uint32(1)
	status := blk.StatusOK
	if len(d.bad) > 0 && typ != blk.TypeFlush && d.spoilt(sector, data) {
		status, data = blk.StatusIOErr, nil
	}
	at := sector.Bytes()
	for _, s := range data {
		switch typ {
		case blk.TypeIn:
			at += int64(copy(s, d.data[at:]))
			written += uint32(len(s))
		case blk.TypeOut:
			at += int64(copy(d.data[at:], s))
		}
	}
	c.Segs[len(c.Segs)-1][0] = byte(status)
	d.ring.Push(c.ID, written)
}

func (d *toy) spoilt(at blk.Sector, data [][]byte) bool {
	n := 0
	for _, s := range data {
		n += len(s)
	}
	for end := at + blk.Sector(n/blk.SectorSize); at < end; at++ {
		if d.bad[at] {
			return true
		}
	}
	return false
}

// each shape of queue must behave alike.
func forms(t *testing.T, f func(t *testing.T, o Options, features uint64)) {
	for name, features := range map[string]uint64{
		"plain":    virtqueue.FeatureVersion1,
		"indirect": virtqueue.FeatureVersion1 | virtqueue.FeatureIndirect,
		"eventidx": virtqueue.FeatureVersion1 | virtqueue.FeatureEventIdx,
		"all":      DefaultFeatures,
	} {
		for _, poll := range []bool{false, true} {
			o := Options{QueueSize: 16, Depth: 5, Segments: 2, MaxIO: 4096, Poll: poll}
			if poll {
				name += "/poll"
			}
			t.Run(name, func(t *testing.T) { f(t, o, features) })
		}
	}
}

func TestQueueMovesData(t *testing.T) {
	forms(t, func(t *testing.T, o Options, features uint64) {
		g := newGuest(t, o, features)
		startToy(t, g)
		q := g.queues[0]
		buf := q.Buffer(3).Slice(0, 1024)
		fill(buf.Bytes, 0x5a)
		halves := []Buf{buf.Slice(0, 512), buf.Slice(512, 1024)}
		require.Equal(t, Done{Slot: 3, Written: 1}, one(t, q, blk.OpWrite, 3, 7, halves))
		fill(buf.Bytes, 0)
		require.Equal(t, Done{Slot: 3, Written: 1025}, one(t, q, blk.OpRead, 3, 7, halves))
		for _, v := range buf.Bytes {
			require.Equal(t, byte(0x5a), v)
		}
		require.Equal(t, Done{Slot: 0, Written: 1}, one(t, q, blk.OpFlush, 0, 0, nil))
		assert.NoError(t, g.mem.Intact())
	})
}

// one carries out one request.
func one(t *testing.T, q *Queue, op blk.Op, slot int, sector blk.Sector, data []Buf) (got Done) {
	t.Helper()
	require.True(t, q.Submit(slot, op, sector, data))
	require.Equal(t, 1, q.InFlight())
	q.Kick()
	require.NoError(t, q.Wait(time.Minute))
	n, err := q.Reap(func(d Done) { got = d })
	require.NoError(t, err)
	require.Equal(t, 1, n)
	require.Equal(t, 0, q.InFlight())
	return got
}

// driver is what a queue and a block layer have in common.
type driver interface {
	Depth() int
	Buffer(slot int) Buf
	Submit(slot int, op blk.Op, sector blk.Sector, data []Buf) bool
	Kick()
	Reap(fn func(Done)) (int, error)
	Wait(d time.Duration) error
	InFlight() int
}

// churn keeps every slot busy until n requests have come back.
func churn(t testing.TB, q driver, data [][]Buf, n int) {
	free := make([]int, 0, q.Depth())
	for i := range q.Depth() {
		free = append(free, i)
	}
	back := 0
	fn := func(d Done) {
		free = append(free, d.Slot)
		back++
		if d.Status != blk.StatusOK {
			t.Errorf("slot %d: %v", d.Slot, d.Status)
		}
	}
	for back < n {
		for len(free) > 0 {
			slot := free[len(free)-1]
			if !q.Submit(slot, blk.OpRead, blk.Sector(slot), data[slot]) {
				break
			}
			free = free[:len(free)-1]
		}
		q.Kick()
		if err := q.Wait(time.Minute); err != nil {
			t.Fatal(err)
		}
		if _, err := q.Reap(fn); err != nil {
			t.Fatal(err)
		}
	}
	for q.InFlight() > 0 {
		if err := q.Wait(time.Minute); err != nil {
			t.Fatal(err)
		}
		if _, err := q.Reap(fn); err != nil {
			t.Fatal(err)
		}
	}
}

func slotData(q driver) (data [][]Buf) {
	for i := range q.Depth() {
		b := q.Buffer(i)
		data = append(data, []Buf{b.Slice(0, 512), b.Slice(512, 1024)})
	}
	return data
}

// TestQueueGoesOn wraps the ring and the table of slots many times; slots need
// more descriptors than the ring has where they are not indirect.
func TestQueueGoesOn(t *testing.T) {
	forms(t, func(t *testing.T, o Options, features uint64) {
		g := newGuest(t, o, features)
		startToy(t, g)
		churn(t, g.queues[0], slotData(g.queues[0]), 5000)
		assert.NoError(t, g.mem.Intact())
	})
}

func TestWaitEnds(t *testing.T) {
	for _, poll := range []bool{false, true} {
		g := newGuest(t, Options{QueueSize: 16, Poll: poll}, DefaultFeatures)
		q := g.queues[0]
		assert.ErrorIs(t, q.Wait(time.Millisecond), ErrTimeout)
		g.Disconnect()
		assert.False(t, g.Connected())
		assert.ErrorIs(t, q.Wait(time.Minute), ErrGone)
	}
}

// TestDeviceLies has a device return a chain twice: the guest must notice.
func TestDeviceLies(t *testing.T) {
	g := newGuest(t, Options{QueueSize: 16}, DefaultFeatures)
	q := g.queues[0]
	require.True(t, q.Submit(0, blk.OpFlush, 0, nil))
	q.Kick()
	head := binary.LittleEndian.Uint16(q.ring.Avail.Bytes[4:])
	for i := range 2 {
		binary.LittleEndian.PutUint32(q.ring.Used.Bytes[4+8*i:], uint32(head))
		shm.Store16(q.ring.Used.Bytes, 2, uint16(i+1))
	}
	n, err := q.Reap(func(d Done) { assert.Equal(t, statusPending, d.Status) })
	assert.Equal(t, 1, n)
	assert.ErrorContains(t, err, "not in flight")
}

func TestMemoryGuards(t *testing.T) {
	m, err := NewMemory(Place{GPA: 0x1000, UVA: 0x900000, Size: 8192}, Place{GPA: 0x3000, UVA: 0x100000, Size: 4096})
	require.NoError(t, err)
	defer m.Close()
	assert.NoError(t, m.Intact())
	assert.Equal(t, uint64(0x100010), m.UVA(0x3010))
	assert.Panics(t, func() { m.Bytes(0x2ff8, 16) }, "across two regions")
	regions, _ := m.Table()
	assert.Equal(t, []shm.Region{{GPA: 0x1000, Size: 8192, UVA: 0x900000, Offset: 0x1000}, {GPA: 0x3000, Size: 4096, UVA: 0x100000, Offset: 0x1000}}, regions)
	m.regions[1].whole.Bytes()[guardSize+4096] = 0
	assert.ErrorContains(t, m.Intact(), "region 1")
}

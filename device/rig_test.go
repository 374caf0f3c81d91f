package device

import (
	"encoding/binary"
	"runtime/debug"
	"testing"

	"github.com/elevisor/elevisor/backend"
	"github.com/elevisor/elevisor/blk"
	"github.com/elevisor/elevisor/sched"
	"github.com/elevisor/elevisor/sys/shm"
	"github.com/elevisor/elevisor/virtqueue"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// fakeDisk is an image and its backend, in memory. With hold set it completes
// only what the test says.
type fakeDisk struct {
	data   []byte
	hold   bool
	room   int // requests it takes at a time; 0: any number
	issued []*blk.Request
	done   []*blk.Request
	bad    map[blk.Sector]bool // sectors that cannot be reached
}

func newFakeDisk(sectors int) *fakeDisk {
	return &fakeDisk{data: make([]byte, sectors*blk.SectorSize), bad: map[blk.Sector]bool{}}
}

func (f *fakeDisk) Info() backend.Info {
	return backend.Info{
		Sectors: blk.Sector(len(f.data) / blk.SectorSize), LogicalBlock: 512, PhysicalBlock: 4096,
		Discard: true, WriteZeroes: true, ZeroesUnmap: true, DiscardAlign: 4096, Engine: "fake",
	}
}
func (f *fakeDisk) Attach(backend.Host) (backend.Backend, error) { return f, nil }
func (f *fakeDisk) Commit() error                                { return nil }
func (f *fakeDisk) Wake() blk.Instant                            { return blk.Never }
func (f *fakeDisk) Close() error                                 { return nil }

func (f *fakeDisk) Submit(_ blk.Instant, r *blk.Request) bool {
	if f.room > 0 && len(f.issued) >= f.room {
		return false
	}
	r.Move(blk.StateQueued, blk.StateIssued)
	f.issued = append(f.issued, r)
	if !f.hold {
		f.complete(len(f.issued) - 1)
	}
	return true
}

// complete carries out issued request i.
func (f *fakeDisk) complete(i int) {
	head := f.issued[i]
	f.issued = append(f.issued[:i], f.issued[i+1:]...)
	head.Status = blk.StatusOK
	for r := head; r != nil; r = r.Merged {
		at := r.Sector.Bytes()
		for s := r.Sector; s < r.End(); s++ {
			if f.bad[s] {
				head.Status, head.Errno = blk.StatusIOErr, 5
			}
		}
		if head.Status != blk.StatusOK {
			break
		}
		for _, s := range r.Segs {
			if r.Op == blk.OpRead {
				copy(s, f.data[at:])
			} else {
				copy(f.data[at:], s)
			}
			at += int64(len(s))
		}
	}
	f.done = append(f.done, head)
}

func (f *fakeDisk) Reap(_ blk.Instant, done []*blk.Request) []*blk.Request {
	for _, r := range f.done {
		r.Move(blk.StateIssued, blk.StateDone)
	}
	done = append(done, f.done...)
	f.done = f.done[:0]
	return done
}

// bell counts notifications.
type bell int

func (b *bell) Notify() { *b++ }

// rig is a device of one or more queues on a loop that the test steps, with a
// driver for queue 0 in anonymous memory.
type rig struct {
	t      testing.TB
	loop   *Loop
	disk   *fakeDisk
	dev    *Device
	mem    *shm.Memory
	bytes  []byte
	driver *virtqueue.Driver
	params virtqueue.Params
	call   bell
	errs   bell
	now    blk.Instant
	slot   int
}

const (
	memBase  = 0x10000
	ringSize = 64
)

func newRig(t testing.TB, s sched.Scheduler, change func(o *Options)) *rig {
	r := &rig{t: t, disk: newFakeDisk(2048)}
	for i := range r.disk.data {
		r.disk.data[i] = byte(i / blk.SectorSize)
	}
	r.loop = NewLoop(s, &sched.Config{}, 4)
	i, err := r.loop.Attach(r.disk, backend.Host{})
	require.NoError(t, err)
	o := Options{
		ID: "disk-0", Disk: &blk.Disk{Name: "disk-0", Index: i}, Info: r.disk.Info(),
		Loops: []*Loop{r.loop}, NumQueues: 2, WriteCache: true,
	}
	if change != nil {
		change(&o)
	}
	r.dev, err = New(o)
	require.NoError(t, err)
	r.attachMemory()
	t.Cleanup(func() { _ = r.dev.SetMemory(nil) })
	r.layout()
	r.dev.SetCall(0, &r.call)
	r.dev.SetErr(0, &r.errs)
	r.call = 0 // SetCall has made one
	return r
}

// attachMemory gives the device all its features and an anonymous memory.
func (r *rig) attachMemory() {
	require.NoError(r.t, r.dev.SetFeatures(r.dev.Features()))
	var err error
	r.mem, err = shm.NewAnonymous(1 << 20)
	require.NoError(r.t, err)
	r.t.Cleanup(r.mem.Release)
	require.NoError(r.t, r.dev.SetMemory(r.mem))
	r.bytes = r.mem.Mappings()[0].Bytes()
}

// layout makes an empty ring.
func (r *rig) layout() {
	clear(r.bytes[:0x1000])
	var err error
	r.driver, err = virtqueue.NewDriver(r.bytes, ringSize, r.dev.features)
	require.NoError(r.t, err)
	avail, used, _ := virtqueue.Layout(ringSize)
	r.params = virtqueue.Params{Size: ringSize, Desc: memBase, Avail: memBase + uint64(avail), Used: memBase + uint64(used)}
}

func (r *rig) start() {
	require.NoError(r.t, r.dev.Start(0, r.params))
	r.dev.Enable(0, true)
}

// request puts one request into the ring without publishing it and returns where
// its data and its status byte are.
func (r *rig) request(typ uint32, sector uint64, sectors int) (data, status []byte) {
	at := 0x1000 + r.slot*0x2000
	r.slot = (r.slot + 1) % 64
	header, status := r.bytes[at:at+16], r.bytes[at+16:at+17]
	data = r.bytes[at+512 : at+512+sectors*blk.SectorSize]
	binary.LittleEndian.PutUint32(header, typ)
	binary.LittleEndian.PutUint64(header[8:], sector)
	status[0] = 0xee
	addr := func(off int) uint64 { return memBase + uint64(at+off) }
	elems := []virtqueue.Elem{{Addr: addr(0), Len: 16}}
	if sectors > 0 {
		elems = append(elems, virtqueue.Elem{Addr: addr(512), Len: uint32(len(data)), Write: typ == blk.TypeIn})
	}
	elems = append(elems, virtqueue.Elem{Addr: addr(16), Len: 1, Write: true})
	_, ok := r.driver.Add(elems)
	require.True(r.t, ok)
	return data, status
}

// kick publishes and wakes the queue as an eventfd would.
func (r *rig) kick() {
	if r.driver.Publish() {
		r.dev.queues[0].kicked = true
	}
}

// step steps until the loop has nothing more to do at this instant.
func (r *rig) step() (wake blk.Instant) {
	for range 100 {
		if wake = r.loop.Step(r.now); wake > r.now {
			return wake
		}
	}
	r.t.Fatal("the loop does not come to rest")
	return 0
}

// reap takes n returned chains and no more.
func (r *rig) reap(n int) (written []uint32) {
	r.t.Helper()
	for {
		_, w, ok, err := r.driver.Reap()
		require.NoError(r.t, err)
		if !ok {
			break
		}
		written = append(written, w)
	}
	require.Len(r.t, written, n)
	return written
}

func memfd(t testing.TB, size int64) int {
	fd, err := unix.MemfdCreate("test", unix.MFD_CLOEXEC)
	require.NoError(t, err)
	require.NoError(t, unix.Ftruncate(fd, size))
	closeFD(t, fd)
	return fd
}

func closeFD(t testing.TB, fd int) { t.Cleanup(func() { _ = unix.Close(fd) }) }

// panicOnFault does for the test's goroutine what a loop does for its own.
func panicOnFault(t testing.TB) {
	old := debug.SetPanicOnFault(true)
	t.Cleanup(func() { debug.SetPanicOnFault(old) })
}

func (r *rig) stats() Stats {
	s, _ := r.dev.Stats()
	return s
}

func (r *rig) stop() (base uint32, answered bool) {
	r.dev.Stop(0, func(b uint32) { base, answered = b, true })
	return base, answered
}

package device

import (
	"bytes"
	"fmt"
	"io"
	"testing"

	"github.com/elevisor/elevisor/blk"
	"github.com/elevisor/elevisor/sched"
	"github.com/elevisor/elevisor/sys/shm"
	"github.com/elevisor/elevisor/virtqueue"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func none() sched.Scheduler { return &sched.None{} }

func TestLoop_readWriteFlush(t *testing.T) {
	r := newRig(t, none(), nil)
	r.start()
	data, status := r.request(blk.TypeOut, 5, 2)
	copy(data, bytes.Repeat([]byte{0xab}, 1024))
	_, flushed := r.request(blk.TypeFlush, 0, 0)
	r.kick()
	require.Equal(t, blk.Never, r.step())
	require.Equal(t, []uint32{1, 1}, r.reap(2))
	require.EqualValues(t, 0, status[0])
	require.EqualValues(t, 0, flushed[0])
	require.Equal(t, bytes.Repeat([]byte{0xab}, 1024), r.disk.data[5*512:7*512])
	require.EqualValues(t, 1, r.call)

	data, status = r.request(blk.TypeIn, 4, 3)
	r.kick()
	r.step()
	require.Equal(t, []uint32{3*512 + 1}, r.reap(1))
	require.EqualValues(t, 0, status[0])
	require.Equal(t, r.disk.data[4*512:7*512], data)
	s, queues := r.dev.Stats()
	require.Equal(t, OpStats{IOs: 1, Sectors: 3}, s.Op[blk.OpRead])
	require.Equal(t, OpStats{IOs: 1, Sectors: 2}, s.Op[blk.OpWrite])
	require.Equal(t, OpStats{IOs: 1}, s.Op[blk.OpFlush])
	require.Equal(t, s.Op, queues[0].Op)
}

// rust-vmm/vhost issue 247: a kick that comes before the ring is enabled, or
// before it is started, is not lost.
func TestLoop_kickBeforeEnable(t *testing.T) {
	r := newRig(t, none(), nil)
	r.request(blk.TypeIn, 0, 1)
	r.kick()
	r.step()
	require.NoError(t, r.dev.Start(0, r.params))
	r.kick()
	r.step()
	r.reap(0)
	r.dev.Enable(0, true)
	r.step()
	r.reap(1)
}

// rust-vmm/vhost pull requests 374, 375: requests that wait when the ring is
// enabled are served without a kick.
func TestLoop_requestsWaitingAtEnable(t *testing.T) {
	r := newRig(t, none(), nil)
	r.start()
	r.dev.Enable(0, false)
	r.request(blk.TypeIn, 0, 1)
	r.driver.Publish() // and no kick
	r.step()
	r.reap(0)
	r.dev.Enable(0, true)
	r.step()
	r.reap(1)
}

// The loop sleeps only when the driver will kick it: with the event index armed,
// the very next request asks for a kick.
func TestLoop_armedWhenAsleep(t *testing.T) {
	r := newRig(t, none(), nil)
	r.start()
	for range 100 {
		r.step()
		r.request(blk.TypeIn, 0, 1)
		require.True(t, r.driver.Publish(), "asleep and not to be kicked")
		r.dev.queues[0].kicked = true
		r.step()
		r.reap(1)
	}
}

// GET_VRING_BASE is answered when everything that was taken is finished, and what
// comes later stays in the ring for the next start.
func TestLoop_stopDrains(t *testing.T) {
	r := newRig(t, none(), nil)
	r.disk.hold = true
	r.start()
	for range 5 { // one more than the loop's depth
		r.request(blk.TypeIn, 1, 0)
		r.request(blk.TypeFlush, 1, 0)
	}
	_, statuses := r.request(blk.TypeIn, 1, 1)
	r.kick()
	r.step()
	require.Len(t, r.disk.issued, 6)
	_, answered := r.stop()
	require.False(t, answered)
	r.request(blk.TypeIn, 2, 1)
	r.kick()
	var base uint32
	r.dev.Stop(0, func(b uint32) { base = b }) // asked twice, answered twice
	for len(r.disk.issued) > 0 {
		r.disk.complete(len(r.disk.issued) - 1)
		r.step()
	}
	require.EqualValues(t, 11, base)
	require.EqualValues(t, 0, statuses[0])
	r.reap(11)
	base, answered = r.stop()
	require.True(t, answered, "a stopped ring answers at once")
	require.EqualValues(t, 11, base)

	r.disk.hold = false
	r.params.Base = base
	r.start()
	r.step()
	r.reap(1)
}

// What a stopping queue has queued is issued at once, past depth and scheduler.
func TestLoop_stopIssuesQueued(t *testing.T) {
	r := newRig(t, none(), nil)
	r.disk.hold = true
	r.start()
	for i := range 5 {
		r.request(blk.TypeIn, uint64(i), 1)
	}
	r.kick()
	r.step()
	require.Len(t, r.disk.issued, 4, "the loop's depth")
	r.stop()
	r.step()
	require.Len(t, r.disk.issued, 5)
	r.disk.hold = false
	for len(r.disk.issued) > 0 {
		r.disk.complete(0)
	}
	r.step()
	r.reap(5)
}

// A memory table that changes while requests are in flight: they end in the old
// memory, which stays mapped until then; the ring goes on in the new one.
func TestLoop_memoryChangesInFlight(t *testing.T) {
	fd, first, err := shm.Create("test", 1<<20, shm.Region{GPA: memBase, Size: 1 << 20, UVA: memBase})
	require.NoError(t, err)
	closeFD(t, fd)
	r := newRig(t, none(), nil)
	table, err := shm.NewMemory([]*shm.Mapping{first})
	require.NoError(t, err)
	first.Release()
	require.NoError(t, r.dev.SetMemory(table))
	r.bytes = first.Bytes()
	r.layout()
	table.Release()
	r.disk.hold = true
	r.start()
	r.request(blk.TypeIn, 7, 1)
	r.kick()
	r.step()

	second, err := shm.Map(fd, shm.Region{GPA: memBase, Size: 1 << 20, UVA: memBase})
	require.NoError(t, err)
	next, err := shm.NewMemory([]*shm.Mapping{second})
	require.NoError(t, err)
	second.Release()
	require.NoError(t, r.dev.SetMemory(next))
	next.Release()
	require.NotNil(t, first.Bytes(), "still mapped for the request in flight")
	r.disk.complete(0)
	r.step()
	r.bytes = second.Bytes()
	require.EqualValues(t, 0, r.bytes[0x1000+16], "status byte")
	require.Equal(t, r.disk.data[7*512:8*512], r.bytes[0x1200:0x1400])
	require.Nil(t, first.Bytes(), "and not longer")
	r.stop()
}

// A memory table without the ring breaks the queue; nothing else happens.
func TestLoop_memoryWithoutRing(t *testing.T) {
	r := newRig(t, none(), nil)
	r.start()
	empty, err := shm.NewMemory(nil)
	require.NoError(t, err)
	require.NoError(t, r.dev.SetMemory(empty))
	empty.Release()
	r.request(blk.TypeIn, 0, 1)
	r.kick()
	r.step()
	r.reap(0)
	require.EqualValues(t, 1, r.errs)
	require.EqualValues(t, 1, r.stats().Broken)
	_, answered := r.stop()
	require.True(t, answered)
}

// The same with a request in flight: the broken ring still gets its chain back, so
// its memory must stay mapped until the queue has stopped.
func TestLoop_memoryWithoutRingInFlight(t *testing.T) {
	r := newRig(t, none(), nil)
	fd, first, err := shm.Create("test", 1<<20, shm.Region{GPA: memBase, Size: 1 << 20, UVA: memBase})
	require.NoError(t, err)
	closeFD(t, fd)
	table, err := shm.NewMemory([]*shm.Mapping{first})
	require.NoError(t, err)
	first.Release()
	require.NoError(t, r.dev.SetMemory(table))
	table.Release()
	r.bytes = first.Bytes()
	r.layout()
	r.disk.hold = true
	r.start()
	_, status := r.request(blk.TypeIn, 0, 1)
	r.kick()
	r.step()
	empty, err := shm.NewMemory(nil)
	require.NoError(t, err)
	require.NoError(t, r.dev.SetMemory(empty))
	empty.Release()
	require.EqualValues(t, 1, r.errs)
	r.disk.complete(0)
	r.step()
	require.NotNil(t, first.Bytes(), "mapped until the queue has stopped")
	require.EqualValues(t, 0, status[0])
	r.reap(1)
	_, answered := r.stop()
	require.True(t, answered)
	require.Nil(t, first.Bytes(), "and not longer")
}

// The guest's memory is cut under a running queue: the queue ends, the process and
// the other queues live.
func TestLoop_memoryVanishes(t *testing.T) {
	r := newRig(t, none(), nil)
	fd := memfd(t, 1<<20)
	m, err := shm.Map(fd, shm.Region{GPA: memBase, Size: 1 << 20, UVA: memBase})
	require.NoError(t, err)
	table, err := shm.NewMemory([]*shm.Mapping{m})
	require.NoError(t, err)
	m.Release()
	require.NoError(t, r.dev.SetMemory(table))
	table.Release()
	r.bytes = m.Bytes()
	r.layout()
	r.disk.hold = true
	r.start()
	r.request(blk.TypeIn, 0, 1)
	r.kick()
	panicOnFault(t)
	r.step()
	require.NoError(t, unix.Ftruncate(fd, 0))
	r.dev.queues[0].kicked = true
	r.step()
	require.EqualValues(t, 1, r.errs)
	r.disk.done = append(r.disk.done, r.disk.issued[0]) // a read(2) into it would fail by itself
	r.disk.issued = nil
	r.step()
	_, answered := r.stop()
	require.True(t, answered)
}

func TestLoop_writeThrough(t *testing.T) {
	for _, c := range []struct {
		name    string
		initial bool
		without uint64
		set     []byte
		fua     bool
	}{
		{name: "cache on", initial: true},
		{name: "cache off", initial: false, fua: true},
		{name: "switched off", initial: true, set: []byte{0}, fua: true},
		{name: "switched off and on", initial: true, set: []byte{0, 1}},
		{name: "driver cannot flush", initial: true, without: blk.FeatureFlush, fua: true},
		{name: "flush without config-wce", initial: true, without: blk.FeatureConfigWCE},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, none(), func(o *Options) { o.WriteCache = c.initial })
			require.NoError(t, r.dev.SetFeatures(r.dev.Features()&^c.without))
			r.disk.hold = true
			r.start()
			for _, b := range c.set {
				require.NoError(t, r.dev.SetConfig(blk.ConfigWriteback, []byte{b}))
			}
			r.request(blk.TypeOut, 0, 1)
			r.request(blk.TypeIn, 0, 1)
			r.kick()
			r.step()
			require.Equal(t, c.fua, r.disk.issued[0].Flags&blk.FlagFUA != 0)
			require.Zero(t, r.disk.issued[1].Flags&blk.FlagFUA)
			r.disk.complete(0)
			r.disk.complete(0)
			r.step()
			r.stop()
		})
	}
}

func TestDevice_setConfigRefuses(t *testing.T) {
	r := newRig(t, none(), nil)
	for _, c := range []struct {
		off  uint32
		data []byte
	}{{0, []byte{1}}, {33, []byte{1}}, {32, []byte{1, 1}}, {32, nil}, {32, []byte{2}}, {1 << 31, []byte{1}}} {
		require.Error(t, r.dev.SetConfig(c.off, c.data))
	}
	require.Error(t, r.dev.SetFeatures(1<<43))
}

// A disk that is full keeps a request back and loses none.
func TestLoop_fullDisk(t *testing.T) {
	r := newRig(t, none(), nil)
	r.disk.hold, r.disk.room = true, 1
	r.start()
	for i := range 5 {
		r.request(blk.TypeIn, uint64(i), 1)
	}
	r.request(blk.TypeFlush, 0, 0)
	r.kick()
	for range 6 {
		r.step()
		require.Len(t, r.disk.issued, 1)
		r.disk.complete(0)
	}
	r.step()
	r.reap(6)
	require.Zero(t, r.loop.inflight)
}

// joiner merges whatever is queued into one group, to test how groups end.
type joiner struct {
	sched.None
	done int
}

func (j *joiner) Dispatch(now blk.Instant) *blk.Request {
	head := j.None.Dispatch(now)
	if head == nil || head.Flags&blk.FlagNoMerge != 0 {
		return head
	}
	for last := head; ; last = last.Merged {
		if last.Merged = j.None.Dispatch(now); last.Merged == nil {
			return head
		}
	}
}
func (j *joiner) Complete(blk.Instant, *blk.Request) { j.done++ }
func (j *joiner) Describe(io.Writer)                 {}

// Case SL-005: a flush covers the writes that were acknowledged before it. Nothing is
// acknowledged before the disk has it, so the flush, which overtakes what is only
// queued, starts after all that it has to cover.
func TestLoop_SL005(t *testing.T) {
	for _, name := range sched.Names {
		s, err := sched.New(name, &sched.Config{})
		require.NoError(t, err)
		r := newRig(t, s, nil)
		r.disk.hold = true
		r.start()
		for i := range 6 { // two more than the loop's depth
			r.request(blk.TypeOut, uint64(100*i), 1)
		}
		r.kick()
		r.step()
		r.reap(0)
		covered := r.disk.issued[0]
		r.disk.complete(0)
		r.step()
		r.reap(1)
		require.Equal(t, blk.StateFree, covered.State(), "acknowledged when the disk had it")
		r.request(blk.TypeFlush, 0, 0)
		r.kick()
		r.step()
		flush := r.disk.issued[len(r.disk.issued)-1]
		require.Equal(t, blk.OpFlush, flush.Op, "%s: the flush waits behind writes that it need not cover", name)
		for len(r.disk.issued) > 0 {
			r.disk.complete(len(r.disk.issued) - 1)
			r.now += 1e9
			r.step()
		}
		r.reap(6)
		r.stop()
	}
}

// A group that fails is tried part by part, in the order of sectors: only the request
// with the bad sector fails.
func TestLoop_failedGroupIsTakenApart(t *testing.T) {
	j := &joiner{}
	r := newRig(t, j, nil)
	r.disk.bad[11] = true
	r.start()
	var statuses [][]byte
	for i := range 4 {
		_, s := r.request(blk.TypeIn, uint64(10+i), 1)
		statuses = append(statuses, s)
	}
	r.disk.hold = true
	r.kick()
	r.step()
	require.Len(t, r.disk.issued, 1)
	r.disk.complete(0)
	r.step()
	for i, part := range r.disk.issued {
		require.EqualValues(t, 10+i, part.Sector)
	}
	for len(r.disk.issued) > 0 {
		r.disk.complete(0)
	}
	r.step()
	r.reap(4)
	for i, s := range statuses {
		want := byte(blk.StatusOK)
		if i == 1 {
			want = byte(blk.StatusIOErr)
		}
		require.Equal(t, want, s[0], "part %d", i)
	}
	require.Equal(t, 1+4, j.done)
	require.Zero(t, r.loop.inflight)
}

// The parts of a failed group are tried again from the lowest sector up, as they
// were: the retry of a sequential stream is sequential.
func TestLoop_failedGroupKeepsItsOrder(t *testing.T) {
	for _, name := range sched.Names {
		for _, stopped := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, stopped %v", name, stopped), func(t *testing.T) {
				c, err := sched.New(name, &sched.Config{})
				require.NoError(t, err)
				r := newRig(t, c, nil)
				r.disk.hold, r.disk.bad[11] = true, true
				r.start()
				for i := range 4 {
					r.request(blk.TypeIn, uint64(10+i), 1)
				}
				r.kick()
				r.step()
				require.Len(t, r.disk.issued, 1)
				if stopped {
					r.stop()
				}
				r.disk.complete(0)
				r.step()
				require.Len(t, r.disk.issued, 4)
				for i, part := range r.disk.issued {
					require.EqualValues(t, 10+i, part.Sector)
				}
				for range 4 {
					r.disk.complete(0)
				}
				r.step()
				r.reap(4)
			})
		}
	}
}

// A ring whose index jumps ends its queue and no other; what is in flight ends.
func TestLoop_brokenRing(t *testing.T) {
	r := newRig(t, none(), nil)
	r.disk.hold = true
	r.start()
	_, status := r.request(blk.TypeIn, 0, 1)
	r.kick()
	r.step()
	shm.Store16(r.bytes, int(r.params.Avail-memBase)+2, 99)
	r.dev.queues[0].kicked = true
	r.step()
	require.EqualValues(t, 1, r.errs)
	r.disk.complete(0)
	r.step()
	require.EqualValues(t, 0, status[0])
	r.reap(1)
	base, answered := r.stop()
	require.True(t, answered)
	require.EqualValues(t, 1, base)
}

// The record survives a device: what it had taken and not returned is run again by
// the next one.
func TestLoop_inflightRecord(t *testing.T) {
	fd, record, err := shm.Create("inflight", uint64(2*virtqueue.InflightBytes(ringSize)), shm.Region{Size: uint64(2 * virtqueue.InflightBytes(ringSize))})
	require.NoError(t, err)
	closeFD(t, fd)
	r := newRig(t, none(), nil)
	require.NoError(t, r.dev.SetInflight(record, 2))
	r.disk.hold = true
	r.start()
	for i := range 4 {
		r.request(blk.TypeIn, uint64(i), 1)
	}
	r.kick()
	r.step()
	r.disk.complete(2)
	r.step()
	r.reap(1)

	// The process is killed here; another serves the same ring and record.
	n := newRig(t, none(), nil)
	require.NoError(t, n.dev.SetInflight(record, 2))
	require.NoError(t, n.dev.SetMemory(r.mem))
	n.driver, n.bytes = r.driver, r.bytes
	p := r.params
	p.Base = 1 // QEMU knows the used index only
	n.disk.hold = true
	n.params = p
	n.start()
	n.step()
	var sectors []blk.Sector
	for _, q := range n.disk.issued {
		sectors = append(sectors, q.Sector)
	}
	require.Equal(t, []blk.Sector{0, 1, 3}, sectors)
	for len(n.disk.issued) > 0 {
		n.disk.complete(0)
	}
	n.step()
	n.reap(3)
	n.stop()
	require.NoError(t, n.dev.SetInflight(nil, 0))
	for len(r.disk.issued) > 0 {
		r.disk.complete(0)
	}
	r.step()
	r.stop()
	require.NoError(t, r.dev.SetInflight(nil, 0))
	record.Release()
	require.Nil(t, record.Bytes())
}

// Other back-ends make records of just the ring's size; one that is too short for
// the ring refuses it.
func TestDevice_foreignInflightRecord(t *testing.T) {
	const header, entry = 16, 16
	for entries, want := range map[int]string{ringSize: "", ringSize - 1: "room for 63 heads", 0: "room for 0 heads"} {
		size := uint64(header + entries*entry)
		fd, record, err := shm.Create("inflight", size, shm.Region{Size: size})
		require.NoError(t, err)
		closeFD(t, fd)
		r := newRig(t, none(), nil)
		require.NoError(t, r.dev.SetInflight(record, 1))
		err = r.dev.Start(0, r.params)
		if want == "" {
			require.NoError(t, err)
			r.stop()
		} else {
			require.ErrorContains(t, err, want)
		}
		require.NoError(t, r.dev.SetInflight(nil, 0))
		record.Release()
	}
}

func TestDevice_refusesOptions(t *testing.T) {
	r := newRig(t, none(), nil)
	for want, change := range map[string]func(o *Options){
		"num-queues=257 is out of range 1 to 256": func(o *Options) { o.NumQueues = 257 },
		"queue-size=65536 is out of range":        func(o *Options) { o.QueueSize = 65536 },
		"queue-size=100 is not a power":           func(o *Options) { o.QueueSize = 100 },
		"seg-max=9999 is out of range":            func(o *Options) { o.SegMax = 9999 },
		"not below 2^31":                          func(o *Options) { o.SizeMax, o.SegMax = 1<<30, 2 },
		"has 21 bytes, at most 20":                func(o *Options) { o.Serial = "123456789012345678901" },
		"lies outside the image":                  func(o *Options) { o.Offset = 2048 },
		"lies outside":                            func(o *Options) { o.Offset, o.Size = 2000, 100 },
	} {
		o := Options{ID: "x", Info: r.disk.Info(), Loops: []*Loop{r.loop}}
		change(&o)
		_, err := New(o)
		require.ErrorContains(t, err, want)
	}
}

func TestLoop_noAllocations(t *testing.T) {
	r := newRig(t, none(), nil)
	r.start()
	turn := turnOf(r, 5)
	turn()
	require.Zero(t, testing.AllocsPerRun(200, turn))
	require.EqualValues(t, 5*202, r.stats().Op[blk.OpRead].IOs)
}

// turnOf is one turn of a guest with depth requests, without an allocation of the
// test's own.
func turnOf(r *rig, depth int) func() {
	elems := make([][]virtqueue.Elem, depth)
	for i := range elems {
		at := uint64(memBase + 0x1000 + i*0x1000)
		elems[i] = []virtqueue.Elem{{Addr: at, Len: 16}, {Addr: at + 512, Len: 512, Write: true}, {Addr: at + 16, Len: 1, Write: true}}
	}
	return func() {
		for _, e := range elems {
			r.driver.Add(e)
		}
		r.kick()
		for r.loop.Step(r.now) == r.now {
		}
		for range depth {
			_, _, _, _ = r.driver.Reap()
		}
	}
}

func BenchmarkLoop(b *testing.B) {
	r := newRig(b, none(), nil)
	r.start()
	turn := turnOf(r, 5)
	b.ReportAllocs()
	for b.Loop() {
		turn()
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(5*b.N), "ns/request")
}

package device

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/elevisor/elevisor/backend"
	"github.com/elevisor/elevisor/blk"
	"github.com/elevisor/elevisor/sched"
	"github.com/elevisor/elevisor/sys/shm"
	"github.com/elevisor/elevisor/virtqueue"
	"github.com/stretchr/testify/require"
)

// soakDisk completes when the test says, in any order, fails where a sector is
// bad, and now and then fails a group that it has carried out in part.
type soakDisk struct {
	data   []byte
	rng    *rand.Rand
	bad    map[blk.Sector]bool
	room   int
	issued []*blk.Request
	done   []*blk.Request
}

func (f *soakDisk) Info() backend.Info {
	return backend.Info{
		Sectors: blk.Sector(len(f.data) / blk.SectorSize), LogicalBlock: 512, PhysicalBlock: 512,
		Discard: true, WriteZeroes: true, ZeroesUnmap: true, DiscardAlign: 512, Engine: "fake",
	}
}
func (f *soakDisk) Attach(backend.Host) (backend.Backend, error) { return f, nil }
func (f *soakDisk) Commit() error                                { return nil }
func (f *soakDisk) Wake() blk.Instant                            { return blk.Never }
func (f *soakDisk) Close() error                                 { return nil }

func (f *soakDisk) Submit(_ blk.Instant, r *blk.Request) bool {
	if len(f.issued) >= f.room {
		return false
	}
	r.Move(blk.StateQueued, blk.StateIssued)
	f.issued = append(f.issued, r)
	return true
}

// some completes a random part of what is issued.
func (f *soakDisk) some(all bool) {
	for i := len(f.issued) - 1; i >= 0; i-- {
		if all || f.rng.IntN(3) == 0 {
			head := f.issued[i]
			f.issued = slices.Delete(f.issued, i, i+1)
			f.carryOut(head)
			f.done = append(f.done, head)
		}
	}
}

func (f *soakDisk) carryOut(head *blk.Request) {
	head.Status, head.Errno = blk.StatusOK, 0
	stumble := head.Merged != nil && f.rng.IntN(4) == 0
	next := head.Sector
	for r := head; r != nil; r = r.Merged {
		if head.Merged != nil && r.Sector != next {
			panic(fmt.Sprintf("a gap in a group: %d after %d", r.Sector, next))
		}
		next = r.End()
		if r.Op != head.Op || r.Disk != head.Disk || (head.Merged != nil && r.Op == blk.OpWriteZeroes) {
			panic("a group of different things")
		}
		ranges := r.Ranges
		if r.Op == blk.OpRead || r.Op == blk.OpWrite {
			ranges = []blk.Range{{Sector: r.Sector, Sectors: r.Sectors}}
		}
		for _, x := range ranges {
			for s := x.Sector; s < x.Sector+x.Sectors; s++ {
				if f.bad[s] {
					head.Status, head.Errno = blk.StatusIOErr, 5
				}
			}
		}
		if stumble && r.Merged == nil {
			head.Status, head.Errno = blk.StatusIOErr, 5
		}
		if head.Status != blk.StatusOK {
			return
		}
		for _, x := range ranges {
			part := f.data[x.Sector.Bytes():(x.Sector + x.Sectors).Bytes()]
			switch r.Op {
			case blk.OpRead, blk.OpWrite:
				for _, s := range r.Segs {
					if r.Op == blk.OpRead {
						copy(s, part)
					} else {
						copy(part, s)
					}
					part = part[len(s):]
				}
			default:
				clear(part)
			}
		}
	}
}

func (f *soakDisk) Reap(_ blk.Instant, done []*blk.Request) []*blk.Request {
	for _, r := range f.done {
		r.Move(blk.StateIssued, blk.StateDone)
	}
	done = append(done, f.done...)
	f.done = f.done[:0]
	return done
}

const (
	soakWindow  = 96 // sectors of a guest's disk
	soakSlots   = 32
	soakSlot    = 0x2000
	soakMost    = 8 // sectors of a request
	soakRing    = 256
	soakQueue   = 0x2000 + soakSlots*soakSlot
	soakDevices = 4
	soakQueues  = 3
)

type soakReq struct {
	head   uint16
	op     uint32
	ranges []blk.Range // in the window
	want   []byte
	data   [][]byte
	status []byte
}

type soakDriver struct {
	s       *soak
	dev     int
	queue   int
	drv     *virtqueue.Driver
	bytes   []byte
	params  virtqueue.Params
	slots   []*soakReq // by slot
	heads   map[uint16]int
	running bool
	base    uint32
	sent    uint64
}

// soak is four guests' disks in two images, windows adjoining, on one loop.
type soak struct {
	t      *testing.T
	rng    *rand.Rand
	cfg    *sched.Config
	loop   *Loop
	disks  [2]*soakDisk
	devs   []*Device
	qs     []*soakDriver
	model  [soakDevices][]byte
	busy   [soakDevices][]bool
	now    blk.Instant
	gen    uint64
	counts [soakDevices][blk.OpCount]struct{ n, sectors, errors uint64 }
}

func newSoak(t *testing.T, seed uint64) *soak {
	s := &soak{t: t, rng: rand.New(rand.NewPCG(seed, 7)), cfg: &sched.Config{}}
	first, err := sched.New("none", s.cfg)
	require.NoError(t, err)
	s.loop = NewLoop(first, s.cfg, 3)
	var shared [2]*blk.Disk
	for i := range s.disks {
		s.disks[i] = &soakDisk{data: make([]byte, 2*soakWindow*blk.SectorSize), rng: s.rng, bad: map[blk.Sector]bool{}, room: 2}
		s.disks[i].bad[blk.Sector(s.rng.IntN(2*soakWindow))] = true
		n, err := s.loop.Attach(s.disks[i], backend.Host{})
		require.NoError(t, err)
		shared[i] = &blk.Disk{Index: n, Sectors: 2 * soakWindow, Base: blk.Sector(i) * 77}
	}
	mem, err := shm.NewAnonymous(soakDevices * soakQueues * soakQueue)
	require.NoError(t, err)
	t.Cleanup(mem.Release)
	all := mem.Mappings()[0].Bytes()
	for d := range soakDevices {
		s.model[d], s.busy[d] = make([]byte, soakWindow*blk.SectorSize), make([]bool, soakWindow)
		img := d % 2
		dev, err := New(Options{
			ID: fmt.Sprint(d), Index: uint16(d), Disk: shared[img], Info: s.disks[img].Info(), Loops: []*Loop{s.loop},
			NumQueues: soakQueues, WriteCache: d != 3, Prio: blk.Prio(d / 2 * (d % 3)), MaxDiscardSeg: 3,
			Offset: blk.Sector(d/2) * soakWindow, Size: soakWindow,
		})
		require.NoError(t, err)
		require.NoError(t, dev.SetFeatures(dev.Features()))
		require.NoError(t, dev.SetMemory(mem))
		t.Cleanup(func() { _ = dev.SetMemory(nil) })
		s.devs = append(s.devs, dev)
		for q := range soakQueues {
			at := (d*soakQueues + q) * soakQueue
			x := &soakDriver{s: s, dev: d, queue: q, bytes: all[at : at+soakQueue], slots: make([]*soakReq, soakSlots), heads: map[uint16]int{}}
			x.drv, err = virtqueue.NewDriver(x.bytes, soakRing, dev.features)
			require.NoError(t, err)
			a, u, _ := virtqueue.Layout(soakRing)
			g := uint64(memBase + at)
			x.params = virtqueue.Params{Size: soakRing, Desc: g, Avail: g + uint64(a), Used: g + uint64(u)}
			x.start()
			s.qs = append(s.qs, x)
		}
	}
	return s
}

func (x *soakDriver) start() {
	p := x.params
	p.Base = x.base
	require.NoError(x.s.t, x.s.devs[x.dev].Start(x.queue, p))
	x.s.devs[x.dev].Enable(x.queue, true)
	x.running = true
}

// submit sends a request that overlaps none in flight of this guest.
func (x *soakDriver) submit() {
	s, rng := x.s, x.s.rng
	slot := slices.Index(x.slots, nil)
	if slot < 0 {
		return
	}
	r := &soakReq{op: []uint32{blk.TypeIn, blk.TypeOut, blk.TypeOut, blk.TypeOut, blk.TypeDiscard, blk.TypeWriteZeroes, blk.TypeFlush}[rng.IntN(7)]}
	n := 1
	switch r.op {
	case blk.TypeDiscard:
		n = 1 + rng.IntN(3)*rng.IntN(2)
	case blk.TypeFlush:
		n = 0
	}
	busy := s.busy[x.dev]
	for range n {
		for range 20 {
			at, length := rng.IntN(soakWindow), 1+rng.IntN(soakMost)
			if rng.IntN(2) == 0 { // behind what is in flight
				for at < soakWindow && !(at > 0 && busy[at-1] && !busy[at]) {
					at++
				}
			}
			if at+length > soakWindow || slices.Contains(busy[at:at+length], true) {
				continue
			}
			for i := at; i < at+length; i++ {
				busy[i] = true
			}
			r.ranges = append(r.ranges, blk.Range{Sector: blk.Sector(at), Sectors: blk.Sector(length)})
			break
		}
	}
	if n > 0 && len(r.ranges) == 0 {
		return
	}
	off := 0x2000 + slot*soakSlot
	b := x.bytes[off : off+soakSlot]
	addr := func(o int) uint64 { return x.params.Desc + uint64(off+o) }
	clear(b[:17])
	binary.LittleEndian.PutUint32(b, r.op)
	r.status = b[16:17]
	b[16] = 0xee
	elems := []virtqueue.Elem{{Addr: addr(0), Len: 16}}
	switch r.op {
	case blk.TypeIn, blk.TypeOut:
		binary.LittleEndian.PutUint64(b[8:], uint64(r.ranges[0].Sector))
		total := int(r.ranges[0].Sectors.Bytes())
		r.want = make([]byte, total)
		s.gen++
		for i := 0; i < total; i += 16 {
			binary.LittleEndian.PutUint64(r.want[i:], uint64(x.dev)<<32|uint64(r.ranges[0].Sector)+uint64(i/512))
			binary.LittleEndian.PutUint64(r.want[i+8:], s.gen)
		}
		if r.op == blk.TypeIn {
			copy(r.want, s.model[x.dev][r.ranges[0].Sector.Bytes():])
		}
		at := 1024 + rng.IntN(3)*7
		for left := total; left > 0; {
			k := min(left, 1+rng.IntN(2048))
			seg := b[at : at+k]
			if r.op == blk.TypeOut {
				copy(seg, r.want[total-left:])
			} else {
				clear(seg)
			}
			r.data = append(r.data, seg)
			elems = append(elems, virtqueue.Elem{Addr: addr(at), Len: uint32(k), Write: r.op == blk.TypeIn})
			at, left = at+k+rng.IntN(2), left-k
			if at+left+8 > soakSlot {
				panic("slot too small")
			}
		}
	case blk.TypeDiscard, blk.TypeWriteZeroes:
		for i, g := range r.ranges {
			binary.LittleEndian.PutUint64(b[512+i*16:], uint64(g.Sector))
			binary.LittleEndian.PutUint32(b[520+i*16:], uint32(g.Sectors))
			binary.LittleEndian.PutUint32(b[524+i*16:], 0)
		}
		elems = append(elems, virtqueue.Elem{Addr: addr(512), Len: uint32(16 * len(r.ranges))})
	}
	elems = append(elems, virtqueue.Elem{Addr: addr(16), Len: 1, Write: true})
	head, ok := x.drv.Add(elems)
	if !ok {
		for _, g := range r.ranges {
			for i := g.Sector; i < g.Sector+g.Sectors; i++ {
				busy[i] = false
			}
		}
		return
	}
	r.head = head
	x.slots[slot], x.heads[head] = r, slot
	x.sent++
}

func (x *soakDriver) reap() (n int) {
	s := x.s
	for {
		head, written, ok, err := x.drv.Reap()
		require.NoError(s.t, err)
		if !ok {
			return n
		}
		n++
		slot, known := x.heads[head]
		require.True(s.t, known, "came back twice")
		delete(x.heads, head)
		r := x.slots[slot]
		x.slots[slot] = nil
		x.judge(r, written)
	}
}

func (x *soakDriver) judge(r *soakReq, written uint32) {
	s := x.s
	disk, off := s.disks[x.dev%2], blk.Sector(x.dev/2)*soakWindow
	want, n := blk.StatusOK, blk.Sector(0)
	for _, g := range r.ranges {
		n += g.Sectors
		for i := g.Sector; i < g.Sector+g.Sectors; i++ {
			s.busy[x.dev][i] = false
			if disk.bad[i+off] {
				want = blk.StatusIOErr
			}
		}
	}
	require.Equal(s.t, byte(want), r.status[0], "type %d %v", r.op, r.ranges)
	op := map[uint32]blk.Op{blk.TypeIn: blk.OpRead, blk.TypeOut: blk.OpWrite, blk.TypeFlush: blk.OpFlush, blk.TypeDiscard: blk.OpDiscard, blk.TypeWriteZeroes: blk.OpWriteZeroes}[r.op]
	c := &s.counts[x.dev][op]
	c.n++
	if want != blk.StatusOK {
		c.errors++
		// The good sectors of it may or may not have been touched.
		for _, g := range r.ranges {
			copy(s.model[x.dev][g.Sector.Bytes():(g.Sector+g.Sectors).Bytes()], disk.data[(g.Sector+off).Bytes():])
		}
		return
	}
	c.sectors += uint64(n)
	switch r.op {
	case blk.TypeIn:
		require.EqualValues(s.t, n.Bytes()+1, written)
		require.True(s.t, bytes.Equal(r.want, bytes.Join(r.data, nil)), "read %v", r.ranges)
	case blk.TypeOut:
		copy(s.model[x.dev][r.ranges[0].Sector.Bytes():], r.want)
	case blk.TypeDiscard, blk.TypeWriteZeroes:
		for _, g := range r.ranges {
			clear(s.model[x.dev][g.Sector.Bytes():(g.Sector + g.Sectors).Bytes()])
		}
	}
}

func (s *soak) step(all bool) {
	for _, d := range s.disks {
		d.some(all)
	}
	s.now += blk.Instant(s.rng.IntN(200_000))
	s.loop.Step(s.now)
	for _, x := range s.qs {
		x.reap()
	}
}

func (s *soak) act() {
	rng := s.rng
	x := s.qs[rng.IntN(len(s.qs))]
	switch k := rng.IntN(100); {
	case k < 60:
		for range 1 + rng.IntN(10) {
			x.submit()
		}
		if x.drv.Publish() {
			s.devs[x.dev].queues[x.queue].kicked = true
		}
	case k < 65:
		y, err := sched.New(sched.Names[rng.IntN(len(sched.Names))], s.cfg)
		require.NoError(s.t, err)
		s.loop.Switch(y)
	case k < 75:
		knobs := []struct{ k, v string }{
			{"nomerges", fmt.Sprint(rng.IntN(3))}, {"nomerges", "0"}, {"max_sectors_kb", fmt.Sprint(4 << rng.IntN(6))}, {"queue-depth", fmt.Sprint(1 + rng.IntN(8))},
			{"time_slice_us", fmt.Sprint([]int{0, 1, 250, 5000}[rng.IntN(4)])}, {"slice_by", []string{"queue", "device"}[rng.IntN(2)]},
			{"extend", []string{"always", "never", "rule-r"}[rng.IntN(3)]}, {"empty", []string{"inflight", "immediate"}[rng.IntN(2)]},
			{"front_merges", fmt.Sprint(rng.IntN(2))}, {"fifo_batch", fmt.Sprint(rng.IntN(5))}, {"async_depth", fmt.Sprint(1 + rng.IntN(3))},
			{"read_expire", fmt.Sprint(rng.IntN(3))}, {"write_expire", fmt.Sprint(rng.IntN(3))}, {"prio_aging_expire", fmt.Sprint(rng.IntN(2))},
			{"source", []string{"queue", "device", "stream"}[rng.IntN(3)]}, {"writes", []string{"sync", "async"}[rng.IntN(2)]},
			{"slice_idle", fmt.Sprint(rng.IntN(3))}, {"quantum", fmt.Sprint(1 + rng.IntN(4))},
			{"read_lat_nsec", fmt.Sprint(rng.IntN(2) * 1e9)}, {"write_lat_nsec", fmt.Sprint(rng.IntN(2) * 1e9)},
		}
		n := knobs[rng.IntN(len(knobs))]
		_ = s.loop.Set(n.k, n.v) // not every scheduler has it
		s.cfg.MaxSegments = rng.IntN(2) * rng.IntN(20)
	case k < 80 && x.running:
		answered := false
		s.devs[x.dev].Stop(x.queue, func(base uint32) { x.base, answered = base, true })
		x.running = false
		for n := 0; !answered; n++ {
			require.Less(s.t, n, 2000, "never stopped")
			if rng.IntN(4) == 0 { // stopped in the middle of other things
				y := s.qs[rng.IntN(len(s.qs))]
				y.submit()
				if y.drv.Publish() {
					s.devs[y.dev].queues[y.queue].kicked = true
				}
			}
			s.step(false)
		}
		x.reap()
	case k < 90 && !x.running:
		x.start()
	}
	for _, d := range s.disks {
		d.room = 1 + rng.IntN(5)
	}
	s.step(false)
}

func (s *soak) rest() {
	for _, x := range s.qs {
		if !x.running {
			x.start()
		}
		x.drv.Publish()
		s.devs[x.dev].queues[x.queue].kicked = true
	}
	for range 5000 {
		s.now += 1_000_000
		s.step(true)
	}
	for _, x := range s.qs {
		require.Empty(s.t, x.heads, "queue %d/%d", x.dev, x.queue)
	}
	require.Zero(s.t, s.loop.inflight)
	require.Zero(s.t, s.loop.sched.Len())
	for i, d := range s.disks {
		for dev := i; dev < soakDevices; dev += 2 {
			require.True(s.t, bytes.Equal(s.model[dev], d.data[dev/2*soakWindow*512:][:soakWindow*512]), "image of device %d", dev)
		}
	}
	var sum Stats
	for dev := range soakDevices {
		st, queues := s.devs[dev].Stats()
		require.Zero(s.t, st.InFlight)
		require.Zero(s.t, st.Held)
		require.LessOrEqual(s.t, st.IOTime, uint64(s.now))
		for op := range st.Op {
			c := s.counts[dev][op]
			require.Equal(s.t, c.n, st.Op[op].Requests(), "device %d %v", dev, blk.Op(op))
			require.Equal(s.t, c.sectors, st.Op[op].Sectors)
			require.Equal(s.t, c.errors, st.Op[op].Errors)
		}
		for i := range queues {
			sum.Add(&queues[i])
			require.Zero(s.t, queues[i].InFlight)
		}
	}
	domain := s.loop.Stats()
	require.Equal(s.t, sum.Op, domain.Op)
	merged := uint64(0)
	for op := range domain.Op {
		merged += domain.Op[op].Merges
	}
	require.NotZero(s.t, merged)
}

// Four guests in two images, on one loop, with everything that can be done to a
// domain: every request comes back once, with what it should have, and counted.
func TestSoak(t *testing.T) {
	for seed := range uint64(6) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			s := newSoak(t, seed)
			for range 800 {
				s.act()
			}
			s.rest()
		})
	}
}

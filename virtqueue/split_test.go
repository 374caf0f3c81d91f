package virtqueue

import (
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/elevisor/elevisor/sys/shm"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

const (
	base   = 0x10000 // of NewAnonymous
	dataAt = 0x80000 // data buffers, behind the ring
)

// rig is a ring with both sides in one memory.
type rig struct {
	mem    *shm.Memory
	bytes  []byte
	driver *Driver
	device *Split
	params Params
}

func newRig(t require.TestingT, size int, features uint64, record []byte) *rig {
	mem, err := shm.NewAnonymous(4 << 20)
	require.NoError(t, err)
	r := &rig{mem: mem, bytes: mem.Mappings()[0].Bytes()}
	r.driver, err = NewDriver(r.bytes, size, features)
	require.NoError(t, err)
	avail, used, total := Layout(size)
	require.Less(t, total, dataAt)
	r.params = Params{
		Size: size, Desc: base, Avail: base + uint64(avail), Used: base + uint64(used),
		Features: features, Memory: mem, Inflight: record,
	}
	r.device, err = NewSplit(r.params)
	require.NoError(t, err)
	return r
}

func (r *rig) data(i int) Elem { return Elem{Addr: base + dataAt + uint64(i)*512, Len: 512} }

// pop takes one chain that must be there and sound.
func (r *rig) pop(t require.TestingT, c *Chain) {
	ok, err := r.device.Pop(c)
	require.NoError(t, err)
	require.True(t, ok)
	require.Equal(t, FaultNone, c.Fault)
}

func TestSplit_propertyEveryChainOnceInBothDirections(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		size := 1 << rapid.IntRange(0, 6).Draw(t, "log size")
		features := uint64(0)
		if rapid.Bool().Draw(t, "event idx") {
			features |= FeatureEventIdx
		}
		r := newRig(t, size, features, nil)
		defer r.mem.Release()
		out := map[uint16]uint32{} // head to tag, in the driver's hands as available
		var held []*Chain
		returned := 0 // by the device, not yet reaped
		tag := uint32(0)
		kicked, called := true, true // until a side has armed itself, it is awake
		for range rapid.IntRange(1, 300).Draw(t, "steps") {
			switch rapid.IntRange(0, 4).Draw(t, "do") {
			case 0, 1: // add
				n := rapid.IntRange(1, 5).Draw(t, "elements")
				elems := []Elem{}
				for i := range n {
					e := r.data(int(tag)%64*8 + i)
					e.Write = i > 0
					elems = append(elems, e)
				}
				binary.LittleEndian.PutUint32(r.bytes[elems[0].Addr-base:], tag)
				var head uint16
				var ok bool
				if rapid.Bool().Draw(t, "indirect") {
					at := 0x200000 + int(tag)%64*256
					head, ok = r.driver.AddIndirect(elems, r.bytes[at:at+256], base+uint64(at))
				} else {
					head, ok = r.driver.Add(elems)
				}
				if ok {
					require.NotContains(t, out, head)
					out[head] = tag
					tag++
				}
				kicked = r.driver.Publish() || kicked
			case 2: // device takes
				c := &Chain{}
				ok, err := r.device.Pop(c)
				require.NoError(t, err)
				if ok {
					require.Equal(t, out[c.ID], binary.LittleEndian.Uint32(c.Readable()[0]))
					held = append(held, c)
				} else if !r.device.EnableKicks() {
					kicked = false
				}
			case 3: // device returns any
				if len(held) > 0 {
					i := rapid.IntRange(0, len(held)-1).Draw(t, "which")
					r.device.Push(held[i].ID, out[held[i].ID])
					held = append(held[:i], held[i+1:]...)
					returned++
					called = r.device.Publish() || called
				}
			case 4: // driver reaps
				head, written, ok, err := r.driver.Reap()
				require.NoError(t, err)
				if ok {
					require.Equal(t, out[head], written)
					delete(out, head)
					returned--
				} else if !r.driver.EnableCalls() {
					called = false
				}
			}
			if !kicked {
				require.Equal(t, len(held), len(out)-returned, "a chain became available without a kick")
			}
			if !called {
				require.Zero(t, returned, "a chain was returned without a call")
			}
		}
	})
}

// The index wraps at 65536, free running, with both notification mechanisms.
func TestSplit_wrap(t *testing.T) {
	for _, features := range []uint64{0, FeatureEventIdx} {
		r := newRig(t, 8, features, nil)
		var c Chain
		for i := range 70000 {
			_, ok := r.driver.Add([]Elem{r.data(0)})
			require.True(t, ok)
			require.True(t, r.driver.Publish(), "kick %d: the device is asleep", i)
			r.pop(t, &c)
			require.False(t, r.device.EnableKicks())
			r.device.Push(c.ID, 0)
			require.True(t, r.device.Publish(), "call %d: the driver is asleep", i)
			_, _, ok, err := r.driver.Reap()
			require.NoError(t, err)
			require.True(t, ok)
			require.False(t, r.driver.EnableCalls())
		}
		require.EqualValues(t, 70000-65536, r.device.Base())
		r.mem.Release()
	}
}

// FRONTENDS: with used_event = 2 the second completion must not interrupt and the
// third must.
func TestSplit_usedEventExact(t *testing.T) {
	r := newRig(t, 8, FeatureEventIdx, nil)
	defer r.mem.Release()
	var c Chain
	for range 4 {
		_, ok := r.driver.Add([]Elem{r.data(0)})
		require.True(t, ok)
	}
	r.driver.Publish()
	push := func() bool {
		r.pop(t, &c)
		r.device.Push(c.ID, 0)
		return r.device.Publish()
	}
	push() // the very first may call whatever was asked
	shm.Store16(r.driver.avail, 4+2*8, 2)
	require.False(t, push())
	require.True(t, push())
	require.False(t, push())
}

// libblkio issue 68: a driver that is behind with used_event gets its call, since
// the comparison starts at the last call sent.
func TestSplit_lateUsedEventStillCalls(t *testing.T) {
	r := newRig(t, 8, FeatureEventIdx, nil)
	defer r.mem.Release()
	var c Chain
	for range 4 {
		r.driver.Add([]Elem{r.data(0)})
	}
	r.driver.Publish()
	publish := func() bool {
		r.pop(t, &c)
		r.device.Push(c.ID, 0)
		return r.device.Publish()
	}
	publish()
	shm.Store16(r.driver.avail, 4+2*8, 0x7000) // far away: no calls
	require.False(t, publish())
	shm.Store16(r.driver.avail, 4+2*8, 1) // wanted already the one before
	require.True(t, publish())
}

// A driver that polls moves used_event never; the 16-bit comparison must not go
// blind after a wrap, so a call is forced now and then.
func TestSplit_pollingDriverThenSleeps(t *testing.T) {
	r := newRig(t, 8, FeatureEventIdx, nil)
	defer r.mem.Release()
	var c Chain
	calls := 0
	shm.Store16(r.driver.avail, 4+2*8, 0xfff0)
	for range 200000 {
		r.driver.Add([]Elem{r.data(0)})
		r.driver.Publish()
		r.pop(t, &c)
		r.device.Push(c.ID, 0)
		if r.device.Publish() {
			calls++
		}
		_, _, _, err := r.driver.Reap()
		require.NoError(t, err)
	}
	require.Greater(t, calls, 0)
	require.LessOrEqual(t, calls, 1+200000/forceCall+200000/65536+1)
}

func TestSplit_refusesParams(t *testing.T) {
	r := newRig(t, 8, 0, nil)
	defer r.mem.Release()
	for name, change := range map[string]func(p *Params){
		"not a power of two":   func(p *Params) { p.Size = 6 },
		"size 0 is":            func(p *Params) { p.Size = 0 },
		"size 65536 is":        func(p *Params) { p.Size = 65536 },
		"16 bits":              func(p *Params) { p.Base = 1 << 16 },
		"descriptor table":     func(p *Params) { p.Desc = 0xdead0000 },
		"aligned to 16":        func(p *Params) { p.Desc += 8 },
		"aligned to 2":         func(p *Params) { p.Avail++ },
		"aligned to 4":         func(p *Params) { p.Used += 2 },
		"used ring":            func(p *Params) { p.Used = base + 4<<20 - 8 },
		"in-flight record has": func(p *Params) { p.Inflight = make([]byte, 64) },
		"record of version 7":  func(p *Params) { p.Inflight = make([]byte, InflightBytes(8)); p.Inflight[8] = 7 },
	} {
		p := r.params
		change(&p)
		_, err := NewSplit(p)
		require.ErrorContains(t, err, name)
	}
}

// A process that dies between any two stores of a batch leaves a record from which
// its successor resubmits exactly what the driver has not got back, in order.
func TestInflight_everyPointOfDeath(t *testing.T) {
	for death := range 9 {
		record := make([]byte, InflightBytes(8))
		r := newRig(t, 8, FeatureEventIdx, record)
		var c Chain
		var heads []uint16
		for i := range 6 {
			h, ok := r.driver.Add([]Elem{r.data(i)})
			require.True(t, ok)
			heads = append(heads, h)
		}
		r.driver.Publish()
		for range 5 {
			r.pop(t, &c)
		}
		// Return 3 and 1, out of order, in one batch; die at a chosen store.
		returned := map[uint16]bool{}
		steps := []func(){
			func() { r.device.record.put(heads[3]) },
			func() { putUsed(r.device, heads[3]) },
			func() { r.device.record.put(heads[1]) },
			func() { putUsed(r.device, heads[1]) },
			func() {
				r.device.shown = r.device.pushed
				r.device.storeUsed()
				returned[heads[3]], returned[heads[1]] = true, true
			},
			func() { r.device.record.entry(heads[3])[0] = 0 },
			func() { r.device.record.entry(heads[1])[0] = 0 },
			func() { shm.Store16(record, 14, r.device.shown) },
		}
		for _, step := range steps[:death] {
			step()
		}
		p := r.params
		p.Base = uint32(shm.Load16(r.device.used, 2)) // as QEMU does on a reconnect
		next, err := NewSplit(p)
		require.NoError(t, err)
		var got []uint16
		for {
			ok, err := next.Pop(&c)
			require.NoError(t, err)
			if !ok {
				break
			}
			require.Equal(t, FaultNone, c.Fault)
			got = append(got, c.ID)
		}
		var want []uint16
		for _, h := range heads {
			if !returned[h] {
				want = append(want, h)
			}
		}
		require.Equal(t, want, got, "death after store %d", death)
		r.mem.Release()
	}
}

func putUsed(q *Split, id uint16) {
	at := 4 + 8*int(q.pushed&(q.size-1))
	binary.LittleEndian.PutUint32(q.used[at:], uint32(id))
	q.pushed++
}

// A record that lies gives at worst chains twice, never an index outside.
func FuzzInflight(f *testing.F) {
	f.Add(make([]byte, InflightBytes(8)), uint16(0))
	f.Fuzz(func(t *testing.T, record []byte, used uint16) {
		b := make([]byte, InflightBytes(8))
		copy(b, record)
		b[8], b[9] = 1, 0
		r := newRig(t, 8, 0, nil)
		defer r.mem.Release()
		shm.Store32(r.device.used, 0, uint32(used)<<16)
		p := r.params
		p.Inflight = b
		q, err := NewSplit(p)
		require.NoError(t, err)
		var c Chain
		for range 20 {
			if ok, _ := q.Pop(&c); ok {
				q.Push(c.ID, 0)
				q.Publish()
			}
		}
	})
}

// Whatever a guest writes into its ring: Pop ends, returns memory of the table
// only, and a chain is one of a bounded number of segments.
func FuzzChain(f *testing.F) {
	seed := make([]byte, 512)
	Elem{Addr: base + dataAt, Len: 16}.put(seed[0:], true, 1)
	Elem{Addr: base + dataAt + 64, Len: 512, Write: true}.put(seed[16:], true, 2)
	Elem{Addr: base + 0x100, Len: 64}.put(seed[32:], false, 0)
	binary.LittleEndian.PutUint16(seed[44:], DescIndirect)
	f.Add(seed, uint16(3))
	f.Fuzz(func(t *testing.T, ring []byte, idx uint16) {
		r := newRig(t, 16, 0, nil)
		defer r.mem.Release()
		copy(r.bytes, ring)
		shm.Store16(r.device.avail, 2, idx)
		lo := shm.Addr(r.bytes)
		var c Chain
		for range 40 {
			ok, err := r.device.Pop(&c)
			if err != nil || !ok {
				break
			}
			require.LessOrEqual(t, len(c.Segs), MaxChain)
			require.LessOrEqual(t, c.Out, len(c.Segs))
			for _, s := range c.Segs {
				require.NotEmpty(t, s)
				at := shm.Addr(s) - lo
				require.LessOrEqual(t, int(at)+len(s), len(r.bytes))
			}
			r.device.Push(c.ID, 0)
			r.device.Publish()
		}
	})
}

func TestSplit_noAllocations(t *testing.T) {
	r := newRig(t, 64, FeatureEventIdx, make([]byte, InflightBytes(64)))
	defer r.mem.Release()
	c := Chain{Segs: make([][]byte, 0, 8)}
	elems := []Elem{r.data(0), {Addr: base + dataAt + 1024, Len: 1, Write: true}}
	turn := func() {
		for range 32 {
			r.driver.Add(elems)
		}
		r.driver.Publish()
		for range 32 {
			r.pop(t, &c)
			r.device.Push(c.ID, 1)
		}
		r.device.Publish()
		r.device.EnableKicks()
		for range 32 {
			_, _, _, _ = r.driver.Reap()
		}
	}
	turn()
	require.Zero(t, testing.AllocsPerRun(100, turn))
}

func BenchmarkSplit(b *testing.B) {
	for _, indirect := range []bool{false, true} {
		b.Run(fmt.Sprintf("indirect=%v", indirect), func(b *testing.B) {
			r := newRig(b, 256, FeatureEventIdx, nil)
			defer r.mem.Release()
			c := Chain{Segs: make([][]byte, 0, 8)}
			elems := []Elem{r.data(0), {Addr: base + dataAt + 1024, Len: 512, Write: true}, {Addr: base + dataAt + 2048, Len: 1, Write: true}}
			table := r.bytes[0x200000:0x200100]
			b.ReportAllocs()
			for b.Loop() {
				if indirect {
					r.driver.AddIndirect(elems, table, base+0x200000)
				} else {
					r.driver.Add(elems)
				}
				r.driver.Publish()
				_, _ = r.device.Pop(&c)
				r.device.Push(c.ID, 513)
				r.device.Publish()
				_, _, _, _ = r.driver.Reap()
			}
		})
	}
}

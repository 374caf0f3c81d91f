package cases

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/elevisor/elevisor/blk"
	"github.com/elevisor/elevisor/guest"
	"github.com/elevisor/elevisor/virtqueue"
)

// testCase is one entry of the case book.
type testCase struct {
	id, title string
	run       func(t *testing.T)
}

// plain is a case that needs nothing but the rig.
func plain(f func(r *rig)) func(t *testing.T) {
	return func(t *testing.T) { on(t, setup{}, f) }
}

func runAll(t *testing.T, cases []testCase) {
	for _, c := range cases {
		t.Run(c.id, func(t *testing.T) {
			t.Log(c.title)
			c.run(t)
		})
	}
}

// hole is a guest address in no memory region.
const hole = 0x4000_0000

func TestSplitRing(t *testing.T) {
	runAll(t, []testCase{
		{"MS-002", "a chain of exactly queue-size elements", plain(fullChain)},
		{"MS-003", "a chain of queue-size + 1 through an indirect table: served", plain(longIndirect)},
		{"MS-005", "a total length above 4 GiB: retired", plain(tooLong)},
		{"MS-008", "INDIRECT together with NEXT: retired", plain(indirectNext)},
		{"MS-012", "WRITE on the descriptor that points to the table: ignored", plain(indirectWrite)},
		{"MS-013", "normal elements, then one indirect as the last", plain(indirectLast)},
		{"MS-014", "indirect without the feature: served", indirectUnasked},
		{"MS-016", "a writable header: IOERR", plain(writableHeader)},
		{"MS-019", "a header shorter than 16 bytes: IOERR", plain(shortHeader)},
		{"MS-021", "read data and status in one element", plain(statusBehindData)},
		{"MS-022", "a status element longer than one byte", plain(longStatus)},
		{"MS-024", "a header split 1+15 across two regions", plain(splitHeader)},
		{"MS-025", "a data buffer on top of the ring itself", dataOverRing},
		{"MS-027", "addr + len wraps 64 bits: IOERR", plain(wrappingElement)},
		{"MS-030", "avail.idx goes back by one: broken", plain(availGoesBack)},
		{"MS-032", "avail.idx jumps by queue size; by queue size + 1", availJumps},
		{"MS-035", "spurious kicks on an empty ring", plain(spuriousKicks)},
		{"MS-037", "NO_INTERRUPT with EVENT_IDX negotiated: ignored", plain(noInterrupt)},
		{"MS-039", "used_event poisoned at random", plain(poisonedUsedEvent)},
		{"MS-041", "unknown descriptor flags: ignored", plain(unknownFlags)},
		{"MS-042", "ring sizes 1, 2, 32768 under load", ringSizes},
		{"MS-046", "a header as 8+8, 4+4+8, 16 x 1", headerFraming},
		{"MS-047", "elements in different regions; one element over three", manyRegions},
	})
}

func fullChain(r *rig) {
	elems := []elem{r.header(blk.TypeIn, 10)}
	for i := range uint64(6) {
		elems = append(elems, W(512, B+512*i))
	}
	r.answered(r.post(append(elems, r.status())...), OK, 6*512+1)
	r.holds(B, r.sectors(10, 6))
}

func longIndirect(r *rig) {
	elems := []elem{r.header(blk.TypeIn, 10)}
	for i := range uint64(7) {
		elems = append(elems, W(512, B+512*i))
	}
	r.answered(r.post(r.table(T, append(elems, r.status())...)), OK, 7*512+1)
	r.holds(B, r.sectors(10, 7))
}

func tooLong(r *rig) {
	const n = 0x7fff_ffff
	r.retired(r.post(r.header(blk.TypeIn, 0), W(n, B), W(n, B), W(n, B), W(n, B), r.status()))
	r.untouched(S, 1)
}

func indirectNext(r *rig) {
	table := r.table(T, r.header(blk.TypeIn, 0), W(512, B), r.status())
	r.retired(r.post(table, W(512, B))) // flags 5, next 1
	r.untouched(S, 1)
}

func indirectWrite(r *rig) {
	table := r.table(T, r.header(blk.TypeIn, 4), W(512, B), r.status())
	table.flags |= virtqueue.DescWrite
	r.answered(r.post(table), OK, 513)
	r.holds(B, r.sectors(4, 1))
}

func indirectLast(r *rig) {
	h := r.header(blk.TypeIn, 4)
	r.answered(r.post(h, r.table(T, W(512, B), r.status())), OK, 513)
	r.holds(B, r.sectors(4, 1))
}

func indirectUnasked(t *testing.T) {
	on(t, setup{features: guest.DefaultFeatures &^ virtqueue.FeatureIndirect}, func(r *rig) {
		require.Zero(r, r.s.Features&virtqueue.FeatureIndirect)
		r.answered(r.post(r.table(T, r.header(blk.TypeIn, 4), W(512, B), r.status())), OK, 513)
		r.holds(B, r.sectors(4, 1))
	})
}

func writableHeader(r *rig) {
	r.header(blk.TypeOut, 0)
	r.answered(r.post(W(16, H), W(512, B), r.status()), IOERR, 0)
	r.untouched(H, 16)
	r.untouched(B, 512)
}

func shortHeader(r *rig) {
	h := r.header(blk.TypeFlush, 0)
	h.n = 15
	r.answered(r.post(h, r.status()), IOERR, 1)
}

func statusBehindData(r *rig) {
	r.answeredAt(B+512, r.post(r.header(blk.TypeIn, 4), W(513, B)), OK, 513)
	r.holds(B, r.sectors(4, 1))
}

func longStatus(r *rig) {
	r.data(bytes.Repeat([]byte{0x11}, 512))
	head := r.post(r.header(blk.TypeOut, 4), R(512, B), W(64, S))
	r.answeredAt(S+63, head, OK, none)
	r.untouched(S, 63)
	copy(r.sectors(4, 1), r.shadowed(B, 512))

	r.poke(S, bytes.Repeat([]byte{canary}, 64))
	head = r.post(r.header(blk.TypeIn, 5), W(512, B), W(64, S))
	r.answeredAt(S+63, head, IOERR, none)
	r.untouched(B, 512)
	r.untouched(S, 63)
}

func splitHeader(r *rig) {
	r.header(blk.TypeIn, 6)
	h := bytes.Clone(r.shadowed(H, 16))
	r.poke(regionA+regionASize-1, h[:1])
	r.poke(regionB, h[1:])
	r.answered(r.post(R(1, regionA+regionASize-1), R(15, regionB), W(512, B), r.status()), OK, 513)
	r.holds(B, r.sectors(6, 1))
}

// dataOverRing: what the device reads from then on is the number of a sector, over
// and over.
func dataOverRing(t *testing.T) {
	t.Run("avail", func(t *testing.T) {
		on(t, setup{}, func(r *rig) {
			head := r.post(r.header(blk.TypeIn, 7), W(512, ringAvail), r.status())
			until(r, "no used entry", func() bool { return r.ring.UsedIdx() == 1 })
			got, n := r.take()
			assert.Equal(r, head, got)
			assert.Equal(r, uint32(513), n)
			r.holds(S, []byte{byte(OK)})
			r.holds(ringAvail, r.sectors(7, 1))
			r.kick.Notify()
			r.stopped() // avail.idx went from 1 to 0
		})
	})
	t.Run("descriptors", func(t *testing.T) {
		on(t, setup{}, func(r *rig) {
			r.answered(r.post(r.header(blk.TypeIn, 7), W(128, regionA), W(384, B), r.status()), OK, 513)
			r.holds(regionA, r.sectors(7, 1)[:128])
			r.offer(5) // {addr 7, len 7, flags 0}
			r.publish(r.avail)
			r.retired(5)
			r.desc = 0
		})
	})
}

func wrappingElement(r *rig) {
	r.answered(r.post(r.header(blk.TypeIn, 0), W(0x200, 0xffff_ffff_ffff_ff00), r.status()), IOERR, none)
	r.answered(r.post(r.header(blk.TypeIn, 0), W(0x200, hole), r.status()), IOERR, none)
}

func availGoesBack(r *rig) {
	for range 5 {
		r.answered(r.post(r.header(blk.TypeIn, 0), W(512, B), r.status()), OK, 513)
	}
	r.publish(4)
	r.stopped()
}

// eight offers a chain for each entry of the ring, each through a table.
func (r *rig) eight() {
	r.desc = 0
	for i := range uint64(8) {
		h := r.headerAt(H+16*i, blk.TypeIn, 0, 20+i)
		r.chain(r.table(T+64*i, h, W(512, B+512*i), r.statusAt(S+i)))
	}
}

func availJumps(t *testing.T) {
	t.Run("by 8", func(t *testing.T) {
		on(t, setup{}, func(r *rig) {
			r.eight()
			r.publish(8)
			until(r, "no used entry", func() bool { return r.ring.UsedIdx() == 8 })
			require.True(r, r.call.Wait(patience))
			for range 8 {
				_, n := r.take()
				assert.Equal(r, uint32(513), n)
			}
			r.call.Take()
			r.holds(S, make([]byte, 8))
			r.holds(B, r.sectors(20, 8))
		})
	})
	t.Run("by 9", func(t *testing.T) {
		on(t, setup{}, func(r *rig) {
			r.eight()
			r.publish(9)
			r.stopped()
			assert.Zero(r, r.ring.UsedIdx())
			r.untouched(B, 8*512)
		})
	})
}

// spuriousKicks also holds the daemon to rest afterwards: of half a second it may
// spend at most half computing, which a loop that never sleeps cannot keep.
func spuriousKicks(r *rig) {
	for range 10_000 {
		r.kick.Notify()
	}
	most := binary.LittleEndian.AppendUint64(nil, 1<<64-2)
	until(r, "the kick counter is never read", func() bool {
		_, err := unix.Write(r.kick.Raw(), most)
		return err == nil
	})
	until(r, "the kick counter is never read", func() bool { return !r.kick.Wait(0) })
	assert.Zero(r, r.ring.UsedIdx())
	assert.Zero(r, r.call.Take())

	r.server.neighbour.pause.Lock()
	defer r.server.neighbour.pause.Unlock()
	before := cpuTime(r.T)
	time.Sleep(500 * time.Millisecond)
	assert.Less(r, cpuTime(r.T)-before, 250*time.Millisecond, "processor time of an idle daemon in half a second")
}

func cpuTime(t *testing.T) time.Duration {
	var u syscall.Rusage
	require.NoError(t, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func noInterrupt(r *rig) {
	r.poke(ringAvail, []byte{1, 0})
	r.answered(r.post(r.header(blk.TypeIn, 0), W(512, B), r.status()), OK, 513) // waits for the call
	r.poke(ringAvail, []byte{0, 0})
}

func poisonedUsedEvent(r *rig) {
	rng := rand.New(rand.NewPCG(1, 1))
	usedEvent := uint64(ringAvail + 4 + 2*8)
	r.may = append(r.may, span{usedEvent, usedEvent + 2}) // ours to poison, not the device's to write
	for range 200 {
		r.eight()
		r.ring.SetAvail(r.avail)
		copy(r.shadowed(ringAvail+2, 2), binary.LittleEndian.AppendUint16(nil, r.avail))
		r.kick.Notify()
		for end := time.Now().Add(patience); r.ring.UsedIdx() != r.avail; {
			r.ring.SetUsedEvent(uint16(rng.Uint32()))
			require.True(r, time.Now().Before(end), "requests are lost")
		}
		for range 8 {
			_, n := r.take()
			require.Equal(r, uint32(513), n)
		}
		r.holds(S, make([]byte, 8))
		r.holds(B, r.sectors(20, 8))
	}
	r.call.Take()
	r.desc = 0
}

func unknownFlags(r *rig) {
	h, data := r.header(blk.TypeIn, 4), W(512, B)
	h.flags, data.flags = 0xfff8, data.flags|0xfff8
	r.answered(r.post(h, data, r.status()), OK, 513)
	r.holds(B, r.sectors(4, 1))
}

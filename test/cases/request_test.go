package cases

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/elevisor/elevisor/blk"
	"github.com/elevisor/elevisor/daemon"
	"github.com/elevisor/elevisor/guest"
	"github.com/elevisor/elevisor/sys/shm"
)

func TestBlkRequest(t *testing.T) {
	runAll(t, []testCase{
		{"MB-001", "the first sector after the end", plain(behindEnd)},
		{"MB-003", "across the end", plain(acrossEnd)},
		{"MB-004", "sector*512 = 2^64", plain(sectorWraps)},
		{"MB-007", "not aligned to blk_size 4096: the unit is 512", unalignedToBlock},
		{"MB-009", "a read with no data: OK", plain(emptyRead)},
		{"MB-011", "the largest request: 1 MiB in one element; in 2048", plain(largest)},
		{"MB-013", "a write with writable data: IOERR", plain(writeOfWritable)},
		{"MB-015", "a read with both readable and writable data: IOERR", plain(readOfBoth)},
		{"MB-017", "unknown types", plain(unknownTypes)},
		{"MB-019", "legacy FLUSH_OUT and the BARRIER bit: UNSUPP", plain(legacyTypes)},
		{"MB-021", "the reserved field set: ignored", plain(reservedField)},
		{"MB-022", "a flush with data: the data is ignored", plain(flushWithData)},
		{"MB-024", "a flush that was not negotiated: OK", flushUnasked},
		{"MB-027", "num_sectors = max and max+1", plain(rangeLimit)},
		{"MB-029", "a range across or beyond the end", plain(rangeBehindEnd)},
		{"MB-031", "unmap set on DISCARD", plain(discardUnmap)},
		{"MB-032", "reserved flag bits", plain(reservedFlags)},
		{"MB-035", "ranges of 0, 15, 17, 31 bytes", plain(oddRanges)},
		{"MB-037", "overlapping segments in one request", plain(overlappingRanges)},
		{"MB-039", "write zeroes with and without unmap: content and allocation", zeroesAllocation},
		{"MB-041", "GET_ID with a buffer of 20", plain(getID)},
		{"MB-042", "GET_ID with a buffer of 0, 1, 10, 19: cut to fit", plain(getIDShort)},
		{"MB-045", "GET_ID with a readable buffer", plain(getIDReadable)},
		{"MB-046", "every changing request on a read-only disk", readOnlyDisk},
		{"MB-048", "the status byte only after the data, before used.idx", plain(orderOfStores)},
		{"MB-051", "an empty and a 1-byte image: refused at start", tinyImage},
	})
}

// ask posts header, elems and a status byte, and expects the answer.
func (r *rig) ask(typ uint32, sector uint64, elems []elem, status blk.Status, written uint32) {
	r.Helper()
	chain := append([]elem{r.header(typ, sector)}, elems...)
	r.answered(r.post(append(chain, r.status())...), status, written)
}

func one(e elem) []elem { return []elem{e} }

func behindEnd(r *rig) {
	r.ask(blk.TypeIn, 2048, one(W(512, B)), IOERR, none)
	r.untouched(B, 512)
}

func acrossEnd(r *rig) {
	r.data(bytes.Repeat([]byte{0x33}, 1024))
	r.ask(blk.TypeOut, 2047, one(R(1024, B)), IOERR, 1)
	r.ask(blk.TypeIn, 2047, one(W(1024, B)), IOERR, none)
	r.untouched(B, 1024)
}

func sectorWraps(r *rig) {
	for _, sector := range []uint64{1 << 55, 1<<64 - 1} {
		r.ask(blk.TypeIn, sector, one(W(512, B)), IOERR, none)
		r.untouched(B, 512)
		r.ask(blk.TypeOut, sector, one(R(512, B)), IOERR, 1)
	}
}

func unalignedToBlock(t *testing.T) {
	on(t, setup{disk: func(d *daemon.Disk) { d.LogicalBlock = 4096 }}, func(r *rig) {
		assert.Equal(r, uint32(4096), r.s.Config.BlkSize)
		r.ask(blk.TypeIn, 1, one(W(512, B)), OK, 513)
		r.holds(B, r.sectors(1, 1))
		r.data(bytes.Repeat([]byte{0x44}, 1024))
		r.ask(blk.TypeOut, 7, one(R(1024, B)), OK, 1) // across two blocks
		copy(r.sectors(7, 2), r.shadowed(B, 1024))
	})
}

func emptyRead(r *rig) {
	r.ask(blk.TypeIn, 0, nil, OK, 1)
	r.ask(blk.TypeIn, 2048, nil, OK, 1)
}

func largest(r *rig) {
	const mib, table = 1 << 20, B + 0x200000
	r.ask(blk.TypeIn, 0, one(W(mib, B)), OK, mib+1)
	r.holds(B, r.image)
	r.poke(B, bytes.Repeat([]byte{canary}, mib))

	elems := []elem{r.header(blk.TypeIn, 0)}
	for i := range uint64(2048) {
		elems = append(elems, W(512, B+512*(2047-i))) // backwards: nothing adjoins
	}
	r.answered(r.post(r.table(table, append(elems, r.status())...)), OK, mib+1)
	for i := range 2048 {
		r.holds(B+512*uint64(2047-i), r.sectors(i, 1))
	}
	r.data(bytes.Repeat([]byte{0x55}, mib))
	r.ask(blk.TypeOut, 0, one(R(mib, B)), OK, 1)
	copy(r.image, r.shadowed(B, mib))
}

func writeOfWritable(r *rig) {
	r.ask(blk.TypeOut, 4, one(W(512, B)), IOERR, none)
	r.untouched(B, 512)
}

func readOfBoth(r *rig) {
	r.ask(blk.TypeIn, 4, []elem{R(512, B), W(512, B+512)}, IOERR, none)
	r.untouched(B, 1024)
}

func unknownTypes(r *rig) {
	for _, typ := range []uint32{6, 7, 9, 12, 0x55, 0xffff_ffff} {
		r.ask(typ, 0, nil, UNSUPP, 1)
		r.ask(typ, 0, one(R(512, B)), UNSUPP, 1)
		r.ask(typ, 0, one(W(512, B)), UNSUPP, none)
		r.untouched(B, 512)
	}
}

func legacyTypes(r *rig) {
	for _, typ := range []uint32{5, 0x8000_0000, 0x8000_0001} {
		r.ask(typ, 4, one(R(512, B)), UNSUPP, 1)
		r.ask(typ, 4, one(W(512, B)), UNSUPP, none)
		r.untouched(B, 512)
	}
}

func reservedField(r *rig) {
	const all = 0xffff_ffff
	r.answered(r.post(r.headerAt(H, blk.TypeIn, all, 4), W(512, B), r.status()), OK, 513)
	r.holds(B, r.sectors(4, 1))
	r.data(bytes.Repeat([]byte{0x66}, 512))
	r.answered(r.post(r.headerAt(H, blk.TypeOut, all, 4), R(512, B), r.status()), OK, 1)
	copy(r.sectors(4, 1), r.shadowed(B, 512))
	r.answered(r.post(r.headerAt(H, blk.TypeFlush, all, 0), r.status()), OK, 1)
}

func flushWithData(r *rig) {
	r.ask(blk.TypeFlush, 4, one(R(512, B)), OK, 1)
	r.ask(blk.TypeFlush, 4, one(W(512, B)), OK, none)
	r.untouched(B, 512)
}

func flushUnasked(t *testing.T) {
	on(t, setup{features: guest.DefaultFeatures &^ blk.FeatureFlush}, func(r *rig) {
		require.NotZero(r, r.s.Offered&blk.FeatureFlush)
		require.Zero(r, r.s.Features&blk.FeatureFlush)
		r.ask(blk.TypeFlush, 0, nil, OK, 1)
	})
}

func rangeLimit(r *rig) {
	assert.Equal(r, uint32(256), r.s.Config.MaxDiscardSectors)
	assert.Equal(r, uint32(256), r.s.Config.MaxWriteZeroesSectors)
	for _, typ := range []uint32{blk.TypeDiscard, blk.TypeWriteZeroes} {
		r.ask(typ, 0, one(r.ranges(segment{1024, 257, 0})), IOERR, 1)
	}
	r.ask(blk.TypeDiscard, 0, one(r.ranges(segment{1280, 256, 0})), OK, 1)
	r.unsure = append(r.unsure, span{1280 * 512, 1536 * 512})
	r.ask(blk.TypeWriteZeroes, 0, one(r.ranges(segment{512, 256, 0})), OK, 1)
	clear(r.sectors(512, 256))
	four := []segment{{300, 1, 0}, {302, 1, 0}, {304, 1, 0}, {306, 1, 0}}
	r.ask(blk.TypeWriteZeroes, 0, one(r.ranges(append(four, segment{308, 1, 0})...)), UNSUPP, 1) // max_write_zeroes_seg is 4
	r.ask(blk.TypeWriteZeroes, 0, one(r.ranges(four...)), OK, 1)
	for _, s := range four {
		clear(r.sectors(int(s.sector), 1))
	}
}

func rangeBehindEnd(r *rig) {
	for _, typ := range []uint32{blk.TypeDiscard, blk.TypeWriteZeroes} {
		for _, s := range []segment{{2040, 16, 0}, {2048, 1, 0}, {1<<64 - 1, 2, 0}} {
			r.ask(typ, 0, one(r.ranges(s)), IOERR, 1)
			r.ask(typ, 0, one(r.ranges(segment{8, 8, 0}, s)), IOERR, 1) // nothing is done of a request that is refused
		}
	}
}

func discardUnmap(r *rig) {
	r.ask(blk.TypeDiscard, 0, one(r.ranges(segment{8, 8, 1})), UNSUPP, 1)
	r.ask(blk.TypeDiscard, 0, one(r.ranges(segment{8, 8, 0}, segment{16, 8, 1})), UNSUPP, 1)
}

func reservedFlags(r *rig) {
	for _, typ := range []uint32{blk.TypeDiscard, blk.TypeWriteZeroes} {
		for _, flags := range []uint32{1 << 1, 1 << 31, 1<<1 | 1, 1<<31 | 1} {
			r.ask(typ, 0, one(r.ranges(segment{8, 8, flags})), UNSUPP, 1)
			r.ask(typ, 0, one(r.ranges(segment{8, 8, 0}, segment{16, 8, flags})), UNSUPP, 1)
		}
	}
}

func oddRanges(r *rig) {
	r.ranges(segment{8, 8, 0}, segment{16, 8, 0})
	for _, typ := range []uint32{blk.TypeDiscard, blk.TypeWriteZeroes} {
		for _, n := range []uint32{0, 15, 17, 31} {
			r.ask(typ, 0, one(R(n, B)), IOERR, 1)
		}
	}
}

func overlappingRanges(r *rig) {
	r.ask(blk.TypeWriteZeroes, 0, one(r.ranges(segment{8, 16, 0}, segment{16, 16, 0})), OK, 1)
	clear(r.sectors(8, 24))
}

// zeroesAllocation compares the file's blocks: without unmap they must stay where
// the configuration space does not say that they may go.
func zeroesAllocation(t *testing.T) {
	const half = 4096 // sectors: 2 MiB of a 4 MiB image
	for flags := range uint32(2) {
		t.Run(fmt.Sprintf("flags %d", flags), func(t *testing.T) {
			unlimited := func(d *daemon.Disk) { d.MaxWriteZeroes = 0 }
			on(t, setup{disk: unlimited, image: sectorPattern(2 * half)}, func(r *rig) {
				before := allocated(r)
				require.GreaterOrEqual(r, before, int64(2*half), "a file system that has not allocated what was written is of no use here")
				r.ask(blk.TypeWriteZeroes, 0, one(r.ranges(segment{1024, half, flags})), OK, 1)
				r.ask(blk.TypeFlush, 0, nil, OK, 1)
				clear(r.sectors(1024, half))
				r.ask(blk.TypeIn, 1023, one(W((half+2)*512, B)), OK, (half+2)*512+1)
				r.holds(B, r.sectors(1023, half+2))
				if after := allocated(r); flags == 0 && !r.s.Config.WriteZeroesMayUnmap {
					assert.GreaterOrEqual(r, after, before, "blocks were freed")
				}
			})
		})
	}
}

// allocated is what the image takes on its file system, in sectors.
func allocated(r *rig) int64 {
	f, err := os.Open(r.server.image)
	require.NoError(r, err)
	defer f.Close()
	require.NoError(r, f.Sync()) // delayed allocation
	var st syscall.Stat_t
	require.NoError(r, syscall.Fstat(int(f.Fd()), &st))
	return st.Blocks
}

// serial is the answer to GET_ID.
var serial = append([]byte("disk-0"), make([]byte, blk.IDSize-6)...)

func getID(r *rig) {
	r.ask(blk.TypeGetID, 0, one(W(20, B)), OK, 21)
	r.holds(B, serial)
	r.ask(blk.TypeGetID, 0, one(W(40, B+64)), OK, 20) // the rest is not touched, nor counted
	r.holds(B+64, serial)
	r.untouched(B+84, 20)
}

func getIDShort(r *rig) {
	for _, n := range []uint32{0, 1, 10, 19} {
		at := B + uint64(64*n)
		r.ask(blk.TypeGetID, 0, one(W(n, at)), OK, n+1)
		r.holds(at, serial[:n])
		r.untouched(at+uint64(n), 20)
	}
}

func getIDReadable(r *rig) {
	r.ask(blk.TypeGetID, 0, one(R(20, B)), IOERR, 1)
	r.untouched(B, 20)
}

func readOnlyDisk(t *testing.T) {
	on(t, setup{disk: func(d *daemon.Disk) { d.ReadOnly = true }}, func(r *rig) {
		assert.NotZero(r, r.s.Features&blk.FeatureRO)
		before, err := os.Stat(r.server.image)
		require.NoError(r, err)
		status := func(feature uint64) blk.Status {
			if r.s.Offered&feature == 0 {
				return UNSUPP
			}
			return IOERR
		}
		r.ask(blk.TypeOut, 4, one(R(512, B)), IOERR, 1)
		r.ask(blk.TypeOut, 4, nil, IOERR, 1)
		r.ask(blk.TypeWriteZeroes, 0, one(r.ranges(segment{8, 8, 0})), status(blk.FeatureWriteZeroes), 1)
		r.ask(blk.TypeDiscard, 0, one(r.ranges(segment{8, 8, 0})), status(blk.FeatureDiscard), 1)
		r.ask(blk.TypeSecureErase, 0, one(r.ranges(segment{8, 8, 0})), UNSUPP, 1)
		r.ask(blk.TypeFlush, 0, nil, OK, 1)
		after, err := os.Stat(r.server.image)
		require.NoError(r, err)
		assert.Equal(r, before.ModTime(), after.ModTime())
	})
}

// orderOfStores watches one word behind the other while reads run: whoever sees
// the status sees the data, and whoever sees the used index sees both.
func orderOfStores(r *rig) {
	const words, size = 4, 4096
	mem := r.mem.Bytes(regionA, regionASize)
	wordAt := func(addr uint64) uint32 { return shm.Load32(mem, int(addr-regionA)) }
	complete := func(sector uint64) bool {
		for i := range uint64(words) {
			if wordAt(B+i*size/words+8) != uint32(sector+i*size/words/512) {
				return false
			}
		}
		return true
	}
	var watcher sync.WaitGroup
	defer watcher.Wait() // it must not outlive the memory it watches
	for sector := uint64(1); sector <= 1000; sector++ {
		r.poke(B, bytes.Repeat([]byte{canary}, size))
		chain := []elem{r.header(blk.TypeIn, sector), W(size, B), r.status()}
		pending := binary.LittleEndian.Uint32(r.shadowed(S, 4))
		early := false
		watcher.Go(func() {
			for end := time.Now().Add(patience); time.Now().Before(end); {
				if wordAt(S) != pending {
					early = !complete(sector)
					return
				}
			}
		})
		head := r.post(chain...)
		for end := time.Now().Add(patience); r.ring.UsedIdx() == r.used; {
			require.True(r, time.Now().Before(end), "no used entry")
		}
		require.Equal(r, pending&^0xff, wordAt(S), "used.idx moved before the status was there")
		require.True(r, complete(sector), "used.idx moved before the data was there")
		watcher.Wait()
		require.False(r, early, "the status was there before the data")
		r.answered(head, OK, size+1)
	}
}

func tinyImage(t *testing.T) {
	for n := range 2 {
		path := filepath.Join(t.TempDir(), "disk.img")
		require.NoError(t, os.WriteFile(path, make([]byte, n), 0o600))
		before := openFDs(t)
		_, err := daemon.Open([]daemon.Disk{{Path: path, Socket: path + ".sock"}}, nil, zap.NewNop())
		assert.ErrorContains(t, err, "disk.img")
		assert.NoFileExists(t, path+".sock")
		assert.Equal(t, before, openFDs(t))
	}
}

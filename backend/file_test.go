package backend

import (
	"math"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/elevisor/elevisor/blk"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func opsOf(g *rig) []op {
	switch b := g.b.(type) {
	case *ringBackend:
		return b.slots.ops
	case *threadsBackend:
		return b.slots.ops
	}
	return nil
}

func bounced(g *rig) (n uint64) {
	for i := range opsOf(g) {
		n += opsOf(g)[i].bounced
	}
	return n
}

// allocated is how many bytes of the file have blocks.
func allocated(t *testing.T, path string) int64 {
	t.Helper()
	var st unix.Stat_t
	require.NoError(t, unix.Stat(path, &st))
	return st.Blocks * 512
}

func TestMisalignedMemoryIsBounced(t *testing.T) {
	eachEngine(t, func(t *testing.T, aio AIO) {
		path := sparse(t, modelSize)
		g := open(t, path, Options{AIO: aio, Cache: CacheNone})
		if g.b.Info().MemAlign == 1 {
			t.Skipf("needs a file system whose O_DIRECT wants aligned memory, under %s", path)
		}
		mem := memory(t, modelSize+4096)
		w := data(blk.OpWrite, 8, fill(mem[:64<<10], 1))
		g.do(w)
		requireOK(t, w)
		require.Zero(t, bounced(g))
		odd := fill(mem[3:3+300<<10], 9) // three pieces of bounceSize
		w = data(blk.OpWrite, 16, odd[:4095], odd[4095:])
		g.do(w)
		requireOK(t, w)
		require.Equal(t, uint64(3), bounced(g))
		r := data(blk.OpRead, 8, mem[1:1+512<<10])
		g.do(r)
		requireOK(t, r)
		require.Equal(t, uint64(7), bounced(g))
		require.Equal(t, fill(make([]byte, 4096), 1), r.Segs[0][:4096])
		require.Equal(t, fill(make([]byte, 300<<10), 9), r.Segs[0][4096:][:300<<10])
	})
}

func TestACutFileIsAnError(t *testing.T) {
	eachEngine(t, func(t *testing.T, aio AIO) {
		for cache := CacheWriteback; cache <= CacheUnsafe; cache++ {
			t.Run(cache.String(), func(t *testing.T) {
				path := sparse(t, modelSize)
				g := open(t, path, Options{AIO: aio, Cache: cache})
				require.NoError(t, os.Truncate(path, 8192+100))
				whole := data(blk.OpRead, 0, memory(t, 64<<10))
				behind := data(blk.OpRead, 1024, memory(t, 4096))
				before := data(blk.OpRead, 0, memory(t, 8192))
				g.do(whole, behind, before)
				require.Equal(t, blk.StatusIOErr, whole.Status)
				require.Equal(t, uint16(unix.EIO), whole.Errno)
				require.Equal(t, blk.StatusIOErr, behind.Status)
				requireOK(t, before)
			})
		}
	})
}

func TestExtentsOutsideTheDiskAreErrors(t *testing.T) {
	eachEngine(t, func(t *testing.T, aio AIO) {
		file := open(t, sparse(t, modelSize), Options{AIO: aio, Discard: true})
		mem := open(t, "mem:size=1M", Options{Discard: true})
		for _, g := range []*rig{file, mem} {
			end := blk.Sector(modelSize / blk.SectorSize)
			reqs := []*blk.Request{
				data(blk.OpRead, end, memory(t, 512)), data(blk.OpWrite, end-1, memory(t, 1024)),
				data(blk.OpWrite, math.MaxUint64, memory(t, 512)), data(blk.OpRead, math.MaxUint64/512, memory(t, 512)),
				ranges(blk.OpDiscard, 0, blk.Range{Sector: 0, Sectors: 1}, blk.Range{Sector: end, Sectors: 1}),
				ranges(blk.OpWriteZeroes, 0, blk.Range{Sector: end - 1, Sectors: 2}),
			}
			g.do(reqs...)
			for _, r := range reqs {
				require.Equal(t, blk.StatusIOErr, r.Status, "%v %d+%d", r.Op, r.Sector, r.Sectors)
			}
		}
	})
}

func TestZeroesKeepTheirBlocksUnlessUnmapped(t *testing.T) {
	eachEngine(t, func(t *testing.T, aio AIO) {
		path := sparse(t, modelSize)
		g := open(t, path, Options{AIO: aio, Discard: true})
		w := data(blk.OpWrite, 0, fill(memory(t, modelSize), 5))
		half := blk.Range{Sector: 0, Sectors: modelSize / 1024}
		keep := ranges(blk.OpWriteZeroes, 0, half)
		free := ranges(blk.OpWriteZeroes, blk.FlagUnmap, half)
		flush := &blk.Request{Op: blk.OpFlush}
		g.do(w)
		g.do(flush)
		require.Equal(t, int64(modelSize), allocated(t, path))
		requireZeroes := func() {
			r := data(blk.OpRead, 0, fill(memory(t, modelSize), 1))
			g.do(r)
			requireOK(t, w, keep, flush, r)
			require.Equal(t, make([]byte, modelSize/2), r.Segs[0][:modelSize/2])
			require.Equal(t, w.Segs[0][modelSize/2:], r.Segs[0][modelSize/2:])
		}
		g.do(keep)
		requireZeroes()
		require.Equal(t, int64(modelSize), allocated(t, path))
		g.do(free)
		requireZeroes()
		require.Equal(t, int64(modelSize/2), allocated(t, path))
	})
}

func TestWithoutDiscardNothingIsFreed(t *testing.T) {
	eachEngine(t, func(t *testing.T, aio AIO) {
		path := sparse(t, modelSize)
		g := open(t, path, Options{AIO: aio})
		require.False(t, g.b.Info().Discard || g.b.Info().ZeroesUnmap)
		w := data(blk.OpWrite, 0, fill(memory(t, modelSize), 5))
		x := ranges(blk.OpDiscard, 0, blk.Range{Sector: 0, Sectors: 1024})
		z := ranges(blk.OpWriteZeroes, blk.FlagUnmap, blk.Range{Sector: 1024, Sectors: 1024})
		r := data(blk.OpRead, 0, memory(t, modelSize))
		g.do(w)
		g.do(x)
		g.do(z)
		g.do(r)
		requireOK(t, w, x, z, r)
		require.Equal(t, w.Segs[0][:1024*512], r.Segs[0][:1024*512])
		require.Equal(t, make([]byte, modelSize-1024*512), r.Segs[0][1024*512:])
		require.Equal(t, int64(modelSize), allocated(t, path))
	})
}

func TestZeroesAreWrittenWhereTheFileSystemCannot(t *testing.T) {
	eachEngine(t, func(t *testing.T, aio AIO) {
		const size = 9<<20 + 512 // more than one step
		path := filepath.Join(tmpfs(t), "disk")
		require.NoError(t, os.WriteFile(path, nil, 0o600))
		require.NoError(t, os.Truncate(path, size))
		g := open(t, path, Options{AIO: aio, Discard: true})
		w := data(blk.OpWrite, 0, fill(memory(t, size), 5))
		z := ranges(blk.OpWriteZeroes, blk.FlagFUA, blk.Range{Sector: 1, Sectors: size/512 - 2})
		r := data(blk.OpRead, 0, memory(t, size))
		g.do(w)
		g.do(z)
		g.do(r)
		requireOK(t, w, z, r)
		require.Equal(t, byte(5), r.Segs[0][511])
		require.Equal(t, byte(5), r.Segs[0][size-512])
		require.Equal(t, make([]byte, size-1024), r.Segs[0][512:size-512])
		if !opsOf(g)[0].d.noZeroRange.Load() {
			t.Skip("needs a tmpfs without FALLOC_FL_ZERO_RANGE")
		}
		require.GreaterOrEqual(t, allocated(t, path), int64(size))
	})
}

func TestHugeRanges(t *testing.T) {
	const most = math.MaxUint32 // sectors, what one range on the wire can say
	const size = "2T"
	check := func(t *testing.T, g *rig) {
		first, last := data(blk.OpWrite, 0, fill(memory(t, 4096), 1)), data(blk.OpWrite, most-7, fill(memory(t, 4096), 2))
		g.do(first, last)
		requireOK(t, first, last)
		a, b := data(blk.OpRead, 0, memory(t, 4096)), data(blk.OpRead, most-7, memory(t, 4096))
		x := ranges(blk.OpDiscard, 0, blk.Range{Sector: 0, Sectors: most})
		g.do(x)
		g.do(a, b)
		requireOK(t, x, a, b)
		require.Equal(t, make([]byte, 4096), a.Segs[0])
		require.Equal(t, make([]byte, 7*512), b.Segs[0][:7*512])
		require.Equal(t, byte(2), b.Segs[0][7*512])
		g.do(first, last)
		z := ranges(blk.OpWriteZeroes, blk.FlagUnmap, blk.Range{Sector: 1, Sectors: most})
		g.do(z)
		g.do(a, b)
		requireOK(t, z, a, b)
		require.Equal(t, byte(1), a.Segs[0][511])
		require.Equal(t, make([]byte, 4096-512), a.Segs[0][512:])
		require.Equal(t, make([]byte, 4096), b.Segs[0])
	}
	eachEngine(t, func(t *testing.T, aio AIO) {
		path := filepath.Join(t.TempDir(), "disk")
		require.NoError(t, os.WriteFile(path, nil, 0o600))
		n, err := blk.ParseBytes(size)
		require.NoError(t, err)
		if err := os.Truncate(path, n); err != nil {
			t.Skipf("needs a file system with files of %s: %v", size, err)
		}
		check(t, open(t, path, Options{AIO: aio, Discard: true, Cache: CacheNone}))
	})
	t.Run("mem", func(t *testing.T) { check(t, open(t, "mem:size="+size, Options{Discard: true})) })
}

func TestAFullBackendRefuses(t *testing.T) {
	eachEngine(t, func(t *testing.T, aio AIO) {
		img, err := Open(sparse(t, modelSize), Options{AIO: aio})
		require.NoError(t, err)
		g := attach(t, img, 2)
		mem := memory(t, 8192)
		var reqs []*blk.Request
		for i := range 3 {
			r := data(blk.OpRead, 0, mem[i*512:][:512])
			r.Move(blk.StateFree, blk.StateQueued)
			require.Equal(t, i < 2, g.b.Submit(0, r))
			reqs = append(reqs, r)
		}
		require.Equal(t, blk.StateQueued, reqs[2].State())
		require.NoError(t, g.b.Commit())
		var done []*blk.Request
		for len(done) < 2 {
			g.wait()
			done = g.b.Reap(0, done)
		}
		require.ElementsMatch(t, reqs[:2], done)
		require.True(t, g.b.Submit(0, reqs[2]))
		require.NoError(t, g.b.Commit())
		for len(done) < 3 {
			g.wait()
			done = g.b.Reap(0, done)
		}
		require.Same(t, reqs[2], done[2])
		g.close()
		require.NoError(t, img.Close())
	})
}

func TestLoopsShareAnImage(t *testing.T) {
	eachEngine(t, func(t *testing.T, aio AIO) {
		img, err := Open(sparse(t, modelSize), Options{AIO: aio, Lock: true, Cache: CacheNone})
		require.NoError(t, err)
		var all sync.WaitGroup
		for half := range 2 {
			all.Go(func() {
				g := attach(t, img, 4)
				defer g.close()
				base := blk.Sector(half * modelSize / 1024)
				mem := memory(t, 2*4096)
				for i := range 64 {
					w := data(blk.OpWrite, base+blk.Sector(i*8), fill(mem[:4096], byte(i*2+half)))
					r := data(blk.OpRead, base+blk.Sector(i*8), mem[4096:])
					g.do(w)
					g.do(r)
					assert.Equal(t, blk.StatusOK, max(w.Status, r.Status))
					assert.Equal(t, mem[:4096], mem[4096:])
				}
			})
		}
		all.Wait()
		require.NoError(t, img.Close())
	})
}

// cutMemory maps two pages of a file that then loses the second.
func cutMemory(t *testing.T) []byte {
	t.Helper()
	fd, err := unix.MemfdCreate("guest", unix.MFD_CLOEXEC)
	require.NoError(t, err)
	defer func() { _ = unix.Close(fd) }()
	require.NoError(t, unix.Ftruncate(fd, 8192))
	b, err := unix.Mmap(fd, 0, 8192, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	require.NoError(t, err)
	t.Cleanup(func() { _ = unix.Munmap(b) })
	fill(b, 6)
	require.NoError(t, unix.Ftruncate(fd, 4096))
	return b
}

func TestGuestMemoryMayVanish(t *testing.T) {
	check := func(t *testing.T, g *rig) {
		for name, segs := range map[string][][]byte{
			"gone":         {cutMemory(t)[4096:]},
			"half gone":    {cutMemory(t)},
			"second gone":  {memory(t, 4096), cutMemory(t)[4096:]},
			"odd and gone": {cutMemory(t)[4096+7 : 4096+7+512]},
			"odd and half": {cutMemory(t)[7 : 7+7680]},
		} {
			for _, op := range []blk.Op{blk.OpRead, blk.OpWrite} {
				r := data(op, 8, segs...)
				g.do(r)
				require.Equal(t, blk.StatusIOErr, r.Status, "%s %v", name, op)
				require.Equal(t, uint16(unix.EFAULT), r.Errno, "%s %v: %v", name, op, unix.Errno(r.Errno))
			}
		}
		after := data(blk.OpWrite, 8, memory(t, 4096))
		g.do(after)
		requireOK(t, after)
	}
	eachEngine(t, func(t *testing.T, aio AIO) {
		for _, cache := range []Cache{CacheWriteback, CacheNone} {
			t.Run(cache.String(), func(t *testing.T) {
				check(t, open(t, sparse(t, modelSize), Options{AIO: aio, Cache: cache}))
			})
		}
	})
	t.Run("mem", func(t *testing.T) { check(t, open(t, "mem:size=1M", Options{})) })
}

func TestUnsafeFlushesNothing(t *testing.T) {
	eachEngine(t, func(t *testing.T, aio AIO) {
		g := open(t, sparse(t, modelSize), Options{AIO: aio, Cache: CacheUnsafe})
		flush := &blk.Request{Op: blk.OpFlush}
		flush.Move(blk.StateFree, blk.StateQueued)
		require.True(t, g.b.Submit(0, flush))
		require.Len(t, g.b.Reap(0, nil), 1, "it was not answered at once")
		requireOK(t, flush)
	})
}

func TestBatchesOfReadsAreOneSystemCall(t *testing.T) {
	img, err := Open(sparse(t, modelSize), Options{Cache: CacheNone})
	require.NoError(t, err)
	defer func() { require.NoError(t, img.Close()) }()
	if img.Info().Engine != "io_uring" {
		t.Skip("needs io_uring")
	}
	g := attach(t, img, 32)
	defer g.close()
	mem := memory(t, 32*4096)
	before := g.ring.Enters()
	for i := range 32 {
		r := data(blk.OpRead, blk.Sector(i*8), mem[i*4096:][:4096])
		r.Move(blk.StateFree, blk.StateQueued)
		require.True(t, g.b.Submit(0, r))
	}
	require.NoError(t, g.ring.Enter(int64(hang)))
	require.Equal(t, uint64(1), g.ring.Enters()-before)
	for n := 0; n < 32; {
		if g.ring.Poll() == 0 {
			require.NoError(t, g.ring.Enter(int64(hang)))
		}
		n += len(g.b.Reap(0, nil))
	}
}

// A backend that is closed although its disk has not answered gives nothing up
// that the kernel may still use.
func TestCloseKeepsWhatIsInFlight(t *testing.T) {
	img, err := Open(sparse(t, modelSize), Options{})
	require.NoError(t, err)
	defer func() { require.NoError(t, img.Close()) }()
	if img.Info().Engine != "io_uring" {
		t.Skip("needs io_uring")
	}
	g := attach(t, img, 2)
	defer g.close()
	r := data(blk.OpRead, 0, memory(t, 4096))
	r.Move(blk.StateFree, blk.StateQueued)
	require.True(t, g.b.Submit(0, r))
	require.ErrorContains(t, g.b.Close(), "1 requests did not end")
	for len(g.b.Reap(0, nil)) == 0 {
		g.wait()
	}
	requireOK(t, r)
}

package backend

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/elevisor/elevisor/blk"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

// A disk does what an array of bytes does, whatever the engine, the cache mode,
// the framing and the alignment of the requests.
func TestDisksAreArraysOfBytes(t *testing.T) {
	for _, aio := range engines(t) {
		for cache := CacheWriteback; cache <= CacheUnsafe; cache++ {
			t.Run(fmt.Sprintf("%v/%v", aio, cache), func(t *testing.T) {
				o := Options{Cache: cache, AIO: aio, Lock: true, Discard: true}
				checkArray(t, sparse(t, modelSize+17), o, true)
			})
		}
	}
	t.Run("tmpfs", func(t *testing.T) {
		eachEngine(t, func(t *testing.T, aio AIO) {
			path := filepath.Join(tmpfs(t), "disk")
			require.NoError(t, os.WriteFile(path, make([]byte, modelSize), 0o600))
			checkArray(t, path, Options{AIO: aio, Discard: true}, true)
		})
	})
	t.Run("mem", func(t *testing.T) {
		checkArray(t, fmt.Sprintf("mem:?size=%d", modelSize), Options{Discard: true}, true)
	})
}

const modelSize = 1 << 20

// checkArray compares the disk at spec with a model. zeroing: a discard leaves
// zeroes.
func checkArray(t *testing.T, spec string, o Options, zeroing bool) {
	img, err := Open(spec, o)
	require.NoError(t, err)
	require.Equal(t, blk.Sector(modelSize/blk.SectorSize), img.Info().Sectors)
	g := attach(t, img, 4)
	defer func() {
		g.close()
		require.NoError(t, img.Close())
	}()
	arena := memory(t, 2*modelSize)
	model := make([]byte, modelSize)
	whole := arena[:modelSize]
	r := data(blk.OpRead, 0, whole)
	g.do(r)
	requireOK(t, r)
	copy(model, whole)
	rapid.Check(t, func(rt *rapid.T) {
		for range rapid.IntRange(1, 8).Draw(rt, "steps") {
			switch rapid.IntRange(0, 5).Draw(rt, "op") {
			case 0, 1:
				checkWrite(rt, g, model, arena)
			case 2:
				checkRead(rt, g, model, arena)
			case 3:
				checkRanges(rt, g, model, blk.OpWriteZeroes)
			case 4:
				if zeroing {
					checkRanges(rt, g, model, blk.OpDiscard)
				}
			case 5:
				r := &blk.Request{Op: blk.OpFlush}
				g.do(r)
				requireOK(t, r)
			}
		}
		r := data(blk.OpRead, 0, whole)
		g.do(r)
		requireOK(t, r)
		if !bytes.Equal(model, whole) {
			rt.Fatalf("contents differ at byte %d", firstDiff(model, whole))
		}
	})
}

func firstDiff(a, b []byte) int {
	for i := range a {
		if a[i] != b[i] {
			return i
		}
	}
	return -1
}

// group draws a merged group: adjoining requests with segments of random framing,
// in pieces of the arena that do not overlap. It returns the head and the length.
func group(rt *rapid.T, op blk.Op, flags blk.Flags, arena []byte) (*blk.Request, int) {
	parts := rapid.IntRange(1, 4).Draw(rt, "parts")
	lens := make([]int, parts)
	total := 0
	for i := range lens {
		lens[i] = blk.SectorSize * rapid.OneOf(rapid.IntRange(1, 16), rapid.IntRange(1, 400)).Draw(rt, "sectors")
		total += lens[i]
	}
	at := blk.Sector(rapid.IntRange(0, (modelSize-total)/blk.SectorSize).Draw(rt, "sector"))
	if rapid.Bool().Draw(rt, "aligned") {
		at &^= 7
	}
	var head, last *blk.Request
	for _, n := range lens {
		var segs [][]byte
		segs, arena = frame(rt, n, arena)
		r := data(op, at, segs...)
		r.Flags = flags
		at += r.Sectors
		if head == nil {
			head = r
		} else {
			last.Merged = r
		}
		last = r
	}
	return head, total
}

// frame cuts n bytes into segments.
func frame(rt *rapid.T, n int, arena []byte) (segs [][]byte, rest []byte) {
	var step *rapid.Generator[int]
	gap := 0
	switch rapid.IntRange(0, 3).Draw(rt, "framing") {
	case 0: // one segment, page aligned
		step = rapid.Just(n)
	case 1: // whole sectors
		step = rapid.Map(rapid.IntRange(1, 16), func(k int) int { return k * blk.SectorSize })
	case 2: // anything
		step, gap = rapid.IntRange(1, 3000), rapid.IntRange(0, 9).Draw(rt, "gap")
	case 3: // more than IOV_MAX where n is large enough
		step = rapid.Just(96)
	}
	for n > 0 {
		k := min(n, step.Draw(rt, "segment"))
		segs = append(segs, arena[gap:gap+k:gap+k])
		arena, n = arena[gap+k:], n-k
	}
	return segs, arena
}

func checkWrite(rt *rapid.T, g *rig, model, arena []byte) {
	flags := blk.Flags(0)
	if rapid.Bool().Draw(rt, "fua") {
		flags = blk.FlagFUA
	}
	r, _ := group(rt, blk.OpWrite, flags, arena)
	c := rapid.Byte().Draw(rt, "content")
	at := r.Sector.Bytes()
	for part := r; part != nil; part = part.Merged {
		for _, s := range part.Segs {
			for i := range s {
				c = c*5 + 13
				s[i] = c + byte(at>>9)
			}
			at += int64(copy(model[at:], s))
		}
	}
	g.do(r)
	if r.Status != blk.StatusOK {
		rt.Fatalf("write: %v", unix.Errno(r.Errno))
	}
}

func checkRead(rt *rapid.T, g *rig, model, arena []byte) {
	r, _ := group(rt, blk.OpRead, 0, arena)
	g.do(r)
	if r.Status != blk.StatusOK {
		rt.Fatalf("read: %v", unix.Errno(r.Errno))
	}
	at := r.Sector.Bytes()
	for part := r; part != nil; part = part.Merged {
		for _, s := range part.Segs {
			if !bytes.Equal(s, model[at:at+int64(len(s))]) {
				rt.Fatalf("read differs in the segment of %d bytes at %d", len(s), at)
			}
			at += int64(len(s))
		}
	}
}

func checkRanges(rt *rapid.T, g *rig, model []byte, op blk.Op) {
	var x []blk.Range
	for range rapid.IntRange(1, 3).Draw(rt, "ranges") {
		n := blk.Sector(rapid.OneOf(rapid.IntRange(1, 20), rapid.IntRange(1, 1000)).Draw(rt, "sectors"))
		at := blk.Sector(rapid.IntRange(0, modelSize/blk.SectorSize-int(n)).Draw(rt, "sector"))
		x = append(x, blk.Range{Sector: at, Sectors: n})
		clear(model[at.Bytes():][:n.Bytes()])
	}
	flags := blk.Flags(rapid.IntRange(0, int(blk.FlagFUA|blk.FlagUnmap)).Draw(rt, "flags"))
	r := ranges(op, flags, x...)
	g.do(r)
	if r.Status != blk.StatusOK {
		rt.Fatalf("%v: %v", op, unix.Errno(r.Errno))
	}
}

// tmpfs is a directory on one: /dev/shm, or one that the test mounts.
func tmpfs(t *testing.T) string {
	t.Helper()
	var fs unix.Statfs_t
	if unix.Statfs("/dev/shm", &fs) != nil || fs.Type != unix.TMPFS_MAGIC {
		t.Skip("needs a tmpfs at /dev/shm")
	}
	dir, err := os.MkdirTemp("/dev/shm", "backend-test-")
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

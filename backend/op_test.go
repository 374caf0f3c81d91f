package backend

import (
	"bytes"
	"testing"

	"github.com/elevisor/elevisor/blk"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

// fussy performs steps on a real file, but seldom all of a step, and only if it
// suits an O_DIRECT that wants whole pages.
type fussy struct {
	rt    *rapid.T
	align int64
	unit  int // bytes: what a short transfer is a multiple of
}

func (f *fussy) perform(o *op) int64 {
	s := o.step
	if f.align > 1 && s.file == viaMain && (s.kind == stepRead || s.kind == stepWrite) {
		odd := s.off | s.n
		for i := range s.iov {
			odd |= int64(baseOf(&s.iov[i])) | int64(s.iov[i].Len())
		}
		if odd&(f.align-1) != 0 {
			f.rt.Fatalf("step %+v does not suit O_DIRECT", s)
		}
	}
	sum := int64(0)
	for i := range s.iov {
		sum += int64(s.iov[i].Len())
	}
	if len(s.iov) > iovMax || sum != s.n && s.kind <= stepWrite {
		f.rt.Fatalf("step of %d bytes in %d iovecs of %d bytes", s.n, len(s.iov), sum)
	}
	switch rapid.IntRange(0, 9).Draw(f.rt, "luck") {
	case 0:
		return -int64(unix.EAGAIN)
	case 1:
		return -int64(unix.EINTR)
	case 2, 3, 4:
		if units := int(s.n) / f.unit; units > 1 && s.kind <= stepWrite {
			less := s.n - int64(f.unit*rapid.IntRange(1, units-1).Draw(f.rt, "moved"))
			o.step.iov = s.iov[:trim(s.iov, less)]
		}
	}
	return o.perform()
}

func (f *fussy) run(o *op, r *blk.Request) {
	r.Status = 255
	o.start(r)
	for o.plan() {
		o.settle(f.perform(o))
	}
	if o.finish() != r || r.Status != blk.StatusOK {
		f.rt.Fatalf("%v: %v", r.Op, unix.Errno(r.Errno))
	}
}

// fussyDisk is a disk on an ordinary file that pretends to be O_DIRECT.
func fussyDisk(t *testing.T, align int64) (*disk, *slots) {
	img, err := Open(sparse(t, modelSize), Options{Discard: true, AIO: AIOThreads})
	require.NoError(t, err)
	d := img.(*disk)
	d.info.Direct, d.memAlign, d.offAlign = align > 1, align, align
	var s slots
	require.NoError(t, s.make(d, 1, false))
	t.Cleanup(func() {
		require.NoError(t, s.free())
		require.NoError(t, img.Close())
	})
	return d, &s
}

func TestShortTransfersAreContinued(t *testing.T) {
	for name, align := range map[string]int64{"buffered": 1, "direct": 4096} {
		t.Run(name, func(t *testing.T) {
			d, s := fussyDisk(t, align)
			o := s.get()
			arena, model := memory(t, 2*modelSize), make([]byte, modelSize)
			rapid.Check(t, func(rt *rapid.T) {
				f := &fussy{rt, align, rapid.SampledFrom([]int{1, 512, 4096}).Draw(rt, "unit")}
				if align > 1 {
					f.unit = max(f.unit, 512) // the kernel's direct I/O moves whole blocks
				}
				d.noZeroRange.Store(rapid.Bool().Draw(rt, "zero by writing"))
				d.noDSync.Store(rapid.Bool().Draw(rt, "no RWF_DSYNC"))
				w, _ := group(rt, blk.OpWrite, blk.FlagFUA, arena)
				c, at := rapid.Byte().Draw(rt, "content"), w.Sector.Bytes()
				for part := w; part != nil; part = part.Merged {
					for _, seg := range part.Segs {
						for i := range seg {
							c = c*5 + 13
							seg[i] = c
						}
						at += int64(copy(model[at:], seg))
					}
				}
				f.run(o, w)
				x := blk.Range{Sector: blk.Sector(rapid.IntRange(0, 1000).Draw(rt, "zero")), Sectors: blk.Sector(rapid.IntRange(1, 1000).Draw(rt, "zeroes"))}
				f.run(o, ranges(blk.OpWriteZeroes, blk.FlagFUA, x))
				clear(model[x.Sector.Bytes():][:x.Sectors.Bytes()])
				r, _ := group(rt, blk.OpRead, 0, arena)
				f.run(o, r)
				at = r.Sector.Bytes()
				for part := r; part != nil; part = part.Merged {
					for _, seg := range part.Segs {
						if !bytes.Equal(seg, model[at:at+int64(len(seg))]) {
							rt.Fatalf("read differs in the segment of %d bytes at %d", len(seg), at)
						}
						at += int64(len(seg))
					}
				}
			})
		})
	}
}

// script plans and settles r with the given results and returns the steps.
func script(t *testing.T, o *op, r *blk.Request, results ...int64) (steps []step) {
	t.Helper()
	o.start(r)
	for o.plan() {
		require.NotEmpty(t, results, "one more step: %+v", o.step)
		steps = append(steps, o.step)
		o.settle(results[0])
		results = results[1:]
	}
	require.Empty(t, results, "fewer steps")
	require.Same(t, r, o.finish())
	return steps
}

const (
	refusal = -int64(unix.EOPNOTSUPP)
	eio     = -int64(unix.EIO)
)

func TestDurableWritesWithoutDSyncAreSynced(t *testing.T) {
	d, s := fussyDisk(t, 1)
	o := s.get()
	w := data(blk.OpWrite, 0, make([]byte, 1024))
	w.Flags = blk.FlagFUA
	got := script(t, o, w, 1024)
	require.Equal(t, uint32(unix.RWF_DSYNC), got[0].flags)
	got = script(t, o, w, refusal, 1024, 0)
	require.Equal(t, []stepKind{stepWrite, stepWrite, stepSync}, kinds(got))
	require.Zero(t, got[1].flags)
	requireOK(t, w)
	got = script(t, o, w, 1024, 0) // remembered
	require.Equal(t, []stepKind{stepWrite, stepSync}, kinds(got))
	require.Zero(t, got[0].flags)
	d.noDSync.Store(false)
	d.opts.Cache = CacheUnsafe
	require.Zero(t, script(t, o, w, 1024)[0].flags)
}

func kinds(steps []step) (k []stepKind) {
	for _, s := range steps {
		k = append(k, s.kind)
	}
	return k
}

func TestZeroesFallBackToWriting(t *testing.T) {
	d, s := fussyDisk(t, 1)
	o := s.get()
	x := ranges(blk.OpWriteZeroes, blk.FlagUnmap, blk.Range{Sector: 8, Sectors: 8})
	got := script(t, o, x, refusal, refusal, 4096)
	require.Equal(t, []stepKind{stepFallocate, stepFallocate, stepWrite}, kinds(got))
	require.Equal(t, uint32(punchHole), got[0].flags)
	require.Equal(t, uint32(zeroRange), got[1].flags)
	requireOK(t, x)
	require.Equal(t, []stepKind{stepWrite}, kinds(script(t, o, x, 4096)))
	d.noPunch.Store(false)
	d.noZeroRange.Store(false)
	x.Flags = 0
	require.Equal(t, uint32(zeroRange), script(t, o, x, 0)[0].flags)
	d.zeroAlign = 4096 // a device of such blocks: the ends are written
	x = ranges(blk.OpWriteZeroes, 0, blk.Range{Sector: 7, Sectors: 10}, blk.Range{Sector: 1, Sectors: 2})
	got = script(t, o, x, 512, 0, 512, 1024)
	require.Equal(t, []stepKind{stepWrite, stepFallocate, stepWrite, stepWrite}, kinds(got))
	require.Equal(t, step{kind: stepFallocate, file: viaCache, flags: zeroRange, off: 4096, n: 4096}, got[1])
	requireOK(t, x)
}

func TestDiscardsFallBack(t *testing.T) {
	d, s := fussyDisk(t, 1)
	d.block, d.zeroAlign = true, 512
	o := s.get()
	x := ranges(blk.OpDiscard, 0, blk.Range{Sector: 8, Sectors: 8}, blk.Range{Sector: 32, Sectors: 8})
	o.async = true
	got := script(t, o, x, refusal, refusal, 0, 0)
	require.Equal(t, []stepKind{stepCommand, stepFallocate, stepTrim, stepTrim}, kinds(got))
	requireOK(t, x)
	script(t, o, x, refusal)
	require.Equal(t, blk.StatusUnsupp, x.Status)
	script(t, o, x)
	require.Equal(t, blk.StatusUnsupp, x.Status)
	d.noTrim.Store(false)
	o.async = false
	require.Equal(t, []stepKind{stepTrim, stepTrim}, kinds(script(t, o, x, 0, 0)))
	script(t, o, x, 0, eio)
	require.Equal(t, blk.StatusIOErr, x.Status)
	d.zeroAlign = 8192 // nothing of either range is a whole block
	require.Empty(t, script(t, o, ranges(blk.OpDiscard, 0, blk.Range{Sector: 8, Sectors: 8}, blk.Range{Sector: 33, Sectors: 16})))
}

func TestMergedRangesAreAllCarriedOut(t *testing.T) {
	_, s := fussyDisk(t, 1)
	o := s.get()
	x := ranges(blk.OpDiscard, 0, blk.Range{Sector: 8, Sectors: 8}, blk.Range{Sector: 32, Sectors: 8})
	x.Merged = ranges(blk.OpDiscard, 0, blk.Range{Sector: 40, Sectors: 1})
	got := script(t, o, x, 0, 0, 0)
	require.Equal(t, []int64{8 * 512, 32 * 512, 40 * 512}, []int64{got[0].off, got[1].off, got[2].off})
	requireOK(t, x)
}

func TestLostPagesFailAllLaterFlushes(t *testing.T) {
	durable := data(blk.OpWrite, 0, make([]byte, 512))
	durable.Flags = blk.FlagFUA
	zeroes := ranges(blk.OpWriteZeroes, blk.FlagFUA, blk.Range{Sector: 0, Sectors: 1})
	for name, lose := range map[string]func(o *op){
		"flush":          func(o *op) { script(t, o, &blk.Request{Op: blk.OpFlush}, eio) },
		"durable write":  func(o *op) { script(t, o, durable, eio) },
		"durable zeroes": func(o *op) { script(t, o, zeroes, 0, -int64(unix.ENOSPC)) },
	} {
		t.Run(name, func(t *testing.T) {
			_, s := fussyDisk(t, 1)
			o := s.get()
			flush := &blk.Request{Op: blk.OpFlush}
			script(t, o, flush, 0)
			requireOK(t, flush)
			lose(o)
			script(t, o, flush) // not even asked
			require.Equal(t, blk.StatusIOErr, flush.Status)
			require.Equal(t, uint16(unix.EIO), flush.Errno)
			script(t, o, zeroes, 0)
			require.Equal(t, blk.StatusIOErr, zeroes.Status)
			w := data(blk.OpWrite, 0, make([]byte, 512))
			script(t, o, w, 512)
			requireOK(t, w)
		})
	}
}

// On an O_DIRECT disk a durable write loses others' data only where it went through
// the page cache, and flushes ask the descriptor that has the report of that.
func TestLostPagesOfDirectDisks(t *testing.T) {
	d, s := fussyDisk(t, 4096)
	o := s.get()
	flush := &blk.Request{Op: blk.OpFlush}
	for _, c := range []struct {
		bytes int
		lost  bool
	}{{4096, false}, {512, true}} {
		w := data(blk.OpWrite, 0, memory(t, 4096)[:c.bytes])
		w.Flags = blk.FlagFUA
		got := script(t, o, w, eio)
		require.Equal(t, c.lost, got[0].file == viaCache)
		require.Equal(t, blk.StatusIOErr, w.Status)
		require.Equal(t, c.lost, d.lost.Load())
		if !c.lost {
			require.Equal(t, []step{{kind: stepSync, file: viaCache}}, script(t, o, flush, 0))
			requireOK(t, flush)
		}
	}
}

func TestAStepIsNotTriedForEver(t *testing.T) {
	_, s := fussyDisk(t, 1)
	o := s.get()
	r := data(blk.OpRead, 0, make([]byte, 512))
	o.start(r)
	n := 0
	for ; o.plan(); n++ {
		require.LessOrEqual(t, n, triesMax)
		o.settle(-int64(unix.EAGAIN))
	}
	o.finish()
	require.Equal(t, triesMax, n)
	require.Equal(t, blk.StatusIOErr, r.Status)
	require.Equal(t, uint16(unix.EAGAIN), r.Errno)
}

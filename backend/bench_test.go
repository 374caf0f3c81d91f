package backend

import (
	"testing"

	"github.com/elevisor/elevisor/blk"
	"github.com/stretchr/testify/require"
)

// batch is n requests of 4 KiB for one backend.
func batch(t testing.TB, op blk.Op, n int) []*blk.Request {
	mem := memory(t, n*4096)
	fill(mem, 1)
	var reqs []*blk.Request
	for i := range n {
		reqs = append(reqs, data(op, blk.Sector(i*8), mem[i*4096:][:2048], mem[i*4096+2048:][:2048]))
	}
	return reqs
}

func TestRequestsAllocateNothing(t *testing.T) {
	check := func(t *testing.T, g *rig) {
		read, write := batch(t, blk.OpRead, 16), batch(t, blk.OpWrite, 16)
		zero := ranges(blk.OpWriteZeroes, 0, blk.Range{Sector: 0, Sectors: 8})
		g.done = make([]*blk.Request, 0, 64)
		g.do(write...)
		require.Zero(t, testing.AllocsPerRun(50, func() {
			g.do(read...)
			g.do(write...)
			g.do(zero)
		}))
	}
	eachEngine(t, func(t *testing.T, aio AIO) {
		for _, cache := range []Cache{CacheWriteback, CacheNone} {
			t.Run(cache.String(), func(t *testing.T) { check(t, open(t, sparse(t, modelSize), Options{AIO: aio, Cache: cache})) })
		}
	})
	for _, spec := range []string{"mem:size=1M", "null:size=1M"} {
		t.Run(spec, func(t *testing.T) { check(t, open(t, spec, Options{})) })
	}
}

// One operation is one request of 4 KiB in two segments; 32 go in one batch.
func BenchmarkRead(b *testing.B) {
	run := func(name, spec string, o Options) {
		b.Run(name, func(b *testing.B) {
			img, err := Open(spec, o)
			require.NoError(b, err)
			g := attach(b, img, 32)
			g.done = make([]*blk.Request, 0, 64)
			reqs := batch(b, blk.OpRead, 32)
			g.do(reqs...)
			b.ReportAllocs()
			for i := 0; i < b.N; i += len(reqs) {
				g.do(reqs...)
			}
			b.StopTimer()
			g.close()
			require.NoError(b, img.Close())
		})
	}
	run("null", "null:size=1M", Options{})
	run("mem", "mem:size=1M", Options{})
	for _, aio := range engines(b) {
		run(aio.String()+"/writeback", sparse(b, modelSize), Options{AIO: aio})
		run(aio.String()+"/none", sparse(b, modelSize), Options{AIO: aio, Cache: CacheNone})
	}
}

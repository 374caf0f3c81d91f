package virtual

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/elevisor/elevisor/backend"
	"github.com/elevisor/elevisor/blk"
	"github.com/elevisor/elevisor/guest"
	"github.com/elevisor/elevisor/guest/load"
)

// A batch meets in the guest's plug list, whatever the scheduler; one by one, with the
// same number in flight, requests meet nobody there.
func TestBatch(t *testing.T) {
	for _, scheduler := range []string{"none", "deadline"} {
		for batch, merged := range map[int]float64{1: 0, 16: 15. / 16} {
			j := looping(load.Write, 32, time.Second)
			j.Batch = batch
			o := one(delayed(t, "null:size=1g", 200*us), j, j)
			o.Costs.PerWrite = time.Microsecond
			o.VMs[0].Guest = &guest.BlockOptions{Scheduler: scheduler}
			r := mustRun(t, o)
			g := r.VMs[0].Guest
			assert.InDelta(t, merged, float64(g.Merged())/float64(g.Submitted), 0.001, "%s, batches of %d", scheduler, batch)
		}
	}
}

// A batch of four takes four costs, and goes when four have come back.
func TestBatchTime(t *testing.T) {
	j := looping(load.Read, 4, time.Second)
	j.Batch = 4
	o := one(delayed(t, "null:size=1g", 60*us), j)
	o.Costs.PerRead = 10 * us
	assert.EqualValues(t, 40_000, mustRun(t, o).Results[0].Reads().IOs)

	j.Batch, j.Fsync, j.RW = 3, 2, load.Write
	o = one(delayed(t, "null:size=1g", 60*us), j)
	o.Costs.PerWrite = 10 * us
	r := mustRun(t, o)
	writes := r.Results[0].Writes().IOs
	assert.EqualValues(t, writes/2, r.Host.Op[blk.OpFlush].IOs, "a batch ends where a flush is due")
	assert.InDelta(t, 2*1e6/(20+60+10+60), writes, 2)
}

// Nothing is in flight beside a flush.
func TestFsyncIsAlone(t *testing.T) {
	j := looping(load.RandReadWrite, 8, 100*ms)
	j.Fsync = 4
	o := one(delayed(t, "null:size=1g", 100*us), j)
	o.Costs = Costs{PerRead: 3 * us, PerWrite: 3 * us}
	flushed := blk.Instant(-1)
	n := 0
	o.Trace = func(now blk.Instant, r *blk.Request) {
		require.GreaterOrEqual(t, now, flushed)
		if r.Op == blk.OpFlush {
			flushed = now + blk.Instant(100*us)
			n++
		}
	}
	mustRun(t, o)
	require.NotZero(t, n)
}

func TestSizesAndStrides(t *testing.T) {
	trace := func(j Job) (all []blk.Request) {
		img, err := backend.Open("null:size=1m", backend.Options{})
		require.NoError(t, err)
		o := one(img, j)
		o.Costs.PerRead = 10 * us
		o.Trace = func(_ blk.Instant, r *blk.Request) {
			all = append(all, blk.Request{Sector: r.Sector, Sectors: r.Sectors})
		}
		mustRun(t, o)
		return all
	}
	j := Job{Options: load.Options{RW: load.Read, Depth: 1, Stride: -8192, Size: 32768, IOSize: 5 * 4096}}
	var at []blk.Sector
	for _, r := range trace(j) {
		at = append(at, r.Sector/8)
	}
	require.Equal(t, []blk.Sector{7, 5, 3, 1, 7}, at)

	j = Job{Options: load.Options{RW: load.Read, Depth: 1, Split: []load.Split{{BlockSize: 4096, Percent: 50}, {BlockSize: 16384, Percent: 50}}}}
	sizes, next := map[blk.Sector]int{}, blk.Sector(0)
	for _, r := range trace(j) {
		require.Equal(t, next, r.Sector)
		next = r.Sector + r.Sectors
		sizes[r.Sectors]++
	}
	require.Equal(t, blk.Sector(2048), next, "once through the disk")
	require.Len(t, sizes, 2)
}

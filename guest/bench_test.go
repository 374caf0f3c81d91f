package guest_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/elevisor/elevisor/guest"
	"github.com/elevisor/elevisor/guest/load"
	"github.com/elevisor/elevisor/sched"
)

// TestBenchOverBlock has the load generator drive a block layer as it drives a bare
// queue, and check every block it wrote.
func TestBenchOverBlock(t *testing.T) {
	const sectors = 1 << 12
	for _, name := range sched.Names {
		for _, rw := range []load.RW{load.ReadWrite, load.RandReadWrite} {
			for _, tags := range []int{4, 0} {
				t.Run(fmt.Sprintf("%s/%v/tags=%d", name, rw, tags), func(t *testing.T) {
					b := guest.ServedBlock(t, guest.Options{QueueSize: 32, Segments: 30}, guest.BlockOptions{Scheduler: name, Tags: tags}, sectors)
					res, err := load.Run(context.Background(), sectors, []load.Queue{b}, load.Options{
						RW: rw, MixRead: 50, BlockSize: 4096, Segments: 2, Depth: 32, Verify: true, IOSize: 8 << 20, Seed: 7,
					})
					require.NoError(t, err)
					total := res.Total()
					assert.Empty(t, total.Failures)
					assert.Zero(t, total.Mismatches)
					assert.Greater(t, total.Verified, uint64(sectors/8))
					assert.Equal(t, uint64(8<<20), total.Reads().Bytes+total.Writes().Bytes)
					s := b.Stats()
					assert.Equal(t, s.Submitted-s.Merged(), s.Issued)
					if rw == load.ReadWrite {
						assert.NotZero(t, s.Merged(), "batches go through the plug list")
					}
				})
			}
		}
	}
}

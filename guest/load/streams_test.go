package load

import (
	"testing"
	"time"

	"github.com/elevisor/elevisor/blk"
	"github.com/stretchr/testify/require"
)

func TestStreams(t *testing.T) {
	disk := make([]byte, 8*64*4096)
	q := newFake(disk, 32, 16384)
	calls := []bool{}
	res, err := RunStreams(t.Context(), q, StreamOptions{
		Streams: 4, Blocks: 64, BlockSize: 4096, Seed: 7, Measured: func(begins bool) { calls = append(calls, begins) },
	})
	require.NoError(t, err)
	require.Empty(t, res.Failures)
	require.EqualValues(t, 2*4*64, res.Stats.IOs)
	require.EqualValues(t, 2*4*64, res.Verified, "what was read, and then what was written")
	require.Equal(t, []bool{true, false}, calls)
	require.NoError(t, checkSectors(disk, 7, 0, 1), "the image is what the writers wrote")
}

// A disk that loses a write is found out.
func TestStreams_wrongData(t *testing.T) {
	q := newFake(make([]byte, 8*64*4096), 32, 4096)
	q.spoil = func(n int, w want) (bool, blk.Status) { return n == 100 && w.op == blk.OpWrite, blk.StatusOK }
	res, err := RunStreams(t.Context(), q, StreamOptions{Streams: 4, Blocks: 64, BlockSize: 4096, Stall: time.Second})
	require.NoError(t, err)
	require.NotEmpty(t, res.Failures)
}

func TestStreams_refused(t *testing.T) {
	q := newFake(make([]byte, 1<<20), 4, 4096)
	for _, o := range []StreamOptions{{}, {Streams: 1, Blocks: 1, BlockSize: 100}, {Streams: 1, Blocks: 1, BlockSize: 8192}} {
		_, err := RunStreams(t.Context(), q, o)
		require.ErrorContains(t, err, "not at least")
	}
}

package sched

import (
	"testing"

	"github.com/elevisor/elevisor/blk"
	"github.com/stretchr/testify/require"
)

// What has waited for too long is served although its flow goes on asking for what is
// nearer to the head.
func TestBFQ_overdueIsNotPushedAside(t *testing.T) {
	s, err := New("bfq", &Config{Rotational: true})
	require.NoError(t, err)
	disk := &blk.Disk{Sectors: 1 << 30}
	now, seq := blk.Instant(0), uint64(0)
	insert := func(at blk.Sector) *blk.Request {
		r := &blk.Request{Op: blk.OpRead, Disk: disk, Sector: at, Pos: at, Sectors: 8, Arrive: now, Seq: seq}
		r.Move(blk.StateFree, blk.StateQueued)
		seq++
		s.Insert(now, r)
		return r
	}
	insert(8)
	far := insert(1 << 29)
	for i := blk.Sector(2); now < 2000*millisecond; i++ {
		r := s.Dispatch(now)
		require.NotNil(t, r)
		if r == far {
			return
		}
		now += millisecond
		s.Complete(now, r)
		insert(8 * i)
	}
	require.Fail(t, "it waits for ever")
}

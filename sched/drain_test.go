package sched

import (
	"testing"
	"time"

	"github.com/elevisor/elevisor/blk"
	"github.com/stretchr/testify/require"
)

// A guest with many queues whose requests adjoin across them has one stopped: each
// group is taken apart, and what is left goes back among what was left of the
// others. That costs about what queueing it cost, not its square: it is everybody's
// loop that does it.
func TestDrain_partsOfManyQueues(t *testing.T) {
	const queues, groups = 32, 1024
	for _, name := range Names {
		t.Run(name, func(t *testing.T) {
			s, err := New(name, &Config{})
			require.NoError(t, err)
			d := &blk.Disk{}
			start := time.Now()
			for n := range queues * groups { // request g of queue q is part q of group g
				g, q := n%groups, n/groups
				s.Insert(0, &blk.Request{
					Op: blk.OpWrite, Disk: d, Sector: blk.Sector(g*2*queues + q), Sectors: 1, Seq: uint64(n), Source: blk.Source{Queue: uint16(q)},
				})
			}
			inserted := time.Since(start)
			start = time.Now()
			require.Len(t, s.Drain(blk.Source{Queue: 0}, nil), groups)
			drained := time.Since(start)
			require.Equal(t, (queues-1)*groups, s.Len())
			require.Less(t, drained, 20*inserted)
			left := s.Drain(blk.AllSources, nil)
			require.Len(t, left, (queues-1)*groups)
			for i, r := range left {
				require.EqualValues(t, groups+i, r.Seq)
			}
		})
	}
}

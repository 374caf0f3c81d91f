package loopback

import (
	"testing"
	"time"

	"github.com/elevisor/elevisor/blk"
	"github.com/elevisor/elevisor/daemon"
	"github.com/elevisor/elevisor/guest"
	"github.com/stretchr/testify/require"
)

// The loops of a domain with workers share neither counts nor knobs: what they
// merge adds up, and a knob can be set under load. (Run with -race.)
func TestWorkersShareNoCounts(t *testing.T) {
	disk := slow(t, "64M", 4000)
	d := serveHere(t, []daemon.Disk{disk}, daemon.Domain{ID: "d", Scheduler: "none", Workers: 2, QueueDepth: 1})
	g := connect(t, disk.Socket, guest.Options{Queues: 4, QueueSize: 256, Depth: 64})
	var ended [4]chan struct{}
	for i, q := range g.Queues() {
		ended[i] = make(chan struct{})
		go func() {
			defer close(ended[i])
			for range 8 { // one stream each, in runs that merge
				for s := range 64 {
					if !q.Submit(s, blk.OpRead, blk.Sector((i*1024+s)*sectors), []guest.Buf{q.Buffer(s)}) {
						t.Error("no room in the ring")
					}
				}
				q.Kick()
				for left := 64; left > 0; {
					n, err := q.Reap(func(guest.Done) {})
					if err != nil {
						t.Error(err)
						return
					}
					if left -= n; n == 0 {
						_ = q.Wait(50 * time.Millisecond)
					}
				}
			}
		}()
	}
	for _, v := range []string{"1280", "512", "1280"} {
		require.NoError(t, d.Set("d", "max_sectors_kb", v))
		_, err := d.DomainStats("d")
		require.NoError(t, err)
	}
	for _, e := range ended {
		<-e
	}
	s, err := d.DomainStats("d")
	require.NoError(t, err)
	r := s.Op[blk.OpRead]
	require.EqualValues(t, 4*8*64, r.Requests())
	require.NotZero(t, r.Merges)
	merged := uint64(0)
	for place := range s.Merges.Merged {
		for _, n := range s.Merges.Merged[place] {
			merged += n
		}
	}
	require.Equal(t, r.Merges, merged)
	require.Equal(t, r.Merges*sectors, s.Merges.Sectors)
}

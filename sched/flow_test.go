package sched

import (
	"testing"

	"github.com/elevisor/elevisor/blk"
	"github.com/stretchr/testify/require"
)

// asks inserts a 4 KiB request of device 0, queue q, and returns its flow.
func asks(f *flows, q uint16, op blk.Op, at blk.Sector, d *blk.Disk) (int, bool, uint32) {
	r := &blk.Request{Op: op, Disk: d, Sector: at, Sectors: 8, Source: blk.Source{Queue: q, Stream: 99}}
	n, fresh := f.of(r)
	return n, fresh, r.Source.Stream
}

func TestFlowsAreNumberedAsTheyCome(t *testing.T) {
	d := &blk.Disk{}
	for by, want := range map[flowBy][]int{flowQueue: {0, 1, 0}, flowDevice: {0, 0, 0}} {
		f := flows{by: by}
		for i, q := range []uint16{3, 1, 3} {
			n, _, stream := asks(&f, q, blk.OpRead, 0, d)
			require.Equal(t, want[i], n)
			require.Zero(t, stream)
		}
	}
}

// Three sequential readers, a writer at the same place and random reads share one
// virtqueue: five flows, and the random ones leave the streams alone.
func TestStreamsAreToldApart(t *testing.T) {
	d := &blk.Disk{}
	f := flows{by: flowStream}
	seen := map[string]map[int]bool{}
	note := func(who string, n int) {
		if seen[who] == nil {
			seen[who] = map[int]bool{}
		}
		seen[who][n] = true
	}
	for i := range blk.Sector(100) {
		for s := range blk.Sector(3) {
			n, _, stream := asks(&f, 0, blk.OpRead, s*1_000_000+8*i, d)
			if i == 0 {
				require.Zero(t, stream)
				continue
			}
			require.NotZero(t, stream)
			note([]string{"a", "b", "c"}[s], n)
		}
		if n, _, _ := asks(&f, 0, blk.OpWrite, 8*i, d); i > 0 {
			note("writer", n)
		}
		n, _, stream := asks(&f, 0, blk.OpRead, 5_000_000+i*i*7919*8, d)
		require.Zero(t, stream)
		note("random", n)
	}
	all := map[int]bool{}
	for who, of := range seen {
		require.Len(t, of, 1, who)
		for n := range of {
			require.False(t, all[n], who)
			all[n] = true
		}
	}
}

// The stream unused for longest gives its number to a new one, which is fresh.
func TestStreamsAreReplaced(t *testing.T) {
	d := &blk.Disk{}
	f := flows{by: flowStream}
	numbers := map[int]int{}
	for s := range blk.Sector(2 * streamsMax) {
		asks(&f, 0, blk.OpRead, s*100_000, d)
		n, fresh, _ := asks(&f, 0, blk.OpRead, s*100_000+8, d)
		require.True(t, fresh)
		numbers[n]++
	}
	require.Len(t, numbers, streamsMax)
}

func TestFlowsDoNotAllocate(t *testing.T) {
	d := &blk.Disk{}
	f := flows{by: flowStream}
	r := &blk.Request{Op: blk.OpRead, Disk: d, Sectors: 8}
	at := blk.Sector(0)
	require.Zero(t, testing.AllocsPerRun(1000, func() {
		r.Sector = at
		at += 8
		f.of(r)
	}))
}

package sched

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/elevisor/elevisor/blk"
	"github.com/stretchr/testify/require"
)

// load makes depth requests at random places, and in every other place, where
// merging is wanted, four that adjoin.
func load(depth int, merges bool) []blk.Request {
	rnd := rand.New(rand.NewPCG(1, 2))
	disk := &blk.Disk{}
	reqs := make([]blk.Request, depth)
	var at blk.Sector
	for i := range reqs {
		if !merges || i%4 == 0 {
			at = blk.Sector(rnd.IntN(1<<24)) * 8
		}
		reqs[i] = blk.Request{
			Op: blk.Op(i / 4 % 2), Disk: disk, Sector: at, Sectors: 8, Pos: at,
			Segs: make([][]byte, 1), Source: blk.Source{Queue: uint16(i / 4 % 4)},
		}
		at += 8
	}
	return reqs
}

// pass puts reqs through s once: a full queue, then an empty one.
func pass(s Scheduler, reqs []blk.Request, now *blk.Instant) {
	for i := range reqs {
		reqs[i].Arrive = *now
		s.Insert(*now, &reqs[i])
	}
	for r := s.Dispatch(*now); r != nil; r = s.Dispatch(*now) {
		s.Complete(*now, r)
		*now += 1000
	}
}

func BenchmarkSchedulers(b *testing.B) {
	for _, name := range Names {
		for _, depth := range []int{1, 32, 256} {
			for _, merges := range []string{"off", "apart", "met"} {
				b.Run(fmt.Sprintf("%s/%d/%s", name, depth, merges), func(b *testing.B) {
					c := &Config{MaxSectors: 2560, MaxSegments: 1024}
					if merges == "off" {
						c.NoMerges = 2
					}
					s, err := New(name, c)
					require.NoError(b, err)
					reqs, now := load(depth, merges == "met"), blk.Instant(0)
					b.ReportAllocs()
					for b.Loop() {
						pass(s, reqs, &now)
					}
					b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(depth*b.N), "ns/request")
				})
			}
		}
	}
}

// Once every source has been seen, no scheduler allocates.
func TestNoAllocation(t *testing.T) {
	for _, name := range Names {
		for _, depth := range []int{1, 32, 256} {
			for nomerges := range 3 {
				s, err := New(name, &Config{NoMerges: nomerges})
				require.NoError(t, err)
				reqs, now := load(depth, true), blk.Instant(0)
				pass(s, reqs, &now)
				require.Zero(t, testing.AllocsPerRun(20, func() { pass(s, reqs, &now) }), "%s at %d, nomerges %d", name, depth, nomerges)
				require.Zero(t, s.Len())
			}
		}
	}
}

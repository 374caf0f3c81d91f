package cases

import (
	"bytes"
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/elevisor/elevisor/blk"
	"github.com/elevisor/elevisor/daemon"
	"github.com/elevisor/elevisor/guest"
	"github.com/elevisor/elevisor/guest/load"
)

// ringSizes runs a verified random load through rings of both extremes. A ring
// that holds no chain of three takes tables of descriptors instead.
func ringSizes(t *testing.T) {
	for _, size := range []int{1, 2, 32768} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			const megabytes = 8
			s := startServer(t, daemon.Disk{NumQueues: 1}, make([]byte, megabytes<<20))
			g, err := guest.Start(s.socket, guest.Options{QueueSize: size, Depth: min(size, 64), MaxIO: 64 << 10})
			require.NoError(t, err)
			defer g.Close()
			res, err := load.Run(context.Background(), g.Config().Capacity, []load.Queue{g.Queues()[0]}, load.Options{
				RW: load.RandReadWrite, MixRead: 50, BlockSize: 64 << 10, Depth: min(size, 64), Verify: true, IOSize: 4 * megabytes << 20,
			})
			require.NoError(t, err)
			assert.Empty(t, res.Total().Failures)
			assert.NotZero(t, res.Total().Verified)
			assert.False(t, g.Queues()[0].Broken())
			assert.NoError(t, g.Memory().Intact())
			s.neighbour.progress(t)
		})
	}
}

// headerFraming sends the same requests with their header in many pieces: framing
// means nothing. A chain of 18 does not fit the ring, so all go through a table.
func headerFraming(t *testing.T) {
	for _, pieces := range [][]uint32{{8, 8}, {4, 4, 8}, {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}} {
		t.Run(fmt.Sprint(pieces), func(t *testing.T) {
			on(t, setup{}, func(r *rig) {
				chain := func(tail ...elem) uint16 {
					elems, at := []elem(nil), uint64(H)
					for _, n := range pieces {
						elems = append(elems, R(n, at))
						at += uint64(n)
					}
					return r.post(r.table(T, append(append(elems, tail...), r.status())...))
				}
				r.header(blk.TypeIn, 9)
				r.answered(chain(W(512, B)), OK, 513)
				r.holds(B, r.sectors(9, 1))

				r.header(blk.TypeOut, 10)
				r.data(bytes.Repeat([]byte{0x22}, 512))
				r.answered(chain(R(512, B)), OK, 1)
				copy(r.sectors(10, 1), r.shadowed(B, 512))

				r.header(blk.TypeFlush, 0)
				r.answered(chain(), OK, 1)

				r.header(blk.TypeDiscard, 0)
				r.answered(chain(r.ranges(segment{16, 8, 0})), OK, 1)
				r.unsure = append(r.unsure, span{16 * 512, 24 * 512})
			})
		})
	}
}

func manyRegions(t *testing.T) {
	t.Run("elements", plain(func(r *rig) {
		r.answered(r.post(r.header(blk.TypeIn, 9), W(1024, regionB+0x100), r.status()), OK, 1025)
		r.holds(regionB+0x100, r.sectors(9, 2))
	}))
	t.Run("one element", func(t *testing.T) {
		const c = 0x3000_0000
		var places []guest.Place
		for i := range uint64(3) { // adjoining for the guest, in another order for the front-end
			places = append(places, guest.Place{GPA: c + 4096*i, UVA: userB + 0x4000_0000 - 0x10000*i, Size: 4096})
		}
		on(t, setup{places: places}, func(r *rig) {
			r.answered(r.post(r.header(blk.TypeIn, 40), W(12288, c), r.status()), OK, 12289)
			for i := range 3 {
				r.holds(c+4096*uint64(i), r.sectors(40+8*i, 8))
			}
			for i := range 3 {
				r.poke(c+4096*uint64(i), bytes.Repeat([]byte{byte(i + 1)}, 4096))
			}
			r.answered(r.post(r.header(blk.TypeOut, 80), R(12288, c), r.status()), OK, 1)
			for i := range 3 {
				copy(r.sectors(80+8*i, 8), r.shadowed(c+4096*uint64(i), 4096))
			}
		})
	})
}

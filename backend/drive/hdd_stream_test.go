package drive

import (
	"testing"

	"github.com/elevisor/elevisor/blk"
	"github.com/stretchr/testify/require"
)

// A drive that tells one stream apart knows that a command does not continue it.
func TestHDD_oneSegmentSwitches(t *testing.T) {
	for _, op := range []blk.Op{blk.OpRead, blk.OpWrite} {
		for _, segments := range []float64{1, 2, 16} {
			p, err := Load("hd155ui")
			require.NoError(t, err)
			p.HDD.Segments = segments
			d, err := p.New(p.Capacity, 1)
			require.NoError(t, err)
			now := blk.Instant(0)
			for i := range blk.Sector(4) { // far from each other, and then on with the last
				require.True(t, d.Queue(now, Command{Op: op, Sector: i << 24, Sectors: 8}))
				now = d.Next()
				_, _, ok := d.Done(now)
				require.True(t, ok)
			}
			require.True(t, d.Queue(now, Command{Op: op, Sector: 3<<24 + 8, Sectors: 8}))
			require.EqualValues(t, 3, d.Stats().Switches, "%v with %v segments", op, segments)
		}
	}
}

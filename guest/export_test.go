package guest

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/elevisor/elevisor/blk"
)

// ServedBlock is a block layer on a disk of sectors that serves by itself, for tests
// of what drives it.
func ServedBlock(t *testing.T, o Options, b BlockOptions, sectors int) *Block {
	r := newRig(t, rigOptions{Options: o, BlockOptions: b, sectors: sectors})
	for _, d := range r.toys {
		d.start(t)
	}
	require.Equal(t, blk.Sector(sectors), r.disk.Sectors)
	return r.Block
}

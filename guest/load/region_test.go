package load

import (
	"testing"

	"github.com/elevisor/elevisor/blk"
	"github.com/stretchr/testify/require"
)

// Regions whose end is no number do not lie on the disk.
func TestCheck_regionsBeyondAllNumbers(t *testing.T) {
	const capacity = blk.Sector(7 << 60 / blk.SectorSize)
	for _, o := range []Options{
		{Jobs: 4, Size: 1 << 30, Increment: 3 << 60},
		{Jobs: 3, Size: 1 << 30, Increment: 7 << 60},
		{Offset: 7 << 60, Size: 7 << 60},
	} {
		require.ErrorContains(t, o.Check(capacity), "not whole sectors within the disk")
	}
	o := Options{Jobs: 4, Size: 1 << 60, Increment: 2 << 60}
	require.NoError(t, o.Check(capacity), "the last one ends with the disk")
}

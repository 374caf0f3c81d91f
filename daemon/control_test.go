package daemon

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
)

// Device.Stats has one reader at a time; the daemon lets them in one by one.
func TestStat_manyReaders(t *testing.T) {
	disk := Disk{ID: "d", Path: "null:?size=1M", Socket: t.TempDir() + "/s", NumQueues: 2}
	d, err := Open([]Disk{disk}, nil, zap.NewNop())
	require.NoError(t, err)
	defer d.Close()
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for range 50 {
				if len(d.Stat()) != 1 {
					panic("no statistics")
				}
			}
		})
	}
	all.Wait()
}

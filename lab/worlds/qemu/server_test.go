package qemu

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/elevisor/elevisor/backend"
	"github.com/elevisor/elevisor/daemon/ctl"
	"github.com/elevisor/elevisor/lab/plan"
)

// A run's disks are recorded, as one, and as slow as the plan says, whatever is behind.
func TestServerRecords(t *testing.T) {
	r := newRig(t, Options{})
	s := spec()
	s.VMs, s.IOPS = 2, 77
	disks, _, err := r.plan(&s)
	require.NoError(t, err)
	require.Equal(t, backend.RateOptions{IOPS: 77}, disks[1].Slow)
	srv, err := r.serve(&s)
	require.NoError(t, err)
	c := srv.counts()
	require.Equal(t, &backend.RecorderStats{}, c.Recorded)
	require.NoError(t, srv.Trace(serverDisk(0), 3))
	require.NoError(t, srv.close())
}

// What is counted in the ramp does not count.
func TestDiskCounts(t *testing.T) {
	before := ctl.DiskStat{Recorded: &backend.RecorderStats{Requests: 10, Sectors: 80, Seeks: 1, LostOtherVM: 1}}
	after := ctl.DiskStat{Recorded: &backend.RecorderStats{Requests: 15, Sectors: 120, Seeks: 3, SeekSectors: 7, LostOtherVM: 2, LostLate: 1}}
	want := plan.Disk{Requests: 5, Sectors: 40, Seeks: 2, SeekSum: 7, LostCrossVM: 1, LostLate: 1}
	require.Equal(t, want, diskCounts(&before, &after))
	before.Simulated, after.Simulated = &backend.SimStats{}, &backend.SimStats{}
	before.Simulated.Model.Seeks, after.Simulated.Model.Seeks = 2, 9
	after.Simulated.Model.HeadTime = 2e9
	want.HeadMoves, want.HeadSeconds = 7, 2
	require.Equal(t, want, diskCounts(&before, &after))
}

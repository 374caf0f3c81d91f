package loopback

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/elevisor/elevisor/blk"
	"github.com/elevisor/elevisor/daemon"
	"github.com/elevisor/elevisor/daemon/ctl"
	"github.com/elevisor/elevisor/guest"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
)

// A guest's load on a simulated drive, through whatever merges and reorders above it:
// the contents are right, with aio=threads too, each command of the drive's is timed
// once, and an operator sees all that.
func TestSimulatedDrive(t *testing.T) {
	for _, aio := range []string{"auto", "threads"} {
		t.Run(aio, func(t *testing.T) {
			file := disk(t, diskBlocks*block)
			d, err := daemon.ParseDisk("path=sim:hdd,id=d,preset=hd155ui,seed=7,num-queues=2,aio=" + aio +
				",backing-file=" + file.Path + ",socket=" + file.Socket)
			require.NoError(t, err)
			daemon := serveHere(t, []daemon.Disk{d})
			require.Equal(t, "timeslice", daemon.List()[0].Scheduler)
			require.Equal(t, "simulated drive hd155ui is rotational", daemon.List()[0].Reason)
			require.Equal(t, "sim", daemon.List()[0].Engine)
			require.EqualValues(t, diskBlocks*block, daemon.List()[0].Bytes)

			m := boot(t, d.Socket, guest.Options{Depth: 8})
			time.Sleep(300 * time.Millisecond)
			m.rest(file.Path)

			s := ctl.NewStat(0, daemon.Stat()).Disks[0]
			require.NotNil(t, s.Simulated)
			commands := int64(0)
			for _, n := range s.Simulated.Commands {
				commands += int64(n)
			}
			require.Equal(t, commands, s.Simulated.Deviation.Count)
			require.EqualValues(t, s.RdOperations-s.RdMerged, s.Simulated.Commands["read"])
			require.EqualValues(t, s.WrOperations-s.WrMerged, s.Simulated.Commands["write"])
			require.NotZero(t, s.Simulated.Seeks)
			require.GreaterOrEqual(t, s.Simulated.Deviation.P99, s.Simulated.Deviation.P50)
			t.Logf("%+v", s.Simulated)
		})
	}
}

// Disks that are windows of one simulated drive share its head and its scheduler, and
// nothing else.
func TestSimulatedDrive_windows(t *testing.T) {
	dir := t.TempDir()
	var disks []daemon.Disk
	for _, words := range []string{"id=a,size=8M", "id=b,offset=8M,record=on"} {
		d, err := daemon.ParseDisk("path=sim:hdd?preset=hd155ui&size=16M&drive=one,num-queues=2," + words + ",socket=" + filepath.Join(dir, words[3:4]))
		require.NoError(t, err)
		disks = append(disks, d)
	}
	daemon := serveHere(t, disks)
	for _, d := range daemon.List() {
		require.EqualValues(t, 8<<20, d.Bytes)
		require.Equal(t, daemon.List()[0].Domain, d.Domain)
	}
	require.NoError(t, daemon.Trace("b", 3))
	for b, d := range disks {
		g := connect(t, d.Socket, guest.Options{Queues: 1, Depth: 2})
		q := g.Queues()[0]
		do := func(slot int, op blk.Op) {
			require.True(t, q.Submit(slot, op, 0, []guest.Buf{q.Buffer(slot)}))
			q.Kick()
			for n := 0; n == 0; {
				var err error
				n, err = q.Reap(func(d guest.Done) { require.Equal(t, blk.StatusOK, d.Status) })
				require.NoError(t, err)
				if n == 0 {
					require.NoError(t, q.Wait(patience))
				}
			}
		}
		do(0, blk.OpRead)
		require.Zero(t, q.Buffer(0).Bytes[0], "what the other disk wrote")
		fillByte(q.Buffer(0).Bytes, byte(b+1))
		do(0, blk.OpWrite)
		do(1, blk.OpRead)
		require.Equal(t, q.Buffer(0).Bytes, q.Buffer(1).Bytes)
	}
	stat := ctl.NewStat(0, daemon.Stat())
	require.Equal(t, stat.Disks[0].Simulated, stat.Disks[1].Simulated)
	require.EqualValues(t, 2, stat.Disks[0].Simulated.Commands["write"])

	require.Equal(t, stat.Disks[0].Recorded, stat.Disks[1].Recorded, "it is the image that is recorded")
	require.EqualValues(t, 6, stat.Disks[0].Recorded.Requests)
	require.EqualValues(t, 6*block/blk.SectorSize, stat.Disks[0].Recorded.Sectors)
	traced, err := daemon.Traced("a")
	require.NoError(t, err)
	require.Len(t, traced, 3)
	require.Equal(t, blk.OpWrite, traced[1].Op)
}

// What was not asked for is not recorded, and whoever wants it is told the word.
func TestRecord_off(t *testing.T) {
	d, err := daemon.ParseDisk("path=null:size=1M,id=d,record=off,socket=" + filepath.Join(t.TempDir(), "s"))
	require.NoError(t, err)
	daemon := serveHere(t, []daemon.Disk{d})
	require.Nil(t, daemon.Stat()[0].Recorded)
	require.ErrorContains(t, daemon.Trace("d", 1), "nothing is recorded of disk d: it was opened without record=on")
	_, err = daemon.Traced("x")
	require.ErrorContains(t, err, `there is no disk "x"`)
}

// A drive has one queue: a domain of several loops is refused.
func TestSimulatedDrive_workers(t *testing.T) {
	d, err := daemon.ParseDisk("path=sim:hdd,size=1M,domain=x,socket=" + filepath.Join(t.TempDir(), "s"))
	require.NoError(t, err)
	_, err = daemon.Open([]daemon.Disk{d}, []daemon.Domain{{ID: "x", Scheduler: "none", Workers: 2}}, zap.NewNop())
	require.ErrorContains(t, err, "cannot be served by more than one worker")
}

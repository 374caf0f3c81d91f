package device

import (
	"testing"

	"github.com/elevisor/elevisor/blk"
	"github.com/elevisor/elevisor/sched"
	"github.com/stretchr/testify/require"
)

// The 17 numbers, with a clock: times are from arrival to completion, a group
// counts once and its other parts as merges, io_ticks is when anything was held.
func TestStats_sysfs(t *testing.T) {
	j := &joiner{}
	r := newRig(t, j, nil)
	const ms = 1_000_000
	r.disk.hold = true
	r.start()
	r.now = 10 * ms
	for i := range 3 {
		r.request(blk.TypeOut, uint64(8*i), 8)
	}
	r.kick()
	r.step()
	require.Len(t, r.disk.issued, 1, "one group")
	s := r.stats()
	require.Equal(t, 1, s.InFlight)
	require.Equal(t, 3, s.Held)
	r.now = 15 * ms
	r.disk.complete(0)
	r.step()
	r.reap(3)
	r.now = 40 * ms // idle
	r.request(blk.TypeIn, 0, 1)
	r.kick()
	r.step()
	r.now = 42 * ms
	r.step() // the loop's clock is that of its last step
	s = r.stats()
	require.EqualValues(t, 5+2, s.Sysfs()[9], "io_ticks, still busy")
	r.disk.complete(0)
	r.step()
	r.reap(1)
	s = r.stats()
	require.Equal(t, [17]uint64{
		1, 0, 1, 2, // reads
		1, 2, 24, 5, // writes
		0, 7, 7, // in flight, io_ticks, time in queue
		0, 0, 0, 0,
		0, 0,
	}, s.Sysfs())
	require.EqualValues(t, 4, s.Latency[InDisk].TotalCount())
	require.InEpsilon(t, 5*ms, s.Latency[InDisk].Max(), 0.02)
	d := r.loop.Stats()
	require.Equal(t, s.Op, d.Op)
	require.EqualValues(t, 7*ms, d.IOTime)
}

// A group's time begins with its oldest request, also where a younger one leads it.
func TestStats_timeOfAGroup(t *testing.T) {
	s, err := sched.New("deadline", &sched.Config{})
	require.NoError(t, err)
	r := newRig(t, s, nil)
	const ms = 1_000_000
	require.NoError(t, r.loop.SetDepth(1))
	r.disk.hold = true
	r.start()
	for i, sector := range []uint64{100, 8, 0} { // the last is put in front
		r.now = blk.Instant(10*i) * ms
		r.request(blk.TypeOut, sector, 8)
		r.kick()
		r.step()
	}
	for _, r.now = range []blk.Instant{30 * ms, 45 * ms} {
		r.disk.complete(0)
		r.step()
	}
	r.reap(3)
	one := r.stats().Op[blk.OpWrite]
	require.EqualValues(t, 2, one.IOs)
	require.EqualValues(t, 1, one.Merges)
	require.EqualValues(t, (30-0)*ms+(45-10)*ms, one.Time)
}

// A switch moves what is queued, and what is on the disk completes at the
// scheduler that gave it up.
func TestSwitch(t *testing.T) {
	old, next := &counting{}, &counting{}
	r := newRig(t, old, nil)
	r.disk.hold = true
	r.start()
	for i := range 7 {
		r.request(blk.TypeIn, uint64(i), 1)
	}
	r.kick()
	r.step()
	require.Len(t, r.disk.issued, 4)
	queued, onDisk := r.loop.Switch(next)
	require.Equal(t, 3, queued)
	require.Equal(t, 4, onDisk)
	require.Equal(t, 3, next.Len())
	require.Zero(t, old.Len())
	for len(r.disk.issued) > 0 {
		r.disk.complete(0)
		r.step()
	}
	r.reap(7)
	require.Equal(t, 4, old.completed)
	require.Equal(t, 3, next.completed)
	require.Zero(t, r.loop.inflight)
}

// counting is None and counts completions.
type counting struct {
	sched.None
	completed int
}

func (c *counting) Complete(blk.Instant, *blk.Request) { c.completed++ }

func TestLoop_set(t *testing.T) {
	r := newRig(t, none(), nil)
	c := r.loop.Config()
	require.NoError(t, r.loop.Set("queue-depth", "1"))
	require.Equal(t, 1, r.loop.Depth())
	require.NoError(t, r.loop.Set("nomerges", "2"))
	require.NoError(t, r.loop.Set("max_sectors_kb", "64"))
	require.Equal(t, sched.Config{NoMerges: 2, MaxSectors: 128}, *c)
	for _, bad := range [][2]string{{"queue-depth", "0"}, {"queue-depth", "1025"}, {"queue-depth", "x"}, {"nomerges", "3"}, {"max-sectors-kb", "3"}} {
		require.ErrorContains(t, r.loop.Set(bad[0], bad[1]), bad[1])
	}
	require.Equal(t, sched.Config{NoMerges: 2, MaxSectors: 128}, *c)
}

// Two readers of one device's statistics at once are our own fault.
func TestStats_oneReader(t *testing.T) {
	r := newRig(t, none(), nil)
	r.dev.reading.Store(true)
	require.Panics(t, func() { r.dev.Stats() })
	r.dev.reading.Store(false)
	require.NotPanics(t, func() { r.dev.Stats() })
}

// No scheduler has a knob of a name that the domain has: Set would never reach it.
func TestTunables_names(t *testing.T) {
	for _, k := range sched.Kinds() {
		c := DefaultConfig(false)
		seen := map[string]bool{}
		for _, i := range NewLoop(k.New(c), c, 1).Tunables() {
			require.False(t, seen[i.Name], "%s: %s", k.Name, i.Name)
			seen[i.Name] = true
		}
	}
}

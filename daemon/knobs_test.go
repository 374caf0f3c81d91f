package daemon

import (
	"strings"
	"testing"

	"github.com/elevisor/elevisor/daemon/ctl"
	"github.com/elevisor/elevisor/device"
	"github.com/elevisor/elevisor/sched"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"pgregory.net/rapid"
)

// knob is the disk's knob of that name.
func knob(t *testing.T, d *Daemon, name string) ctl.Tunable {
	list, err := d.Tunables("d")
	require.NoError(t, err)
	for _, k := range list {
		if k.Name == name {
			return k
		}
	}
	require.Fail(t, "no such knob", name)
	return ctl.Tunable{}
}

func describe(t *testing.T, d *Daemon) string {
	var b strings.Builder
	require.NoError(t, d.Describe("d", &b))
	return b.String()
}

// openOne serves one disk in one domain.
func openOne(t *testing.T, domain Domain) *Daemon {
	domain.ID = "x"
	disk := Disk{ID: "d", Path: "mem:?size=1M", Socket: t.TempDir() + "/s", Domain: "x", NumQueues: 4}
	d, err := Open([]Disk{disk}, []Domain{domain}, zap.NewNop())
	require.NoError(t, err)
	t.Cleanup(d.Close)
	return d
}

// What the operator has set on a scheduler is there again when a switch brings it back,
// and ctl says what it is.
func TestSwitch_keepsKnobs(t *testing.T) {
	d := openOne(t, Domain{Scheduler: "deadline", Knobs: []sched.Knob{{Key: "read-expire", Value: "0x64"}, {Key: "nomerges", Value: "1"}}})
	require.NoError(t, d.Set("d", "fifo_batch", "4"))
	require.Contains(t, describe(t, d), "\nset by hand: nomerges=1 read_expire=100 fifo_batch=4\n")
	require.Equal(t, ctl.Tunable{Name: "read_expire", Value: "100", Valid: "0 to 2147483647", Unit: "ms", ByHand: true}, knob(t, d, "read_expire"))
	require.Equal(t, ctl.Tunable{Name: "write_expire", Value: "5000", Valid: "0 to 2147483647", Unit: "ms"}, knob(t, d, "write_expire"))

	require.NoError(t, d.SetScheduler("d", "bfq"))
	require.NoError(t, d.Set("d", "low_latency", "0"))
	require.Contains(t, describe(t, d), "\nset by hand: nomerges=1 low_latency=0\nkept for deadline: read_expire=100 fifo_batch=4\n")
	require.NoError(t, d.SetScheduler("d", "none"))
	require.Equal(t, "1", knob(t, d, "nomerges").Value, "the domain's own")
	require.Contains(t, describe(t, d), "\nset by hand: nomerges=1\nkept for deadline: read_expire=100 fifo_batch=4\nkept for bfq: low_latency=0\n")

	require.NoError(t, d.SetScheduler("d", "mq-deadline"))
	require.Equal(t, "100", knob(t, d, "read_expire").Value)
	require.Equal(t, "4", knob(t, d, "fifo_batch").Value)
	require.Equal(t, "5000", knob(t, d, "write_expire").Value, "a default stays one")
	require.NoError(t, d.SetScheduler("d", "deadline"))
	require.Equal(t, "100", knob(t, d, "read_expire").Value, "a switch to the same")
	require.NoError(t, d.SetScheduler("d", "bfq"))
	require.Equal(t, "0", knob(t, d, "low_latency").Value)
}

// A depth that was set is the domain's, whoever schedules.
func TestDescribe_depth(t *testing.T) {
	d := openOne(t, Domain{Scheduler: "none", QueueDepth: 7})
	require.Contains(t, describe(t, d), "\nset by hand: queue_depth=7\n")
	require.NoError(t, d.Set("d", "queue-depth", "9"))
	require.NoError(t, d.SetScheduler("d", "timeslice"))
	require.Contains(t, describe(t, d), "\nset by hand: queue_depth=9\n")
	require.True(t, knob(t, d, "queue_depth").ByHand)
}

// A knob that is refused changes nothing: not now, and not at the next switch.
func TestSet_unknownKnob(t *testing.T) {
	d := openOne(t, Domain{Scheduler: "deadline"})
	require.NoError(t, d.Set("d", "read_expire", "100"))
	before, err := d.Tunables("d")
	require.NoError(t, err)
	text := describe(t, d)
	for _, k := range []sched.Knob{{Key: "no_such", Value: "1"}, {Key: "low_latency", Value: "0"}, {Key: "read_expire", Value: "-1"}, {Key: "nomerges", Value: "3"}, {Key: "", Value: ""}} {
		require.Error(t, d.Set("d", k.Key, k.Value), "%v", k)
		after, err := d.Tunables("d")
		require.NoError(t, err)
		require.Equal(t, before, after)
		require.Equal(t, text, describe(t, d))
	}
	require.NoError(t, d.SetScheduler("d", "bfq"))
	require.Equal(t, "1", knob(t, d, "low_latency").Value)
	require.NoError(t, d.SetScheduler("d", "deadline"))
	after, err := d.Tunables("d")
	require.NoError(t, err)
	require.Equal(t, before, after)
}

// Several loops are set alike, and a scheduler for which they were gathered on one is
// found as it was left.
func TestSwitch_keepsKnobsOfWorkers(t *testing.T) {
	d := openOne(t, Domain{Scheduler: "none", Workers: 3, Knobs: []sched.Knob{{Key: "nomerges", Value: "1"}}})
	require.NoError(t, d.Set("d", "max_sectors_kb", "64"))
	for _, l := range d.domains[0].loops {
		require.NoError(t, l.Do(func() {
			require.Equal(t, 1, l.Config().NoMerges)
			require.EqualValues(t, 128, l.Config().MaxSectors)
		}))
	}
	require.NoError(t, d.SetScheduler("d", "cfq"))
	require.NoError(t, d.Set("d", "quantum", "3"))
	require.NoError(t, d.SetScheduler("d", "none"))
	require.Contains(t, describe(t, d), "\nset by hand: nomerges=1 max_sectors_kb=64\nkept for cfq: quantum=3\n")
	require.NoError(t, d.SetScheduler("d", "cfq"))
	require.Equal(t, "3", knob(t, d, "quantum").Value)
	require.Equal(t, "64", knob(t, d, "max_sectors_kb").Value)
}

// Whatever is set and switched, a scheduler comes back as if it had never been away.
func TestSwitch_asIfNeverAway(t *testing.T) {
	for _, kind := range sched.Kinds() {
		t.Run(kind.Name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) { neverAway(t, kind) })
		})
	}
}

func neverAway(t *rapid.T, kind sched.Kind) {
	c := device.DefaultConfig(true)
	l := device.NewLoop(kind.New(c), c, 4)
	d := &domain{id: "x", kind: kind, loops: []*device.Loop{l}, log: zap.NewNop()}
	stayed := kind.New(device.DefaultConfig(true))
	for range rapid.IntRange(1, 30).Draw(t, "steps") {
		if knobs := sched.Tunables(stayed); len(knobs) > 0 && rapid.IntRange(0, 3).Draw(t, "set") > 0 {
			name := rapid.SampledFrom(knobs).Draw(t, "knob").Name
			value := rapid.SampledFrom([]string{"0", "1", "2", "17", "300", "async", "device", "never", "oops"}).Draw(t, "value")
			require.Equal(t, sched.Set(stayed, name, value) == nil, d.set(name, value) == nil)
			continue
		}
		for _, to := range []string{rapid.SampledFrom(sched.Names).Draw(t, "by way of"), kind.Name} {
			_, err := d.switchTo(to)
			require.NoError(t, err)
		}
		require.Equal(t, sched.Tunables(stayed), sched.Tunables(l.Scheduler()))
	}
}

package ctl

import (
	"fmt"
	"io"
	"slices"
	"testing"

	"github.com/elevisor/elevisor/blk"
	"github.com/elevisor/elevisor/device"
	"github.com/elevisor/elevisor/sched"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"go.uber.org/zap"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fake has the disks a and b in domain hdd.
type fake struct {
	active string
	expire string
	stat   []DiskStat
	busy   chan struct{} // Describe waits for it
}

var available = []string{"none", "deadline", "timeslice"}

func newFake() *fake { return &fake{active: "deadline", expire: "500"} }

func (f *fake) List() []Disk {
	d := Disk{ID: "a", Path: "a.img", Socket: "/s", Bytes: 1 << 20, NumQueues: 2, Engine: "io_uring", Domain: "hdd", Scheduler: f.active, Reason: "asked for"}
	e := d
	e.ID, e.ReadOnly, e.Connected = "b", true, true
	return []Disk{d, e}
}

func (f *fake) Stat() []DiskStat { return f.stat }

func (f *fake) Scheduler(string) (Scheduler, error) {
	return Scheduler{Domain: "hdd", Active: f.active, Available: available, Disks: []string{"a", "b"}, Reason: "asked for"}, nil
}

func (f *fake) SetScheduler(_, name string) error {
	if !slices.Contains(available, name) {
		return fmt.Errorf("scheduler %q is unknown; there are %v", name, available)
	}
	f.active = name
	return nil
}

func (f *fake) Set(_, key, value string) error {
	if key != "read_expire" {
		return fmt.Errorf("there is no knob %q", key)
	}
	f.expire = value
	return nil
}

func (f *fake) Tunables(string) ([]Tunable, error) {
	return []Tunable{{Name: "read_expire", Value: f.expire, Valid: "0 to 2147483647", Unit: "ms", ByHand: f.expire != "500"}}, nil
}

func (f *fake) Describe(_ string, w io.Writer) error {
	if f.busy != nil {
		<-f.busy
	}
	_, err := fmt.Fprintf(w, "%s: 3 queued\n", f.active)
	return err
}

// sample are statistics in which no two numbers are the same.
func sample() DiskStat {
	d := DiskStat{ID: "a", Domain: "hdd", Queues: make([]device.Stats, 2)}
	n := uint64(0)
	next := func() uint64 { n++; return n }
	for q := range d.Queues {
		s := &d.Queues[q]
		for i := range s.Op {
			s.Op[i] = device.OpStats{IOs: 1000 * next(), Merges: 100 * next(), Sectors: 8000 * next(), Time: 1e9 * next(), Errors: next()}
		}
		s.InFlight, s.Held, s.IOTime, s.Calls, s.Broken = int(next()), int(next()), 1e9*next(), next(), next()
		s.Faults[1] = next()
		s.Latency = device.NewHistograms()
		for i, h := range s.Latency {
			for k := range int64(1000) {
				_ = h.RecordValue(int64(i+1) * (k + 1) * 1000)
			}
		}
		d.Total.Add(s)
		d.DomainStats.Add(s)
	}
	d.Total.IOTime, d.DomainStats.IOTime = 1e9*next(), 1e9*next()
	for p := range d.DomainStats.Merges.Merged {
		for w := range d.DomainStats.Merges.Merged[p] {
			d.DomainStats.Merges.Merged[p][w] = next()
		}
	}
	for r := range d.DomainStats.Merges.Refused {
		d.DomainStats.Merges.Refused[r] = next()
	}
	d.DomainStats.Merges.Sectors = next()
	d.DomainStats.Scheduler, d.DomainStats.Queued, d.DomainStats.Depth = "deadline", int(next()), int(next())
	d.DomainStats.Counters = sched.Counters{Batches: next(), Expired: next(), Starved: next(), Aged: next(), Slices: next(),
		Extensions: next(), EarlyEnds: next(), Idled: next(), Preempted: next(), LongestWait: blk.Instant(next())}
	return d
}

// start serves c on a socket of its own until the test ends.
func start(t *testing.T, c Control, change func(*Server)) (path string) {
	t.Helper()
	path = t.TempDir() + "/ctl"
	s, err := Listen(path, c, zap.NewNop())
	require.NoError(t, err)
	if change != nil {
		change(s)
	}
	serve(t, s)
	return path
}

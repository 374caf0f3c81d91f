package device

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/elevisor/elevisor/backend"
	"github.com/elevisor/elevisor/blk"
	"github.com/elevisor/elevisor/sched"
)

// What an operator can do with a running domain. All functions here run on the loop's
// goroutine, by Do.

// DepthMax is the largest number of requests on a domain's disks at a time.
const DepthMax = 1024

// DefaultConfig is the default for the schedulers of a domain. A group is limited by the
// kernel's default of max_sectors_kb, and by what one readv takes.
func DefaultConfig(rotational bool) *sched.Config {
	return &sched.Config{Rotational: rotational, MaxSectors: 1280 << 10 / blk.SectorSize, MaxSegments: 1024}
}

// Switch replaces the scheduler while requests are queued and in flight. What is queued
// moves to s in the order of arrival, unmerged; what is on the disk completes at the
// scheduler that dispatched it. It returns how many there were of each.
func (l *Loop) Switch(s sched.Scheduler) (queued, onDisk int) {
	old := l.sched
	l.sched = s
	moved := old.Drain(blk.AllSources, nil)
	for _, r := range moved {
		s.Insert(l.now, r)
	}
	return len(moved), l.inflight
}

// Config is what the loop's schedulers are made with. Only the loop's goroutine changes it.
func (l *Loop) Config() *sched.Config { return l.config }

// Scheduler is the present one. Lent, for use within one Do.
func (l *Loop) Scheduler() sched.Scheduler { return l.sched }

// Depth is the most requests that the loop has on its disks at a time, apart from those
// that go past the scheduler.
func (l *Loop) Depth() int { return l.depth }

// SetDepth changes Depth, between 1 and what the loop was made for.
func (l *Loop) SetDepth(n int) error {
	if n < 1 || n > l.depthMax {
		return fmt.Errorf("queue-depth=%d is out of range 1 to %d", n, l.depthMax)
	}
	l.depth = n
	return nil
}

// Set changes a knob of the domain or of its scheduler; hyphens and underscores in
// key are the same.
func (l *Loop) Set(key, value string) error {
	c := l.config
	number := func(lo, hi int, set func(n int)) error {
		n, err := strconv.Atoi(value)
		if err != nil || n < lo || n > hi {
			return fmt.Errorf("%s=%q is not a number from %d to %d", key, value, lo, hi)
		}
		set(n)
		return nil
	}
	switch strings.ReplaceAll(key, "-", "_") {
	case "queue_depth":
		return number(1, l.depthMax, func(n int) { l.depth = n })
	case "nomerges":
		return number(0, 2, func(n int) { c.NoMerges = n })
	case "max_sectors_kb":
		return number(4, 1<<20, func(n int) { c.MaxSectors = blk.Sector(2 * n) })
	}
	names := []string{}
	for _, i := range l.Tunables() {
		names = append(names, i.Name)
	}
	if !slices.Contains(names, strings.ReplaceAll(key, "-", "_")) {
		return fmt.Errorf("there is no knob %q; there are %s", key, strings.Join(names, ", "))
	}
	return sched.Set(l.sched, key, value)
}

// Tunables lists what Set takes: the domain's own knobs and then its scheduler's.
func (l *Loop) Tunables() []sched.Info {
	c := l.config
	return append([]sched.Info{
		{Name: "queue_depth", Value: strconv.Itoa(l.depth), Valid: fmt.Sprintf("1 to %d", l.depthMax), Unit: "requests"},
		{Name: "nomerges", Value: strconv.Itoa(c.NoMerges), Valid: "0 to 2"},
		{Name: "max_sectors_kb", Value: strconv.Itoa(int(c.MaxSectors / 2)), Valid: "4 to 1048576", Unit: "KiB"},
	}, sched.Tunables(l.sched)...)
}

// Stats copies the domain's statistics, except for the latencies, which its devices have.
func (l *Loop) Stats() (s DomainStats) {
	for _, q := range l.queues {
		one := q.snapshot(l.now)
		s.Add(&one)
	}
	s.IOTime = uint64(l.meter.total(l.now))
	s.Queued, s.Depth, s.Merges = l.sched.Len(), l.depth, l.config.Merges
	sched.Count(l.sched, &s.Counters)
	return s
}

// Simulated copies the counts of the simulated drive of the image at index; nil if it has
// none.
func (l *Loop) Simulated(index int) *backend.SimStats {
	d := l.disks[index].simulated
	if d == nil {
		return nil
	}
	s := d.Simulated()
	return &s
}

// Recorder is the recorder of the image at index; nil if it has none. Lent, for use within
// one Do.
func (l *Loop) Recorder(index int) backend.Recorder { return l.disks[index].recorder }

// Describe prints the domain's state for people.
func (l *Loop) Describe(w io.Writer) {
	fmt.Fprintf(w, "queue-depth %d, %d on the disks, %d queued\n", l.depth, l.inflight, l.sched.Len())
	l.sched.Describe(w)
}

package daemon

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/elevisor/elevisor/backend"
	"github.com/elevisor/elevisor/daemon/ctl"
	"github.com/elevisor/elevisor/device"
	"github.com/elevisor/elevisor/sched"
)

// Daemon implements ctl.Control. Calls that come while it is closing find no disks.

// List implements ctl.Control.
func (d *Daemon) List() (list []ctl.Disk) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, s := range d.disks {
		info := s.image.Info()
		list = append(list, ctl.Disk{
			ID: s.spec.ID, Path: s.spec.Path, Socket: s.spec.Socket, Bytes: s.device.Capacity().Bytes(),
			ReadOnly: s.device.ReadOnly(), NumQueues: s.device.Count(), Engine: info.Engine,
			Domain: s.domain.id, Scheduler: s.domain.kind.Name, Reason: s.domain.reason, Connected: s.server.Connected(),
		})
	}
	return list
}

// Stat implements ctl.Control.
func (d *Daemon) Stat() (list []ctl.DiskStat) {
	d.mu.Lock()
	defer d.mu.Unlock()
	domains := map[*domain]*device.DomainStats{}
	for _, s := range d.disks {
		x := domains[s.domain]
		if x == nil {
			stats := s.domain.stats()
			x = &stats
			domains[s.domain] = x
		}
		total, queues := s.device.Stats()
		x.Add(&device.Stats{Latency: total.Latency})
		list = append(list, ctl.DiskStat{ID: s.spec.ID, Domain: s.domain.id, Total: total, Queues: queues, Simulated: s.simulated(), Recorded: s.recorded()})
	}
	for i, s := range d.disks {
		list[i].DomainStats = *domains[s.domain]
	}
	return list
}

// simulated returns the counts of s's drive; nil if it is a real one.
func (s *served) simulated() (x *backend.SimStats) {
	l := s.domain.loops[0]                                   // a simulated drive has only one
	_ = l.Do(func() { x = l.Simulated(s.image.disk.Index) }) // an ended loop has no counts
	return x
}

// recorded returns what the loops have counted of s's image; nil without record=on.
func (s *served) recorded() (x *backend.RecorderStats) {
	for _, l := range slices.Concat(s.domain.loops, s.domain.idle) {
		_ = l.Do(func() { // an ended loop has no counts
			if r := l.Recorder(s.image.disk.Index); r != nil {
				if x == nil {
					x = &backend.RecorderStats{}
				}
				x.Add(r.Recorded())
			}
		})
	}
	return x
}

// Trace makes the disk's image keep the next n requests that are issued to it, for Traced.
// The disk must have been opened with Record.
func (d *Daemon) Trace(disk string, n int) error {
	return d.recorder(disk, func(r backend.Recorder) { r.Trace(n) })
}

// Traced returns the requests kept since Trace, of the first loop if there are several.
func (d *Daemon) Traced(disk string) (kept []backend.Access, err error) {
	return kept, d.recorder(disk, func(r backend.Recorder) { kept = r.Traced() })
}

func (d *Daemon) recorder(disk string, do func(backend.Recorder)) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	s, err := d.find(disk)
	if err != nil {
		return err
	}
	l, found := s.domain.loops[0], false
	if err := l.Do(func() {
		if r := l.Recorder(s.image.disk.Index); r != nil {
			found = true
			do(r)
		}
	}); err != nil {
		return err
	}
	if !found {
		return fmt.Errorf("nothing is recorded of disk %s: it was opened without record=on", disk)
	}
	return nil
}

// Scheduler implements ctl.Control.
func (d *Daemon) Scheduler(disk string) (ctl.Scheduler, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	s, err := d.find(disk)
	if err != nil {
		return ctl.Scheduler{}, err
	}
	x := ctl.Scheduler{Domain: s.domain.id, Active: s.domain.kind.Name, Available: sched.Names, Reason: s.domain.reason}
	for _, other := range d.disks {
		if other.domain == s.domain {
			x.Disks = append(x.Disks, other.spec.ID)
		}
	}
	return x, nil
}

// SetScheduler implements ctl.Control.
func (d *Daemon) SetScheduler(disk, name string) error {
	_, err := d.Switch(disk, name)
	return err
}

// Switch replaces the scheduler of the disk's domain, under load. After an error the old
// one continues.
func (d *Daemon) Switch(disk, name string) (Switched, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	s, err := d.find(disk)
	if err != nil {
		return Switched{}, err
	}
	return s.domain.switchTo(name)
}

// Set implements ctl.Control.
func (d *Daemon) Set(disk, key, value string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	s, err := d.find(disk)
	if err != nil {
		return err
	}
	return s.domain.set(key, value)
}

// Tunables implements ctl.Control.
func (d *Daemon) Tunables(disk string) ([]ctl.Tunable, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	s, err := d.find(disk)
	if err != nil {
		return nil, err
	}
	return s.domain.tunables()
}

// Describe implements ctl.Control.
func (d *Daemon) Describe(disk string, w io.Writer) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	s, err := d.find(disk)
	if err != nil {
		return err
	}
	for _, l := range s.domain.loops {
		var text strings.Builder // so that the loop does not wait for w
		if err := l.Do(func() { l.Describe(&text) }); err != nil {
			return err
		}
		if _, err := io.WriteString(w, text.String()); err != nil {
			return err
		}
	}
	_, err = io.WriteString(w, s.domain.hand.describe(s.domain.kind))
	return err
}

// DomainStats are the statistics of the disk's domain.
func (d *Daemon) DomainStats(disk string) (device.DomainStats, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	s, err := d.find(disk)
	if err != nil {
		return device.DomainStats{}, err
	}
	return s.domain.stats(), nil
}

// find returns the disk called id. The caller holds d.mu.
func (d *Daemon) find(id string) (*served, error) {
	ids := make([]string, 0, len(d.disks))
	for _, s := range d.disks {
		if s.spec.ID == id {
			return s, nil
		}
		ids = append(ids, s.spec.ID)
	}
	return nil, fmt.Errorf("there is no disk %q; there are %s", id, strings.Join(ids, ", "))
}

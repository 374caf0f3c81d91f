package qemu

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/elevisor/elevisor/backend"
	"github.com/elevisor/elevisor/blk"
	"github.com/elevisor/elevisor/daemon"
	"github.com/elevisor/elevisor/daemon/ctl"
	"github.com/elevisor/elevisor/device"
	"github.com/elevisor/elevisor/lab/plan"
	"github.com/elevisor/elevisor/lab/worlds/measure"
	"github.com/elevisor/elevisor/sched"
)

const (
	// domainID is the scheduling domain in which all VMs' requests meet.
	domainID = "compare"
	// windowAlign is what the VMs' parts of an image begin at multiples of, in bytes.
	windowAlign = 1 << 20
	// defaultQueueSize is the disk's where a cell says nothing, in entries.
	defaultQueueSize = 128
)

// server serves one run's disks in this process.
type server struct {
	*daemon.Daemon
	sockets []string // by VM
	stop    context.CancelFunc
	ended   chan error
}

// image is what is known of a disk before it is served.
type image struct {
	bytes int64
	cache backend.Cache
	note  string // why not the cache that is best for measuring
}

// look opens a disk for a moment.
func (w *world) look(words string) (image, error) {
	if i, known := w.sizes[words]; known {
		return i, nil
	}
	var i image
	o := backend.Options{Discard: true}
	if inFile(words) {
		o.Cache, _ = backend.ParseCache("none")
	}
	img, err := backend.Open(words, o)
	if err != nil && inFile(words) { // an old tmpfs, say, knows no O_DIRECT
		first := err
		o.Cache = backend.Options{}.Cache
		if img, err = backend.Open(words, o); err == nil {
			i.note = fmt.Sprintf("The image is in the host's page cache, because it cannot be opened with O_DIRECT (%v).", first)
		}
	}
	if err != nil {
		return i, err
	}
	i.bytes, i.cache = img.Info().Sectors.Bytes(), o.Cache
	if err := img.Close(); err != nil {
		return i, err
	}
	w.sizes[words] = i
	return i, nil
}

// inFile says whether a disk's words are a path.
func inFile(words string) bool {
	sim, _ := backend.IsSim(words)
	return !sim && !strings.HasPrefix(words, "mem:") && !strings.HasPrefix(words, "null:")
}

// window is the size of each VM's part of an image.
func window(bytes int64, vms int) int64 { return bytes / int64(vms) / windowAlign * windowAlign }

// plan says what to serve for a run.
func (w *world) plan(s *plan.Spec) (disks []daemon.Disk, d daemon.Domain, err error) {
	i, err := w.look(s.Disk)
	if err != nil {
		return nil, d, err
	}
	part := window(i.bytes, s.VMs)
	if part == 0 {
		return nil, d, fmt.Errorf("disk %s of %d bytes is too small for %d VMs: want %d for each", s.Disk, i.bytes, s.VMs, windowAlign)
	}
	dir, err := w.scratch()
	if err != nil {
		return nil, d, err
	}
	w.serial++
	slow := w.o.Slow
	if s.IOPS > 0 {
		slow.IOPS = s.IOPS
	}
	for n := range s.VMs {
		disk := daemon.Disk{
			ID: serverDisk(n), Path: s.Disk, Socket: filepath.Join(dir, fmt.Sprintf("%d-%d.sock", w.serial, n)),
			NumQueues: max(s.Queues, 1), QueueSize: queueSize(&s.Cell), SegMax: plan.Segments,
			Offset: int64(n) * part, Size: part, Cache: i.cache, Domain: domainID, Slow: slow, Shared: true, Record: true,
		}
		disks = append(disks, disk)
	}
	d = daemon.Domain{ID: domainID, Scheduler: s.Host.Name, QueueDepth: s.Depth}
	d.Knobs = append(d.Knobs, s.Host.Knobs...)
	return disks, d, nil
}

// queueSize is how many entries each virtqueue has.
func queueSize(c *plan.Cell) int {
	if c.QSize == 0 {
		return defaultQueueSize
	}
	return c.QSize
}

// serve opens a run's disks.
func (w *world) serve(s *plan.Spec) (*server, error) {
	srv := &server{ended: make(chan error, 1)}
	disks, domain, err := w.plan(s)
	if err != nil {
		return nil, err
	}
	if srv.Daemon, err = daemon.Open(disks, []daemon.Domain{domain}, w.log); err != nil {
		return nil, err
	}
	for _, d := range disks {
		srv.sockets = append(srv.sockets, d.Socket)
	}
	var ctx context.Context
	ctx, srv.stop = context.WithCancel(context.Background())
	go func() { srv.ended <- srv.Run(ctx) }()
	return srv, nil
}

// close ends the server; an error is that of its sockets, while it served.
func (s *server) close() error {
	s.stop()
	return <-s.ended
}

// serverDisk is the n-th VM's disk, as the server calls it. All are windows of one image.
func serverDisk(n int) string { return fmt.Sprintf("vm%d", n) }

// counts are what the server has counted so far of all disks together.
func (s *server) counts() ctl.DiskStat { return s.Stat()[0] }

// diskCounts is what reached the image between two readings, but for the sums, which
// hostCounts has. Of a simulated drive, its own count is in it.
func diskCounts(before, after *ctl.DiskStat) plan.Disk {
	record := after.Recorded.Since(*before.Recorded)
	if after.Simulated == nil {
		return measure.Disk(&record, nil, nil)
	}
	return measure.Disk(&record, &before.Simulated.Model, &after.Simulated.Model)
}

// dataOps are the operations that are scheduled.
var dataOps = []blk.Op{blk.OpRead, blk.OpWrite, blk.OpDiscard, blk.OpWriteZeroes}

// hostCounts is what the host's scheduler did between two readings.
func hostCounts(before, after *device.DomainStats) (m plan.Merging, d plan.Disk) {
	m.Known = true
	for _, op := range dataOps {
		m.Issued += after.Op[op].IOs - before.Op[op].IOs
		d.Sectors += after.Op[op].Sectors - before.Op[op].Sectors
	}
	who := [sched.WhoCount]*uint64{sched.SameQueue: &m.SameQueue, sched.OtherQueue: &m.CrossQueue, sched.OtherVM: &m.CrossVM}
	for p := range after.Merges.Merged {
		for i, n := range after.Merges.Merged[p] {
			*who[i] += n - before.Merges.Merged[p][i]
		}
	}
	for r, n := range after.Merges.Refused {
		m.Refused[r] = n - before.Merges.Refused[r]
	}
	m.Merged = m.SameQueue + m.CrossQueue + m.CrossVM
	m.Submitted = m.Merged + m.Issued
	d.Requests = m.Issued
	return m, d
}

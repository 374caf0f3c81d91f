package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"

	"github.com/elevisor/elevisor/backend"
	"github.com/elevisor/elevisor/blk"
	"github.com/elevisor/elevisor/device"
	"github.com/elevisor/elevisor/vhost"
	"go.uber.org/zap"
)

// defaultQueues is how many virtqueues a disk has by default. QEMU wants one per virtual
// CPU by default; it may use fewer, and 16 are enough for all but the largest VMs.
const defaultQueues = 16

// Daemon serves a set of disks.
type Daemon struct {
	log *zap.Logger

	mu      sync.Mutex // guards the lists and the domains; one reader of statistics, switch or knob at a time, none during Close
	images  []*image
	domains []*domain
	disks   []*served
}

// served is one disk and what belongs to it.
type served struct {
	spec   Disk
	image  *image
	domain *domain
	device *device.Device
	server *vhost.Server
	log    *zap.Logger
}

// Open opens all disks and their sockets. After an error none is open.
func Open(disks []Disk, domains []Domain, log *zap.Logger) (_ *Daemon, err error) {
	d := &Daemon{log: log}
	defer func() {
		if err != nil {
			d.Close()
		}
	}()
	if err = d.plan(disks, domains); err != nil {
		return nil, err
	}
	loops := 0
	for _, x := range d.domains {
		loops += max(x.spec.Workers, 1)
	}
	giveProcessors(loops)
	for _, x := range d.domains {
		if err = x.start(d.engine(x)); err != nil {
			return nil, fmt.Errorf("domain %s: %w", x.id, err)
		}
	}
	for _, s := range d.disks {
		if err = s.open(); err != nil {
			return nil, fmt.Errorf("disk %s: %w", s.spec.ID, err)
		}
	}
	return d, nil
}

// plan opens the images and decides which disk is in which domain.
func (d *Daemon) plan(disks []Disk, domains []Domain) error {
	for _, spec := range domains {
		for _, x := range d.domains {
			if x.id == spec.ID {
				return fmt.Errorf("domain id %q is used twice", spec.ID)
			}
		}
		d.addDomain(spec)
	}
	ids := map[string]bool{}
	for _, spec := range disks {
		if spec.ID == "" {
			spec.ID = defaultID(spec.Path)
		}
		if err := spec.check(); err != nil {
			return err
		}
		if ids[spec.ID] {
			return fmt.Errorf("disk id %q is used twice", spec.ID)
		}
		ids[spec.ID] = true
		s := &served{spec: spec, log: d.log.With(zap.String("disk", spec.ID))}
		d.disks = append(d.disks, s)
		var err error
		if s.image, err = d.image(spec, disks, s.log); err == nil {
			s.domain, err = d.domainOf(spec, s.image)
		}
		if err != nil {
			return fmt.Errorf("disk %s: %w", spec.ID, err)
		}
	}
	return errors.Join(d.emptyDomain(), d.overlap())
}

// emptyDomain returns an error if there is a domain without a disk.
func (d *Daemon) emptyDomain() error {
	var empty *domain
	used := []string{}
	for _, x := range d.domains {
		if len(x.images) == 0 {
			empty = x
		} else {
			used = append(used, x.id)
		}
	}
	if empty == nil {
		return nil
	}
	return fmt.Errorf("domain %s has no disk; the disks are in %s (a disk joins one by domain=NAME)", empty.id, strings.Join(used, ", "))
}

// overlap returns an error if two disks can write to the same part of an image.
func (d *Daemon) overlap() error {
	for i, a := range d.disks {
		for _, b := range d.disks[:i] {
			if a.image != b.image || a.spec.ReadOnly || b.spec.ReadOnly || a.spec.NoLock {
				continue
			}
			aFrom, aTo := a.window()
			bFrom, bTo := b.window()
			if aFrom < bTo && bFrom < aTo {
				return fmt.Errorf("disks %s and %s may both write bytes %d to %d of %s; give them windows apart (offset, size), make one read-only, or say lock=off",
					b.spec.ID, a.spec.ID, max(aFrom, bFrom), min(aTo, bTo)-1, a.image.path)
			}
		}
	}
	return nil
}

// window is the part of the image that is the disk, in bytes.
func (s *served) window() (from, to int64) {
	to = s.image.Info().Sectors.Bytes()
	if s.spec.Size > 0 {
		to = min(to, s.spec.Offset+s.spec.Size)
	}
	return s.spec.Offset, to
}

// engine is how the loops of x wait: with epoll if all its images are served by threads,
// with io_uring or not at all if one of them demands it, otherwise with what there is.
func (d *Daemon) engine(x *domain) device.Engine {
	threads, uring := true, false
	for _, i := range x.images {
		threads = threads && i.opts.AIO == backend.AIOThreads
		uring = uring || i.opts.AIO == backend.AIOURing
	}
	switch {
	case threads:
		return device.EnginePoll
	case uring:
		return device.EngineURing
	}
	return device.EngineAuto
}

// giveProcessors raises GOMAXPROCS, as a loop keeps one of Go's processors while it waits
// in the kernel, and everything else needs some as well.
func giveProcessors(loops int) {
	if want := max(loops+2, 4); os.Getenv("GOMAXPROCS") == "" && runtime.GOMAXPROCS(0) < want {
		runtime.GOMAXPROCS(want)
	}
}

// defaultID names a disk after its image.
func defaultID(path string) string {
	if sim, _ := backend.IsSim(path); sim || anonymous(path) {
		kind, _, _ := strings.Cut(path, ":")
		return kind
	}
	return filepath.Base(path)
}

// open makes the device, on the loops of its domain, and its socket.
func (s *served) open() (err error) {
	spec := &s.spec
	s.device, err = device.New(device.Options{
		ID: spec.ID, Serial: spec.Serial, Disk: s.image.disk, Info: s.image.Info(), Loops: s.domain.loops, Index: uint16(len(s.domain.devices)),
		NumQueues: cmp.Or(spec.NumQueues, defaultQueues), QueueSize: spec.QueueSize, SegMax: spec.SegMax, SizeMax: spec.SizeMax,
		Offset: blk.Sector(spec.Offset / blk.SectorSize), Size: blk.Sector(spec.Size / blk.SectorSize),
		ReadOnly: spec.ReadOnly, MaxDiscardSeg: spec.DiscardSeg, Prio: spec.Prio,
		WriteCache: !spec.Cache.Through(),
		MaxDiscard: spec.MaxDiscard, MaxWriteZeroes: spec.MaxWriteZeroes, DiscardAlignment: spec.DiscardAlignment,
		MaxWriteZeroesSeg: spec.MaxWriteZeroesSeg, Log: s.log,
	})
	if err != nil {
		return err
	}
	s.domain.devices = append(s.domain.devices, s.device)
	if spec.FD != 0 {
		s.server, err = vhost.FromFD(spec.FD, s.log)
	} else {
		s.server, err = vhost.Listen(spec.Socket, s.log)
	}
	return err
}

// Run serves until ctx ends, or every disk's only client has gone, and closes
// everything.
func (d *Daemon) Run(ctx context.Context) error {
	defer d.Close()
	all, stop := context.WithCancel(ctx)
	defer stop()
	var wg sync.WaitGroup
	d.mu.Lock()
	disks := d.disks
	d.mu.Unlock()
	errs := make([]error, len(disks))
	for _, s := range disks {
		s.announce()
	}
	for i, s := range disks {
		wg.Go(func() {
			if err := s.server.Serve(all, s.device, s.device); err != nil {
				errs[i] = fmt.Errorf("disk %s: %w", s.spec.ID, err)
				stop() // nobody can reach this disk any more: let the supervisor see it
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

func (s *served) announce() {
	info := s.image.Info()
	fields := []zap.Field{
		zap.String("path", s.spec.Path), zap.Int64("bytes", s.device.Capacity().Bytes()), zap.Bool("read-only", s.device.ReadOnly()),
		zap.String("aio", info.Engine), zap.Bool("direct", info.Direct), zap.String("domain", s.domain.id),
	}
	if s.spec.FD != 0 {
		s.log.Info("serving", append(fields, zap.Int("fd", s.spec.FD))...)
		return
	}
	s.log.Info("listening", append(fields, zap.String("socket", s.spec.Socket))...)
}

// Close ends all disks.
func (d *Daemon) Close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, s := range d.disks {
		if s.server != nil {
			s.server.Close()
		}
	}
	for _, x := range d.domains {
		x.stop()
	}
	for _, i := range d.images {
		if err := i.Close(); err != nil {
			d.log.Error("image did not close cleanly", zap.String("path", i.path), zap.Error(err))
		}
	}
	d.disks, d.domains, d.images = nil, nil, nil
}

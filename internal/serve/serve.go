package serve

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/elevisor/elevisor/backend"
	"github.com/elevisor/elevisor/blk"
	"github.com/elevisor/elevisor/device"
	"github.com/elevisor/elevisor/internal/clock"
	"github.com/elevisor/elevisor/sched"
	"github.com/elevisor/elevisor/vhost"
	"go.uber.org/zap"
)

// depth is how many requests a loop keeps on its disks at a time.
const depth = 256

// Daemon is a set of disks that are being served.
type Daemon struct {
	log   *zap.Logger
	disks []*served
}

// served is one disk with all that belongs to it.
type served struct {
	spec   Disk
	image  backend.Image
	loop   *device.Loop
	device *device.Device
	server *vhost.Server
	log    *zap.Logger
}

// Open opens all disks and their sockets; with an error, none stays open.
func Open(disks []Disk, log *zap.Logger) (*Daemon, error) {
	d := &Daemon{log: log}
	giveProcessors(len(disks))
	ids := map[string]bool{}
	for _, spec := range disks {
		if spec.ID == "" {
			spec.ID = defaultID(spec.Path)
		}
		err := spec.check()
		if err == nil && ids[spec.ID] {
			err = fmt.Errorf("disk id %q is used twice", spec.ID)
		}
		ids[spec.ID] = true
		var s *served
		if err == nil {
			s, err = open(spec, log.With(zap.String("disk", spec.ID)))
		}
		if err != nil {
			d.Close()
			return nil, err
		}
		d.disks = append(d.disks, s)
	}
	return d, nil
}

// giveProcessors sees to it that a loop that waits in the kernel, and keeps its
// processor of Go's while it does, leaves some for everybody else.
func giveProcessors(loops int) {
	if want := max(loops+2, 4); os.Getenv("GOMAXPROCS") == "" && runtime.GOMAXPROCS(0) < want {
		runtime.GOMAXPROCS(want)
	}
}

// defaultID names a disk after its image.
func defaultID(path string) string {
	if kind, _, ok := strings.Cut(path, ":"); ok && (kind == "mem" || kind == "null") {
		return kind
	}
	return filepath.Base(path)
}

func open(spec Disk, log *zap.Logger) (_ *served, err error) {
	s := &served{spec: spec, log: log}
	defer func() {
		if err != nil {
			err = fmt.Errorf("disk %s: %w", spec.ID, err)
			s.close()
		}
	}()
	if s.image, err = openImage(spec, log); err != nil {
		return nil, err
	}
	engine := device.EngineAuto
	switch spec.AIO {
	case backend.AIOURing:
		engine = device.EngineURing
	case backend.AIOThreads:
		engine = device.EnginePoll
	}
	loop := device.NewLoop(&sched.None{}, depth)
	info := s.image.Info()
	image := &blk.Disk{Name: spec.ID, Sectors: info.Sectors}
	err = loop.Start(engine, clock.Start().Now, log, func(h backend.Host) (err error) {
		image.Index, err = loop.Attach(s.image, h)
		return err
	})
	if err != nil {
		return nil, err
	}
	s.loop = loop
	s.device, err = device.New(device.Options{
		ID: spec.ID, Serial: spec.Serial, Disk: image, Info: info, Loops: []*device.Loop{loop},
		NumQueues: spec.NumQueues, QueueSize: spec.QueueSize, SegMax: spec.SegMax, SizeMax: spec.SizeMax,
		Offset: blk.Sector(spec.Offset / blk.SectorSize), Size: blk.Sector(spec.Size / blk.SectorSize),
		ReadOnly: spec.ReadOnly, MaxDiscardSeg: spec.DiscardSeg,
		WriteCache: !spec.Cache.Through(),
		MaxDiscard: spec.MaxDiscard, MaxWriteZeroes: spec.MaxWriteZeroes, DiscardAlignment: spec.DiscardAlignment,
		MaxWriteZeroesSeg: spec.MaxWriteZeroesSeg, Log: log,
	})
	if err != nil {
		return nil, err
	}
	if spec.FD != 0 {
		s.server, err = vhost.FromFD(spec.FD, log)
	} else {
		s.server, err = vhost.Listen(spec.Socket, log)
	}
	return s, err
}

// A predecessor that was killed holds its lock until the kernel has finished what
// it had in flight; then the lock is ours. Whoever holds it longer is alive.
const (
	lockWait  = 5 * time.Second
	lockRetry = 5 * time.Millisecond
)

func openImage(spec Disk, log *zap.Logger) (backend.Image, error) {
	waiting := false
	for end := clock.Start(); ; clock.Sleep(lockRetry) {
		image, err := backend.Open(spec.Path, backend.Options{
			ReadOnly: spec.ReadOnly, Cache: spec.Cache, AIO: spec.AIO, Lock: !spec.NoLock, Discard: !spec.NoDiscard,
			LogicalBlock: uint32(spec.LogicalBlock), PhysicalBlock: uint32(spec.PhysicalBlock),
		})
		if !errors.Is(err, backend.ErrLocked) || end.Now() > blk.Instant(lockWait) {
			return image, err
		}
		if !waiting {
			log.Info("image is locked; waiting", zap.String("path", spec.Path), zap.Duration("at most", lockWait))
			waiting = true
		}
	}
}

// Run serves until ctx ends, or every disk's only client has gone, and closes
// everything.
func (d *Daemon) Run(ctx context.Context) error {
	defer d.Close()
	all, stop := context.WithCancel(ctx)
	defer stop()
	var wg sync.WaitGroup
	errs := make([]error, len(d.disks))
	for i, s := range d.disks {
		wg.Go(func() {
			s.announce()
			if err := s.server.Serve(all, s.device, s.device); err != nil {
				errs[i] = fmt.Errorf("disk %s: %w", s.spec.ID, err)
				stop() // a disk that nobody can reach any more: let the supervisor see it
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

func (s *served) announce() {
	info := s.image.Info()
	fields := []zap.Field{
		zap.String("path", s.spec.Path), zap.Int64("bytes", info.Sectors.Bytes()), zap.Bool("read-only", info.ReadOnly),
		zap.String("aio", info.Engine), zap.Bool("direct", info.Direct),
	}
	if s.spec.FD != 0 {
		s.log.Info("serving", append(fields, zap.Int("fd", s.spec.FD))...)
		return
	}
	s.log.Info("listening", append(fields, zap.String("socket", s.spec.Socket))...)
}

// Stats is what disk id has done so far.
func (d *Daemon) Stats(id string) (device.QueueStats, error) {
	for _, s := range d.disks {
		if s.spec.ID == id {
			return s.device.Stats(), nil
		}
	}
	return device.QueueStats{}, fmt.Errorf("there is no disk %q", id)
}

// Close ends all disks; the sockets are closed already, or were never served.
func (d *Daemon) Close() {
	for _, s := range d.disks {
		s.close()
	}
	d.disks = nil
}

func (s *served) close() {
	if s.server != nil {
		s.server.Close()
	}
	if s.loop != nil {
		s.loop.Stop()
	}
	if s.image != nil {
		if err := s.image.Close(); err != nil {
			s.log.Error("image did not close cleanly", zap.Error(err))
		}
	}
}

package device

import (
	"github.com/elevisor/elevisor/backend"
	"github.com/elevisor/elevisor/blk"
	"github.com/elevisor/elevisor/sched"
)

// Single is a device with a loop of its own.
type Single struct {
	*Device
	loop *Loop
}

// NewSingle makes a device and a loop for it, and starts the loop: the short way for a
// disk that shares its image and its physical disk with no other. kind is the scheduler,
// as sched.Find returns it, and now the loop's clock. Of o, Disk, Info and Loops are
// filled in. img stays the caller's, and open until the device is closed.
func NewSingle(img backend.Image, kind sched.Kind, now func() blk.Instant, o Options) (*Single, error) {
	o.Info = img.Info()
	o.Disk = &blk.Disk{Name: o.ID, Sectors: o.Info.Sectors, Base: o.Info.Physical.Base}
	c := DefaultConfig(o.Info.Rotational)
	l := NewLoop(kind.New(c), c, kind.Depth)
	err := l.Start(EngineAuto, now, o.Log, func(h backend.Host) (err error) {
		o.Disk.Index, err = l.Attach(img, h)
		return err
	})
	if err != nil {
		return nil, err
	}
	o.Loops = []*Loop{l}
	d, err := New(o)
	if err != nil {
		l.Stop()
		return nil, err
	}
	return &Single{d, l}, nil
}

// Close ends the loop. The device's queues are stopped before, as they are when
// vhost.Server.Serve has returned.
func (s *Single) Close() { s.loop.Stop() }

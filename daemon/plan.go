package daemon

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/elevisor/elevisor/backend"
	"github.com/elevisor/elevisor/blk"
	"github.com/elevisor/elevisor/sys/clock"
	"go.uber.org/zap"
)

// image is one opened image, with the disks that are windows of it.
type image struct {
	backend.Image
	path   string
	opts   backend.Options
	disk   *blk.Disk
	domain *domain
}

// options are the options of spec's image.
func (spec *Disk) options() backend.Options {
	return backend.Options{
		ReadOnly: spec.ReadOnly, Cache: spec.Cache, AIO: spec.AIO, Lock: !spec.NoLock, Discard: !spec.NoDiscard,
		LogicalBlock: uint32(spec.LogicalBlock), PhysicalBlock: uint32(spec.PhysicalBlock),
	}
}

// image opens spec's image, or finds it among those that are open. Disks with the same path
// are windows of one image, which is read-only if all of them are.
func (d *Daemon) image(spec Disk, all []Disk, log *zap.Logger) (*image, error) {
	path, opts, record := imagePath(spec.Path), spec.options(), spec.Record
	for _, other := range all {
		if imagePath(other.Path) == path {
			opts.ReadOnly = opts.ReadOnly && other.ReadOnly
			record = record || other.Record && (!anonymous(path) || spec.Shared)
		}
	}
	for _, i := range d.images {
		if i.path != path || anonymous(path) && !spec.Shared {
			continue
		}
		if i.opts != opts {
			return nil, fmt.Errorf("disks on the image %s ask for different things of it: %+v and %+v", path, i.opts, opts)
		}
		return i, nil
	}
	b, err := openImage(path, opts, log)
	if err != nil {
		return nil, err
	}
	if spec.Slow != (backend.RateOptions{}) {
		b = backend.NewRate(b, spec.Slow)
	}
	if record {
		b = backend.NewRecorder(b)
	}
	info := b.Info()
	i := &image{Image: b, path: path, opts: opts, disk: &blk.Disk{Name: spec.ID, Sectors: info.Sectors, Base: info.Physical.Base}}
	d.images = append(d.images, i)
	return i, nil
}

// imagePath returns one path for all paths of a file.
func imagePath(path string) string {
	if sim, _ := backend.IsSim(path); sim || anonymous(path) {
		return path
	}
	if abs, err := filepath.EvalSymlinks(path); err == nil {
		path = abs
	}
	if abs, err := filepath.Abs(path); err == nil {
		path = abs
	}
	return path
}

// anonymous reports whether path names neither a file nor a simulated drive with a name:
// each such disk has an image of its own.
func anonymous(path string) bool {
	sim, named := backend.IsSim(path)
	return strings.HasPrefix(path, "mem:") || strings.HasPrefix(path, "null:") || sim && !named
}

// A server that was killed holds its lock until the kernel has finished what it had in
// flight. Whoever holds it longer is alive.
const (
	lockWait  = 5 * time.Second
	lockRetry = 5 * time.Millisecond
)

func openImage(path string, o backend.Options, log *zap.Logger) (backend.Image, error) {
	waiting := false
	for end := clock.Start(); ; clock.Sleep(lockRetry) {
		image, err := backend.Open(path, o)
		if !errors.Is(err, backend.ErrLocked) || end.Now() > blk.Instant(lockWait) {
			return image, err
		}
		if !waiting {
			log.Info("image is locked; waiting", zap.String("path", path), zap.Stringer("at most", lockWait))
			waiting = true
		}
	}
}

// domainOf finds or makes the domain of a disk: the one that it names; otherwise the one
// that its image, or another one on the same physical disk, is in already; otherwise a new
// one with the physical disk's name.
func (d *Daemon) domainOf(spec Disk, i *image) (*domain, error) {
	var found *domain
	switch {
	case spec.Domain == Private:
		found = d.addDomain(Domain{ID: Private + ":" + spec.ID})
	case spec.Domain != "":
		found = d.namedDomain(spec.Domain)
	case i.domain != nil:
		found = i.domain
	default:
		found = d.physicalDomain(spec, i)
	}
	if i.domain != nil && i.domain != found {
		return nil, fmt.Errorf("the image %s is in domain %s already, and one image cannot be in two (%s)", i.path, i.domain.id, found.id)
	}
	if i.domain == nil {
		i.domain = found
		found.images = append(found.images, i)
	}
	return found, nil
}

func (d *Daemon) physicalDomain(spec Disk, i *image) *domain {
	info := i.Info()
	for _, other := range d.images {
		if o := other.Info(); other.domain != nil && other.domain.shared && info.Physical.SharesDisk(&o.Physical) {
			return other.domain
		}
	}
	id := strings.Join(info.Physical.Devices, "+")
	if id == "" {
		id = spec.ID
	}
	found := d.namedDomain(id)
	found.shared = true
	return found
}

// namedDomain returns the domain called id, which it makes with the defaults if it is new.
func (d *Daemon) namedDomain(id string) *domain {
	if n := slices.IndexFunc(d.domains, func(x *domain) bool { return x.id == id }); n >= 0 {
		return d.domains[n]
	}
	return d.addDomain(Domain{ID: id})
}

func (d *Daemon) addDomain(spec Domain) *domain {
	x := &domain{id: spec.ID, spec: spec, log: d.log}
	d.domains = append(d.domains, x)
	return x
}

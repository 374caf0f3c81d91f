package backend

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"

	"github.com/elevisor/elevisor/blk"
)

// Open opens a disk: the path of a regular file or block device,
// "mem:?size=1G" for memory, or "null:?size=1G" for a disk that keeps nothing
// ("mem:size=1G" means the same), or "sim:hdd?preset=NAME&size=8G&seed=7" for a
// simulated drive (SimKeys are its words). A file whose name looks like a kind of disk
// is written as ./mem:x. It may block.
func Open(spec string, o Options) (Image, error) {
	if err := o.check(); err != nil {
		return nil, fmt.Errorf("open disk %s: %w", spec, err)
	}
	kind, query, ok := strings.Cut(spec, ":")
	if !ok || strings.ContainsAny(kind, "/.") {
		return openFile(spec, o)
	}
	var open func(string, Options) (Image, error)
	switch kind {
	case "mem":
		open = sized(newMem)
	case "null":
		open = sized(newNull)
	case "sim":
		open = openSim
	default:
		img, err := openFile(spec, o) // a file may have a colon in its name
		if errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("open disk %s: no such file, and %q is not a kind of disk; valid: mem:, null:, sim:, or a path", spec, kind+":")
		}
		return img, err
	}
	img, err := open(strings.TrimPrefix(query, "?"), o)
	if err != nil {
		return nil, fmt.Errorf("open disk %s: %w", spec, err)
	}
	return img, nil
}

// sized makes disks that are described by a size alone.
func sized(open func(size int64, o Options) (Image, error)) func(query string, o Options) (Image, error) {
	return func(query string, o Options) (Image, error) {
		size, err := parseQuery(query)
		if err != nil {
			return nil, err
		}
		return open(size, o)
	}
}

// parseQuery reads the words behind "mem:" and "null:".
func parseQuery(query string) (size int64, err error) {
	for word := range strings.SplitSeq(query, "&") {
		key, value, _ := strings.Cut(word, "=")
		if key != "size" {
			return 0, fmt.Errorf("unknown key %q; valid: size", key)
		}
		if size, err = blk.ParseBytes(value); err != nil {
			return 0, err
		}
	}
	if err := checkSize(size); err != nil {
		return 0, err
	}
	return size, nil
}

func checkSize(size int64) error {
	if size < blk.SectorSize {
		return fmt.Errorf("size is %d bytes; a disk has at least one sector of %d", size, blk.SectorSize)
	}
	return nil
}

var (
	cacheNames = []string{"writeback", "none", "writethrough", "directsync", "unsafe"}
	aioNames   = []string{"auto", "io_uring", "threads"}
)

func (c Cache) String() string { return name(cacheNames, int(c)) }
func (a AIO) String() string   { return name(aioNames, int(a)) }

func name(names []string, i int) string {
	if i < len(names) {
		return names[i]
	}
	return strconv.Itoa(i)
}

// ParseCache reads one of QEMU's cache modes.
func ParseCache(s string) (Cache, error) {
	if i := slices.Index(cacheNames, s); i >= 0 {
		return Cache(i), nil
	}
	return 0, fmt.Errorf("unknown cache mode %q; valid: %s", s, strings.Join(cacheNames, ", "))
}

// ParseAIO reads the name of an engine.
func ParseAIO(s string) (AIO, error) {
	if i := slices.Index(aioNames, s); i >= 0 {
		return AIO(i), nil
	}
	return 0, fmt.Errorf("unknown aio %q; valid: %s", s, strings.Join(aioNames, ", "))
}

// Direct says whether c goes past the host's page cache.
func (c Cache) Direct() bool { return c == CacheNone || c == CacheDirectsync }

// Through says whether the guest's own write cache starts as off.
func (c Cache) Through() bool { return c == CacheWritethrough || c == CacheDirectsync }

// maxBlock is the largest block size an operator may choose, as in QEMU.
const maxBlock = 2 << 20

func (o *Options) check() error {
	if int(o.Cache) >= len(cacheNames) || int(o.AIO) >= len(aioNames) {
		return fmt.Errorf("cache mode %v or aio %v is not one of %v, %v", o.Cache, o.AIO, cacheNames, aioNames)
	}
	for _, b := range []struct {
		name string
		size uint32
	}{{"logical", o.LogicalBlock}, {"physical", o.PhysicalBlock}} {
		if b.size != 0 && (b.size < blk.SectorSize || b.size > maxBlock || b.size&(b.size-1) != 0) {
			return fmt.Errorf("%s block size is %d; valid: powers of 2 from %d to %d", b.name, b.size, blk.SectorSize, maxBlock)
		}
	}
	if o.PhysicalBlock != 0 && o.PhysicalBlock < o.LogicalBlock {
		return fmt.Errorf("physical block size %d is below the logical one, %d", o.PhysicalBlock, o.LogicalBlock)
	}
	return nil
}

// blocks puts the operator's wishes into i, which holds what the disk asks for.
func (o *Options) blocks(i *Info) {
	if o.LogicalBlock != 0 {
		i.LogicalBlock = o.LogicalBlock
	}
	if o.PhysicalBlock != 0 {
		i.PhysicalBlock = o.PhysicalBlock
	}
	i.PhysicalBlock = max(i.PhysicalBlock, i.LogicalBlock)
}

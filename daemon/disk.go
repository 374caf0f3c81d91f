// Package daemon makes a server of the parts: it opens images, starts loops, and puts
// devices and their sockets in front of them. The commands, the loopback and QEMU worlds
// and tests use it.
package daemon

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/elevisor/elevisor/backend"
	"github.com/elevisor/elevisor/blk"
	"github.com/elevisor/elevisor/device"
	"github.com/elevisor/elevisor/virtqueue"
)

// Disk describes one disk, as the operator wants it. The zero value of a field is its
// default; DiskKeys lists the keys of --disk.
type Disk struct {
	ID         string // default: the image's base name
	Path       string // file, block device, mem:?size=, null:?size=, sim:hdd?preset= (backend.Open)
	Socket     string // to listen on; excludes FD
	FD         int    // a socket that came with the process, listening or connected; 0: none
	ReadOnly   bool
	Serial     string
	NumQueues  int
	QueueSize  int
	SegMax     int
	SizeMax    int
	Offset     int64 // bytes
	Size       int64 // bytes
	DiscardSeg int

	LogicalBlock  int // bytes
	PhysicalBlock int // bytes
	Cache         backend.Cache
	AIO           backend.AIO
	NoDiscard     bool
	NoLock        bool
	Domain        string // a domain's name, or Private; default: shared with the disks on the same physical disk
	Prio          blk.Prio
	Record        bool // count the requests that reach the image, seeks and lost merges

	// Slow slows the image down, for demonstrations and tests. It has no key.
	Slow backend.RateOptions

	// Shared makes disks with the same path windows of one image even if that is memory,
	// for experiments. It has no key.
	Shared bool

	drive []driveKey // keys of a simulated drive, which ParseDisk appends to Path

	// For tests of limits; they have no keys. Sectors.
	MaxDiscard, MaxWriteZeroes, DiscardAlignment blk.Sector
	MaxWriteZeroesSeg                            int
}

// key is one key of an option that sets something in a T.
type key[T any] struct {
	name  string
	value string // for the help text
	set   func(d *T, v string) error
}

// diskKeys are the keys of --disk in the order of the help text.
var diskKeys = []key[Disk]{
	{"id", "NAME", text(func(d *Disk) *string { return &d.ID })},
	{"path", "FILE|DEVICE|mem:?size=N|null:?size=N|sim:hdd|sim:ssd", text(func(d *Disk) *string { return &d.Path })},
	{"socket", "PATH", text(func(d *Disk) *string { return &d.Socket })},
	{"fd", "N", number(3, 1<<20, func(d *Disk) *int { return &d.FD })},
	{"read-only", "on|off", flag(func(d *Disk, on bool) { d.ReadOnly = on })},
	{"serial", "TEXT", text(func(d *Disk) *string { return &d.Serial })},
	{"num-queues", "N", number(1, device.MaxQueues, func(d *Disk) *int { return &d.NumQueues })},
	{"queue-size", "N", number(1, virtqueue.MaxSize, func(d *Disk) *int { return &d.QueueSize })},
	{"seg-max", "N", number(1, virtqueue.MaxChain-2, func(d *Disk) *int { return &d.SegMax })},
	{"size-max", "BYTES", number(1, 1<<31-1, func(d *Disk) *int { return &d.SizeMax })},
	{"logical-block-size", "BYTES", block(func(d *Disk) *int { return &d.LogicalBlock })},
	{"physical-block-size", "BYTES", block(func(d *Disk) *int { return &d.PhysicalBlock })},
	{"offset", "BYTES", parsed(blk.ParseBytes, func(d *Disk) *int64 { return &d.Offset })},
	{"size", "BYTES", parsed(blk.ParseBytes, func(d *Disk) *int64 { return &d.Size })},
	{"max-discard-seg", "N", number(1, 1024, func(d *Disk) *int { return &d.DiscardSeg })},
	{"cache", "writeback|writethrough|none|directsync|unsafe", parsed(backend.ParseCache, func(d *Disk) *backend.Cache { return &d.Cache })},
	{"aio", "auto|io_uring|threads", parsed(backend.ParseAIO, func(d *Disk) *backend.AIO { return &d.AIO })},
	{"discard", "unmap|ignore", discard},
	{"domain", "NAME|private", text(func(d *Disk) *string { return &d.Domain })},
	{"prio", "rt|be|idle", prio},
	{"lock", "on|off", flag(func(d *Disk, on bool) { d.NoLock = !on })},
	{"record", "on|off", flag(func(d *Disk, on bool) { d.Record = on })},
	{"preset", "NAME (this and what follows: for sim: disks)", ofDrive("preset")},
	{"model-file", "FILE", ofDrive("params")},
	{"backing-file", "FILE|DEVICE", ofDrive("file")},
	{"seed", "N", ofDrive("seed")},
	{"ncq", "N", ofDrive("ncq")},
	{"drive", "NAME", ofDrive("drive")},
}

// driveKey is one key of a simulated drive.
type driveKey struct{ key, value string }

// ofDrive keeps a key of a simulated drive; the backend checks its value.
func ofDrive(word string) func(*Disk, string) error {
	return func(d *Disk, v string) error {
		d.drive = append(d.drive, driveKey{word, v})
		return nil
	}
}

// foldDrive appends the keys of a simulated drive to its path. size is the drive's, unless
// the path has one already: then it is the disk's window.
func (d *Disk) foldDrive() error {
	sim, _ := backend.IsSim(d.Path)
	if !sim && len(d.drive) > 0 {
		return fmt.Errorf("%s=%q is for sim: disks, and the path is %q", d.drive[0].key, d.drive[0].value, d.Path)
	}
	if sim && d.Size > 0 && !backend.HasSimKey(d.Path, "size") {
		d.drive = append(d.drive, driveKey{"size", strconv.FormatInt(d.Size, 10)})
		d.Size = 0
	}
	for _, k := range d.drive {
		d.Path = backend.AddSimKey(d.Path, k.key, k.value)
	}
	d.drive = nil
	return nil
}

// DiskKeys lists the keys of --disk for a help text, one a line.
func DiskKeys() string { return help(diskKeys) }

func help[T any](keys []key[T]) string {
	var b strings.Builder
	for _, k := range keys {
		fmt.Fprintf(&b, "  %s=%s\n", k.name, k.value)
	}
	return b.String()
}

// ParseDisk reads KEY=VALUE,KEY=VALUE,... as in QEMU, where a comma in a value is written
// twice.
func ParseDisk(s string) (Disk, error) {
	var d Disk
	err := parse("--disk", diskKeys, &d, s, nil)
	if err == nil {
		err = d.foldDrive()
	}
	if err == nil {
		err = d.check()
	}
	return d, err
}

// parse sets the KEY=VALUE items of s in to. A key that is not in keys goes to other, if
// that is not nil.
func parse[T any](option string, keys []key[T], to *T, s string, other func(name, v string) error) error {
	for _, item := range splitCommas(s) {
		name, v, ok := strings.Cut(item, "=")
		if !ok {
			return fmt.Errorf("%q in %s is not KEY=VALUE", item, option)
		}
		i := slices.IndexFunc(keys, func(k key[T]) bool { return k.set != nil && k.name == strings.ReplaceAll(name, "_", "-") })
		var err error
		switch {
		case i >= 0:
			err = keys[i].set(to, v)
		case other != nil:
			err = other(name, v)
		default:
			return fmt.Errorf("unknown key %q in %s; there are: %s", name, option, strings.Join(names(keys), ", "))
		}
		if err != nil {
			return fmt.Errorf("%s=%q: %w", name, v, err)
		}
	}
	return nil
}

func names[T any](keys []key[T]) (all []string) {
	for _, k := range keys {
		all = append(all, k.name)
	}
	return all
}

func prio(d *Disk, v string) error {
	for p, name := range map[blk.Prio]string{blk.PrioRT: "rt", blk.PrioBE: "be", blk.PrioIdle: "idle"} {
		if v == name {
			d.Prio = p
			return nil
		}
	}
	return fmt.Errorf("want rt, be or idle")
}

// check refuses combinations of keys that are not valid.
func (d *Disk) check() error {
	switch {
	case d.Path == "":
		return fmt.Errorf("disk %q has no path", d.ID)
	case d.Socket == "" && d.FD == 0:
		return fmt.Errorf("disk %s has neither socket nor fd", d.Path)
	case d.Socket != "" && d.FD != 0:
		return fmt.Errorf("disk %q has both socket=%s and fd=%d", d.ID, d.Socket, d.FD)
	}
	for _, b := range []int{d.LogicalBlock, d.PhysicalBlock} {
		if b&(b-1) != 0 {
			return fmt.Errorf("block size %d is not a power of two", b)
		}
	}
	if d.Offset%blk.SectorSize != 0 || d.Size%blk.SectorSize != 0 {
		return fmt.Errorf("offset %d and size %d must be multiples of %d", d.Offset, d.Size, blk.SectorSize)
	}
	return nil
}

// splitCommas splits at single commas; two stand for one.
func splitCommas(s string) []string {
	items := strings.Split(strings.ReplaceAll(s, ",,", "\x00"), ",")
	for i := range items {
		items[i] = strings.ReplaceAll(items[i], "\x00", ",")
	}
	return items
}

func text[T any](at func(*T) *string) func(*T, string) error {
	return func(d *T, v string) error {
		*at(d) = v
		return nil
	}
}

func number[T any](lo, hi int, at func(*T) *int) func(*T, string) error {
	return func(d *T, v string) error {
		n, err := strconv.Atoi(v)
		if err != nil || n < lo || n > hi {
			return fmt.Errorf("want a number from %d to %d", lo, hi)
		}
		*at(d) = n
		return nil
	}
}

func parsed[T any](parse func(string) (T, error), at func(*Disk) *T) func(*Disk, string) error {
	return func(d *Disk, v string) error {
		t, err := parse(v)
		if err == nil {
			*at(d) = t
		}
		return err
	}
}

func discard(d *Disk, v string) error {
	switch v {
	case "unmap", "on":
		d.NoDiscard = false
	case "ignore", "off":
		d.NoDiscard = true
	default:
		return fmt.Errorf("want unmap or ignore")
	}
	return nil
}

// block reads a block size; the backend knows which ones it can have.
func block(at func(*Disk) *int) func(*Disk, string) error {
	return func(d *Disk, v string) error {
		n, err := blk.ParseBytes(v)
		if err == nil && (n < blk.SectorSize || n > math.MaxInt32) {
			err = fmt.Errorf("want at least %d bytes", blk.SectorSize)
		}
		*at(d) = int(n)
		return err
	}
}

func flag(set func(*Disk, bool)) func(*Disk, string) error {
	return func(d *Disk, v string) error {
		switch v {
		case "on", "true", "yes":
			set(d, true)
		case "off", "false", "no":
			set(d, false)
		default:
			return fmt.Errorf("want on or off")
		}
		return nil
	}
}

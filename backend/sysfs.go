package backend

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/elevisor/elevisor/blk"
	"golang.org/x/sys/unix"
)

// sysfs reads the kernel's block devices (Documentation/ABI/stable/sysfs-block).
type sysfs struct {
	root string
	stat func(path string, st *unix.Stat_t) error // of loop devices' backing files
}

var hostSysfs = sysfs{root: "/sys", stat: unix.Stat}

// claim is what a disk's queue says of itself.
type claim uint8

const (
	claimsNothing claim = iota
	claimsFixed
	claimsRotation
)

// leaf is a whole disk with no block device under it.
type leaf struct {
	name    string
	dir     string
	claim   claim
	virtual string // by what, "" if it seems to be real
}

// deviceOf is the number of the block device that st is, or is on.
func deviceOf(st *unix.Stat_t) uint64 {
	if st.Mode&unix.S_IFMT == unix.S_IFBLK {
		return uint64(st.Rdev)
	}
	return uint64(st.Dev)
}

// below returns the disks at the bottom of block device dev; none if sysfs does
// not have it.
func (s *sysfs) below(dev uint64) []leaf {
	dir, err := s.dirOf(dev)
	if err != nil {
		return nil
	}
	w := descent{sysfs: s, seen: map[string]bool{}}
	w.visit(dir)
	if len(w.leaves) == 0 { // only circles
		dir, _ = wholeDisk(dir)
		return []leaf{s.leaf(dir)}
	}
	return w.leaves
}

// dirOf is the directory of block device dev.
func (s *sysfs) dirOf(dev uint64) (string, error) {
	return filepath.EvalSymlinks(filepath.Join(s.root, "dev/block", fmt.Sprintf("%d:%d", unix.Major(dev), unix.Minor(dev))))
}

// descent is one way down. It comes to each device once, so it ends even where
// files and loop devices lie on each other in a circle.
type descent struct {
	*sysfs
	seen   map[string]bool
	leaves []leaf
}

// visit finds the disks under the block device at dir.
func (w *descent) visit(dir string) {
	dir, _ = wholeDisk(dir)
	if w.seen[dir] {
		return
	}
	w.seen[dir] = true
	deeper := w.slaves(dir)
	if lower, ok := w.backing(dir); ok {
		deeper = append(deeper, lower)
	}
	for _, d := range deeper {
		w.visit(d)
	}
	if len(deeper) == 0 {
		w.leaves = append(w.leaves, w.leaf(dir))
	}
}

func (s *sysfs) leaf(dir string) leaf {
	name := filepath.Base(dir)
	return leaf{name: name, dir: dir, claim: claimOf(dir), virtual: s.virtual(dir, name)}
}

// slaves are the devices that a logical volume or RAID at dir is made of.
func (w *descent) slaves(dir string) (dirs []string) {
	entries, _ := os.ReadDir(filepath.Join(dir, "slaves"))
	for _, e := range entries {
		if d, err := filepath.EvalSymlinks(filepath.Join(dir, "slaves", e.Name())); err == nil {
			dirs = append(dirs, d)
		}
	}
	return dirs
}

// backing is the device under the file of a loop device. Where that cannot be
// found, because the file was deleted or its file system has none, the loop device
// itself is the lowest that is known.
func (w *descent) backing(dir string) (string, bool) {
	path, ok := readLine(filepath.Join(dir, "loop/backing_file"))
	if !ok {
		return "", false
	}
	var st unix.Stat_t
	if w.stat(path, &st) != nil {
		return "", false
	}
	lower, err := w.dirOf(deviceOf(&st))
	return lower, err == nil
}

// wholeDisk is the directory of the disk whose partition is at dir, and whether
// there is one: partitions lie in the directories of their disks.
func wholeDisk(dir string) (string, bool) {
	if _, err := os.Stat(filepath.Join(dir, "partition")); err != nil {
		return dir, false
	}
	return filepath.Dir(dir), true
}

// base is where a partition starts on its disk, if it is a part of a real one and
// not of a volume: there, a place says nothing of the place on the disk.
func (s *sysfs) base(dev uint64, disks []leaf) blk.Sector {
	dir, err := s.dirOf(dev)
	if err != nil {
		return 0
	}
	disk, isPart := wholeDisk(dir)
	if !isPart || len(disks) != 1 || disks[0].dir != disk {
		return 0
	}
	text, _ := readLine(filepath.Join(dir, "start")) // in 512 bytes, whatever the disk's blocks
	start, _ := strconv.ParseUint(text, 10, 63)
	return blk.Sector(start)
}

func claimOf(dir string) claim {
	switch text, _ := readLine(filepath.Join(dir, "queue/rotational")); text {
	case "0":
		return claimsFixed
	case "1":
		return claimsRotation
	}
	return claimsNothing
}

// virtualDrivers are what hypervisors' and networks' disks hang on, as the links
// "driver" and "subsystem" name them. vbd is Xen's.
var virtualDrivers = []string{
	"virtio_blk", "virtio_scsi", "vbd", "xen-blkfront", "hv_storvsc", "vmw_pvscsi", "nbd", "rbd",
}

// virtualMakers are found in the names of disks that hypervisors emulate behind
// a driver for real hardware.
var virtualMakers = []string{"QEMU", "VBOX", "VMware"}

// virtual tells by what the disk at dir is made up, "" if it seems to be real. A
// real one hangs on a device.
func (s *sysfs) virtual(dir, name string) string {
	device, err := filepath.EvalSymlinks(filepath.Join(dir, "device"))
	if err != nil {
		return strings.TrimRight(name, "-0123456789") // nbd0, zram0, dm-0
	}
	vendor, _ := readLine(filepath.Join(device, "vendor"))
	model, _ := readLine(filepath.Join(device, "model"))
	for _, maker := range virtualMakers {
		if strings.Contains(vendor, maker) || strings.Contains(model, maker) {
			return strings.TrimSpace(vendor + " " + model)
		}
	}
	// A SCSI disk's own driver is "sd"; what is virtual is the host above it.
	for d := device; len(d) > len(s.root); d = filepath.Dir(d) {
		for _, link := range []string{"driver", "subsystem"} {
			to, err := os.Readlink(filepath.Join(d, link))
			if err == nil && slices.Contains(virtualDrivers, filepath.Base(to)) {
				return filepath.Base(to)
			}
		}
	}
	return ""
}

// readLine reads the value of an attribute.
func readLine(path string) (string, bool) {
	b, err := os.ReadFile(path)
	return strings.TrimSpace(string(b)), err == nil
}

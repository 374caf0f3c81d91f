package backend

import (
	"fmt"
	"slices"
	"strings"

	"github.com/elevisor/elevisor/blk"
	"golang.org/x/sys/unix"
)

// Physical says what an image lies on at the bottom: below partitions, logical
// volumes, RAIDs and loop devices. Images on the same physical disk gain from one
// scheduler.
type Physical struct {
	// Devices are the kernel names of whole disks, sorted: "nvme0n1", "sda". None if
	// there is no disk, or the system does not say which.
	Devices []string
	// Rotational: one of Devices claims to be.
	Rotational bool
	// Believed: Rotational can be relied upon. Virtual disks usually claim to be
	// rotational whatever they are; files on no known disk say nothing.
	Believed bool
	// Base is the place on the disk of the image's sector 0, if the image is a
	// partition of one disk; else 0.
	Base blk.Sector
	// Reason explains the above to people, in one line.
	Reason string
}

// SharesDisk says whether p and q have a physical disk in common.
func (p *Physical) SharesDisk(q *Physical) bool {
	return slices.ContainsFunc(p.Devices, func(d string) bool {
		_, found := slices.BinarySearch(q.Devices, d)
		return found
	})
}

// physicalOf describes what lies under an open file or block device.
func physicalOf(fd int) Physical {
	var st unix.Stat_t
	var fs unix.Statfs_t
	if err := unix.Fstat(fd, &st); err != nil {
		return Physical{Reason: fmt.Sprintf("image's disk is not known: %v", err)}
	}
	_ = unix.Fstatfs(fd, &fs) // 0 has no name
	return hostSysfs.physical(&st, uint32(fs.Type))
}

// physical describes what lies under an image with that stat, on a file system of
// that type.
func (s *sysfs) physical(image *unix.Stat_t, fsType uint32) Physical {
	dev := deviceOf(image)
	if unix.Major(dev) == 0 { // the kernel's anonymous devices
		return Physical{Reason: withoutDevice(fsType)}
	}
	disks := s.below(dev)
	if len(disks) == 0 {
		return Physical{Reason: fmt.Sprintf("image is on block device %d:%d, which is not in %s", unix.Major(dev), unix.Minor(dev), s.root)}
	}
	p := judge(disks)
	if image.Mode&unix.S_IFMT == unix.S_IFBLK {
		p.Base = s.base(dev, disks)
	}
	return p
}

// withoutDevice explains file systems without a block device of their own.
func withoutDevice(fsType uint32) string {
	switch fsType {
	case unix.BTRFS_SUPER_MAGIC:
		return "image is on btrfs, which does not say on which block device"
	case unix.OVERLAYFS_SUPER_MAGIC:
		return "image is on overlayfs, which does not say on which block device"
	case zfsMagic:
		return "image is on zfs, which does not say on which block device"
	}
	name, ok := map[uint32]string{
		unix.TMPFS_MAGIC: "tmpfs", unix.RAMFS_MAGIC: "ramfs", unix.HUGETLBFS_MAGIC: "hugetlbfs",
		unix.NFS_SUPER_MAGIC: "nfs", unix.CIFS_SUPER_MAGIC: "cifs", unix.SMB2_SUPER_MAGIC: "smb2",
		unix.CEPH_SUPER_MAGIC: "ceph", unix.FUSE_SUPER_MAGIC: "fuse", unix.V9FS_MAGIC: "9p",
	}[fsType]
	if !ok {
		name = fmt.Sprintf("file system type 0x%x", fsType)
	}
	return fmt.Sprintf("image is not on a block device (%s)", name)
}

// zfsMagic is ZFS_SUPER_MAGIC of OpenZFS, which is not in the kernel's headers.
const zfsMagic = 0x2fc12fc1

// judge weighs what the disks claim. One that is rotational and real decides.
func judge(disks []leaf) Physical {
	var p Physical
	var real, virtual, silent []string
	for _, d := range disks {
		p.Devices = append(p.Devices, d.name)
		switch {
		case d.claim == claimsNothing:
			silent = append(silent, d.name)
		case d.claim == claimsFixed:
		case d.virtual != "":
			virtual = append(virtual, fmt.Sprintf("%s claims to be rotational, but is virtual (%s)", d.name, d.virtual))
		default:
			real = append(real, d.name)
		}
	}
	slices.Sort(p.Devices)
	p.Rotational = len(real)+len(virtual) > 0
	p.Believed = len(real) > 0 || len(virtual)+len(silent) == 0
	switch {
	case len(real) > 0:
		p.Reason = sentence(real, "rotational")
	case len(virtual) > 0:
		p.Reason = strings.Join(virtual, "; ")
	case len(silent) > 0:
		p.Reason = fmt.Sprintf("whether %s is rotational is not known", strings.Join(silent, ", "))
	default:
		p.Reason = sentence(p.Devices, "not rotational")
	}
	return p
}

func sentence(names []string, what string) string {
	verb := "is"
	if len(names) > 1 {
		slices.Sort(names)
		verb = "are"
	}
	return fmt.Sprintf("%s %s %s", strings.Join(names, ", "), verb, what)
}

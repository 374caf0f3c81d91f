package backend

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"github.com/elevisor/elevisor/blk"
	"golang.org/x/sys/unix"
)

// measure fills in info and the alignments.
func (d *disk) measure() error {
	var st unix.Stat_t
	if err := unix.Fstat(d.fds[viaMain], &st); err != nil {
		return fmt.Errorf("stat: %w", err)
	}
	size, err := d.buffered.Seek(0, io.SeekEnd) // of a block device, too
	if err != nil {
		return fmt.Errorf("find its size: %w", err)
	}
	if err := checkSize(size); err != nil {
		return err
	}
	if err := d.checkLimit(size); err != nil {
		return err
	}
	d.info = Info{
		Sectors: blk.Sector(size / blk.SectorSize), LogicalBlock: blk.SectorSize, PhysicalBlock: plainBlock,
		ReadOnly: d.opts.ReadOnly, Direct: d.opts.Cache.Direct(), MemAlign: 1,
		WriteZeroes: !d.opts.ReadOnly, DiscardAlign: max(uint32(st.Blksize), blk.SectorSize),
	}
	d.info.Physical = physicalOf(d.fds[viaMain])
	d.info.Rotational = d.info.Physical.Rotational && d.info.Physical.Believed
	if d.block {
		if err := d.measureBlock(st.Rdev); err != nil {
			return err
		}
	}
	if d.info.Direct {
		if err := d.measureDirect(uint32(st.Blksize)); err != nil {
			return err
		}
	}
	d.opts.blocks(&d.info)
	if d.opts.Discard && !d.opts.ReadOnly {
		d.info.Discard, d.info.ZeroesUnmap = d.probeDiscard(size)
	}
	return nil
}

// checkLimit refuses a file that we may not write all of: the kernel would answer
// a guest's write with a signal that ends the process.
func (d *disk) checkLimit(size int64) error {
	var l unix.Rlimit
	if d.block || d.opts.ReadOnly || unix.Getrlimit(unix.RLIMIT_FSIZE, &l) != nil || l.Cur >= uint64(size) {
		return nil
	}
	return fmt.Errorf("it has %d bytes, but this process may write files of up to %d only (RLIMIT_FSIZE)", size, l.Cur)
}

func (d *disk) measureBlock(rdev uint64) error {
	fd := d.fds[viaCache]
	logical, err := unix.IoctlGetInt(fd, unix.BLKSSZGET)
	if err != nil {
		return fmt.Errorf("ask for the logical block size: %w", err)
	}
	physical, err := ioctlUint32(fd, unix.BLKPBSZGET)
	if err != nil {
		return fmt.Errorf("ask for the physical block size: %w", err)
	}
	if ro, err := ioctlUint32(fd, unix.BLKROGET); err == nil && ro != 0 && !d.opts.ReadOnly {
		return fmt.Errorf("the device is read-only; serve it with read-only: %w", unix.EROFS)
	}
	d.info.LogicalBlock, d.info.PhysicalBlock = uint32(logical), physical
	d.zeroAlign = int64(logical)
	d.info.DiscardAlign = max(discardGranularity(rdev), uint32(logical))
	return nil
}

// discardGranularity reads what the kernel's queue says, 0 if it does not. A
// partition has no queue of its own but lies in the directory of its disk's.
func discardGranularity(rdev uint64) uint32 {
	dir := fmt.Sprintf("/sys/dev/block/%d:%d/", unix.Major(rdev), unix.Minor(rdev))
	for _, queue := range []string{"queue/", "../queue/"} {
		b, err := os.ReadFile(dir + queue + "discard_granularity")
		if err != nil {
			continue
		}
		if n, err := strconv.ParseUint(strings.TrimSpace(string(b)), 10, 32); err == nil {
			return uint32(n)
		}
	}
	return 0
}

// measureDirect asks what O_DIRECT needs. A kernel or file system that does not
// say (before 6.1, tmpfs) is given whole blocks or pages, which are enough everywhere;
// tmpfs takes anything.
func (d *disk) measureDirect(blksize uint32) error {
	var stx unix.Statx_t
	err := unix.Statx(d.fds[viaMain], "", unix.AT_EMPTY_PATH, unix.STATX_DIOALIGN, &stx)
	memory, offset := stx.Dio_mem_align, stx.Dio_offset_align
	switch {
	case err == nil && stx.Mask&unix.STATX_DIOALIGN != 0:
		if memory == 0 || offset == 0 {
			return fmt.Errorf("this file cannot be used with O_DIRECT, which cache=%v needs; choose writeback or writethrough", d.opts.Cache)
		}
	case d.block:
		memory, offset = d.info.LogicalBlock, d.info.LogicalBlock
	case onTmpfs(d.fds[viaMain]):
		memory, offset = 1, 1
	default:
		memory = min(max(blksize, blk.SectorSize), plainBlock)
		offset = memory
	}
	if memory&(memory-1) != 0 || offset&(offset-1) != 0 || memory > bounceSize || offset > bounceSize {
		return fmt.Errorf("O_DIRECT wants memory aligned to %d and offsets to %d bytes; can do powers of 2 up to %d", memory, offset, bounceSize)
	}
	d.memAlign, d.offAlign = int64(memory), int64(offset)
	d.info.MemAlign = memory
	d.info.LogicalBlock = max(d.info.LogicalBlock, offset)
	return nil
}

func onTmpfs(fd int) bool {
	var fs unix.Statfs_t
	return unix.Fstatfs(fd, &fs) == nil && fs.Type == unix.TMPFS_MAGIC
}

// probeDiscard finds out, without discarding anything, whether the disk can
// discard, and whether it can free blocks that it promises to read as zeroes: it
// asks for a hole behind the end of a file, or of a device for a range that
// starts within a sector, which is refused as such only after the question
// whether it is possible at all.
func (d *disk) probeDiscard(size int64) (discard, punch bool) {
	fd := d.fds[viaMain]
	if d.block {
		err := sysDiscard(fd, 1, blk.SectorSize)
		discard = !errors.Is(err, unix.EOPNOTSUPP) && !errors.Is(err, unix.ENOTTY)
		return discard, discard
	}
	err := unix.Fallocate(fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, roundUp(size, plainBlock), plainBlock)
	return err == nil, err == nil
}

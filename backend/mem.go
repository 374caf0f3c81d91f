package backend

import (
	"fmt"

	"github.com/elevisor/elevisor/blk"
	"github.com/elevisor/elevisor/sys/shm"
	"golang.org/x/sys/unix"
)

// mem is a disk in memory. The system gives it pages as they are first written,
// so its size is only an upper limit of what it takes.
type mem struct {
	info Info
	data []byte
}

func newMem(size int64, o Options) (Image, error) {
	if int64(int(size)) != size {
		return nil, fmt.Errorf("size %d does not fit this machine's address space", size)
	}
	data, err := unix.Mmap(-1, 0, int(size), unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		return nil, fmt.Errorf("map %d bytes of memory: %w", size, err)
	}
	return &mem{memoryInfo(size, &o, "mem"), data}, nil
}

// Info implements Image.
func (m *mem) Info() Info { return m.info }

// Attach implements Image.
func (m *mem) Attach(Host) (Backend, error) { return &atOnce{info: m.info, do: m.do}, nil }

// Close implements Image.
func (m *mem) Close() error {
	err := unix.Munmap(m.data)
	m.data = nil
	return err
}

func (m *mem) do(r *blk.Request) (blk.Status, uint16) {
	switch r.Op {
	case blk.OpRead, blk.OpWrite:
		return m.move(r)
	case blk.OpDiscard:
		if !m.info.Discard {
			return blk.StatusOK, 0
		}
	case blk.OpFlush:
		return blk.StatusOK, 0
	}
	for _, x := range r.Ranges {
		if !within(x.Sector.Bytes(), x.Sectors.Bytes(), m.info.Sectors) {
			return blk.StatusIOErr, uint16(unix.EIO)
		}
		m.zero(m.data[x.Sector.Bytes():][:x.Sectors.Bytes()])
	}
	return blk.StatusOK, 0
}

func (m *mem) move(r *blk.Request) (blk.Status, uint16) {
	at := r.Sector.Bytes()
	for _, seg := range r.Segs {
		if !within(at, int64(len(seg)), m.info.Sectors) {
			return blk.StatusIOErr, uint16(unix.EIO)
		}
		here := m.data[at:][:len(seg)]
		to, from := here, seg
		if r.Op == blk.OpRead {
			to, from = seg, here
		}
		if !shm.Copy(to, from) {
			return blk.StatusIOErr, uint16(unix.EFAULT)
		}
		at += int64(len(seg))
	}
	return blk.StatusOK, 0
}

// zero clears b. Whole pages are given back instead: that is faster, and takes
// no memory for a range that was never written.
func (m *mem) zero(b []byte) {
	page := unix.Getpagesize()
	lead := min(-int(shm.Addr(b))&(page-1), len(b))
	pages := (len(b) - lead) / page * page
	whole := b[lead : lead+pages]
	if pages == 0 || unix.Madvise(whole, unix.MADV_DONTNEED) != nil { // refused of locked memory
		clear(b)
		return
	}
	clear(b[:lead])
	clear(b[lead+pages:])
}

// within says whether n bytes at off lie on a disk of that many sectors. The
// parser has checked it of every guest's request; a second look costs nothing,
// and the other end of a mistake is somebody else's data.
func within(off, n int64, sectors blk.Sector) bool {
	return off >= 0 && n >= 0 && off <= sectors.Bytes() && n <= sectors.Bytes()-off
}

package guest

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/elevisor/elevisor/sys/shm"
)

// Place says where a piece of guest memory lies: in the guest's physical address
// space and in the front-end's own.
type Place struct {
	GPA, UVA, Size uint64
}

// guardSize is the length of the page in front of and behind each region in its
// file. It is why a region's file offset is never 0, and it shows a device that
// writes outside the region it was given.
const guardSize = 0x1000

// guardByte fills the guard pages.
const guardByte = 0xa5

// Memory is a guest's memory as its front-end holds it: one sealed memory file
// per region. The layout is immutable; the bytes are shared with the device.
type Memory struct {
	regions []memoryRegion
}

type memoryRegion struct {
	shm.Region
	fd    int
	whole *shm.Mapping // with both guard pages
}

// NewMemory makes zeroed memory at each place.
func NewMemory(places ...Place) (*Memory, error) {
	m := &Memory{}
	for i, p := range places {
		r := shm.Region{GPA: p.GPA, Size: p.Size + 2*guardSize, UVA: p.UVA}
		fd, whole, err := shm.Create("guest-memory", r.Size, r)
		if err != nil {
			m.Close()
			return nil, fmt.Errorf("memory region %d: %w", i, err)
		}
		r.Size, r.Offset = p.Size, guardSize
		b := whole.Bytes()
		fill(b[:guardSize], guardByte)
		fill(b[guardSize+p.Size:], guardByte)
		m.regions = append(m.regions, memoryRegion{Region: r, fd: fd, whole: whole})
	}
	return m, nil
}

// Table is the memory table for the device, and the file of each region, which
// stays the memory's.
func (m *Memory) Table() ([]shm.Region, []int) {
	regions, fds := make([]shm.Region, len(m.regions)), make([]int, len(m.regions))
	for i, r := range m.regions {
		regions[i], fds[i] = r.Region, r.fd
	}
	return regions, fds
}

// Bytes is the memory at guest address gpa, n bytes that lie within one region.
// Anything else is the caller's mistake.
func (m *Memory) Bytes(gpa, n uint64) []byte {
	r := m.find(gpa, n)
	at := guardSize + gpa - r.GPA
	return r.whole.Bytes()[at : at+n : at+n]
}

// UVA is the front-end's address of guest address gpa.
func (m *Memory) UVA(gpa uint64) uint64 {
	r := m.find(gpa, 1)
	return r.UVA + gpa - r.GPA
}

func (m *Memory) find(gpa, n uint64) *memoryRegion {
	for i := range m.regions {
		if r := &m.regions[i]; gpa >= r.GPA && gpa-r.GPA < r.Size && n <= r.Size-(gpa-r.GPA) {
			return r
		}
	}
	panic(fmt.Sprintf("guest: %d bytes at %#x are in no memory region", n, gpa))
}

// Intact reports a guard page that somebody wrote to.
func (m *Memory) Intact() error {
	for i, r := range m.regions {
		b := r.whole.Bytes()
		for _, page := range [][]byte{b[:guardSize], b[guardSize+r.Size:]} {
			for at, v := range page {
				if v != guardByte {
					return fmt.Errorf("guard page of memory region %d is %#02x at byte %d, want %#02x", i, v, at, guardByte)
				}
			}
		}
	}
	return nil
}

// Close unmaps the memory and closes its files.
func (m *Memory) Close() error {
	var errs []error
	for _, r := range m.regions {
		r.whole.Release()
		errs = append(errs, unix.Close(r.fd))
	}
	m.regions = nil
	return errors.Join(errs...)
}

func fill(b []byte, v byte) {
	for i := range b {
		b[i] = v
	}
}

// Buf is a piece of guest memory with its guest physical address.
type Buf struct {
	Bytes []byte
	Addr  uint64
}

// Slice is b[from:to].
func (b Buf) Slice(from, to int) Buf {
	return Buf{Bytes: b.Bytes[from:to:to], Addr: b.Addr + uint64(from)}
}

// arena hands out one region from its front.
type arena struct {
	m    *Memory
	next uint64
}

// take is n bytes, aligned to align, a power of two.
func (a *arena) take(n, align int) Buf {
	at := (a.next + uint64(align) - 1) &^ (uint64(align) - 1)
	a.next = at + uint64(n)
	return Buf{Bytes: a.m.Bytes(at, uint64(n)), Addr: at}
}

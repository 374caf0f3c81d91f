// Package shm holds the memory that a front-end shares with us: mappings of its
// regions, the table that translates its addresses, and the few barriers that
// rings in such memory need.
//
// The memory is hostile and may vanish. Code that reads it reads each byte once, into a
// local variable, and checks and uses that. An access to a mapping whose file was
// truncated raises a fault: [Copy] and [Zero] report it, and [Guard] contains it for a
// whole function. System calls on such memory return EFAULT by themselves.
//
// Lifetime: mappings and tables are reference counted. A [Mapping] stays mapped while a
// [Memory] or somebody else holds a reference; I/O in flight holds one to its Memory. The
// counts are atomic, and all else is immutable, so any goroutine may read.
package shm

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// Region is one entry of a memory table, as the vhost-user protocol gives it
// ("Memory region description").
type Region struct {
	GPA    uint64 // guest physical address of the first byte
	Size   uint64 // bytes
	UVA    uint64 // front-end's own address of the first byte
	Offset uint64 // of the first byte in the file that comes with it
}

// Errors for callers to distinguish. All others come from the system.
var (
	ErrRange   = errors.New("address range is empty, or wraps, or lies outside its file")
	ErrOverlap = errors.New("memory regions overlap")
)

// Mapping is one region, mapped into our address space.
type Mapping struct {
	Region
	bytes []byte // the region: exactly Size bytes
	whole []byte // what mmap returned, page aligned
	refs  atomic.Int32
}

// Map maps r out of fd, which stays the caller's and may be closed at once. Only
// [Offset, Offset+Size) is mapped, from the page below it on. The caller holds
// one reference.
func Map(fd int, r Region) (*Mapping, error) {
	if r.Size == 0 || r.GPA+r.Size < r.GPA || r.UVA+r.Size < r.UVA || r.Offset+r.Size < r.Offset || r.Offset+r.Size > 1<<62 {
		return nil, fmt.Errorf("region of %#x bytes at %#x, offset %#x: %w", r.Size, r.GPA, r.Offset, ErrRange)
	}
	page, err := pageSize(fd, r)
	if err != nil {
		return nil, err
	}
	lead := r.Offset % page
	length := (lead + r.Size + page - 1) / page * page
	whole, err := unix.Mmap(fd, int64(r.Offset-lead), int(length), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_NORESERVE)
	if err != nil {
		return nil, fmt.Errorf("map region of %#x bytes at %#x: %w", r.Size, r.GPA, err)
	}
	_ = unix.Madvise(whole, unix.MADV_DONTDUMP) // a core dump of ours holds no guest's memory; only advice
	m := &Mapping{Region: r, bytes: whole[lead : lead+r.Size : lead+r.Size], whole: whole}
	m.refs.Store(1)
	return m, nil
}

// pageSize is the granularity at which fd can be mapped, which for hugetlbfs is
// not the machine's page size. It also refuses a region beyond the end of its file.
func pageSize(fd int, r Region) (uint64, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return 0, fmt.Errorf("stat region at %#x: %w", r.GPA, err)
	}
	if st.Mode&unix.S_IFMT == unix.S_IFREG && r.Offset+r.Size > uint64(st.Size) {
		return 0, fmt.Errorf("region of %#x bytes at offset %#x of a file of %#x: %w", r.Size, r.Offset, st.Size, ErrRange)
	}
	page := uint64(unix.Getpagesize())
	var fs unix.Statfs_t
	if err := unix.Fstatfs(fd, &fs); err == nil && fs.Type == unix.HUGETLBFS_MAGIC {
		page = max(page, uint64(fs.Bsize))
	}
	return page, nil
}

// NewAnonymous makes memory that no other process sees, as one region at gpa =
// uva = 0x10000, for tests.
func NewAnonymous(size int) (*Memory, error) {
	b, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, fmt.Errorf("map %d anonymous bytes: %w", size, err)
	}
	m := &Mapping{Region: Region{GPA: 0x10000, Size: uint64(size), UVA: 0x10000}, bytes: b, whole: b}
	m.refs.Store(1)
	defer m.Release()
	return NewMemory([]*Mapping{m})
}

// Bytes is the mapped region.
func (m *Mapping) Bytes() []byte { return m.bytes }

// Retain adds a reference.
func (m *Mapping) Retain() { m.refs.Add(1) }

// Release drops a reference; the last one unmaps the region.
func (m *Mapping) Release() {
	switch n := m.refs.Add(-1); {
	case n == 0:
		_ = unix.Munmap(m.whole) // cannot fail on what mmap returned
		m.bytes, m.whole = nil, nil
	case n < 0:
		panic("shm: mapping released more often than retained")
	}
}

// Memory is an immutable memory table.
type Memory struct {
	maps []*Mapping // by GPA
	refs atomic.Int32
}

// NewMemory makes a table of maps, retaining each; the caller holds one reference
// to the table. Regions that overlap, in guest or in front-end addresses, are
// refused.
func NewMemory(maps []*Mapping) (*Memory, error) {
	byGPA := slices.Clone(maps)
	slices.SortFunc(byGPA, func(a, b *Mapping) int { return cmp.Compare(a.UVA, b.UVA) })
	for i := 1; i < len(byGPA); i++ {
		if byGPA[i].UVA-byGPA[i-1].UVA < byGPA[i-1].Size {
			return nil, fmt.Errorf("front-end addresses %#x and %#x: %w", byGPA[i-1].UVA, byGPA[i].UVA, ErrOverlap)
		}
	}
	slices.SortFunc(byGPA, func(a, b *Mapping) int { return cmp.Compare(a.GPA, b.GPA) })
	for i := 1; i < len(byGPA); i++ {
		if byGPA[i].GPA-byGPA[i-1].GPA < byGPA[i-1].Size {
			return nil, fmt.Errorf("guest addresses %#x and %#x: %w", byGPA[i-1].GPA, byGPA[i].GPA, ErrOverlap)
		}
	}
	for _, m := range byGPA {
		m.Retain()
	}
	t := &Memory{maps: byGPA}
	t.refs.Store(1)
	return t, nil
}

// Retain adds a reference.
func (t *Memory) Retain() { t.refs.Add(1) }

// Release drops a reference; the last one releases the table's mappings.
func (t *Memory) Release() {
	switch n := t.refs.Add(-1); {
	case n == 0:
		for _, m := range t.maps {
			m.Release()
		}
		t.maps = nil
	case n < 0:
		panic("shm: memory released more often than retained")
	}
}

// Mappings are the regions by guest address. Lent.
func (t *Memory) Mappings() []*Mapping { return t.maps }

// Append translates n bytes at guest physical address gpa and appends the slices
// that hold them to dst: one, or several where regions adjoin. If any of the bytes is in
// no region, ok is false and dst is unchanged. n = 0 appends nothing.
func (t *Memory) Append(dst [][]byte, gpa, n uint64) (_ [][]byte, ok bool) {
	had := len(dst)
	for n > 0 {
		m := t.find(gpa)
		if m == nil {
			return dst[:had], false
		}
		off := gpa - m.GPA
		k := min(n, m.Size-off)
		dst = append(dst, m.bytes[off:off+k:off+k])
		gpa, n = gpa+k, n-k // gpa wraps to 0 only past a region that ends at 2^64, which Map refuses
	}
	return dst, true
}

// find is the region that holds gpa, or nil.
func (t *Memory) find(gpa uint64) *Mapping {
	lo, hi := 0, len(t.maps)
	for lo < hi {
		mid := int(uint(lo+hi) / 2)
		m := t.maps[mid]
		switch {
		case gpa < m.GPA:
			hi = mid
		case gpa-m.GPA < m.Size:
			return m
		default:
			lo = mid + 1
		}
	}
	return nil
}

// User translates n bytes at the front-end's address uva. They must lie within
// one region.
func (t *Memory) User(uva, n uint64) ([]byte, bool) {
	for _, m := range t.maps {
		if off := uva - m.UVA; uva >= m.UVA && off < m.Size {
			if n > m.Size-off {
				return nil, false
			}
			return m.bytes[off : off+n : off+n], true
		}
	}
	return nil, false
}

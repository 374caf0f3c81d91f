package shm

import (
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// file is a memory file of n bytes with its pages numbered.
func file(t *testing.T, n int) int {
	fd, err := unix.MemfdCreate("test", unix.MFD_CLOEXEC)
	require.NoError(t, err)
	t.Cleanup(func() { _ = unix.Close(fd) })
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i / 4096)
	}
	_, err = unix.Pwrite(fd, b, 0)
	require.NoError(t, err)
	return fd
}

func mapped(t *testing.T, fd int, r Region) *Mapping {
	m, err := Map(fd, r)
	require.NoError(t, err)
	t.Cleanup(m.Release)
	return m
}

func TestMap_offsets(t *testing.T) {
	fd := file(t, 16*4096)
	for _, off := range []uint64{0, 4096, 3 * 4096, 3*4096 + 16, 8191} {
		m := mapped(t, fd, Region{GPA: 1 << 20, Size: 5000, UVA: 1 << 40, Offset: off})
		require.Len(t, m.Bytes(), 5000)
		require.Equal(t, byte(off/4096), m.Bytes()[0])
		require.Equal(t, byte((off+4999)/4096), m.Bytes()[4999])
	}
}

func TestMap_refuses(t *testing.T) {
	fd := file(t, 4096)
	for name, r := range map[string]Region{
		"empty":              {Size: 0},
		"wraps guest":        {GPA: ^uint64(0) - 10, Size: 4096},
		"wraps user":         {UVA: ^uint64(0) - 10, Size: 4096},
		"wraps file":         {Offset: ^uint64(0) - 10, Size: 4096},
		"beyond file":        {Size: 4097},
		"offset beyond file": {Size: 1, Offset: 4096},
		"size with offset":   {Size: 0xFFFFFFFFFFFFF001, Offset: 0x1000},
	} {
		_, err := Map(fd, r)
		require.ErrorIs(t, err, ErrRange, name)
	}
	_, err := Map(-1, Region{Size: 4096})
	require.ErrorIs(t, err, unix.EBADF)
}

// Guest addresses, user addresses and file offsets of the table all differ.
func TestMemory_translate(t *testing.T) {
	fd := file(t, 8*4096)
	maps := []*Mapping{
		mapped(t, fd, Region{GPA: 0x3000, Size: 0x1000, UVA: 0x700000, Offset: 2 * 4096}),
		mapped(t, fd, Region{GPA: 0x1000, Size: 0x1000, UVA: 0x900000, Offset: 4 * 4096}),
		mapped(t, fd, Region{GPA: 0x2000, Size: 0x1000, UVA: 0x800000, Offset: 6 * 4096}),
	}
	m, err := NewMemory(maps)
	require.NoError(t, err)
	defer m.Release()

	segs, ok := m.Append(nil, 0x1ff0, 0x1020) // over three adjoining regions
	require.True(t, ok)
	require.Len(t, segs, 3)
	require.Equal(t, []int{0x10, 0x1000, 0x10}, []int{len(segs[0]), len(segs[1]), len(segs[2])})
	require.Equal(t, []byte{4, 6, 2}, []byte{segs[0][0], segs[1][0], segs[2][0]})

	had := segs
	for _, bad := range [][2]uint64{{0xfff, 1}, {0x4000, 1}, {0x3fff, 2}, {0, 0x5000}, {^uint64(0), 2}, {0x1000, ^uint64(0)}} {
		got, ok := m.Append(had, bad[0], bad[1])
		require.False(t, ok, "%#x", bad)
		require.Len(t, got, 3)
	}
	got, ok := m.Append(nil, 0xdead0000, 0)
	require.True(t, ok, "nothing lies anywhere")
	require.Empty(t, got)

	b, ok := m.User(0x8000ff, 2)
	require.True(t, ok)
	require.Equal(t, []byte{6, 6}, b)
	for _, bad := range [][2]uint64{{0x800fff, 2}, {0x1000, 1}, {0x800000, 0x1001}, {^uint64(0), 1}} {
		_, ok = m.User(bad[0], bad[1])
		require.False(t, ok, "%#x", bad)
	}
}

func TestNewMemory_overlap(t *testing.T) {
	fd := file(t, 4*4096)
	a := mapped(t, fd, Region{GPA: 0x1000, Size: 0x2000, UVA: 0x10000})
	for _, r := range []Region{
		{GPA: 0x2fff, Size: 1, UVA: 0x90000},
		{GPA: 0x0, Size: 0x1001, UVA: 0x90000},
		{GPA: 0x1000, Size: 0x2000, UVA: 0x90000},
		{GPA: 0x9000, Size: 0x1000, UVA: 0x11fff},
	} {
		_, err := NewMemory([]*Mapping{a, mapped(t, fd, r)})
		require.ErrorIs(t, err, ErrOverlap)
	}
}

// A region is mapped as long as any table holds it.
func TestMemory_lifetime(t *testing.T) {
	fd := file(t, 4096)
	a, err := Map(fd, Region{GPA: 0x1000, Size: 0x1000, UVA: 0x1000})
	require.NoError(t, err)
	one, err := NewMemory([]*Mapping{a})
	require.NoError(t, err)
	two, err := NewMemory([]*Mapping{a})
	require.NoError(t, err)
	a.Release()
	one.Retain()
	one.Release()
	one.Release()
	require.NotNil(t, a.Bytes())
	two.Release()
	require.Nil(t, a.Bytes())
	require.Panics(t, two.Release)
	require.Panics(t, a.Release)
}

// golang/go issue 41155: a touch of memory whose file was cut ends the process
// unless it is caught.
func TestCopy_vanished(t *testing.T) {
	fd := file(t, 2*4096)
	m := mapped(t, fd, Region{Size: 2 * 4096})
	good := make([]byte, 2*4096)
	require.True(t, Copy(good, m.Bytes()))
	require.True(t, Zero(m.Bytes()[4096:]))
	require.NoError(t, unix.Ftruncate(fd, 4096))
	require.False(t, Copy(good, m.Bytes()))
	require.False(t, Copy(m.Bytes(), good))
	require.False(t, Zero(m.Bytes()))
	require.True(t, Copy(good[:4096], m.Bytes()))
}

// Only faults are survived: a mistake of our own goes on.
func TestGuard_rethrows(t *testing.T) {
	require.True(t, Guard(func() {}))
	require.PanicsWithValue(t, "mine", func() { Guard(func() { panic("mine") }) })
	require.Panics(t, func() { Guard(func() { _ = make([]int, 1)[len(t.Name())] }) })
}

func TestAtomics(t *testing.T) {
	m, err := NewAnonymous(4096)
	require.NoError(t, err)
	defer m.Release()
	b := m.Mappings()[0].Bytes()
	for _, off := range []int{0, 2, 4, 6, 4094} {
		Store16(b, off, uint16(0x1100+off))
		require.EqualValues(t, 0x1100+off, Load16(b, off))
		require.Equal(t, []byte{byte(off), byte((0x1100 + off) >> 8)}, b[off:off+2], "little-endian")
	}
	Store32(b, 8, 0xaabbccdd)
	require.EqualValues(t, 0xaabbccdd, Load32(b, 8))
	require.EqualValues(t, 0xaabb, Load16(b, 10))
	Store16(b, 10, 1)
	require.EqualValues(t, 0x1ccdd, Load32(b, 8), "a 16-bit store leaves its neighbour")
	require.Panics(t, func() { Load16(b, 4095) })
	require.Panics(t, func() { Store32(b, 4094, 0) })
	Fence()
}

func TestCreate_isSealed(t *testing.T) {
	fd, m, err := Create("test", 8192, Region{GPA: 0x1000, Size: 4096, Offset: 4096})
	require.NoError(t, err)
	defer unix.Close(fd)
	defer m.Release()
	require.Len(t, m.Bytes(), 4096)
	require.Error(t, unix.Ftruncate(fd, 0))
}

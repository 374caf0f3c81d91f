package shm

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// Create makes a sealed memory file of size bytes and maps region r of it; the caller owns
// the descriptor and one reference to the mapping. Because of the seals, a process that
// gets the descriptor can rely on the file's length.
func Create(name string, size uint64, r Region) (int, *Mapping, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return -1, nil, fmt.Errorf("create memory file %s: %w", name, err)
	}
	if err = unix.Ftruncate(fd, int64(size)); err == nil {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL)
	}
	if err != nil {
		_ = unix.Close(fd)
		return -1, nil, fmt.Errorf("size memory file %s to %d bytes: %w", name, size, err)
	}
	m, err := Map(fd, r)
	if err != nil {
		_ = unix.Close(fd)
		return -1, nil, err
	}
	return fd, m, nil
}

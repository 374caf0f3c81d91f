package uring

import (
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

func sysSetup(entries uint32, p *params) (int, error) {
	// SAFETY: p is a struct io_uring_params, read and written during the call only.
	fd, _, errno := unix.Syscall(unix.SYS_IO_URING_SETUP, uintptr(entries), uintptr(unsafe.Pointer(p)), 0)
	if errno != 0 {
		return 0, errno
	}
	return int(fd), nil
}

// sysEnter is io_uring_enter without a word to Go's scheduler.
func sysEnter(fd, submit, wait int, flags uint32, arg *getEventsArg) unix.Errno {
	// SAFETY: arg is nil or off-heap, so it cannot move during the call.
	_, _, errno := unix.RawSyscall6(unix.SYS_IO_URING_ENTER, uintptr(fd), uintptr(submit), uintptr(wait),
		uintptr(flags), uintptr(unsafe.Pointer(arg)), argSize(arg))
	return errno
}

// sysEnterKnown is io_uring_enter as Go makes system calls that block.
func sysEnterKnown(fd, submit, wait int, flags uint32, arg *getEventsArg) unix.Errno {
	// SAFETY: as sysEnter.
	_, _, errno := unix.Syscall6(unix.SYS_IO_URING_ENTER, uintptr(fd), uintptr(submit), uintptr(wait),
		uintptr(flags), uintptr(unsafe.Pointer(arg)), argSize(arg))
	return errno
}

func argSize(arg *getEventsArg) uintptr {
	if arg == nil {
		return 0
	}
	return unsafe.Sizeof(*arg)
}

func sysRegister(fd int, op uintptr, arg unsafe.Pointer, n int) (int, error) {
	// SAFETY: the kernel uses arg, which the caller made for op, during the call only.
	ret, _, errno := unix.Syscall6(unix.SYS_IO_URING_REGISTER, uintptr(fd), op, uintptr(arg), uintptr(n), 0, 0)
	if errno != 0 {
		return 0, errno
	}
	return int(ret), nil
}

func sysProbe(fd int, p *probe) error {
	// SAFETY: p is a struct io_uring_probe with room for probeOps operations.
	_, err := sysRegister(fd, registerProbe, unsafe.Pointer(p), probeOps)
	return err
}

func sysRingFDs(fd int, op uintptr, up *resourceUpdate) (int, error) {
	// SAFETY: up is one struct io_uring_rsrc_update.
	return sysRegister(fd, op, unsafe.Pointer(up), 1)
}

// sysFilesRegister makes a table of n empty places.
func sysFilesRegister(fd, n int) error {
	empty := make([]int32, n)
	for i := range empty {
		empty[i] = -1
	}
	// SAFETY: an array of n descriptors, of which -1 means none.
	_, err := sysRegister(fd, registerFiles, unsafe.Pointer(unsafe.SliceData(empty)), n)
	return err
}

// sysFilesUpdate puts file, or -1, into a place of the table.
func sysFilesUpdate(fd, place, file int) error {
	one := int32(file)
	// SAFETY: the update points at one descriptor, which the pin keeps in place.
	up := resourceUpdate{offset: uint32(place)}
	return pinned(&one, func(addr uint64) error {
		up.data = addr
		_, err := sysRegister(fd, registerFilesUpdate, unsafe.Pointer(&up), 1)
		return err
	})
}

// pinned lends the address of v, which stays in place until f returns.
func pinned(v *int32, f func(addr uint64) error) error {
	var p runtime.Pinner
	p.Pin(v)
	defer p.Unpin()
	// SAFETY: only the number is used, and the pin outlives its use.
	return f(uint64(uintptr(unsafe.Pointer(v))))
}

package backend

import (
	"unsafe"

	"github.com/elevisor/elevisor/backend/uring"
	"golang.org/x/sys/unix"
)

func ioctlUint32(fd int, req uintptr) (v uint32, err error) {
	// SAFETY: the request writes one 32-bit word, during the call only.
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), req, uintptr(unsafe.Pointer(&v)))
	if errno != 0 {
		return 0, errno
	}
	return v, nil
}

// sysDiscard is ioctl BLKDISCARD (include/uapi/linux/fs.h); it blocks.
func sysDiscard(fd int, off, n int64) error {
	extent := [2]uint64{uint64(off), uint64(n)}
	// SAFETY: the request reads two 64-bit words, during the call only.
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.BLKDISCARD, uintptr(unsafe.Pointer(&extent)))
	if errno != 0 {
		return errno
	}
	return nil
}

// sysVectored is preadv2(2) or pwritev2(2): the iovecs are used as they are.
func sysVectored(call uintptr, fd int, iov []uring.Iovec, off int64, flags uint32) (int64, error) {
	// The offset goes in two registers, of which a 64-bit kernel ignores the second.
	// SAFETY: iov is off the Go heap, and what it points at is alive by contract.
	n, _, errno := unix.Syscall6(call, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(iov))), uintptr(len(iov)),
		uintptr(off), uintptr(uint64(off)>>32), uintptr(flags))
	if errno != 0 {
		return 0, errno
	}
	return int64(n), nil
}

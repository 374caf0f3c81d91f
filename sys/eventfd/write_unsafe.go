package eventfd

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// rawWrite is write(2) without telling Go's scheduler: the write is short, and on a
// locked thread the scheduler's bookkeeping around a system call costs more than the
// call.
func rawWrite(fd int, b *[8]byte) {
	// SAFETY: b is a global, so it neither moves nor dies; 8 bytes are read.
	_, _, _ = unix.RawSyscall(unix.SYS_WRITE, uintptr(fd), uintptr(unsafe.Pointer(b)), 8)
}

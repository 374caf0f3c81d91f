package backend

import (
	"unsafe"

	"github.com/elevisor/elevisor/backend/uring"
)

// baseOf is the address that v holds.
func baseOf(v *uring.Iovec) uintptr {
	// SAFETY: an Iovec is struct iovec, whose first word is the base.
	return *(*uintptr)(unsafe.Pointer(v))
}

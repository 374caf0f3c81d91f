package shm

import (
	"sync/atomic"
	"unsafe"
)

// The only place that spells a barrier. sync/atomic has no 16-bit operations, and
// ring indices have 16 bits. Little-endian machines only, as virtio 1 rings are
// (build constraints in order.go hold that).

// Load16 reads the 16-bit word at b[off] with acquire order: what the other side
// wrote before it stored this word is visible after it. off must be even.
func Load16(b []byte, off int) uint16 {
	_ = b[off+1]
	// SAFETY: the bounds check above covers both bytes. The aligned 32-bit word
	// around them lies in the same page, so reading all of it touches nothing
	// unmapped, although up to two of its bytes may lie outside b.
	p := uintptr(unsafe.Pointer(&b[off]))
	word := (*uint32)(unsafe.Pointer(&b[off]))
	if p&2 != 0 {
		word = (*uint32)(unsafe.Add(unsafe.Pointer(&b[off]), -2))
		return uint16(atomic.LoadUint32(word) >> 16)
	}
	return uint16(atomic.LoadUint32(word))
}

// Store16 writes the 16-bit word at b[off]; off must be even. It is ordered
// against nothing: a neighbour's bytes must not be written with it, so it cannot
// be an atomic operation. Put a Fence before and after.
func Store16(b []byte, off int, v uint16) {
	_ = b[off+1]
	// SAFETY: in bounds by the check above, aligned because rings are and off is even.
	*(*uint16)(unsafe.Pointer(&b[off])) = v
}

// Load32 reads the aligned 32-bit word at b[off] with acquire order.
func Load32(b []byte, off int) uint32 {
	_ = b[off+3]
	// SAFETY: in bounds by the check above; off is a multiple of 4 in an aligned ring.
	return atomic.LoadUint32((*uint32)(unsafe.Pointer(&b[off])))
}

// Store32 writes the aligned 32-bit word at b[off] with release order: all
// earlier writes are visible to whoever loads it.
func Store32(b []byte, off int, v uint32) {
	_ = b[off+3]
	// SAFETY: in bounds by the check above; off is a multiple of 4 in an aligned ring.
	atomic.StoreUint32((*uint32)(unsafe.Pointer(&b[off])), v)
}

// Fence is a full barrier: no access to memory after it passes one before it. An atomic
// add alone is one on most machines. On arm64 without LSE atomics it is a load-acquire and
// a store-release, and a plain store behind it could become visible before a plain store
// in front of it; a load-acquire behind the store-release closes that gap. The target is a
// local, so that loops on different cores share no cache line for it.
func Fence() {
	var here uint32
	atomic.AddUint32(&here, 1)
	_ = atomic.LoadUint32(&here)
}

// Addr is where b starts in our address space, for alignment checks.
func Addr(b []byte) uintptr {
	// SAFETY: only the number is used, never turned back into a pointer.
	return uintptr(unsafe.Pointer(unsafe.SliceData(b)))
}

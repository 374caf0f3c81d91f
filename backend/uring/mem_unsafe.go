package uring

import "unsafe"

// Iovec is struct iovec. Its base is a number, so that writing one is no pointer
// write to the garbage collector; whoever fills it keeps the memory alive.
type Iovec struct {
	base uintptr
	len  uintptr
}

// IovecSize is the size of one Iovec in bytes.
const IovecSize = int(unsafe.Sizeof(Iovec{}))

const waitArgSize = int(unsafe.Sizeof(getEventsArg{}) + unsafe.Sizeof(timespec{}))

// Set makes v cover b, which is not empty.
func (v *Iovec) Set(b []byte) {
	// SAFETY: only the number is kept; the caller keeps b alive and in place.
	v.base, v.len = uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b))
}

// Cut shortens v by n bytes at its end; n is less than its length.
func (v *Iovec) Cut(n int) { v.len -= uintptr(n) }

// Len is the length in bytes.
func (v *Iovec) Len() int { return int(v.len) }

// Iovecs views b, aligned memory off the Go heap, as iovecs; what is left of b
// behind the last full one is not used.
func Iovecs(b []byte) []Iovec {
	// SAFETY: b holds that many; the caller says that it is aligned and off-heap,
	// and an Iovec has no Go pointer in it.
	return unsafe.Slice((*Iovec)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/IovecSize)
}

// word is the 32-bit field at off of a ring.
func word(b []byte, off uint32) *uint32 {
	_ = b[off+3]
	// SAFETY: in bounds by the check above; the kernel aligns its fields.
	return (*uint32)(unsafe.Pointer(&b[off]))
}

func sqesOf(b []byte) []sqe {
	// SAFETY: b is the kernel's page-aligned array of len(b)/sqeSize entries.
	return unsafe.Slice((*sqe)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/sqeSize)
}

func cqesOf(b []byte) []cqe {
	// SAFETY: b is the kernel's aligned array of len(b)/cqeSize entries.
	return unsafe.Slice((*cqe)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/cqeSize)
}

// waitArg lays the argument of a limited wait into b: the kernel reads it, and the
// time it points at, while the thread is in the system call.
func waitArg(b []byte) (*getEventsArg, *timespec) {
	// SAFETY: b is page aligned, off the Go heap and holds both structs.
	arg := (*getEventsArg)(unsafe.Pointer(unsafe.SliceData(b)))
	limit := (*timespec)(unsafe.Add(unsafe.Pointer(arg), unsafe.Sizeof(*arg)))
	arg.ts = uint64(uintptr(unsafe.Pointer(limit)))
	return arg, limit
}

// addrOf is the address of b for the kernel.
func addrOf(b []byte) uint64 {
	// SAFETY: only the number is used; by contract b is off-heap, or alive and in
	// place until the completion.
	return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b))))
}

func addrOfIovecs(v []Iovec) uint64 {
	// SAFETY: as addrOf.
	return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(v))))
}

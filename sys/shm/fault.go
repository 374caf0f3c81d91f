package shm

import (
	"runtime"
	"runtime/debug"
)

// Copy copies src to dst, either of which may be guest memory, and returns false if a
// part of that has vanished. Any goroutine may call it.
func Copy(dst, src []byte) (ok bool) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if !ok {
			rethrowUnlessFault(recover())
		}
	}()
	copy(dst, src)
	return true
}

// Zero clears a buffer that may be guest memory; it returns false as Copy does.
func Zero(dst []byte) (ok bool) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if !ok {
			rethrowUnlessFault(recover())
		}
	}()
	clear(dst)
	return true
}

// Guard runs f and returns whether f ran to its end: false means that f accessed memory
// that has vanished. The goroutine must have called debug.SetPanicOnFault(true), which
// Guard does not do because it costs more than a typical f. Any other panic is passed on.
func Guard(f func()) (ok bool) {
	defer func() {
		if !ok {
			rethrowUnlessFault(recover())
		}
	}()
	f()
	return true
}

// rethrowUnlessFault treats a memory fault as handled, and nothing else: an index out
// of range is our own mistake. Only a fault has an address.
func rethrowUnlessFault(v any) {
	if v == nil {
		return // runtime.Goexit
	}
	if e, isErr := v.(runtime.Error); isErr {
		if _, isFault := e.(interface{ Addr() uintptr }); isFault {
			return
		}
	}
	panic(v)
}

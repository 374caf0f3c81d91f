package shm

import (
	"runtime"
	"runtime/debug"
)

// Copy copies between buffers of which either may be guest memory, and reports
// false where a part of that is no longer there. Any goroutine.
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

// Zero clears a buffer that may be guest memory; false as with Copy.
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

// Guard runs f and reports whether it ran to its end: false means that it
// touched memory which is no longer there. Its goroutine must have set
// debug.SetPanicOnFault, which is left to it because it costs more than f.
// Every other panic goes on.
func Guard(f func()) (ok bool) {
	defer func() {
		if !ok {
			rethrowUnlessFault(recover())
		}
	}()
	f()
	return true
}

// rethrowUnlessFault lets a memory fault pass for handled, and nothing else: an
// index out of range is our own mistake. Only a fault carries an address.
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

// Package backend holds the disks that requests end on: files and raw block
// devices, memory, nothing at all, simulated drives. Decorators make an [Image] of another
// one: with the timing of a model of a drive ([NewSim]), slower ([NewRate],
// [NewDelay]), failing ([NewFaults]), or recorded ([NewRecorder]). They may be stacked in
// any order; what one of them offers beside a [Backend] is found by [As].
//
// An [Image] is opened by the control path, which may block. Each loop that
// serves it attaches and gets a [Backend] of its own, which that loop's goroutine
// owns and which never blocks.
package backend

import (
	"errors"

	"github.com/elevisor/elevisor/backend/uring"
	"github.com/elevisor/elevisor/blk"
)

// ErrLocked says that somebody else has the image open. A process that was killed
// keeps its locks until the last of its operations has ended, which is what a
// successor must wait for: a write of the dead that lands later would overwrite
// one of the living.
var ErrLocked = errors.New("the image is locked")

// Image is one opened disk.
type Image interface {
	// Info describes the image; constant.
	Info() Info
	// Attach makes the door through which one loop uses the image. Called on the
	// loop's goroutine, with what that loop lends.
	Attach(h Host) (Backend, error)
	// Close gives up the image and its lock. All backends are closed before.
	Close() error
}

// Backend is one loop's way to an image. Only the loop's goroutine calls it.
//
// A request comes with all parts merged behind it (blk.Request.Merged): their
// extents follow each other, and the backend moves the data of all of them in one
// operation, in order. Its outcome is the head's Status and Errno; on failure the
// loop takes the group apart and tries the parts alone. A short transfer is
// continued, never reported.
//
// Guest memory may vanish under a request: that is StatusIOErr, EFAULT.
type Backend interface {
	// Info describes the image; constant.
	Info() Info
	// Submit takes r (queued to issued); false means full: r stays the caller's,
	// and it may try again after a Reap. It never blocks.
	Submit(now blk.Instant, r *blk.Request) bool
	// Commit hands over what was submitted in this step; a no-op where the loop's
	// wait does that.
	Commit() error
	// Reap appends finished requests to done and gives them back (issued to done),
	// Status set.
	Reap(now blk.Instant, done []*blk.Request) []*blk.Request
	// Wake is the next completion of a simulated disk; Never for real ones, which
	// wake the loop themselves.
	Wake() blk.Instant
	// Close detaches. Requests that are in flight all the same, because a disk does
	// not answer, are never given back: an error says so, and what the system may
	// still write to stays mapped.
	Close() error
}

// Host is what a loop lends to its backends.
type Host struct {
	// Ring is the loop's io_uring: a backend queues its operations on it, and the
	// loop's wait submits them all in one system call. nil: io_uring is not to be
	// had on this machine.
	Ring *uring.Ring
	// Wakeup makes the loop look again, from any goroutine: for completions that do
	// not come through Ring.
	Wakeup func()
	// Depth is how many requests the loop keeps in flight at most.
	Depth int
}

// Info describes an image.
type Info struct {
	Sectors       blk.Sector // capacity; what is left of a file behind its last full sector is not used
	LogicalBlock  uint32     // bytes: the smallest unit the disk writes without reading
	PhysicalBlock uint32     // bytes
	MemAlign      uint32     // bytes: of buffers that are moved without a bounce; 1 if any
	ReadOnly      bool
	Direct        bool // past the host's page cache
	Rotational    bool // Physical says so, and can be believed
	Physical      Physical
	Discard       bool   // OpDiscard does something
	WriteZeroes   bool   // OpWriteZeroes works (it always does, if by writing)
	ZeroesUnmap   bool   // and FlagUnmap may free blocks
	DiscardAlign  uint32 // bytes: granularity of a useful discard
	Engine        string // "io_uring", "threads", "mem", "null", "sim": how requests are carried out
}

// Cache says which caches a disk goes through, in QEMU's words.
type Cache uint8

// The cache modes. The guest's own write cache setting (the config space's
// writeback byte) starts as on for writeback, none and unsafe, off for the others.
const (
	CacheWriteback    Cache = iota // host page cache; flushes reach the disk
	CacheNone                      // O_DIRECT; flushes reach the disk
	CacheWritethrough              // host page cache; every write is durable
	CacheDirectsync                // O_DIRECT; every write is durable
	CacheUnsafe                    // host page cache; flushes are ignored
)

// AIO says how a file is read and written, in QEMU's words.
type AIO uint8

// The engines. AIOAuto takes io_uring where the system allows it.
const (
	AIOAuto AIO = iota
	AIOURing
	AIOThreads
)

// Options are an operator's wishes for one image.
type Options struct {
	ReadOnly      bool
	Cache         Cache
	AIO           AIO
	Lock          bool   // take an advisory (OFD) lock, shared for ReadOnly
	Discard       bool   // pass discards on; false: they succeed and do nothing
	LogicalBlock  uint32 // bytes; 0: as the file asks
	PhysicalBlock uint32 // bytes; 0: as the file asks
}

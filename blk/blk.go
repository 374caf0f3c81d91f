// Package blk holds the types that the other packages share: a guest's request, its
// operation, status and position, the loop's time, and the wire format of
// virtio-blk. It imports nothing of ours, does no I/O, reads no clock and starts no
// goroutine.
//
// A [Request] has one owner at a time, by its state; [Request.Move] asserts each
// hand-over:
//
//	state    owner              enters by            leaves by
//	free     queue's slot table finish               Pop + Parse
//	queued   scheduler          Insert, Retry        Dispatch, Drain
//	issued   backend            Submit               Reap
//	done     loop               Reap                 finish: status byte, Push
//
// Requests that were merged behind a head stay queued, and go with it, until the head
// is done. A method's comment says "takes r", "gives up r" or "lends r"; nobody touches
// a request that it does not own.
package blk

import (
	"fmt"
	"math"
)

// Instant is a point in time on the loop's clock, in nanoseconds. Zero is the clock's
// start, not an epoch. On the data path time is always an argument: whoever drives a
// loop has the clock.
type Instant int64

// Never is later than every other Instant. As a wake-up time it says that time alone
// changes nothing.
const Never Instant = math.MaxInt64

// SectorSize is the unit of all sector numbers in virtio-blk and in the Linux block
// layer, whatever the disk's logical block size (virtio 1.3, 5.2.4).
const SectorSize = 512

// Sector is a position or a length in units of 512 bytes.
type Sector uint64

// Bytes converts s to bytes. The caller has checked s against a capacity, so the product
// does not overflow.
func (s Sector) Bytes() int64 { return int64(s) * SectorSize }

// Op is what a request does to the disk.
type Op uint8

// The operations of a backend. No other request type of virtio-blk becomes an Op: Parse
// answers GET_ID itself, and the rest with StatusUnsupp.
const (
	OpRead Op = iota
	OpWrite
	OpFlush
	OpDiscard
	OpWriteZeroes
	OpCount // number of operations, for arrays indexed by Op
)

var opNames = [OpCount]string{"read", "write", "flush", "discard", "write-zeroes"}

func (o Op) String() string {
	if o < OpCount {
		return opNames[o]
	}
	return fmt.Sprintf("op(%d)", uint8(o))
}

// Changes reports whether o alters the disk's contents.
func (o Op) Changes() bool { return o == OpWrite || o == OpDiscard || o == OpWriteZeroes }

// Status is the last byte of a virtio-blk request (virtio 1.3, 5.2.6).
type Status uint8

// The values of the status byte.
const (
	StatusOK     Status = 0
	StatusIOErr  Status = 1
	StatusUnsupp Status = 2
)

func (s Status) String() string {
	switch s {
	case StatusOK:
		return "OK"
	case StatusIOErr:
		return "IOERR"
	case StatusUnsupp:
		return "UNSUPP"
	}
	return fmt.Sprintf("status(%d)", uint8(s))
}

// Prio is a disk's I/O priority class. The classes are the kernel's
// (include/uapi/linux/ioprio.h), the numbers are not, and they are in no order.
type Prio uint8

// The priority classes: best effort, which is the default; real time, which is served
// before it; idle, which is served after both.
const (
	PrioBE Prio = iota
	PrioRT
	PrioIdle
)

// Source says where a request comes from. Fair schedulers group requests by it.
type Source struct {
	Device uint16 // index of the device (VM's disk) in its domain
	Queue  uint16 // virtqueue of that device
	Stream uint32 // a sequential stream within the queue, as the scheduler numbers them; 0: none
}

// AnyQueue in Source.Queue, or AnyDevice in Source.Device, stands for all of them.
const (
	AnyQueue  uint16 = math.MaxUint16
	AnyDevice uint16 = math.MaxUint16
)

// AllSources covers every source of a domain.
var AllSources = Source{Device: AnyDevice, Queue: AnyQueue}

// Covers reports whether the pattern s matches of. It ignores streams: what is stopped
// or drained is a queue.
func (s Source) Covers(of Source) bool {
	return (s.Device == AnyDevice || s.Device == of.Device) &&
		(s.Queue == AnyQueue || s.Queue == of.Queue)
}

// Disk is one image. Requests merge only within one Disk (the same pointer), by image
// sector. Several guests may share a Disk through windows.
type Disk struct {
	Name    string // the operator's id, for logs and statistics
	Index   int    // in its loop's table of images
	Sectors Sector // capacity
	Base    Sector // position of sector 0 on the physical disk; 0 where it is not known
}

// State tells who owns a request; see the table in the package comment.
type State uint8

// The states of a request, in the order it passes through them.
const (
	StateFree State = iota
	StateQueued
	StateIssued
	StateDone
)

func (s State) String() string {
	return [...]string{"free", "queued", "issued", "done"}[s&3]
}

// Flags modify a request.
type Flags uint8

const (
	// FlagFUA asks that a write is durable before it is acknowledged: the guest
	// runs with its write cache off. As in the kernel, such a request never merges.
	FlagFUA Flags = 1 << iota
	// FlagUnmap allows write-zeroes to free the blocks (virtio 1.3, 5.2.6, unmap).
	FlagUnmap
	// FlagNoMerge keeps a request out of merges: it once reached a limit, or is being
	// retried after its merged group failed.
	FlagNoMerge
)

// Range is one extent of a discard or write-zeroes request, in image sectors.
type Range struct {
	Sector, Sectors Sector
}

// Links are a request's nodes in the scheduler's trees, indexes and groups. They are
// part of the request so that queueing allocates nothing.
type Links struct {
	// Node of a sorted tree: Child[0] has the smaller keys.
	Parent *Request
	Child  [2]*Request
	Key    Sector
	Red    bool

	// Group of merged requests. These fields are kept in its leader: the part that was
	// queued first, which represents the group until it is dispatched.
	Closed   bool     // nothing may join it
	Given    bool     // dispatched, not yet complete
	Indexed  bool     // on the two chains
	Segments int32    // memory segments of all parts
	Parts    int32    // number of requests
	Place    int32    // for the scheduler's use: 1 + where it keeps the leader; 0: nowhere
	Start    Sector   // first sector of the group in the image
	Total    Sector   // its length
	First    *Request // the part with the lowest sector; the others follow through Merged
	Last     *Request // the part with the highest

	// Hash chains of groups by their start (0) and by their end (1).
	Chain [2]Chain

	// Leader of the group, in a head that was dispatched; nil once it is complete.
	Leader *Request
}

// Chain is a node of a doubly linked hash chain.
type Chain struct{ Prev, Next *Request }

// Request is one guest request. It lives in its queue's slot table from the queue's
// start to its stop, is reused, and never moves in memory.
type Request struct {
	// What is wanted. Set by Parse, constant until the request is free again.
	Op      Op
	Flags   Flags
	Prio    Prio
	Disk    *Disk
	Sector  Sector   // first sector in the image
	Sectors Sector   // length; of a multi-range discard, the sum
	Pos     Sector   // position on the physical disk: only for sorting
	Segs    [][]byte // guest memory, in order: source of a write, target of a read
	Ranges  []Range  // discard, write-zeroes: at least one; nil for other operations

	// Who wants it, and since when.
	Source Source
	Seq    uint64  // unique, in order of arrival at the loop
	Arrive Instant // when it was popped from its ring
	Issue  Instant // when it was submitted to the backend
	Slot   any     // the owner of the slot table keeps its own data there; opaque to schedulers and backends

	// The outcome. Set by the backend before it gives the request back.
	Status Status
	Errno  uint16 // the error number behind StatusIOErr; 0: none

	// Merged is the next guest request of a merged group; nil: this is the last one. The
	// scheduler makes the group, and its head represents it in Dispatch, Submit and Reap.
	// The parts' extents follow each other without a gap, and the backend transfers all
	// of them in one operation.
	Merged *Request

	// Prev and Next are list links. They belong to the owner (see the package comment).
	Prev, Next *Request

	// Links belong to the scheduler that the request was last inserted into, until the
	// request is free again; nobody else reads or writes them.
	Links Links

	state State
}

// State returns the state of r.
func (r *Request) State() State { return r.state }

// Move hands r over from one owner to the next. A wrong "from" is our own bug, never a
// guest's fault, and ends the process: a request with two owners corrupts data.
func (r *Request) Move(from, to State) {
	if r.state != from {
		panic(fmt.Sprintf("blk: request of %v is %v, not %v, on its way to %v", r.Source, r.state, from, to))
	}
	r.state = to
}

// End is the first sector after r in its image.
func (r *Request) End() Sector { return r.Sector + r.Sectors }

// Bytes is the length of r itself, without the parts that are merged behind it.
func (r *Request) Bytes() int64 { return r.Sectors.Bytes() }

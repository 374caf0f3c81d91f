// Package blk holds the words that every other package shares: a guest's
// request, its operation, status and place, the loop's time, and the wire
// format of virtio-blk. It imports nothing of ours, does no I/O, reads no clock
// and starts no goroutine.
//
// Ownership of a [Request] moves through four states; [Request.Move] asserts
// each hand-over:
//
//	state    owner              enters by            leaves by
//	free     queue's slot table finish               Pop + Parse
//	queued   scheduler          Insert, Retry        Dispatch, Drain
//	issued   backend            Submit               Reap
//	done     loop               Reap                 finish: status byte, Push
//
// A method's comment says "takes r", "gives up r" or "lends r"; nobody touches
// a request that it does not own.
package blk

import (
	"fmt"
	"math"
)

// Instant is a moment on the loop's clock, in nanoseconds. Zero is the clock's
// start, not an epoch. Time is always an argument; nothing below cmd asks for it.
type Instant int64

// Never is later than every other Instant: nothing happens by time alone.
const Never Instant = math.MaxInt64

// SectorSize is the unit of every sector number in virtio-blk and in Linux'
// block layer, whatever the disk's logical block size (virtio 1.3, 5.2.4).
const SectorSize = 512

// Sector counts units of 512 bytes, as a position or as a length.
type Sector uint64

// Bytes is the length, or the byte position, of s. The caller has checked s
// against a capacity before, so the product cannot overflow.
func (s Sector) Bytes() int64 { return int64(s) * SectorSize }

// Op is what a request does to the disk.
type Op uint8

// The operations a backend knows. Other virtio-blk types never become an Op:
// Parse answers them with StatusUnsupp.
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

// Changes says whether o alters the disk's contents.
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

// Prio is a disk's I/O priority class, in the kernel's order: the smaller value
// is served first (include/uapi/linux/ioprio.h).
type Prio uint8

// The priority classes. The zero value is best effort.
const (
	PrioBE Prio = iota
	PrioRT
	PrioIdle
)

// Source is what fairness groups by: the guest, its queue, and a stream
// detected within the queue. Equal Sources share a queue in a fair scheduler.
type Source struct {
	Device uint16 // index of the device (VM's disk) in its domain
	Queue  uint16 // virtqueue of that device
	Stream uint32 // 0 where streams are not told apart
}

// AnyQueue in Source.Queue, or AnyDevice in Source.Device, stands for all of them.
const (
	AnyQueue  uint16 = math.MaxUint16
	AnyDevice uint16 = math.MaxUint16
)

// AllSources covers every source of a domain.
var AllSources = Source{Device: AnyDevice, Queue: AnyQueue}

// Covers says whether the pattern s names of. Streams are never told apart here:
// what is stopped or drained is a queue.
func (s Source) Covers(of Source) bool {
	return (s.Device == AnyDevice || s.Device == of.Device) &&
		(s.Queue == AnyQueue || s.Queue == of.Queue)
}

// Disk is one image. Requests merge only within one Disk, compared by pointer,
// and by image sector; several guests may share a Disk through windows.
type Disk struct {
	Name    string // the operator's id, for logs and statistics
	Index   int    // place in its loop's table of images
	Sectors Sector // capacity
	Base    Sector // place of sector 0 on the physical disk, where that is known
}

// State says who owns a request; the package comment has the table.
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
	// FlagNoMerge keeps a request alone: it was refused once, or is being tried
	// again after a merged group failed.
	FlagNoMerge
)

// Range is one extent of a discard or write-zeroes request, in image sectors.
type Range struct {
	Sector, Sectors Sector
}

// Links are a request's places in its scheduler's trees, indexes and groups. They
// stand in the request so that queueing allocates nothing.
type Links struct {
	// A node of a sorted tree: Child[0] has the smaller keys.
	Parent *Request
	Child  [2]*Request
	Key    Sector
	Red    bool

	// A group of merged requests, kept by its leader: the part that was queued
	// first, which stands for the group until the group is given up.
	Closed   bool     // takes in nothing any more
	Given    bool     // given up, not yet complete
	Indexed  bool     // on the two chains
	Segments int32    // memory segments of all parts
	Parts    int32    // how many
	Place    int32    // the scheduler's own: 1 + where it keeps the leader, 0 if nowhere
	Start    Sector   // the group's first sector in the image
	Total    Sector   // and its length
	First    *Request // the part with the lowest sector; the others follow through Merged
	Last     *Request // and with the highest

	// Chains of groups with the same start (0) and the same end (1), or what hashes
	// to the same.
	Chain [2]Chain

	// Leader, in a head that was given up, is its group's leader; nil once complete.
	Leader *Request
}

// Chain is a doubly linked place on one chain.
type Chain struct{ Prev, Next *Request }

// Request is one guest request. It lives in its queue's slot table from the
// queue's start to its stop and is used again and again; it never moves.
type Request struct {
	// What is wanted. Set by Parse, constant until the request is free again.
	Op      Op
	Flags   Flags
	Prio    Prio
	Disk    *Disk
	Sector  Sector   // first sector in the image
	Sectors Sector   // length; of a multi-range discard, the sum
	Pos     Sector   // place on the physical disk: the sort key, and nothing else
	Segs    [][]byte // guest memory, in order: source of a write, target of a read
	Ranges  []Range  // discard, write-zeroes: at least one; nil for other operations

	// Who wants it, since when.
	Source Source
	Seq    uint64  // in the order of arrival at the loop, never the same twice
	Arrive Instant // popped from its ring
	Issue  Instant // given to the backend
	Slot   any     // the intake's record of it; opaque to schedulers and backends

	// What came of it. Set by the backend before it gives the request back.
	Status Status
	Errno  uint16 // the system's error number behind StatusIOErr, 0 if none

	// Merged is the next guest request of a merged group; the head's scheduler
	// made the group, the head stands for it in Dispatch, Submit and Reap. The
	// parts' extents follow each other without gap, and the backend moves all of
	// them in one operation. nil: this is the last.
	Merged *Request

	// Prev and Next belong to the owner (see the package comment): list links.
	Prev, Next *Request

	// Links belong to the scheduler that the request was last inserted into, until
	// it is free again; nobody else reads or writes them.
	Links Links

	state State
}

// State reports who owns r.
func (r *Request) State() State { return r.state }

// Move hands r over from one owner to the next. A wrong "from" is our own fault,
// never a guest's, and ends the process: a request with two owners corrupts data.
func (r *Request) Move(from, to State) {
	if r.state != from {
		panic(fmt.Sprintf("blk: request of %v is %v, not %v, on its way to %v", r.Source, r.state, from, to))
	}
	r.state = to
}

// End is the first sector behind r in its image.
func (r *Request) End() Sector { return r.Sector + r.Sectors }

// Bytes is the length of r's own data, without the parts merged behind it.
func (r *Request) Bytes() int64 { return r.Sectors.Bytes() }

// Package virtqueue drives virtio rings in shared memory, from the device's side
// and from the driver's. It knows no disk and no protocol.
//
// A ring's memory belongs to a guest that may lie. Every index, descriptor and
// event field is read once, into a local; the local is checked and used. What a
// guest can do wrong has two outcomes, never a third:
//
//   - a chain that cannot be trusted comes out of Pop with a [Fault]: its head is
//     known, so it can be returned, and the queue goes on;
//   - a ring whose indices make no sense breaks the queue: Pop returns a
//     *[BrokenError] from then on, and nothing else.
//
// A queue belongs to one goroutine. Touching a ring whose memory was cut raises a
// fault that the caller must be ready for (sys/shm, Guard).
package virtqueue

import (
	"fmt"

	"github.com/elevisor/elevisor/sys/eventfd"
	"github.com/elevisor/elevisor/sys/shm"
)

// Feature bits of the transport (virtio 1.3, 6) that rings care about.
const (
	FeatureIndirect = 1 << 28
	FeatureEventIdx = 1 << 29
	FeatureVersion1 = 1 << 32
)

// MaxSize is the largest split ring (virtio 1.3, 2.7).
const MaxSize = 32768

// MaxChain is the most elements that a chain may have, whatever the ring's size:
// indirect tables of lenient drivers are longer than their ring (virtio 1.3,
// 2.7.5.3.1 forbids it, virtio-win does it).
const MaxChain = 4096

// Queue is the device's side of a ring, split or packed.
type Queue interface {
	// Pop takes the next available chain. ok is false when there is none. An
	// error is a *BrokenError, and sticky.
	Pop(c *Chain) (ok bool, err error)
	// Push returns chain id with the number of bytes written into it from the
	// front of its writable part. The driver does not see it before Publish.
	Push(id uint16, written uint32)
	// Publish makes the pushed chains visible and says whether the driver wants
	// to be called for them.
	Publish() (notify bool)
	// EnableKicks asks the driver for kicks and then, behind a full barrier, looks
	// again: pending means that something came in between and will not be kicked.
	EnableKicks() (pending bool)
	// Base is the answer to GET_VRING_BASE: where a successor goes on.
	Base() uint32
	// SetMemory moves the ring to a new memory table, at the same front-end
	// addresses. An error breaks the queue, which then stays in the old table. The
	// caller keeps alive the one that it is in: a broken queue still takes Push and
	// Publish for the chains that are in flight.
	SetMemory(m *shm.Memory) error
	// Break makes the queue broken for a reason only the caller can see.
	Break(reason string) error
}

// Notifier wakes the other side: an eventfd in live use, a plain call in the
// simulator.
type Notifier interface{ Notify() }

// Params is what a front-end says of one ring before it starts it.
type Params struct {
	Size     int    // descriptors; a power of two, at most MaxSize
	Desc     uint64 // front-end addresses (uva) of the three parts of a split ring
	Avail    uint64
	Used     uint64
	Base     uint32      // SET_VRING_BASE: the next available index
	Features uint64      // negotiated
	Kick     *eventfd.FD // gives it up to Start; nil: kicked by a call
	Memory   *shm.Memory // lent; filled in by the device
	Inflight []byte      // this queue's part of the in-flight region; nil: none
}

// Chain is one popped chain. Its slices are the caller's, to be used again.
type Chain struct {
	ID    uint16   // what Push wants back
	Segs  [][]byte // readable ones first; adjoining regions may split an element; none is empty
	Out   int      // Segs[:Out] may be read, Segs[Out:] written
	Fault Fault    // not FaultNone: Segs is empty
	Tail  []byte   // of a chain with FaultAddress: its last writable element, where that one is mapped
}

// Readable is what the driver sent.
func (c *Chain) Readable() [][]byte { return c.Segs[:c.Out] }

// Writable is where the answer goes.
func (c *Chain) Writable() [][]byte { return c.Segs[c.Out:] }

// Fault says why a chain cannot be trusted.
type Fault uint8

// The faults of a chain. A broken ring has none of them: it has a BrokenError.
const (
	FaultNone     Fault = iota
	FaultAddress        // an element, or an indirect table, in no memory region
	FaultNext           // a next field outside its table
	FaultLoop           // more elements than a chain may have: a loop
	FaultIndirect       // an indirect table nested, empty, of odd length, or followed by NEXT
	FaultOrder          // a readable element behind a writable one
	FaultLength         // more than 2^32 bytes
	FaultCount          // number of faults, for arrays indexed by Fault
)

var faultNames = [FaultCount]string{
	"none", "address outside memory", "next outside table", "loop",
	"bad indirect table", "readable behind writable", "longer than 4 GiB",
}

func (f Fault) String() string {
	if f < FaultCount {
		return faultNames[f]
	}
	return fmt.Sprintf("fault(%d)", uint8(f))
}

// BrokenError is the end of a queue: it is made once, and every later Pop returns
// the same one.
type BrokenError struct {
	Reason string
}

func (e *BrokenError) Error() string { return "virtqueue broken: " + e.Reason }

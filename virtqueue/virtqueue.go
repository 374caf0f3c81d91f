// Package virtqueue drives virtio rings in shared memory, from the device's side
// and from the driver's. It knows no disk and no protocol.
//
// A ring's memory belongs to a guest that may lie. Every index, descriptor and
// event field is read once, into a local variable, which is then checked and used.
// Whatever a guest does wrong has one of two outcomes:
//
//   - a chain that cannot be trusted comes out of Pop with a [Fault]: its head is
//     known, so that it can be returned, and the queue goes on;
//   - a ring with inconsistent indices breaks the queue: from then on Pop returns a
//     *[BrokenError] and nothing else.
//
// A queue belongs to one goroutine. An access to a ring whose memory has vanished raises
// a fault, which the caller must handle (sys/shm, Guard).
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

// MaxChain is the most elements that a chain may have in a ring with fewer entries:
// virtio-win makes indirect tables that are longer than their ring, which virtio 1.3
// forbids (2.7.5.3.1).
const MaxChain = 4096

// Queue is the device's side of a ring. There is one kind so far, [Split].
type Queue interface {
	// Pop takes the next available chain. ok is false when there is none. An
	// error is a *BrokenError, and sticky.
	Pop(c *Chain) (ok bool, err error)
	// Push returns the chain id; written is how many bytes were written, from the front
	// of its writable part on. The driver does not see it before Publish.
	Push(id uint16, written uint32)
	// Publish makes the pushed chains visible and returns whether the driver wants
	// to be notified of them.
	Publish() (notify bool)
	// EnableKicks asks the driver for kicks and then, behind a full barrier, looks
	// again: pending means that something came in between and will not be kicked.
	EnableKicks() (pending bool)
	// Base is the answer to GET_VRING_BASE: the index from which a successor continues.
	Base() uint32
	// SetMemory moves the ring to a new memory table, at the same front-end
	// addresses. An error breaks the queue, which then stays in the old table. The
	// caller keeps the table alive that the ring is in, also that of a broken queue,
	// which still takes Push and Publish for the chains in flight.
	SetMemory(m *shm.Memory) error
	// Break breaks the queue for a reason that the caller has found.
	Break(reason string) error
}

// Notifier wakes the other side: by an eventfd, or by a function call in virtual time.
type Notifier interface{ Notify() }

// Params are what a front-end sets for one ring before the ring starts.
type Params struct {
	Size     int    // descriptors; a power of two, at most MaxSize
	Desc     uint64 // front-end addresses (uva) of the three parts of a split ring
	Avail    uint64
	Used     uint64
	Base     uint32      // SET_VRING_BASE: the next available index
	Features uint64      // negotiated
	Kick     *eventfd.FD // whoever starts the ring owns it then; nil: kicked by a function call
	Memory   *shm.Memory // lent; filled in by the device
	Inflight []byte      // this queue's part of the in-flight region; nil: none
}

// Chain is one popped chain. Pop reuses the slices of the Chain that it gets.
type Chain struct {
	ID    uint16   // what Push wants back
	Segs  [][]byte // readable ones first; one element may be several, in adjoining regions; none is empty
	Out   int      // Segs[:Out] may be read, Segs[Out:] written
	Fault Fault    // not FaultNone: Segs is empty
	Tail  []byte   // its last segment, if that is writable; with FaultAddress as well, if that one is mapped
}

// Readable is what the driver sent.
func (c *Chain) Readable() [][]byte { return c.Segs[:c.Out] }

// Writable is where the answer goes.
func (c *Chain) Writable() [][]byte { return c.Segs[c.Out:] }

// Fault is the reason why a chain cannot be trusted.
type Fault uint8

// The faults of a chain.
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

// BrokenError says why a queue is broken. Every Pop of that queue returns the same one.
type BrokenError struct {
	Reason string
}

func (e *BrokenError) Error() string { return "virtqueue broken: " + e.Reason }

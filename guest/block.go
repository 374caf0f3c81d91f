package guest

import (
	"cmp"
	"fmt"

	"github.com/elevisor/elevisor/blk"
	"github.com/elevisor/elevisor/sched"
)

// Block is a block layer in front of a disk's virtqueues, as Linux has one in front
// of virtio_blk (block/blk-mq.c), so that scheduling in the guest can be compared
// with scheduling in the server without a virtual machine.
//
// A request's road: the plug list, where it may become part of the newest request
// (Submit); the scheduler, where requests may become groups; a ring, once fewer than
// Tags requests are at the device. What was merged is one virtio-blk request with
// the data segments of all its parts: the server sees fewer and larger ones. When it
// comes back, each part is done by itself; a merged request that failed is tried
// again part by part, so that a bad sector fails only who asked for it.
//
// Its methods are a Queue's, and so are the rules. Its slots are those of its queues,
// one queue's behind the other's: which queue a request takes is up to the submitter,
// as it is up to the CPU in Linux. A slot's number says nothing about the device: how
// many requests that has at a time is Tags.
//
// One goroutine owns a Block and its queues, of which nothing else may be used
// meanwhile. Nothing is allocated per request.
type Block struct {
	queues []*Queue
	parts  []part
	waiter waiter // of a guest with a connection
	clock  Clock
	last   blk.Instant

	sched    sched.Scheduler
	cfg      sched.Config
	disk     blk.Disk
	elevator bool // requests of different queues meet: there is a scheduler in the kernel's sense
	segments int  // of one request that the submitter may bring
	tags     int
	requests int
	noPlug   bool

	plug    blk.List     // newest last
	flushes blk.List     // go around the scheduler
	held    *blk.Request // dispatched, but its ring was full: goes first
	data    []Buf        // of the request that is being issued
	busy    int          // slots taken
	live    int          // requests that were not absorbed and are not done
	flying  int          // of those, at the device
	merged  uint64       // merges seen so far
	seq     uint64

	onDone []func(Done) // by queue
	reaped func(Done)   // the caller's, while Reap runs
	now    blk.Instant  // of that Reap
	stats  BlockStats
}

// part is what one slot holds: a request as it was submitted, the kernel's struct
// bio; and the request that stands for it and for the parts that were merged into
// it in the plug list, the kernel's struct request.
type part struct {
	req         blk.Request
	first, last *part // what req stands for, by ascending sector

	next    *part // behind it in the same request
	sector  blk.Sector
	sectors blk.Sector
	data    []Buf
	segs    [][]byte // room for req.Segs

	slot  int // of the Block
	queue *Queue
	at    int // slot of the queue
}

// BlockOptions are a block layer's settings, those of /sys/block/X/queue by their
// names there. Zero values stand for the defaults.
type BlockOptions struct {
	Scheduler string // one of sched.Names; default none
	// Tags are the requests at the device at most, of all queues together: what
	// queue-size is in QEMU. Default: the entries of the rings.
	Tags int
	// Requests is nr_requests: how many there may be in the block layer and at the
	// device; what was merged into another does not count. Default, as in the kernel,
	// with none: Tags, and never more; with a scheduler: twice Tags, at most 256.
	Requests int
	// MaxSectors is max_sectors_kb, in sectors; default 2560, the kernel's 1280 KiB.
	MaxSectors blk.Sector
	// NoMerges is nomerges: 0 all merges, 1 only the cheap ones, 2 none, not even in
	// the plug list.
	NoMerges int
	// NonRotational is rotational=0: schedulers that idle for the next request do not.
	// Otherwise they do, since Linux takes a virtio disk for a rotational one.
	NonRotational bool
	// NoPlug lets each request go on by itself, as a program does that submits one at
	// a time. Otherwise requests wait for the Kick.
	NoPlug bool
}

const (
	maxSectors  = 2560 // BLK_DEF_MAX_SECTORS_CAP, include/linux/blkdev.h
	defaultReqs = 128  // BLKDEV_DEFAULT_RQ
)

// BlockStats are a block layer's counts. When nothing is in flight, Issued is
// Submitted less Merged plus Retried.
type BlockStats struct {
	Submitted uint64 // requests that came in, flushes included
	Issued    uint64 // requests that went to the device
	Sectors   uint64 // data of those
	Retried   uint64 // parts of failed merged requests, issued once more
	Merges    sched.MergeStats
}

// Merged is how many requests became part of others.
func (s BlockStats) Merged() uint64 { return mergedOf(&s.Merges) }

func mergedOf(m *sched.MergeStats) (n uint64) {
	for _, who := range m.Merged {
		for _, v := range who {
			n += v
		}
	}
	return n
}

// NewBlock puts a block layer in front of queues, idle ones of one guest. How much
// can be merged is limited by the device's seg_max and by Options.Segments of the
// guest, whichever is less.
func NewBlock(queues []*Queue, o BlockOptions) (*Block, error) {
	if len(queues) == 0 {
		return nil, fmt.Errorf("a block layer without a queue")
	}
	g := queues[0].guest
	b := &Block{
		queues: queues, clock: queues[0].clock, disk: blk.Disk{Name: "guest", Sectors: g.config.Capacity},
		segments: g.opt.Segments, noPlug: o.NoPlug,
	}
	if err := b.limit(g, &o); err != nil {
		return nil, err
	}
	kind, err := sched.Find(cmp.Or(o.Scheduler, "none"))
	if err != nil {
		return nil, err
	}
	b.sched, b.elevator = kind.New(&b.cfg), kind.Meets
	if err := b.admission(&o); err != nil {
		return nil, err
	}
	if g.device == nil {
		b.waiter = newWaiter(g, queues[0].waiter.clock, queues...)
	}
	b.data = make([]Buf, 0, b.segments)
	b.makeParts()
	return b, nil
}

// limit sets how large a merged request may be.
func (b *Block) limit(g *Guest, o *BlockOptions) error {
	if o.NoMerges < 0 || o.NoMerges > 2 {
		return fmt.Errorf("nomerges=%d is not from 0 to 2", o.NoMerges)
	}
	if !g.indirect() { // a chain must fit into an empty ring
		b.segments = min(b.segments, g.opt.QueueSize-2)
	}
	if b.segments < 1 {
		return fmt.Errorf("a ring of %d entries has no room for a data segment", g.opt.QueueSize)
	}
	segMax := 1 // what a driver may assume that has not read it
	if g.features&blk.FeatureSegMax != 0 {
		segMax = max(1, int(g.config.SegMax))
	}
	b.cfg = sched.Config{
		Rotational: !o.NonRotational, MaxSectors: cmp.Or(o.MaxSectors, maxSectors), MaxSegments: min(b.segments, segMax), NoMerges: o.NoMerges,
	}
	return nil
}

// admission sets how many requests there may be, here and at the device.
func (b *Block) admission(o *BlockOptions) error {
	rings := 0
	for _, q := range b.queues {
		rings += q.ring.Size
	}
	b.tags = cmp.Or(o.Tags, rings)
	if b.tags < 1 || b.tags > rings {
		return fmt.Errorf("tags=%d is not from 1 to %d, the entries of the rings", o.Tags, rings)
	}
	def := b.tags
	if b.elevator {
		def = 2 * min(b.tags, defaultReqs)
	}
	b.requests = cmp.Or(o.Requests, def)
	if b.requests < 1 || !b.elevator && b.requests > b.tags {
		return fmt.Errorf("nr_requests=%d is not from 1, and with none to the %d tags", o.Requests, b.tags)
	}
	return nil
}

func (b *Block) makeParts() {
	n := 0
	for _, q := range b.queues {
		n += q.Depth()
	}
	b.parts = make([]part, n)
	n = 0
	for i, q := range b.queues {
		slots := b.parts[n : n+q.Depth()]
		for at := range slots {
			p := &slots[at]
			p.slot, p.queue, p.at = n+at, q, at
			p.data = make([]Buf, 0, b.segments)
			p.segs = make([][]byte, 0, b.segments)
			p.req = blk.Request{Disk: &b.disk, Source: blk.Source{Queue: uint16(i)}, Slot: p}
		}
		n += len(slots)
		b.onDone = append(b.onDone, func(d Done) { b.complete(&slots[d.Slot], d) })
	}
}

// Depth is the number of slots.
func (b *Block) Depth() int { return len(b.parts) }

// Buffer is slot's own data buffer, that of the queue's slot.
func (b *Block) Buffer(slot int) Buf {
	p := &b.parts[slot]
	return p.queue.Buffer(p.at)
}

// InFlight is how many requests were submitted and are not done.
func (b *Block) InFlight() int { return b.busy }

// Scheduler of the block layer: for its knobs, its counts and its description.
func (b *Block) Scheduler() sched.Scheduler { return b.sched }

// Stats are the block layer's counts so far.
func (b *Block) Stats() BlockStats {
	s := b.stats
	s.Merges = b.cfg.Merges
	return s
}

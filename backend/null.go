package backend

import (
	"fmt"

	"github.com/elevisor/elevisor/blk"
)

// null answers every request at once and touches no data: what remains is the
// cost of everything else.
type null struct{ info Info }

// plainBlock is the physical block of disks that have none: a page, as Linux'
// own memory disks say.
const plainBlock = 4096

// memoryInfo describes a disk that is no file.
func memoryInfo(size int64, o *Options, engine string) Info {
	i := Info{
		Sectors: blk.Sector(size / blk.SectorSize), LogicalBlock: blk.SectorSize, PhysicalBlock: plainBlock, MemAlign: 1,
		ReadOnly: o.ReadOnly, Discard: o.Discard && !o.ReadOnly, WriteZeroes: !o.ReadOnly,
		ZeroesUnmap: o.Discard && !o.ReadOnly, DiscardAlign: plainBlock, Engine: engine,
		Physical: Physical{Believed: true, Reason: fmt.Sprintf("image is not on a block device (%s)", engine)},
	}
	o.blocks(&i)
	return i
}

func newNull(size int64, o Options) (Image, error) {
	return &null{memoryInfo(size, &o, "null")}, nil
}

// Info implements Image.
func (n *null) Info() Info { return n.info }

// Attach implements Image.
func (n *null) Attach(Host) (Backend, error) { return &atOnce{info: n.info, do: nothing}, nil }

// Close implements Image.
func (n *null) Close() error { return nil }

func nothing(*blk.Request) (blk.Status, uint16) { return blk.StatusOK, 0 }

// atOnce is the Backend of disks whose requests are finished when they are
// submitted.
type atOnce struct {
	info Info
	do   func(*blk.Request) (blk.Status, uint16) // carries out one guest request
	done blk.List
}

// Info implements Backend.
func (b *atOnce) Info() Info { return b.info }

// Submit implements Backend.
func (b *atOnce) Submit(_ blk.Instant, r *blk.Request) bool {
	r.Move(blk.StateQueued, blk.StateIssued)
	r.Status, r.Errno = blk.StatusOK, 0
	for part := r; part != nil && r.Status == blk.StatusOK; part = part.Merged {
		r.Status, r.Errno = b.do(part)
	}
	b.done.PushBack(r)
	return true
}

// Commit implements Backend.
func (b *atOnce) Commit() error { return nil }

// Reap implements Backend.
func (b *atOnce) Reap(_ blk.Instant, done []*blk.Request) []*blk.Request {
	for r := b.done.PopFront(); r != nil; r = b.done.PopFront() {
		r.Move(blk.StateIssued, blk.StateDone)
		done = append(done, r)
	}
	return done
}

// Wake implements Backend.
func (b *atOnce) Wake() blk.Instant { return blk.Never }

// Close implements Backend.
func (b *atOnce) Close() error { return nil }

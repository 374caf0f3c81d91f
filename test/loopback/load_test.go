package loopback

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/elevisor/elevisor/blk"
	"github.com/elevisor/elevisor/guest"
)

const (
	block   = 4096
	sectors = block / blk.SectorSize
)

// load drives one queue with random reads and writes of its own blocks and keeps,
// for each block, what a reader must find there.
type load struct {
	q     *guest.Queue
	rng   *rand.Rand
	first blk.Sector
	gens  []uint64 // by block: generation of its contents; 0: never written
	busy  []bool
	slots []access
	err   error

	submitted, finished uint64
	finishedNow         atomic.Uint64 // the same as finished, for who looks on
}

type access struct {
	block int
	write bool
	gen   uint64
}

func newLoad(q *guest.Queue, seed uint64, first blk.Sector, blocks int) *load {
	return &load{
		q: q, rng: rand.New(rand.NewPCG(seed, 1)), first: first,
		gens: make([]uint64, blocks), busy: make([]bool, blocks), slots: make([]access, q.Depth()),
	}
}

// run keeps the queue full until stop is closed, then waits for what is in flight.
// A server that dies is somebody else's business: what was submitted comes back
// from its successor.
func (l *load) run(stop <-chan struct{}) {
	free := make([]int, 0, len(l.slots))
	for i := range l.slots {
		free = append(free, i)
	}
	end := time.Now().Add(patience)
	for stopping := false; ; {
		select {
		case <-stop:
			stopping = true
		default:
		}
		for !stopping && len(free) > 0 {
			l.submit(free[len(free)-1])
			free = free[:len(free)-1]
		}
		if l.q.InFlight() == 0 {
			return
		}
		l.q.Kick()
		n, err := l.q.Reap(func(d guest.Done) {
			free = append(free, d.Slot)
			l.done(d)
		})
		switch {
		case err != nil:
			l.fail(err)
			return
		case n > 0:
			end = time.Now().Add(patience)
		case time.Now().After(end):
			l.fail(fmt.Errorf("%d requests never came back", l.q.InFlight()))
			return
		default:
			_ = l.q.Wait(50 * time.Millisecond) // gone or late: both are looked at above
		}
	}
}

func (l *load) submit(slot int) {
	b := l.rng.IntN(len(l.gens))
	for l.busy[b] {
		b = (b + 1) % len(l.gens)
	}
	a := access{block: b, write: l.rng.IntN(2) == 0, gen: l.gens[b]}
	op, data := blk.OpRead, l.q.Buffer(slot)
	if a.write {
		op = blk.OpWrite
		a.gen++
		l.fill(data.Bytes, a)
	}
	if !l.q.Submit(slot, op, l.first+blk.Sector(b*sectors), []guest.Buf{data}) {
		l.fail(fmt.Errorf("slot %d does not fit into the ring", slot))
	}
	l.slots[slot], l.busy[b] = a, true
	l.submitted++
}

func (l *load) done(d guest.Done) {
	a := l.slots[d.Slot]
	l.busy[a.block] = false
	l.finished++
	l.finishedNow.Store(l.finished)
	if d.Status != blk.StatusOK {
		l.fail(fmt.Errorf("block %d: %v", a.block, d.Status))
		return
	}
	if a.write {
		l.gens[a.block] = a.gen
		return
	}
	if err := l.check(l.q.Buffer(d.Slot).Bytes, a); err != nil {
		l.fail(err)
	}
}

// fill writes into each sector whose it is and which generation.
func (l *load) fill(b []byte, a access) {
	for s := range sectors {
		at := b[s*blk.SectorSize : (s+1)*blk.SectorSize]
		for i := 0; i < len(at); i += 16 {
			binary.LittleEndian.PutUint64(at[i:], uint64(l.first)+uint64(a.block*sectors+s))
			binary.LittleEndian.PutUint64(at[i+8:], a.gen)
		}
	}
}

func (l *load) check(b []byte, a access) error {
	want := make([]byte, block)
	if a.gen > 0 {
		l.fill(want, a)
	}
	for i := range want {
		if b[i] != want[i] {
			return fmt.Errorf("block %d of generation %d: byte %d is %#x, want %#x", a.block, a.gen, i, b[i], want[i])
		}
	}
	return nil
}

func (l *load) fail(err error) {
	if l.err == nil {
		l.err = fmt.Errorf("queue %d: %w", l.q.Index(), err)
	}
}

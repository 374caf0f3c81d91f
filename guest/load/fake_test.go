package load

import (
	"context"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/elevisor/elevisor/blk"
	"github.com/elevisor/elevisor/guest"
)

// fake is a queue on a disk in memory that answers in random order, a few at a
// time, and can be told to misbehave.
type fake struct {
	disk  []byte
	bufs  []guest.Buf
	room  int
	busy  []want
	ready []guest.Done
	rng   *rand.Rand

	spoil   func(n int, w want) (skip bool, status blk.Status)
	served  int
	overlap bool // two requests in flight touched the same sector
	log     []want
	keepLog bool
	silent  bool

	onKick   func()
	onSubmit func(want) // before it is busy
}

type want struct {
	slot   int
	op     blk.Op
	sector blk.Sector
	data   []guest.Buf
}

func newFake(disk []byte, depth, maxIO int) *fake {
	f := &fake{disk: disk, room: depth, rng: rand.New(rand.NewPCG(1, 2)), busy: make([]want, 0, depth), ready: make([]guest.Done, 0, depth)}
	for range depth {
		f.bufs = append(f.bufs, guest.Buf{Bytes: make([]byte, maxIO)})
	}
	return f
}

func (f *fake) Depth() int                { return len(f.bufs) }
func (f *fake) Buffer(slot int) guest.Buf { return f.bufs[slot] }
func (f *fake) InFlight() int             { return len(f.busy) + len(f.ready) }

func (f *fake) Kick() {
	if f.onKick != nil {
		f.onKick()
	}
}

func (f *fake) Submit(slot int, op blk.Op, sector blk.Sector, data []guest.Buf) bool {
	if len(f.busy) >= f.room {
		return false
	}
	w := want{slot, op, sector, data}
	if f.onSubmit != nil {
		f.onSubmit(w)
	}
	for _, b := range f.busy {
		f.overlap = f.overlap || b.sector < w.sector+w.sectors() && w.sector < b.sector+b.sectors()
	}
	f.busy = append(f.busy, w)
	if f.keepLog {
		f.log = append(f.log, w)
	}
	return true
}

func (w want) sectors() (n blk.Sector) {
	for _, b := range w.data {
		n += blk.Sector(len(b.Bytes) / blk.SectorSize)
	}
	return n
}

func (f *fake) Wait(time.Duration) error {
	if f.silent {
		time.Sleep(time.Millisecond)
		return guest.ErrTimeout
	}
	for n := 1 + f.rng.IntN(len(f.busy)); n > 0; n-- {
		i := f.rng.IntN(len(f.busy))
		w := f.busy[i]
		f.busy[i] = f.busy[len(f.busy)-1]
		f.busy = f.busy[:len(f.busy)-1]
		f.ready = append(f.ready, guest.Done{Slot: w.slot, Status: f.serve(w)})
	}
	return nil
}

func (f *fake) serve(w want) blk.Status {
	f.served++
	if f.spoil != nil {
		if skip, status := f.spoil(f.served, w); skip || status != blk.StatusOK {
			return status
		}
	}
	at := w.sector.Bytes()
	for _, b := range w.data {
		if w.op == blk.OpWrite {
			copy(f.disk[at:], b.Bytes)
		} else {
			copy(b.Bytes, f.disk[at:])
		}
		at += int64(len(b.Bytes))
	}
	return blk.StatusOK
}

func (f *fake) Reap(fn func(guest.Done)) (int, error) {
	n := len(f.ready)
	for _, d := range f.ready {
		fn(d)
	}
	f.ready = f.ready[:0]
	return n, nil
}

func run(t testing.TB, o Options, fs ...*fake) *Result {
	t.Helper()
	var qs []Queue
	for _, f := range fs {
		qs = append(qs, f)
	}
	res, err := Run(context.Background(), blk.Sector(len(fs[0].disk)/blk.SectorSize), qs, o)
	require.NoError(t, err)
	return res
}

package virtqueue

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/elevisor/elevisor/sys/shm"
)

// The in-flight record is in memory that outlives this process: the front-end keeps it.
// Requests complete out of order, so without it a successor could not know which of the
// chains that were taken have not been returned (vhost-user document, "Inflight I/O
// tracking"). Per queue it has a header of 16 bytes {le64 features, le16 version, le16
// desc_num, le16 last_batch_head, le16 used_idx} and 16 bytes for each descriptor {u8
// inflight, 5 bytes padding, le16 next, le64 counter}. The order of the stores below
// matters: the process may be killed between any two of them.
const (
	recordHeader  = 16
	recordEntry   = 16
	recordVersion = 1
	recordAlign   = 64
)

// MinInflight is the fewest heads that a record has room for. QEMU 10.0 asks for a
// record of queue-size entries and then starts rings of 1024 (its virtio_add_queue
// ignores queue-size), so a record is never made smaller.
const MinInflight = 1024

// InflightBytes is the length of one queue's record with room for size heads.
func InflightBytes(size int) int {
	n := recordHeader + recordEntry*max(size, MinInflight)
	return (n + recordAlign - 1) / recordAlign * recordAlign
}

// inflight is one queue's record; the zero value records nothing.
type inflight struct {
	b       []byte
	counter uint64
	batch   []uint16 // pushed since the last settle
}

func (f *inflight) entry(head uint16) []byte {
	at := recordHeader + recordEntry*int(head)
	return f.b[at : at+recordEntry]
}

// take records that head is in flight; the counter, which gives the order, is stored
// before the mark.
func (f *inflight) take(head uint16) {
	if f.b == nil {
		return
	}
	e := f.entry(head)
	binary.LittleEndian.PutUint64(e[8:], f.counter)
	f.counter++
	e[0] = 1
}

// put links head into the batch that will be published with the next used index.
func (f *inflight) put(head uint16) {
	if f.b == nil {
		return
	}
	e := f.entry(head)
	copy(e[6:8], f.b[12:14])
	shm.Store16(f.b, 12, head)
	f.batch = append(f.batch, head)
}

// settle is called after used.idx was stored: the driver has the batch now.
func (f *inflight) settle(usedIdx uint16) {
	if f.b == nil {
		return
	}
	for _, head := range f.batch {
		f.entry(head)[0] = 0
	}
	f.batch = f.batch[:0]
	shm.Store16(f.b, 14, usedIdx)
}

// recover opens the record: it initialises a new one, or it finds out what a predecessor
// left and makes the queue continue from there.
func (q *Split) recover() error {
	b := q.p.Inflight
	heads := min((len(b)-recordHeader)/recordEntry, 1<<16)
	if heads < int(q.size) {
		return fmt.Errorf("in-flight record has room for %d heads, the ring has %d", max(heads, 0), q.size)
	}
	q.record = inflight{b: b, batch: make([]uint16, 0, q.size)}
	switch version := binary.LittleEndian.Uint16(b[8:]); version {
	case 0:
		binary.LittleEndian.PutUint64(b[0:], 0)
		binary.LittleEndian.PutUint16(b[10:], uint16(min(heads, 0xffff)))
		shm.Store16(b, 14, q.shown)
		shm.Store16(b, 8, recordVersion)
		return nil
	case recordVersion:
	default:
		return fmt.Errorf("in-flight record of version %d, want %d", version, recordVersion)
	}
	q.record.settleLost(q.shown, q.size)
	type owed struct {
		head    uint16
		counter uint64
	}
	var left []owed
	for h := range q.size {
		if e := q.record.entry(h); e[0] != 0 {
			left = append(left, owed{h, binary.LittleEndian.Uint64(e[8:])})
		}
	}
	slices.SortStableFunc(left, func(x, y owed) int { return cmp.Compare(x.counter, y.counter) })
	for _, o := range left {
		q.again = append(q.again, o.head)
		q.record.counter = o.counter + 1
	}
	// Taken are the chains that were returned and those that still have to be. The base
	// that a front-end sends after a crash is the used index, which leaves out the latter.
	q.next = q.shown + uint16(len(left))
	q.seen = q.next
	return nil
}

// settleLost finishes a batch that was published just before the predecessor was killed,
// so that its flags were not cleared.
func (f *inflight) settleLost(usedIdx, size uint16) {
	n := usedIdx - binary.LittleEndian.Uint16(f.b[14:])
	head := binary.LittleEndian.Uint16(f.b[12:])
	for ; n > 0 && n <= size && head < size; n-- {
		e := f.entry(head)
		e[0] = 0
		head = binary.LittleEndian.Uint16(e[6:])
	}
	shm.Store16(f.b, 14, usedIdx)
}

package blk

import "encoding/binary"

// Limits is what one disk has announced to its guest. Parse enforces it.
type Limits struct {
	Capacity       Sector // of the guest's window
	Offset         Sector // of the window in the image
	ReadOnly       bool
	Flush          bool // FLUSH was offered
	Discard        bool // DISCARD was offered
	WriteZeroes    bool // WRITE_ZEROES was offered
	MaxDiscard     Sector
	MaxDiscardSeg  int
	MaxWriteZeroes Sector
	MaxZeroesSeg   int
	ID             [IDSize]byte
}

// Verdict says what to do with a parsed chain.
type Verdict uint8

const (
	// Queue: r is complete and goes to the scheduler.
	Queue Verdict = iota
	// Answer: r.Status is final, nothing reaches the disk.
	Answer
	// Retire: the chain has no room for a status; it is returned with length 0.
	Retire
)

// Reply says where the outcome of a request goes in guest memory.
type Reply struct {
	Status  *byte  // the last writable byte
	DataLen uint32 // writable bytes before the status byte
	Written uint32 // of these, written by Parse
}

// Parse turns one chain into r. out are the device-readable segments, in the
// device-writable ones, in order and none of them empty; how the data is divided among
// them has no meaning (virtio 1.3, 2.7.4.1). Everything is checked before anything is
// changed, and each byte of guest memory is read once. Parse shortens the slices of out
// and in in place; r.Segs then points into one of the two. The caller has given r.Ranges
// the capacity of the larger of MaxDiscardSeg and MaxZeroesSeg.
//
// Where the specification leaves a choice (test/cases): a header that is too short,
// readable data in a read or a GET_ID, writable data but no readable data in a write,
// lengths that are not a multiple of 512 and extents outside the disk are IOERR; too
// many ranges and unknown flags are UNSUPP; data that comes with a flush is ignored;
// zero-length reads and writes are OK.
func Parse(r *Request, out, in [][]byte, lim *Limits) (Reply, Verdict) {
	reply, in, ok := splitStatus(in)
	if !ok {
		return reply, Retire
	}
	r.Status, r.Errno, r.Flags, r.Segs = StatusOK, 0, 0, nil
	r.Sector, r.Sectors, r.Ranges = 0, 0, r.Ranges[:0]
	var raw [HeaderSize]byte
	n, out := takeFront(raw[:], out)
	if n < HeaderSize {
		return answer(r, reply, StatusIOErr)
	}
	h := ParseHeader(&raw)
	switch h.Type {
	case TypeIn:
		r.Op = OpRead
		if len(out) != 0 {
			return answer(r, reply, StatusIOErr)
		}
		return parseData(r, h, in, lim, reply)
	case TypeOut:
		r.Op = OpWrite
		if lim.ReadOnly || (len(out) == 0 && reply.DataLen != 0) {
			return answer(r, reply, StatusIOErr)
		}
		return parseData(r, h, out, lim, reply)
	case TypeFlush:
		r.Op = OpFlush
		if !lim.Flush {
			return answer(r, reply, StatusUnsupp)
		}
		return reply, Queue
	case TypeGetID:
		return parseGetID(r, out, in, lim, reply)
	case TypeDiscard:
		if !lim.Discard {
			return answer(r, reply, StatusUnsupp)
		}
		r.Op = OpDiscard
		return parseRanges(r, out, lim, lim.MaxDiscardSeg, lim.MaxDiscard, reply)
	case TypeWriteZeroes:
		if !lim.WriteZeroes {
			return answer(r, reply, StatusUnsupp)
		}
		r.Op = OpWriteZeroes
		return parseRanges(r, out, lim, lim.MaxZeroesSeg, lim.MaxWriteZeroes, reply)
	}
	return answer(r, reply, StatusUnsupp)
}

func answer(r *Request, reply Reply, s Status) (Reply, Verdict) {
	r.Status = s
	return reply, Answer
}

// parseData fills r from the data segments of a read or a write.
func parseData(r *Request, h Header, segs [][]byte, lim *Limits, reply Reply) (Reply, Verdict) {
	n := total(segs)
	if n%SectorSize != 0 || !within(h.Sector, Sector(n/SectorSize), lim.Capacity) {
		return answer(r, reply, StatusIOErr)
	}
	if n == 0 {
		return answer(r, reply, StatusOK)
	}
	r.Sector, r.Sectors, r.Segs = h.Sector+lim.Offset, Sector(n/SectorSize), segs
	return reply, Queue
}

func parseGetID(r *Request, out, in [][]byte, lim *Limits, reply Reply) (Reply, Verdict) {
	if len(out) != 0 {
		return answer(r, reply, StatusIOErr)
	}
	id := lim.ID[:]
	for _, s := range in {
		n := copy(s, id)
		reply.Written += uint32(n)
		if id = id[n:]; len(id) == 0 {
			break
		}
	}
	return answer(r, reply, StatusOK)
}

// parseRanges reads the ranges of a discard or a write-zeroes. It checks all of them
// before any is acted on.
func parseRanges(r *Request, out [][]byte, lim *Limits, maxSeg int, maxLen Sector, reply Reply) (Reply, Verdict) {
	n := total(out)
	switch {
	case lim.ReadOnly, n == 0, n%RangeSize != 0:
		return answer(r, reply, StatusIOErr)
	case n/RangeSize > uint64(maxSeg):
		return answer(r, reply, StatusUnsupp)
	}
	unmap, status := true, StatusOK
	for len(out) > 0 {
		var raw [RangeSize]byte
		_, out = takeFront(raw[:], out)
		sector := Sector(binary.LittleEndian.Uint64(raw[0:]))
		sectors := Sector(binary.LittleEndian.Uint32(raw[8:]))
		flags := binary.LittleEndian.Uint32(raw[12:])
		switch {
		case flags&^rangeFlagUnmap != 0, flags != 0 && r.Op == OpDiscard:
			status = StatusUnsupp // a MUST, and it takes precedence over a bad extent (5.2.6.2)
		case status == StatusOK && (sectors > maxLen || !within(sector, sectors, lim.Capacity)):
			status = StatusIOErr
		}
		unmap = unmap && flags&rangeFlagUnmap != 0
		if sectors != 0 {
			r.Ranges = append(r.Ranges, Range{sector + lim.Offset, sectors})
			r.Sectors += sectors
		}
	}
	if status != StatusOK || len(r.Ranges) == 0 {
		return answer(r, reply, status)
	}
	r.Sector = r.Ranges[0].Sector
	if unmap && r.Op == OpWriteZeroes {
		r.Flags |= FlagUnmap
	}
	return reply, Queue
}

// within reports whether [sector, sector+n) lies in a disk of that capacity. It does not
// overflow.
func within(sector, n, capacity Sector) bool {
	return n <= capacity && sector <= capacity-n
}

// splitStatus takes the status byte, which is the last writable one, off in.
func splitStatus(in [][]byte) (Reply, [][]byte, bool) {
	if len(in) == 0 {
		return Reply{}, nil, false
	}
	last := in[len(in)-1]
	reply := Reply{Status: &last[len(last)-1]}
	if len(last) == 1 {
		in = in[:len(in)-1]
	} else {
		in[len(in)-1] = last[:len(last)-1]
	}
	// A chain is at most 2^32 bytes long, status included, so this fits.
	reply.DataLen = uint32(total(in))
	return reply, in, true
}

// takeFront takes len(dst) bytes off the front of segs, or as many as there are, and
// returns their number and the rest.
func takeFront(dst []byte, segs [][]byte) (int, [][]byte) {
	n := 0
	for n < len(dst) && len(segs) > 0 {
		k := copy(dst[n:], segs[0])
		n += k
		if k == len(segs[0]) {
			segs = segs[1:]
		} else {
			segs[0] = segs[0][k:]
		}
	}
	return n, segs
}

func total(segs [][]byte) (n uint64) {
	for _, s := range segs {
		n += uint64(len(s))
	}
	return n
}

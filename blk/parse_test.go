package blk

import (
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"
)

func testLimits() *Limits {
	l := &Limits{
		Capacity: 2048, Offset: 100, Flush: true, Discard: true, WriteZeroes: true,
		MaxDiscard: 256, MaxDiscardSeg: 4, MaxWriteZeroes: 256, MaxZeroesSeg: 4,
	}
	copy(l.ID[:], "disk-0")
	return l
}

func header(typ uint32, sector uint64) []byte {
	b := make([]byte, HeaderSize)
	binary.LittleEndian.PutUint32(b, typ)
	binary.LittleEndian.PutUint32(b[4:], 0xffffffff) // reserved: ignored
	binary.LittleEndian.PutUint64(b[8:], sector)
	return b
}

func ranges(triples ...uint64) (b []byte) {
	for i := 0; i < len(triples); i += 3 {
		b = binary.LittleEndian.AppendUint64(b, triples[i])
		b = binary.LittleEndian.AppendUint32(b, uint32(triples[i+1]))
		b = binary.LittleEndian.AppendUint32(b, uint32(triples[i+2]))
	}
	return b
}

// cut splits b at every n bytes.
func cut(b []byte, n int) (segs [][]byte) {
	for len(b) > n {
		segs, b = append(segs, b[:n]), b[n:]
	}
	if len(b) > 0 {
		segs = append(segs, b)
	}
	return segs
}

func TestParse(t *testing.T) {
	const big = 1 << 55 // sector whose byte address wraps 64 bits
	for _, c := range []struct {
		name    string
		out     []byte
		in      int
		change  func(*Limits)
		verdict Verdict
		status  Status
		op      Op
		sector  Sector
		sectors Sector
		flags   Flags
		written uint32
	}{
		{name: "read", out: header(TypeIn, 8), in: 1025, sector: 108, sectors: 2},
		{name: "read to the end", out: header(TypeIn, 2046), in: 1025, sector: 2146, sectors: 2},
		{name: "read past the end", out: header(TypeIn, 2047), in: 1025, verdict: Answer, status: StatusIOErr},
		{name: "read behind the end", out: header(TypeIn, 2048), in: 513, verdict: Answer, status: StatusIOErr},
		{name: "read wraps", out: header(TypeIn, big), in: 513, verdict: Answer, status: StatusIOErr},
		{name: "read of nothing", out: header(TypeIn, 2048), in: 1, verdict: Answer, status: StatusOK},
		{name: "read of half a sector", out: header(TypeIn, 0), in: 257, verdict: Answer, status: StatusIOErr},
		{name: "read with data", out: append(header(TypeIn, 0), 1), in: 513, verdict: Answer, status: StatusIOErr},
		{name: "no status", out: header(TypeIn, 0), in: 0, verdict: Retire},
		{name: "short header", out: header(TypeIn, 0)[:15], in: 1, verdict: Answer, status: StatusIOErr},
		{name: "write", out: append(header(TypeOut, 0), make([]byte, 512)...), in: 1, op: OpWrite, sector: 100, sectors: 1},
		{name: "write with a long status", out: append(header(TypeOut, 0), make([]byte, 512)...), in: 64, op: OpWrite, sector: 100, sectors: 1},
		{name: "write of writable data", out: header(TypeOut, 0), in: 513, op: OpWrite, verdict: Answer, status: StatusIOErr},
		{name: "write, read-only", out: header(TypeOut, 0), in: 1, change: func(l *Limits) { l.ReadOnly = true }, op: OpWrite, verdict: Answer, status: StatusIOErr},
		{name: "flush", out: append(header(TypeFlush, 99), 1, 2, 3), in: 513, op: OpFlush},
		{name: "flush not offered", out: header(TypeFlush, 0), in: 1, change: func(l *Limits) { l.Flush = false }, op: OpFlush, verdict: Answer, status: StatusUnsupp},
		{name: "id", out: header(TypeGetID, 0), in: 21, verdict: Answer, written: 20},
		{name: "id cut", out: header(TypeGetID, 0), in: 11, verdict: Answer, written: 10},
		{name: "id with data", out: append(header(TypeGetID, 0), 1), in: 21, verdict: Answer, status: StatusIOErr},
		{name: "discard", out: append(header(TypeDiscard, 0), ranges(8, 256, 0)...), in: 1, op: OpDiscard, sector: 108, sectors: 256},
		{name: "discard of 4 ranges", out: append(header(TypeDiscard, 0), ranges(8, 1, 0, 8, 2, 0, 0, 0, 0, 9, 3, 0)...), in: 1, op: OpDiscard, sector: 108, sectors: 6},
		{name: "discard of 5 ranges", out: append(header(TypeDiscard, 0), ranges(8, 1, 0, 8, 1, 0, 8, 1, 0, 8, 1, 0, 8, 1, 0)...), in: 1, op: OpDiscard, verdict: Answer, status: StatusUnsupp},
		{name: "discard too long", out: append(header(TypeDiscard, 0), ranges(8, 257, 0)...), in: 1, op: OpDiscard, verdict: Answer, status: StatusIOErr, sector: 0},
		{name: "discard outside", out: append(header(TypeDiscard, 0), ranges(^uint64(0), 2, 0)...), in: 1, op: OpDiscard, verdict: Answer, status: StatusIOErr},
		{name: "discard with unmap", out: append(header(TypeDiscard, 0), ranges(8, 1, 1)...), in: 1, op: OpDiscard, verdict: Answer, status: StatusUnsupp},
		{name: "unknown flag outranks a bad range", out: append(header(TypeDiscard, 0), ranges(9999, 1, 0, 8, 1, 2)...), in: 1, op: OpDiscard, verdict: Answer, status: StatusUnsupp},
		{name: "discard of 17 bytes", out: append(header(TypeDiscard, 0), make([]byte, 17)...), in: 1, op: OpDiscard, verdict: Answer, status: StatusIOErr},
		{name: "discard of nothing", out: header(TypeDiscard, 0), in: 1, op: OpDiscard, verdict: Answer, status: StatusIOErr},
		{name: "discard of 0 sectors", out: append(header(TypeDiscard, 0), ranges(8, 0, 0)...), in: 1, op: OpDiscard, verdict: Answer},
		{name: "zeroes", out: append(header(TypeWriteZeroes, 0), ranges(8, 16, 0)...), in: 1, op: OpWriteZeroes, sector: 108, sectors: 16},
		{name: "zeroes with unmap", out: append(header(TypeWriteZeroes, 0), ranges(8, 16, 1)...), in: 1, op: OpWriteZeroes, sector: 108, sectors: 16, flags: FlagUnmap},
		{name: "zeroes, one range without unmap", out: append(header(TypeWriteZeroes, 0), ranges(8, 16, 1, 40, 1, 0)...), in: 1, op: OpWriteZeroes, sector: 108, sectors: 17},
		{name: "zeroes not offered", out: header(TypeWriteZeroes, 0), in: 1, change: func(l *Limits) { l.WriteZeroes = false }, verdict: Answer, status: StatusUnsupp},
		{name: "secure erase", out: header(TypeSecureErase, 0), in: 1, verdict: Answer, status: StatusUnsupp},
		{name: "barrier bit", out: header(0x80000001, 0), in: 1, verdict: Answer, status: StatusUnsupp},
	} {
		for _, framing := range []int{1 << 20, 13, 4, 1} {
			t.Run(c.name, func(t *testing.T) {
				lim := testLimits()
				if c.change != nil {
					c.change(lim)
				}
				r := Request{Ranges: make([]Range, 0, 4)}
				in := make([]byte, c.in)
				out := append([]byte(nil), c.out...)
				reply, verdict := Parse(&r, cut(out, framing), cut(in, framing), lim)
				require.Equal(t, c.verdict, verdict)
				if verdict == Retire {
					return
				}
				require.Same(t, &in[len(in)-1], reply.Status)
				require.EqualValues(t, c.in-1, reply.DataLen)
				require.Equal(t, c.written, reply.Written)
				require.Equal(t, c.status, r.Status)
				if verdict == Queue {
					require.Equal(t, c.op, r.Op)
					require.Equal(t, c.sector, r.Sector)
					require.Equal(t, c.sectors, r.Sectors)
					require.Equal(t, c.flags, r.Flags)
					if r.Op == OpRead || r.Op == OpWrite {
						require.EqualValues(t, r.Bytes(), total(r.Segs))
					}
				}
				require.Equal(t, c.out, out, "the driver's bytes were changed")
			})
		}
	}
}

// Whatever comes: Parse ends, and what it lets through lies inside the window.
func FuzzParse(f *testing.F) {
	f.Add(append(header(TypeDiscard, 0), ranges(8, 16, 0)...), 1, 16)
	f.Add(header(TypeIn, 2047), 513, 5)
	f.Fuzz(func(t *testing.T, out []byte, in, framing int) {
		lim := testLimits()
		r := Request{Ranges: make([]Range, 0, 4)}
		buf := make([]byte, uint(in)%8192)
		_, verdict := Parse(&r, cut(out, int(uint(framing)%64)+1), cut(buf, int(uint(framing)%64)+1), lim)
		if verdict != Queue || r.Op == OpFlush {
			return
		}
		check := r.Ranges
		if r.Op == OpRead || r.Op == OpWrite {
			check = []Range{{r.Sector, r.Sectors}}
			require.EqualValues(t, r.Bytes(), total(r.Segs))
		}
		require.NotEmpty(t, check)
		for _, e := range check {
			require.NotZero(t, e.Sectors)
			require.GreaterOrEqual(t, e.Sector, lim.Offset)
			require.LessOrEqual(t, e.Sector+e.Sectors, lim.Offset+lim.Capacity)
		}
	})
}

func TestConfig_roundTrip(t *testing.T) {
	c := Config{
		Capacity: 1 << 40, SizeMax: 2, SegMax: 3, BlkSize: 4096, PhysicalBlockExp: 5, AlignmentOffset: 6,
		MinIOSize: 7, OptIOSize: 8, Writeback: true, NumQueues: 9, MaxDiscardSectors: 10, MaxDiscardSeg: 11,
		DiscardSectorAlignment: 12, MaxWriteZeroesSectors: 13, MaxWriteZeroesSeg: 14, WriteZeroesMayUnmap: true,
	}
	b := c.Encode()
	require.Equal(t, c, DecodeConfig(b[:]))
	require.Equal(t, Config{Capacity: 1 << 40}, DecodeConfig(b[:8]))
	// Offsets of virtio 1.3, 5.2.4.
	require.EqualValues(t, 4096, binary.LittleEndian.Uint32(b[20:]))
	require.EqualValues(t, 1, b[32])
	require.EqualValues(t, 9, binary.LittleEndian.Uint16(b[34:]))
	require.EqualValues(t, 10, binary.LittleEndian.Uint32(b[36:]))
	require.EqualValues(t, 1, b[56])
}

func TestRequest_wrongHandOverPanics(t *testing.T) {
	r := &Request{}
	r.Move(StateFree, StateQueued)
	require.Equal(t, StateQueued, r.State())
	require.Panics(t, func() { r.Move(StateFree, StateQueued) })
}

func TestSource_covers(t *testing.T) {
	s := Source{Device: 1, Queue: 2, Stream: 3}
	require.True(t, AllSources.Covers(s))
	require.True(t, Source{Device: 1, Queue: AnyQueue}.Covers(s))
	require.True(t, Source{Device: 1, Queue: 2}.Covers(s))
	require.False(t, Source{Device: 1, Queue: 3}.Covers(s))
	require.False(t, Source{Device: 2, Queue: AnyQueue}.Covers(s))
}

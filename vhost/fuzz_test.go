package vhost

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/elevisor/elevisor/sys/shm"
)

// source draws messages from fuzzed bytes, most of them nearly right: those get
// further than noise.
type source struct{ b []byte }

func (s *source) byte() byte {
	if len(s.b) == 0 {
		return 0
	}
	c := s.b[0]
	s.b = s.b[1:]
	return c
}

const fuzzUVA = 0x7f0000000000

var fuzzNumbers = []uint64{
	0, 1, 2, 3, 8, 20, 32, 128, 0x100, 0x101, 256, 1024, 4096, 0x8000, 0xffff, 0x10000, 0x20000, 1 << 20,
	0x80000000, 0xffffffff, 0x100000000, 1 << 62, 1<<64 - 4096, 1<<64 - 1,
	fuzzUVA, fuzzUVA + 0x1000, fuzzUVA + 0x2000, fuzzUVA + 0x8000, fuzzUVA + 0xfff0,
	fakeFeatures, fakeFeatures | FeatureProtocolFeatures, OfferedProtocol, ProtocolReplyAck,
}

func (s *source) number() uint64 { return fuzzNumbers[int(s.byte())%len(fuzzNumbers)] }

func (s *source) region() shm.Region {
	if s.byte()%2 == 0 {
		at := uint64(s.byte()%8) << 16
		return shm.Region{GPA: at, Size: 1 << 16, UVA: fuzzUVA + at}
	}
	return shm.Region{GPA: s.number(), Size: s.number(), UVA: s.number(), Offset: s.number()}
}

func (s *source) message() Message {
	m := Message{ID: ID(s.byte() % 48), Flags: Version | uint32(s.byte()&0x0c)}
	if m.Flags&FlagReply != 0 && s.byte() != 0 {
		m.Flags &^= FlagReply
	}
	ring := uint32(s.byte() % 3)
	switch m.ID {
	case MsgSetFeatures, MsgSetProtocolFeatures:
		m.Payload = putU64(s.number())
	case MsgSetVringKick, MsgSetVringCall, MsgSetVringErr:
		m.Payload = putU64(uint64(ring) | uint64(s.byte()&1)<<8)
	case MsgSetVringNum, MsgSetVringBase, MsgGetVringBase, MsgSetVringEnable:
		m.Payload = VringState{ring, uint32(s.number())}.bytes()
	case MsgSetVringAddr:
		m.Payload = VringAddr{Index: ring, Flags: uint32(s.byte() & 1), Desc: s.number(), Avail: s.number(), Used: s.number()}.bytes()
	case MsgSetMemTable:
		table := make([]shm.Region, s.byte()%10)
		for i := range table {
			table[i] = s.region()
		}
		m.Payload = tableBytes(table)
	case MsgAddMemReg, MsgRemMemReg:
		m.Payload = singleBytes(s.region())
	case MsgGetConfig, MsgSetConfig:
		m.Payload = configSpace{offset: uint32(s.number()), flags: uint32(s.byte() & 3), data: make([]byte, s.byte())}.bytes()
	case MsgGetInflightFD, MsgSetInflightFD:
		m.Payload = Inflight{Size: s.number(), Offset: s.number(), Queues: uint16(s.number()), QueueSize: uint16(s.number())}.bytes(20 + int(s.byte()&4))
	}
	if s.byte() == 1 { // noise
		n := min(int(s.byte()), len(s.b))
		m.Payload, s.b = s.b[:n], s.b[n:]
	}
	return m
}

// descriptors opens what goes with m: mostly as many as it wants.
func (s *source) descriptors(t testing.TB, m Message, files *[4]int) []int {
	n := 0
	switch m.ID {
	case MsgSetMemTable:
		n = (len(m.Payload) - tableHead) / regionSize
	case MsgAddMemReg, MsgSetVringKick, MsgSetVringCall, MsgSetVringErr, MsgSetInflightFD, MsgSetBackendReqFD:
		n = 1
	}
	kind := 0
	switch m.ID {
	case MsgSetVringKick, MsgSetVringCall, MsgSetVringErr:
		kind = 1
	case MsgSetBackendReqFD:
		kind = 2
	}
	if odd := s.byte(); odd < 16 {
		n, kind = int(odd%8), int(s.byte())%len(files)
	}
	var fds []int
	for range n {
		fd, err := unix.FcntlInt(uintptr(files[kind]), unix.F_DUPFD_CLOEXEC, 0)
		require.NoError(t, err)
		fds = append(fds, fd)
	}
	return fds
}

// FuzzSession: no messages make a session panic, call its device out of turn (the
// fake panics then), leave a request for a reply without one, or keep a
// descriptor or a mapping.
func FuzzSession(f *testing.F) {
	f.Add([]byte{})
	for seed := range byte(8) { // long enough for rings to start now and then
		b := make([]byte, 4096)
		for i, x := 0, uint32(seed)+1; i < len(b); i++ {
			x = x*1664525 + 1013904223
			b[i] = byte(x >> 24)
		}
		f.Add(b)
	}
	f.Add(fuzzStart)
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	require.NoError(f, err)
	event, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	require.NoError(f, err)
	dir, err := unix.Open(".", unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	require.NoError(f, err)
	files := [4]int{memfd(f, "ram", 1<<16), event, pair[0], dir}
	f.Cleanup(func() { closeAll(append(files[:], pair[1])) })

	f.Fuzz(func(t *testing.T, b []byte) {
		fds, maps := holdings(t)
		dev := newFake(2)
		s := NewSession(dev, dev, zap.NewNop(), nil)
		for src := (&source{b}); len(src.b) > 0; {
			m := src.message()
			reply, err := s.Handle(m, src.descriptors(t, m, &files))
			closeAll(reply.FDs)
			if err != nil {
				break
			}
			if mustReply(m.ID) {
				require.False(t, reply.None(), "%v", m.ID)
			}
			if src.byte() == 0 {
				s.ConfigChanged()
			}
		}
		s.Close(nil)
		dev.close()
		for i, r := range dev.rings {
			require.Nil(t, r.kick, fmt.Sprintf("ring %d runs", i))
			require.Nil(t, r.call, fmt.Sprintf("ring %d calls", i))
		}
		fdsNow, mapsNow := holdings(t)
		require.Equal(t, fds, fdsNow)
		require.Equal(t, maps, mapsNow)
	})
}

func mustReply(id ID) bool {
	switch id {
	case MsgGetFeatures, MsgGetProtocolFeatures, MsgGetQueueNum, MsgGetMaxMemSlots, MsgGetVringBase, MsgGetConfig, MsgGetInflightFD:
		return true
	}
	return false
}

// fuzzStart is what source reads as the start of a ring, and its stop.
var fuzzStart = []byte{
	16, 0, 0, 31, 0, 255, 1,
	2, 8, 0, 30, 0, 255, 1,
	5, 8, 0, 1, 0, 0, 0, 255, 1,
	8, 8, 0, 4, 0, 255, 1,
	9, 8, 0, 0, 24, 25, 26, 0, 255, 1,
	13, 8, 0, 0, 0, 255, 1,
	12, 8, 0, 0, 0, 255, 1,
	18, 8, 0, 1, 0, 255, 1,
	31, 8, 0, 0, 0, 2, 7, 4, 0, 255, 1,
	11, 0, 0, 0, 0, 255, 1,
	12, 8, 0, 0, 0, 255, 1,
}

package vhost

import (
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	"golang.org/x/sys/unix"

	"github.com/elevisor/elevisor/sys/shm"
)

// tell hands a message with need_reply to a session with REPLY_ACK and is whether
// it was carried out.
func tell(t testing.TB, s *Session, id ID, payload []byte, fds ...int) bool {
	reply, err := s.Handle(Message{ID: id, Flags: Version | FlagNeedReply, Payload: payload}, fds)
	require.NoError(t, err)
	require.Equal(t, id, reply.Message.ID)
	require.Len(t, reply.Message.Payload, u64Size)
	return getU64(reply.Message.Payload) == 0
}

func newTestSession(t testing.TB, quit <-chan struct{}) (*Session, *fake) {
	leakCheck(t)
	dev := newFake(1)
	s := NewSession(dev, dev, zap.NewNop(), quit)
	_, err := s.Handle(Message{ID: MsgSetProtocolFeatures, Flags: Version, Payload: putU64(OfferedProtocol)}, nil)
	require.NoError(t, err)
	t.Cleanup(dev.close)
	return s, dev
}

// TestMemSlots: as many regions as GET_MAX_MEM_SLOTS says, and not one more.
func TestMemSlots(t *testing.T) {
	s, _ := newTestSession(t, nil)
	file := memfd(t, "ram", 4096)
	defer unix.Close(file)
	region := func(i int) []byte {
		return singleBytes(shm.Region{GPA: uint64(i) << 20, Size: 4096, UVA: uint64(i)<<20 + 1<<40})
	}
	dup := func() int {
		fd, err := unix.FcntlInt(uintptr(file), unix.F_DUPFD_CLOEXEC, 0)
		require.NoError(t, err)
		return fd
	}
	for i := range MaxMemSlots {
		require.True(t, tell(t, s, MsgAddMemReg, region(i), dup()), "region %d", i)
	}
	require.False(t, tell(t, s, MsgAddMemReg, region(MaxMemSlots), dup()))
	require.True(t, tell(t, s, MsgRemMemReg, region(0)))
	require.True(t, tell(t, s, MsgAddMemReg, region(MaxMemSlots), dup()))
	s.Close(nil)
}

// TestAddressSpace: a front-end with a sparse file does not get all the addresses of
// a process that serves others too.
func TestAddressSpace(t *testing.T) {
	s, _ := newTestSession(t, nil)
	sparse := func() int { return memfd(t, "ram", 1<<47) }
	half := shm.Region{Size: MaxMemory / 2}
	rest := shm.Region{GPA: half.Size, UVA: half.Size, Size: MaxMemory / 2}
	more := shm.Region{GPA: MaxMemory, UVA: MaxMemory, Size: 4096}
	require.True(t, tell(t, s, MsgAddMemReg, singleBytes(half), sparse()))
	require.True(t, tell(t, s, MsgAddMemReg, singleBytes(rest), sparse()))
	require.False(t, tell(t, s, MsgAddMemReg, singleBytes(more), sparse()))
	require.False(t, tell(t, s, MsgSetMemTable, tableBytes([]shm.Region{half, rest, more}), sparse(), sparse(), sparse()))
	wrap := []shm.Region{{Size: 1 << 62}, {GPA: 1 << 62, UVA: 1 << 62, Size: 3 << 62}}
	require.False(t, tell(t, s, MsgSetMemTable, tableBytes(wrap), sparse(), sparse()))
	area := Inflight{Queues: 1, QueueSize: 128, Size: 1 << 40}
	require.False(t, tell(t, s, MsgSetInflightFD, area.bytes(inflightSize+4), sparse()))
	s.Close(nil)
}

// startRing starts ring 0.
func startRing(t testing.TB, s *Session) {
	const uva = 0x7f0000000000
	require.True(t, tell(t, s, MsgSetFeatures, putU64(fakeFeatures|FeatureProtocolFeatures)))
	require.True(t, tell(t, s, MsgSetMemTable, tableBytes([]shm.Region{{Size: 1 << 20, UVA: uva}}), memfd(t, "ram", 1<<20)))
	require.True(t, tell(t, s, MsgSetVringNum, VringState{0, 8}.bytes()))
	require.True(t, tell(t, s, MsgSetVringAddr, VringAddr{Desc: uva, Avail: uva + 0x1000, Used: uva + 0x2000}.bytes()))
	kick, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	require.NoError(t, err)
	require.True(t, tell(t, s, MsgSetVringKick, putU64(0), kick))
}

// TestStopLater: GET_VRING_BASE answers when the ring has stopped, whoever says so.
func TestStopLater(t *testing.T) {
	s, dev := newTestSession(t, nil)
	startRing(t, s)
	dev.holdStops()
	go func() {
		<-dev.stopping
		dev.release()
	}()
	reply, err := s.Handle(Message{ID: MsgGetVringBase, Flags: Version, Payload: VringState{}.bytes()}, nil)
	require.NoError(t, err)
	require.Equal(t, VringState{0, 5}, parseState(reply.Message.Payload))
	s.Close(nil)
}

// TestQuit: a wait ends with quit, nothing is carried out afterwards, and Close
// still waits for the same stop.
func TestQuit(t *testing.T) {
	for name, m := range map[string]Message{
		"GET_VRING_BASE": {ID: MsgGetVringBase, Flags: Version, Payload: VringState{}.bytes()},
		"RESET_DEVICE":   {ID: MsgResetDevice, Flags: Version},
	} {
		t.Run(name, func(t *testing.T) {
			quit := make(chan struct{})
			s, dev := newTestSession(t, quit)
			startRing(t, s)
			dev.holdStops()
			go func() {
				<-dev.stopping
				close(quit)
			}()
			_, err := s.Handle(m, nil)
			require.ErrorIs(t, err, ErrQuit)
			_, err = s.Handle(Message{ID: MsgGetFeatures, Flags: Version}, nil)
			require.ErrorIs(t, err, ErrQuit)
			closed := make(chan struct{})
			go func() {
				s.Close(nil)
				close(closed)
			}()
			select {
			case <-closed:
				t.Fatal("closed before the ring stopped")
			default:
			}
			dev.release()
			<-closed
			require.Empty(t, dev.stopping, "stopped once only")
		})
	}
}

// TestAbandon: Close gives a ring up that does not stop, and its later end finds
// nothing amiss.
func TestAbandon(t *testing.T) {
	s, dev := newTestSession(t, nil)
	startRing(t, s)
	dev.holdStops()
	abandon := make(chan struct{})
	close(abandon)
	s.Close(abandon)
	dev.release()
}

// TestConfigChangedBounded: a front-end that does not read its channel cannot hold
// up who calls.
func TestConfigChangedBounded(t *testing.T) {
	s, _ := newTestSession(t, nil)
	startRing(t, s)
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	for unix.Sendto(pair[1], make([]byte, 4096), unix.MSG_DONTWAIT, nil) == nil {
	}
	require.True(t, tell(t, s, MsgSetBackendReqFD, nil, pair[1]))
	s.ConfigChanged()
	require.NoError(t, unix.Close(pair[0]))
	s.ConfigChanged() // and one that has gone is no harm either
	s.Close(nil)
	s.ConfigChanged()
}

// TestLogBounded: a front-end does not choose how much is logged.
func TestLogBounded(t *testing.T) {
	leakCheck(t)
	core, logs := observer.New(zap.InfoLevel)
	srv := newServer(zap.New(core))
	dev := newFake(1)
	s := NewSession(dev, dev, srv.log, nil)
	for range 100000 {
		_, err := s.Handle(Message{ID: MsgSetVringNum, Flags: Version, Payload: VringState{0, 3}.bytes()}, nil)
		require.NoError(t, err)
	}
	s.Close(nil)
	require.NotZero(t, logs.Len())
	require.Less(t, logs.Len(), 200)
}

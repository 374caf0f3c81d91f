package guest

import (
	"errors"
	"fmt"
	"net"
	"time"

	"golang.org/x/sys/unix"

	"github.com/elevisor/elevisor/blk"
	"github.com/elevisor/elevisor/vhost"
	"github.com/elevisor/elevisor/virtqueue"
)

// DefaultFeatures are what a guest takes of a server's offer: what a Linux driver
// would.
const DefaultFeatures = virtqueue.FeatureVersion1 | virtqueue.FeatureEventIdx | virtqueue.FeatureIndirect |
	blk.FeatureSegMax | blk.FeatureBlkSize | blk.FeatureTopology | blk.FeatureRO | blk.FeatureFlush |
	blk.FeatureConfigWCE | blk.FeatureMQ | blk.FeatureDiscard | blk.FeatureWriteZeroes

// DefaultProtocol are the protocol features a guest takes, all that it can use.
const DefaultProtocol = vhost.ProtocolMQ | vhost.ProtocolReplyAck | vhost.ProtocolConfig |
	vhost.ProtocolInflightShmFD | vhost.ProtocolConfigureMemSlots | vhost.ProtocolResetDevice

// Session is one connection to a server after the hand-shake, in the order in
// which QEMU speaks. The front-end itself is there for whoever wants to say
// something else. One goroutine uses it; Alive and Close may be called by any.
type Session struct {
	*vhost.Frontend
	conn *net.UnixConn

	Offered  uint64 // features
	Features uint64 // chosen; the server is told by Features' message, not before
	Protocol uint64 // protocol features, chosen and told
	Queues   int    // that the server has
	Config   blk.Config
}

// Connect connects to the server that listens at path and shakes hands: the
// offered features and protocol features within the two wishes are chosen.
// timeout is for connecting and for each answer.
func Connect(path string, features, protocol uint64, timeout time.Duration) (*Session, error) {
	c, err := net.DialTimeout("unix", path, timeout)
	if err != nil {
		return nil, fmt.Errorf("connect to the server: %w", err)
	}
	s := &Session{conn: c.(*net.UnixConn)}
	s.Frontend = vhost.NewFrontend(s.conn, timeout)
	if err := s.shakeHands(features, protocol); err != nil {
		s.Close()
		return nil, fmt.Errorf("hand-shake with the server at %s: %w", path, err)
	}
	return s, nil
}

func (s *Session) shakeHands(features, protocol uint64) (err error) {
	if s.Offered, err = s.GetFeatures(); err != nil {
		return err
	}
	if s.Offered&vhost.FeatureProtocolFeatures == 0 {
		return fmt.Errorf("features %#x without bit 30, the protocol features", s.Offered)
	}
	s.Features = s.Offered & (features | vhost.FeatureProtocolFeatures)
	if s.Protocol, err = s.GetProtocolFeatures(); err != nil {
		return err
	}
	s.Protocol &= protocol
	if err = s.SetProtocolFeatures(s.Protocol); err != nil {
		return err
	}
	s.Queues = 1
	if s.Protocol&vhost.ProtocolMQ != 0 {
		if s.Queues, err = s.GetQueueNum(); err != nil {
			return err
		}
	}
	if err = s.SetOwner(); err != nil {
		return err
	}
	if s.Protocol&vhost.ProtocolConfig == 0 {
		return errors.New("no protocol feature CONFIG, so no capacity")
	}
	raw, err := s.GetConfig(0, blk.ConfigSize)
	if err != nil {
		return err
	}
	s.Config = blk.DecodeConfig(raw)
	return nil
}

// ShareMemory tells the server the guest's memory: region by region where it can
// take them so, else all at once.
func (s *Session) ShareMemory(m *Memory) error {
	regions, fds := m.Table()
	if s.Protocol&vhost.ProtocolConfigureMemSlots == 0 {
		return s.SetMemTable(regions, fds)
	}
	for i, r := range regions {
		if err := s.AddMemReg(r, fds[i]); err != nil {
			return fmt.Errorf("memory region %d: %w", i, err)
		}
	}
	return nil
}

// RingSetup is what a server must know to run a ring.
type RingSetup struct {
	Ring            Ring
	Memory          *Memory // which holds it
	Base            uint32  // the next available index
	Kick, Call, Err int     // descriptors, which stay the caller's; -1: none
}

// StartRing starts ring i and enables it.
func (s *Session) StartRing(i int, r RingSetup) error {
	for _, step := range []func() error{
		func() error { return s.SetVringNum(i, uint32(r.Ring.Size)) },
		func() error { return s.SetVringBase(i, r.Base) },
		func() error {
			return s.SetVringAddr(vhost.VringAddr{
				Index: uint32(i), Desc: r.Memory.UVA(r.Ring.Desc.Addr),
				Avail: r.Memory.UVA(r.Ring.Avail.Addr), Used: r.Memory.UVA(r.Ring.Used.Addr),
			})
		},
		func() error { return s.SetVringCall(i, r.Call) },
		func() error { return s.SetVringErr(i, r.Err) },
		func() error { return s.SetVringKick(i, r.Kick) },
		func() error { return s.SetVringEnable(i, true) },
	} {
		if err := step(); err != nil {
			return fmt.Errorf("start ring %d: %w", i, err)
		}
	}
	return nil
}

// StopRing disables ring i and stops it, as QEMU does; the answer is where a
// successor goes on. It waits for the requests that the server has taken.
func (s *Session) StopRing(i int) (base uint32, err error) {
	if err = s.SetVringEnable(i, false); err == nil {
		base, err = s.GetVringBase(i)
	}
	if err != nil {
		return 0, fmt.Errorf("stop ring %d: %w", i, err)
	}
	return base, nil
}

// Alive says whether the connection is there: neither side has closed it.
func (s *Session) Alive() bool {
	raw, err := s.conn.SyscallConn()
	if err != nil {
		return false
	}
	alive := false
	err = raw.Control(func(fd uintptr) {
		p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
		n, err := unix.Poll(p, 0)
		alive = n == 0 || err == unix.EINTR
	})
	return err == nil && alive
}

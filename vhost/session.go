package vhost

import (
	"errors"
	"fmt"
	"os"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/elevisor/elevisor/sys/eventfd"
	"github.com/elevisor/elevisor/sys/shm"
)

// Session is the back-end's side of one connection as a state machine: messages
// in, replies out, and calls to a Device and its Queues in between. It knows
// neither socket nor clock. One goroutine calls Handle and then, once, Close;
// ConfigChanged may come from any.
//
// A message has one of three outcomes:
//
//   - it is carried out. If it asked for an acknowledgement, that is zero;
//   - it is refused: nothing has changed, and a log line says why. If it asked for an
//     acknowledgement, that is not zero. Unknown messages are refused too;
//   - it ends the session, by an error of Handle: it is malformed, or its sender waits
//     for a reply that cannot express a refusal.
//
// A message is carried out even if the protocol feature that it belongs to was not
// negotiated. Acknowledgements need REPLY_ACK to have been negotiated before the message.
type Session struct {
	dev  Device
	q    Queues
	log  *zap.Logger
	quit <-chan struct{}

	negotiated bool // a SET_FEATURES was carried out
	protocol   uint64
	rings      []ring
	memory     *shm.Memory  // nil: none yet
	inflight   *shm.Mapping // nil: none
	back       backChannel
	ended      error
}

// Reply is what is sent back: nothing if its Message has no flags. The descriptors
// belong to the caller.
type Reply struct {
	Message Message
	FDs     []int
}

// None is whether there is nothing to send.
func (r Reply) None() bool { return r.Message.Flags == 0 }

// ErrNoAnswer ends a session that cannot carry out a message whose reply has no way to
// say so: its sender would wait for ever.
var ErrNoAnswer = errors.New("no reply to this message can say so")

// ErrQuit ends a session whose quit channel was closed while it waited for a ring
// to stop.
var ErrQuit = errors.New("session was told to end")

// NewSession makes a session over a device all of whose rings are stopped and
// disabled. Closing quit ends a wait within Handle; it may be nil, as may log.
func NewSession(d Device, q Queues, log *zap.Logger, quit <-chan struct{}) *Session {
	log = orNone(log)
	return &Session{dev: d, q: q, log: log, quit: quit, rings: make([]ring, q.Count()), back: backChannel{fd: -1, log: log}}
}

func orNone(log *zap.Logger) *zap.Logger {
	if log == nil {
		return zap.NewNop()
	}
	return log
}

// Handle carries out one message. It takes over fds, also with an error. An error ends
// the session: the caller closes it and the connection, and every later call returns the
// same error.
func (s *Session) Handle(m Message, fds []int) (Reply, error) {
	in := &received{fds: fds}
	defer in.close()
	if s.ended != nil {
		return Reply{}, s.ended
	}
	if err := checkRequest(m, len(m.Payload)); err != nil {
		s.ended = err
		return Reply{}, err
	}
	ack := m.NeedReply() && s.protocol&ProtocolReplyAck != 0
	reply, err := s.dispatch(m, in)
	if errors.Is(err, ErrMalformed) || errors.Is(err, ErrNoAnswer) || errors.Is(err, ErrQuit) {
		s.ended = err
		return Reply{}, err
	}
	if err != nil {
		s.log.Warn("message refused", zap.Stringer("message", m.ID), zap.Error(err))
	}
	if !reply.None() || !ack {
		return reply, nil
	}
	if err != nil {
		return answer(m.ID, putU64(1)), nil
	}
	return answer(m.ID, putU64(0)), nil
}

// dispatch carries m out. An error means that it is refused, or that the session ends.
func (s *Session) dispatch(m Message, in *received) (Reply, error) {
	switch m.ID {
	case MsgGetFeatures:
		return answer(m.ID, putU64(s.dev.Features()|FeatureProtocolFeatures)), nil
	case MsgGetProtocolFeatures:
		return answer(m.ID, putU64(OfferedProtocol)), nil
	case MsgGetQueueNum:
		return answer(m.ID, putU64(uint64(len(s.rings)))), nil
	case MsgGetMaxMemSlots:
		return answer(m.ID, putU64(MaxMemSlots)), nil
	case MsgGetVringBase:
		return s.getVringBase(m)
	case MsgGetConfig:
		return s.getConfig(m)
	case MsgGetInflightFD:
		return s.getInflight(m), nil
	}
	if set, ok := setters[m.ID]; ok {
		return Reply{}, set(s, m.Payload, in)
	}
	return refuseUnknown(m)
}

// setters are the messages without a reply of their own.
var setters = map[ID]func(s *Session, payload []byte, in *received) error{
	MsgSetFeatures:         (*Session).setFeatures,
	MsgSetProtocolFeatures: (*Session).setProtocolFeatures,
	MsgSetOwner:            (*Session).nothing,
	MsgResetOwner:          (*Session).nothing, // "recommended that back-ends either ignore this message, or …"
	MsgSetMemTable:         (*Session).setMemTable,
	MsgAddMemReg:           (*Session).addMemReg,
	MsgRemMemReg:           (*Session).remMemReg,
	MsgSetVringNum:         (*Session).setVringNum,
	MsgSetVringAddr:        (*Session).setVringAddr,
	MsgSetVringBase:        (*Session).setVringBase,
	MsgSetVringKick:        (*Session).setVringKick,
	MsgSetVringCall:        (*Session).setVringCall,
	MsgSetVringErr:         (*Session).setVringErr,
	MsgSetVringEnable:      (*Session).setVringEnable,
	MsgSetBackendReqFD:     (*Session).setBackendReqFD,
	MsgSetConfig:           (*Session).setConfig,
	MsgSetInflightFD:       (*Session).setInflight,
	MsgResetDevice:         (*Session).resetDevice,
}

// refuseUnknown refuses a message that this package does not carry out. Where the
// document gives the message a reply of its own, its sender waits for one.
func refuseUnknown(m Message) (Reply, error) {
	const (
		iotlb            = 22
		createCrypto     = 26
		postcopyAdvise   = 28
		postcopyEnd      = 30
		getStatus        = 40
		getSharedObject  = 41
		setDeviceStateFD = 42
		checkDeviceState = 43
		noFD             = 1 << 8 // in the reply to SET_DEVICE_STATE_FD
	)
	err := fmt.Errorf("%v is not supported", m.ID)
	switch m.ID {
	case iotlb, postcopyEnd, setDeviceStateFD, checkDeviceState:
		return answer(m.ID, putU64(noFD|1)), err
	case createCrypto, postcopyAdvise, getStatus, getSharedObject:
		return Reply{}, fmt.Errorf("%w: %w", err, ErrNoAnswer)
	}
	return Reply{}, err
}

func answer(id ID, payload []byte) Reply {
	return Reply{Message: Message{ID: id, Flags: Version | FlagReply, Payload: payload}}
}

func (s *Session) nothing([]byte, *received) error { return nil }

// setFeatures never stops or disables a ring: front-ends send it again while
// rings run, to switch dirty logging.
func (s *Session) setFeatures(b []byte, _ *received) error {
	bits := getU64(b)
	if err := s.dev.SetFeatures(bits &^ FeatureProtocolFeatures); err != nil {
		return err
	}
	s.negotiated = true
	if bits&FeatureProtocolFeatures == 0 {
		for i := range s.rings {
			s.q.Enable(i, true)
		}
	}
	return nil
}

func (s *Session) setProtocolFeatures(b []byte, _ *received) error {
	bits := getU64(b)
	if odd := bits &^ OfferedProtocol; odd != 0 {
		return fmt.Errorf("protocol features %#x were not offered, only %#x", odd, uint64(OfferedProtocol))
	}
	s.protocol = bits
	s.back.allow(bits&ProtocolConfig != 0)
	return nil
}

// resetDevice keeps what belongs to the connection rather than to the device: memory,
// call and error descriptors, and the in-flight area. Front-ends do not send all of them
// again.
func (s *Session) resetDevice([]byte, *received) error {
	if err := s.stopAll(s.quit); err != nil {
		return err
	}
	for i := range s.rings {
		s.q.Enable(i, false)
		r := &s.rings[i]
		*r = ring{call: r.call, err: r.err}
	}
	s.negotiated = false
	s.dev.Reset()
	return nil
}

// Close ends the session: it stops all rings, waits until what was taken from them has
// been carried out, and releases all descriptors and memory of the front-end. Closing
// abandon, which may be nil, ends that wait.
func (s *Session) Close(abandon <-chan struct{}) {
	if err := s.stopAll(abandon); err != nil {
		s.log.Warn("rings left behind with requests in flight")
	}
	s.back.close()
	for i := range s.rings {
		r := &s.rings[i]
		s.q.Enable(i, false)
		s.q.SetCall(i, nil)
		s.q.SetErr(i, nil)
		r.call.Close()
		r.err.Close()
	}
	s.rings = nil
	s.ended = os.ErrClosed
	s.dropInflight()
	s.dropMemory()
}

// received are the descriptors that came with a message. Those that nobody takes are
// closed after it.
type received struct{ fds []int }

func (in *received) close() { closeAll(in.fds) }

// one returns the only descriptor, without taking it.
func (in *received) one() (int, error) {
	if len(in.fds) != 1 {
		return -1, fmt.Errorf("%d file descriptors, want 1", len(in.fds))
	}
	return in.fds[0], nil
}

// notifier takes the only descriptor, which must be one for notifications.
func (in *received) notifier() (*eventfd.FD, error) {
	fd, err := in.one()
	if err != nil {
		return nil, err
	}
	e, err := eventfd.Own(fd)
	if err != nil {
		return nil, err
	}
	in.fds = nil
	return e, nil
}

// socket takes the only descriptor, which must be a stream socket.
func (in *received) socket() (int, error) {
	fd, err := in.one()
	if err != nil {
		return -1, err
	}
	kind, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TYPE)
	if err != nil {
		return -1, fmt.Errorf("ask for the type of a socket: %w", err)
	}
	if kind != unix.SOCK_STREAM {
		return -1, fmt.Errorf("socket of type %d, want a stream (%d)", kind, unix.SOCK_STREAM)
	}
	in.fds = nil
	return fd, nil
}

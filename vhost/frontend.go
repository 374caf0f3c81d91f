package vhost

import (
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/elevisor/elevisor/sys/shm"
)

// Frontend is the client's end of a connection: what a VMM does. One goroutine uses it.
// Descriptors that are passed in stay the caller's; those that come back become the
// caller's.
//
// Once REPLY_ACK is negotiated every message without a reply of its own asks for
// an acknowledgement, and a refusal is a *[RefusedError].
type Frontend struct {
	c       *conn
	timeout time.Duration
	ack     bool
}

// RefusedError is a message that the back-end answered with a non-zero
// acknowledgement.
type RefusedError struct {
	ID    ID
	Value uint64
}

func (e *RefusedError) Error() string {
	return fmt.Sprintf("%v: refused by the back-end (%d)", e.ID, e.Value)
}

// Dial connects to the back-end that listens at path. timeout is for connecting
// and for each answer; after one that was late the connection cannot be used any more.
func Dial(path string, timeout time.Duration) (*Frontend, error) {
	c, err := net.DialTimeout("unix", path, timeout)
	if err != nil {
		return nil, fmt.Errorf("connect to back-end: %w", err)
	}
	return NewFrontend(c.(*net.UnixConn), timeout), nil
}

// NewFrontend makes a front-end of a connected socket, which it takes over.
func NewFrontend(c *net.UnixConn, timeout time.Duration) *Frontend {
	return &Frontend{c: newConn(c), timeout: timeout}
}

// Close ends the connection.
func (f *Frontend) Close() { f.c.close() }

// Send sends one message as it is; flags are all flags of the header, Version
// included. It does not wait for an answer.
func (f *Frontend) Send(id ID, flags uint32, payload []byte, fds ...int) error {
	defer f.limit()()
	return f.c.write(Message{ID: id, Flags: flags, Payload: payload}, fds)
}

// SendBytes sends bytes, which need not be a message.
func (f *Frontend) SendBytes(b []byte, fds ...int) error {
	defer f.limit()()
	return f.c.send(b, fds)
}

// CloseWrite ends the stream to the back-end; the one from it stays open.
func (f *Frontend) CloseWrite() error { return f.c.c.CloseWrite() }

// Recv returns the next message from the back-end, or io.EOF after it has closed the
// connection.
func (f *Frontend) Recv() (Message, []int, error) {
	defer f.limit()()
	return f.c.read(nil)
}

// limit makes the socket fail after the timeout, unless stop is called before.
func (f *Frontend) limit() (stop func()) {
	t := time.AfterFunc(f.timeout, func() { _ = f.c.c.SetDeadline(time.Unix(1, 0)) })
	return func() { t.Stop() }
}

// tell sends a message without a reply of its own and, with REPLY_ACK, waits for
// the acknowledgement.
func (f *Frontend) tell(id ID, payload []byte, fds ...int) error {
	flags := uint32(Version)
	if f.ack {
		flags |= FlagNeedReply
	}
	if err := f.Send(id, flags, payload, fds...); err != nil || !f.ack {
		return err
	}
	v, err := f.recvU64(id)
	if err == nil && v != 0 {
		err = &RefusedError{ID: id, Value: v}
	}
	return err
}

// ask sends a message that has a reply of its own and returns the reply.
func (f *Frontend) ask(id ID, payload []byte, fds ...int) (Message, []int, error) {
	if err := f.Send(id, Version, payload, fds...); err != nil {
		return Message{}, nil, err
	}
	return f.recvReply(id)
}

func (f *Frontend) recvReply(id ID) (Message, []int, error) {
	m, fds, err := f.Recv()
	if err != nil {
		return m, nil, fmt.Errorf("%v: no reply: %w", id, err)
	}
	if m.ID != id || m.Flags&FlagReply == 0 {
		closeAll(fds)
		return m, nil, fmt.Errorf("%v: answered with %v, flags %#x: %w", id, m.ID, m.Flags, ErrMalformed)
	}
	return m, fds, nil
}

func (f *Frontend) recvU64(id ID) (uint64, error) {
	m, fds, err := f.recvReply(id)
	closeAll(fds)
	if err != nil {
		return 0, err
	}
	if len(m.Payload) != u64Size {
		return 0, fmt.Errorf("%v: reply of %d bytes, want %d: %w", id, len(m.Payload), u64Size, ErrMalformed)
	}
	return getU64(m.Payload), nil
}

func (f *Frontend) askU64(id ID) (uint64, error) {
	if err := f.Send(id, Version, nil); err != nil {
		return 0, err
	}
	return f.recvU64(id)
}

// GetFeatures is the offer, FeatureProtocolFeatures included.
func (f *Frontend) GetFeatures() (uint64, error) { return f.askU64(MsgGetFeatures) }

// SetFeatures is the choice.
func (f *Frontend) SetFeatures(bits uint64) error { return f.tell(MsgSetFeatures, putU64(bits)) }

// GetProtocolFeatures is the offer of protocol features.
func (f *Frontend) GetProtocolFeatures() (uint64, error) { return f.askU64(MsgGetProtocolFeatures) }

// SetProtocolFeatures is the choice of protocol features; with ProtocolReplyAck,
// all that follows is acknowledged.
func (f *Frontend) SetProtocolFeatures(bits uint64) error {
	if err := f.tell(MsgSetProtocolFeatures, putU64(bits)); err != nil {
		return err
	}
	f.ack = bits&ProtocolReplyAck != 0
	return nil
}

// SetOwner starts the session.
func (f *Frontend) SetOwner() error { return f.tell(MsgSetOwner, nil) }

// ResetOwner is the deprecated message of that name.
func (f *Frontend) ResetOwner() error { return f.tell(MsgResetOwner, nil) }

// GetQueueNum is how many queues the back-end has.
func (f *Frontend) GetQueueNum() (int, error) {
	n, err := f.askU64(MsgGetQueueNum)
	if err == nil && n > vringIndexMask+1 {
		return 0, fmt.Errorf("%v: %d queues, at most %d: %w", MsgGetQueueNum, n, vringIndexMask+1, ErrMalformed)
	}
	return int(n), err
}

// GetMaxMemSlots is how many regions AddMemReg may add.
func (f *Frontend) GetMaxMemSlots() (uint64, error) { return f.askU64(MsgGetMaxMemSlots) }

// SetMemTable replaces the memory table; fds[i] is the file of regions[i].
func (f *Frontend) SetMemTable(regions []shm.Region, fds []int) error {
	return f.tell(MsgSetMemTable, tableBytes(regions), fds...)
}

// AddMemReg adds a region of the file fd.
func (f *Frontend) AddMemReg(r shm.Region, fd int) error {
	return f.tell(MsgAddMemReg, singleBytes(r), fd)
}

// RemMemReg removes a region; its offset does not count.
func (f *Frontend) RemMemReg(r shm.Region) error { return f.tell(MsgRemMemReg, singleBytes(r)) }

// SetVringNum sets the size of ring i, in descriptors.
func (f *Frontend) SetVringNum(i int, size uint32) error {
	return f.tell(MsgSetVringNum, VringState{uint32(i), size}.bytes())
}

// SetVringAddr sets where ring a.Index lies.
func (f *Frontend) SetVringAddr(a VringAddr) error { return f.tell(MsgSetVringAddr, a.bytes()) }

// SetVringBase sets the next available index of ring i.
func (f *Frontend) SetVringBase(i int, base uint32) error {
	return f.tell(MsgSetVringBase, VringState{uint32(i), base}.bytes())
}

// SetVringKick starts ring i with kick descriptor fd; -1 sends none.
func (f *Frontend) SetVringKick(i, fd int) error { return f.vringFD(MsgSetVringKick, i, fd) }

// SetVringCall sets the call descriptor of ring i; -1 for none.
func (f *Frontend) SetVringCall(i, fd int) error { return f.vringFD(MsgSetVringCall, i, fd) }

// SetVringErr sets the error descriptor of ring i; -1 for none.
func (f *Frontend) SetVringErr(i, fd int) error { return f.vringFD(MsgSetVringErr, i, fd) }

func (f *Frontend) vringFD(id ID, i, fd int) error {
	if fd < 0 {
		return f.tell(id, putU64(uint64(i)|vringNoFD))
	}
	return f.tell(id, putU64(uint64(i)), fd)
}

// SetVringEnable lets ring i run, or pauses it.
func (f *Frontend) SetVringEnable(i int, on bool) error {
	s := VringState{Index: uint32(i)}
	if on {
		s.Num = 1
	}
	return f.tell(MsgSetVringEnable, s.bytes())
}

// GetVringBase stops ring i and returns the next available index.
func (f *Frontend) GetVringBase(i int) (uint32, error) {
	m, fds, err := f.ask(MsgGetVringBase, VringState{Index: uint32(i)}.bytes())
	closeAll(fds)
	if err != nil {
		return 0, err
	}
	if len(m.Payload) != stateSize || parseState(m.Payload).Index != uint32(i) {
		return 0, fmt.Errorf("%v: reply % x to ring %d: %w", MsgGetVringBase, m.Payload, i, ErrMalformed)
	}
	return parseState(m.Payload).Num, nil
}

// ErrConfig says that the back-end could not read the configuration space there: its
// reply to GET_CONFIG was empty.
var ErrConfig = errors.New("configuration space not readable there")

// GetConfig reads size bytes of the configuration space at offset off.
func (f *Frontend) GetConfig(off, size uint32) ([]byte, error) {
	m, fds, err := f.ask(MsgGetConfig, configSpace{offset: off, data: make([]byte, size)}.bytes())
	closeAll(fds)
	if err != nil {
		return nil, err
	}
	if len(m.Payload) == 0 {
		return nil, fmt.Errorf("%v: offset %d, %d bytes: %w", MsgGetConfig, off, size, ErrConfig)
	}
	if len(m.Payload) != configHead+int(size) {
		return nil, fmt.Errorf("%v: reply of %d bytes, want %d: %w", MsgGetConfig, len(m.Payload), configHead+size, ErrMalformed)
	}
	return m.Payload[configHead:], nil
}

// SetConfig writes data into the configuration space at offset off.
func (f *Frontend) SetConfig(off uint32, data []byte) error {
	return f.tell(MsgSetConfig, configSpace{offset: off, data: data}.bytes())
}

// GetInflight asks for an in-flight area; its file becomes the caller's.
func (f *Frontend) GetInflight(queues, size uint16) (Inflight, int, error) {
	m, fds, err := f.ask(MsgGetInflightFD, Inflight{Queues: queues, QueueSize: size}.bytes(inflightSize+4))
	if err != nil {
		return Inflight{}, -1, err
	}
	if len(m.Payload) != inflightSize+4 || len(fds) != 1 {
		closeAll(fds)
		return Inflight{}, -1, fmt.Errorf("%v: reply of %d bytes with %d descriptors: %w", MsgGetInflightFD, len(m.Payload), len(fds), ErrMalformed)
	}
	return parseInflight(m.Payload), fds[0], nil
}

// SetInflight hands an in-flight area back to the back-end, or to its successor.
func (f *Frontend) SetInflight(d Inflight, fd int) error {
	return f.tell(MsgSetInflightFD, d.bytes(inflightSize+4), fd)
}

// ResetDevice brings the device to its initial state.
func (f *Frontend) ResetDevice() error { return f.tell(MsgResetDevice, nil) }

// SetBackendReqFD gives the back-end the socket fd for requests of its own.
func (f *Frontend) SetBackendReqFD(fd int) error { return f.tell(MsgSetBackendReqFD, nil, fd) }

// OpenBackendReq makes a channel for requests of the back-end and sends it one end. Recv
// on the other end, which is returned, returns those requests.
func (f *Frontend) OpenBackendReq() (*Frontend, error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("make back-end channel: %w", err)
	}
	defer closeAll(pair[1:])
	file := os.NewFile(uintptr(pair[0]), "back-end channel")
	defer file.Close()
	c, err := net.FileConn(file)
	if err != nil {
		return nil, fmt.Errorf("make back-end channel: %w", err)
	}
	if err := f.SetBackendReqFD(pair[1]); err != nil {
		_ = c.Close()
		return nil, err
	}
	return NewFrontend(c.(*net.UnixConn), f.timeout), nil
}

package vhost

import (
	"errors"
	"fmt"
	"io"
	"net"

	"golang.org/x/sys/unix"
)

// conn moves messages and descriptors over a stream socket. One goroutine may
// read while another writes.
type conn struct {
	c *net.UnixConn
	// oob has room for MaxFDs and not one more: the kernel drops what does not
	// fit and sets MSG_CTRUNC.
	oob []byte
}

func newConn(c *net.UnixConn) *conn {
	return &conn{c: c, oob: make([]byte, unix.CmsgSpace(MaxFDs*4))}
}

// read returns the next message. check, if not nil, sees the header before the payload is
// waited for. The descriptors become the caller's; with an error there are none. The error
// is io.EOF where the stream ends between two messages, and another one where it ends
// within one.
func (c *conn) read(check func(m Message, size int) error) (m Message, fds []int, err error) {
	defer func() {
		if err != nil {
			closeAll(fds)
			fds = nil
		}
	}()
	var head [HeaderSize]byte
	if err = c.fill(head[:], &fds); err != nil {
		return m, fds, err
	}
	m, size, err := parseHeader(head)
	if err == nil && check != nil {
		err = check(m, size)
	}
	if err != nil || size == 0 {
		return m, fds, err
	}
	m.Payload = make([]byte, size)
	if err = c.fill(m.Payload, &fds); err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	return m, fds, err
}

// fill reads exactly len(b) bytes, and never into the next message, whose descriptors
// would come along. Descriptors are expected with the first byte of a message, but belong
// to it wherever in it they come.
func (c *conn) fill(b []byte, fds *[]int) error {
	for done := 0; done < len(b); {
		n, oobn, flags, _, err := c.c.ReadMsgUnix(b[done:], c.oob)
		if oobn > 0 {
			if err := takeRights(c.oob[:oobn], fds); err != nil {
				return err
			}
		}
		if flags&unix.MSG_CTRUNC != 0 || len(*fds) > MaxFDs {
			return fmt.Errorf("more than %d file descriptors with one message: %w", MaxFDs, ErrMalformed)
		}
		if n > 0 {
			done += n
			continue
		}
		if err == nil || errors.Is(err, io.EOF) {
			if done > 0 {
				return io.ErrUnexpectedEOF
			}
			return io.EOF
		}
		return fmt.Errorf("read message: %w", err)
	}
	return nil
}

// takeRights appends all descriptors of a control message to fds. Package net reads
// with MSG_CMSG_CLOEXEC.
func takeRights(oob []byte, fds *[]int) error {
	cmsgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return fmt.Errorf("parse control message: %w", err)
	}
	for i := range cmsgs {
		if cmsgs[i].Header.Level != unix.SOL_SOCKET || cmsgs[i].Header.Type != unix.SCM_RIGHTS {
			continue
		}
		got, err := unix.ParseUnixRights(&cmsgs[i])
		if err != nil {
			return fmt.Errorf("parse file descriptors: %w", err)
		}
		*fds = append(*fds, got...)
	}
	return nil
}

// write sends m with fds, which stay the caller's.
func (c *conn) write(m Message, fds []int) error {
	return c.send(m.AppendTo(make([]byte, 0, HeaderSize+len(m.Payload))), fds)
}

// send sends bytes with fds on the first of them.
func (c *conn) send(b []byte, fds []int) error {
	n := 0
	if len(fds) > 0 {
		var err error
		if n, _, err = c.c.WriteMsgUnix(b, unix.UnixRights(fds...), nil); err != nil {
			return fmt.Errorf("send message: %w", err)
		}
	}
	if n < len(b) {
		if _, err := c.c.Write(b[n:]); err != nil {
			return fmt.Errorf("send message: %w", err)
		}
	}
	return nil
}

func (c *conn) close() { _ = c.c.Close() }

func closeAll(fds []int) {
	for _, fd := range fds {
		_ = unix.Close(fd)
	}
}

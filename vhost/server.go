package vhost

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"sync"
	"time"

	"github.com/elevisor/elevisor/sys/socket"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"golang.org/x/sys/unix"
)

const (
	// stopGrace is how long rings may take to stop once the whole server is told
	// to end. A request that a disk never completes must not keep the process from
	// ending: with an in-flight area, a successor submits it again.
	stopGrace = 500 * time.Millisecond
	// slowAfter is after how long, and then how often, a slow message is logged.
	slowAfter = 10 * time.Second
	// acceptPause lets a process that is out of descriptors get some back.
	acceptPause = 100 * time.Millisecond
	// Front-ends can cause any number of log lines: each text is logged at most
	// logBurst times in logTick.
	logTick  = time.Second
	logBurst = 2
)

// Server serves one device to one front-end after the other. The next one waits
// in the socket's backlog until all of the last one's rings have stopped.
type Server struct {
	ln   *socket.Listener
	only *net.UnixConn // instead of ln: an inherited connection to the only client
	log  *zap.Logger   // bounded
	full *zap.Logger   // everything, for debugging
	slow time.Duration // slowAfter

	mu      sync.Mutex
	session *Session // of the present client; nil: there is none
}

func newServer(log *zap.Logger) *Server {
	log = orNone(log)
	bounded := zap.WrapCore(func(c zapcore.Core) zapcore.Core {
		return zapcore.NewSamplerWithOptions(c, logTick, logBurst, 0)
	})
	return &Server{log: log.WithOptions(bounded), full: log, slow: slowAfter}
}

// Listen makes a socket at path; log may be nil. One that a dead server left is replaced; one
// that somebody listens on, and everything that is no socket, is an error.
func Listen(path string, log *zap.Logger) (*Server, error) {
	ln, err := socket.Listen(path, fs.ModePerm)
	if err != nil {
		return nil, err
	}
	s := newServer(log)
	s.ln = ln
	return s, nil
}

// FromFD serves on an inherited socket: a listening one, or one that is connected to
// the only client there will be. fd becomes the server's, unless there is an error; log
// may be nil.
func FromFD(fd int, log *zap.Logger) (*Server, error) {
	listening, err := checkSocket(fd)
	if err != nil {
		return nil, fmt.Errorf("serve on file descriptor %d: %w", fd, err)
	}
	own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("serve on file descriptor %d: %w", fd, err)
	}
	file := os.NewFile(uintptr(own), "vhost-user socket")
	defer file.Close() // net duplicates it
	s := newServer(log)
	if listening {
		var ln net.Listener
		if ln, err = net.FileListener(file); err == nil {
			s.ln = &socket.Listener{UnixListener: ln.(*net.UnixListener)}
		}
	} else {
		var c net.Conn
		if c, err = net.FileConn(file); err == nil {
			s.only = c.(*net.UnixConn)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("serve on file descriptor %d: %w", fd, err)
	}
	_ = unix.Close(fd)
	return s, nil
}

// checkSocket refuses everything but UNIX stream sockets.
func checkSocket(fd int) (listening bool, err error) {
	var got [3]int
	for i, opt := range [...]int{unix.SO_DOMAIN, unix.SO_TYPE, unix.SO_ACCEPTCONN} {
		if got[i], err = unix.GetsockoptInt(fd, unix.SOL_SOCKET, opt); err != nil {
			return false, err
		}
	}
	if got[0] != unix.AF_UNIX || got[1] != unix.SOCK_STREAM {
		return false, fmt.Errorf("socket of family %d, type %d; want UNIX (%d), stream (%d)",
			got[0], got[1], unix.AF_UNIX, unix.SOCK_STREAM)
	}
	return got[2] != 0, nil
}

// Close closes a server that is not serving and removes its socket file.
func (s *Server) Close() {
	if s.only != nil {
		_ = s.only.Close()
	}
	if s.ln != nil {
		_ = s.ln.Close()
	}
}

// Serve serves d and q until ctx ends or, on a connected socket, its client has
// gone; then the server is closed. All rings of q are stopped then, except those
// that a hanging disk keeps longer than a moment after ctx ended. No client can
// end it. Only a listening socket that cannot be used gives an error.
func (s *Server) Serve(ctx context.Context, d Device, q Queues) error {
	defer s.Close()
	if s.only != nil {
		s.client(ctx, s.only, d, q)
		return nil
	}
	stop := context.AfterFunc(ctx, func() { _ = s.ln.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	for ctx.Err() == nil {
		c, err := s.ln.AcceptUnix()
		switch {
		case err == nil:
			s.client(ctx, c, d, q)
		case ctx.Err() != nil:
		case errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE), errors.Is(err, unix.ENOBUFS), errors.Is(err, unix.ENOMEM):
			s.log.Warn("cannot accept a client yet", zap.Error(err))
			select {
			case <-ctx.Done():
			case <-time.After(acceptPause):
			}
		default:
			return fmt.Errorf("accept client: %w", err)
		}
	}
	return nil
}

// ConfigChanged tells the present client that the configuration space has changed. Any
// goroutine may call it; it waits sendPatience at most.
func (s *Server) ConfigChanged() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.session != nil {
		s.session.ConfigChanged()
	}
}

// Connected says whether there is a client. Any goroutine may call it.
func (s *Server) Connected() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.session != nil
}

func (s *Server) setSession(x *Session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.session = x
}

// request is one message from the reading goroutine.
type request struct {
	m   Message
	fds []int
}

// client serves one connection to its end. A separate goroutine reads, so that the end
// of the connection is noticed while a message is being carried out.
func (s *Server) client(ctx context.Context, uc *net.UnixConn, d Device, q Queues) {
	c := newConn(uc)
	defer c.close()
	alive, gone := context.WithCancel(ctx)
	defer gone()
	stop := context.AfterFunc(ctx, c.close)
	defer stop()
	s.log.Info("front-end connected")
	session := NewSession(d, q, s.log, alive.Done())
	s.setSession(session)

	requests, end := make(chan request), make(chan error, 1)
	go func() {
		defer gone()
		defer close(requests)
		end <- receive(c, requests)
	}()
	err := s.carryOut(c, session, requests)
	c.close()
	for r := range requests {
		closeAll(r.fds)
	}
	if read := <-end; err == nil && read != io.EOF && ctx.Err() == nil {
		err = read
	}
	s.setSession(nil)
	done := s.watch("end of the connection")
	closeSession(ctx, session)
	done()
	s.log.Info("front-end gone", zap.Error(err))
}

// receive passes all messages on until the connection ends; its error is io.EOF after
// an orderly end.
func receive(c *conn, to chan<- request) error {
	for {
		m, fds, err := c.read(checkRequest)
		if err != nil {
			return err
		}
		to <- request{m, fds}
	}
}

// carryOut answers messages until there are no more, or one of them is the last.
func (s *Server) carryOut(c *conn, session *Session, requests <-chan request) error {
	for r := range requests {
		s.full.Debug("message", zap.Stringer("message", r.m.ID), zap.Uint32("flags", r.m.Flags),
			zap.Int("bytes", len(r.m.Payload)), zap.Int("fds", len(r.fds)))
		done := s.watch(r.m.ID.String())
		reply, err := session.Handle(r.m, r.fds)
		done()
		if err != nil {
			return err
		}
		if reply.None() {
			continue
		}
		err = c.write(reply.Message, reply.FDs)
		closeAll(reply.FDs)
		if err != nil {
			return err
		}
	}
	return nil
}

// watch logs while something takes long. A VMM is blocked in GET_VRING_BASE, or the next
// client waits, and the log says why.
func (s *Server) watch(what string) (done func()) {
	over := make(chan struct{})
	t := time.AfterFunc(s.slow, func() {
		tick := time.NewTicker(s.slow)
		defer tick.Stop()
		for {
			s.log.Warn("requests in flight do not end", zap.String("waiting", what))
			select {
			case <-over:
				return
			case <-tick.C:
			}
		}
	})
	return func() {
		t.Stop()
		close(over)
	}
}

// closeSession waits without limit until the rings have stopped, because the next client
// must not find them running; but only for stopGrace once ctx has ended.
func closeSession(ctx context.Context, session *Session) {
	abandon, give := context.WithCancel(context.Background())
	defer give()
	stop := context.AfterFunc(ctx, func() {
		select {
		case <-abandon.Done():
		case <-time.After(stopGrace):
			give()
		}
	})
	defer stop()
	session.Close(abandon.Done())
}

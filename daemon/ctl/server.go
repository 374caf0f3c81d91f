package ctl

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/elevisor/elevisor/sys/clock"
	"github.com/elevisor/elevisor/sys/socket"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"
)

const (
	clientsMax = 16
	// A client has requestTime for each request, its thinking included, and
	// replyTime to take the reply. Ours connect anew for each.
	requestTime = time.Minute
	replyTime   = 5 * time.Second
	// acceptPause lets a process that is out of descriptors get some back.
	acceptPause = 100 * time.Millisecond
)

// Server answers the clients of one control socket.
type Server struct {
	ln      *socket.Listener
	log     *zap.Logger
	clock   clock.Monotonic // since the server was made
	request time.Duration   // requestTime
	reply   time.Duration   // replyTime

	mu      sync.Mutex // held while control is called
	control Control
}

// Listen makes the socket, for its owner only. A stale one is replaced.
func Listen(path string, c Control, log *zap.Logger) (*Server, error) {
	ln, err := socket.Listen(path, 0o600)
	if err != nil {
		return nil, fmt.Errorf("control socket: %w", err)
	}
	return &Server{ln: ln, log: log, clock: clock.Start(), request: requestTime, reply: replyTime, control: c}, nil
}

// Close gives up a server that is not serving: its socket file is removed.
func (s *Server) Close() { _ = s.ln.Close() }

// Serve answers clients until ctx ends; then the socket is gone, and so are they.
// Only a socket that cannot be used any more gives an error.
func (s *Server) Serve(ctx context.Context) error {
	defer s.Close()
	ctx, end := context.WithCancel(ctx)
	var clients sync.WaitGroup
	defer clients.Wait()
	defer end()
	defer context.AfterFunc(ctx, func() { _ = s.ln.SetDeadline(time.Unix(1, 0)) })()
	slots := make(chan struct{}, clientsMax)
	for ctx.Err() == nil {
		c, err := s.ln.AcceptUnix()
		switch {
		case err == nil:
			select {
			case slots <- struct{}{}:
				clients.Go(func() {
					s.client(ctx, c)
					<-slots
				})
			default:
				s.send(c, encode(failure(nil, &Error{Refused, fmt.Sprintf("there are %d clients already", clientsMax)})))
				_ = c.Close()
			}
		case ctx.Err() != nil:
		case errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE), errors.Is(err, unix.ENOBUFS), errors.Is(err, unix.ENOMEM):
			clock.Sleep(acceptPause)
		default:
			return fmt.Errorf("control socket: accept client: %w", err)
		}
	}
	return nil
}

// client answers one connection to its end.
func (s *Server) client(ctx context.Context, c *net.UnixConn) {
	defer c.Close()
	defer context.AfterFunc(ctx, func() { _ = c.Close() })()
	methods := s.methods()
	in := bufio.NewReaderSize(c, requestMax)
	for {
		_ = c.SetReadDeadline(clock.Deadline(s.request))
		line, err := in.ReadSlice('\n')
		var reply []byte
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			for errors.Is(err, bufio.ErrBufferFull) { // the deadline bounds it
				_, err = in.ReadSlice('\n')
			}
			if err != nil {
				return
			}
			reply = encode(failure(nil, &Error{InvalidRequest, fmt.Sprintf("a request has more than %d bytes", requestMax)}))
		case err != nil: // gone, too slow, or a last line without an end
			return
		default:
			reply = answer(methods, line)
		}
		if reply != nil && !s.send(c, reply) {
			return
		}
	}
}

func (s *Server) send(c *net.UnixConn, reply []byte) bool {
	_ = c.SetWriteDeadline(clock.Deadline(s.reply))
	if _, err := c.Write(append(reply, '\n')); err != nil {
		s.log.Debug("control client does not take its reply", zap.Error(err))
		return false
	}
	return true
}

// Package socket makes the UNIX sockets that a server listens on.
package socket

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

const maxPath = 107 // bytes (unix(7), sun_path without its zero)

// Listener listens on a UNIX socket.
type Listener struct {
	*net.UnixListener
	Path string      // of the socket file that Listen made; empty: there is none to remove
	made os.FileInfo // what it was
}

// Listen makes a socket at path, with permissions perm as far as the umask lets it.
// One that a dead server left is replaced; one that somebody listens on, and
// everything that is no socket, is an error. Of servers that call it for one path at
// the same time, exactly one gets it.
func Listen(path string, perm fs.FileMode) (*Listener, error) {
	if path == "" || len(path) > maxPath {
		return nil, fmt.Errorf("socket path %q has %d bytes, want 1 to %d", path, len(path), maxPath)
	}
	if path[0] == '@' {
		path = "./" + path // net would take it for a name outside the file system
	}
	l, err := listenLocked(path, perm)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	return l, nil
}

func listenLocked(path string, perm fs.FileMode) (*Listener, error) {
	unlock, err := lock(path)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if err := removeStale(path); err != nil {
		return nil, err
	}
	ln, err := bind(path, perm)
	if err != nil {
		return nil, err
	}
	made, err := os.Lstat(path)
	if err != nil {
		_ = ln.Close()
		return nil, err
	}
	return &Listener{UnixListener: ln, Path: path, made: made}, nil
}

// bind makes a socket that is listened on by the time it has its name: under another
// name first, and then linked. Whoever waits for the file may connect at once. Where
// that cannot be (no hard links, a long path), it gets its name directly.
func bind(path string, perm fs.FileMode) (*net.UnixListener, error) {
	own := beside(path, "~")
	if len(own) > maxPath {
		return listen(path, perm)
	}
	_ = os.Remove(own) // of a server that was killed here
	ln, err := listen(own, perm)
	if err != nil {
		return nil, err
	}
	err = os.Link(own, path)
	_ = os.Remove(own)
	switch {
	case err == nil:
		return ln, nil
	case errors.Is(err, fs.ErrExist): // made by somebody who takes no lock
		_ = ln.Close()
		return nil, errInUse
	}
	_ = ln.Close()
	return listen(path, perm)
}

// listen gives the socket its permissions before it gets its name: the file takes
// them over (unix_bind in net/unix/af_unix.c), so that nobody can connect in
// between, as with a chmod afterwards.
func listen(path string, perm fs.FileMode) (*net.UnixListener, error) {
	lc := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) (err error) {
		if e := c.Control(func(fd uintptr) { err = unix.Fchmod(int(fd), uint32(perm.Perm())) }); e != nil {
			return e
		}
		return err
	}}
	ln, err := lc.Listen(context.Background(), "unix", path)
	if op, ok := errors.AsType[*net.OpError](err); ok {
		return nil, op.Err // the caller names the path
	}
	if err != nil {
		return nil, err
	}
	u := ln.(*net.UnixListener)
	u.SetUnlinkOnClose(false)
	return u, nil
}

var errInUse = errors.New("another server is using that socket")

// removeStale removes a socket that nobody listens on, if there is one.
func removeStale(path string) error {
	st, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if st.Mode().Type() != fs.ModeSocket {
		return fmt.Errorf("there is something that is no socket (%v); it is left alone", st.Mode())
	}
	c, err := net.Dial("unix", path)
	if err == nil {
		_ = c.Close()
	}
	switch {
	case errors.Is(err, fs.ErrNotExist): // its server has just ended
		return nil
	case !errors.Is(err, unix.ECONNREFUSED):
		return errInUse
	}
	if err := os.Remove(path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// Close removes the socket file that Listen made, but not what has taken its place
// since, and ends listening; in this order, since a socket that nobody listens on may
// be replaced at any moment, and would be removed in its successor's place.
func (l *Listener) Close() error {
	if l.Path != "" {
		if st, err := os.Lstat(l.Path); err == nil && os.SameFile(st, l.made) {
			_ = os.Remove(l.Path)
		}
		l.Path = ""
	}
	return l.UnixListener.Close()
}

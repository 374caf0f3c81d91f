// Package socket makes the UNIX sockets that a server listens on.
package socket

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"sync/atomic"
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
// everything that is no socket, is an error.
func Listen(path string, perm fs.FileMode) (*Listener, error) {
	if path == "" || len(path) > maxPath {
		return nil, fmt.Errorf("socket path %q has %d bytes, want 1 to %d", path, len(path), maxPath)
	}
	if path[0] == '@' {
		path = "./" + path // net would take it for a name outside the file system
	}
	ln, err := bind(path, perm)
	if errors.Is(err, unix.EADDRINUSE) {
		if err = removeStale(path); err == nil {
			ln, err = bind(path, perm)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	l := &Listener{UnixListener: ln, Path: path}
	if l.made, err = os.Lstat(path); err != nil {
		_ = ln.Close()
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	return l, nil
}

// bind makes a socket that is listened on by the time it has its name: under a name
// of its own first, and then linked. Whoever waits for the file may connect at once,
// and one that has just been made is not taken for a dead server's.
// Where that cannot be (no hard links, a long path), it gets its name directly.
func bind(path string, perm fs.FileMode) (*net.UnixListener, error) {
	own := filepath.Join(filepath.Dir(path), fmt.Sprintf(".%d.%d", os.Getpid(), made.Add(1)))
	if len(own) > maxPath {
		return listen(path, perm)
	}
	ln, err := listen(own, perm)
	if err != nil {
		return nil, err
	}
	err = os.Link(own, path)
	_ = os.Remove(own)
	switch {
	case err == nil:
		return ln, nil
	case errors.Is(err, fs.ErrExist):
		_ = ln.Close()
		return nil, unix.EADDRINUSE
	}
	_ = ln.Close()
	return listen(path, perm)
}

var made atomic.Uint64 // sockets, for names of their own

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

// removeStale removes a socket that nobody listens on.
func removeStale(path string) error {
	st, err := os.Lstat(path)
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
	if !errors.Is(err, unix.ECONNREFUSED) {
		return errors.New("another server is using that socket")
	}
	return os.Remove(path)
}

// Close ends listening and removes the socket file that Listen made, but not what
// has taken its place since.
func (l *Listener) Close() error {
	err := l.UnixListener.Close()
	if l.Path == "" {
		return err
	}
	if st, e := os.Lstat(l.Path); e == nil && os.SameFile(st, l.made) {
		_ = os.Remove(l.Path)
	}
	l.Path = ""
	return err
}

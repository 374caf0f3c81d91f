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
	ln.SetUnlinkOnClose(false)
	l := &Listener{UnixListener: ln, Path: path}
	if l.made, err = os.Lstat(path); err != nil {
		_ = ln.Close()
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	return l, nil
}

// bind gives the socket its permissions before it gets its name: the file takes
// them over (unix_bind in net/unix/af_unix.c), so that nobody can connect in
// between, as with a chmod afterwards.
func bind(path string, perm fs.FileMode) (*net.UnixListener, error) {
	lc := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) (err error) {
		if e := c.Control(func(fd uintptr) { err = unix.Fchmod(int(fd), uint32(perm.Perm())) }); e != nil {
			return e
		}
		return err
	}}
	ln, err := lc.Listen(context.Background(), "unix", path)
	if err != nil {
		return nil, err
	}
	return ln.(*net.UnixListener), nil
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

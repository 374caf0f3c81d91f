package socket

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

// lock keeps other servers from making or replacing the socket at path until unlock is
// called: between the look at a dead server's socket and its replacement, somebody
// else's could take its place. The lock is a file beside the socket, there for that
// long only; one that a killed process left is used again.
func lock(path string) (unlock func(), err error) {
	name := beside(path, ".lock")
	for {
		f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
		if err != nil {
			return nil, fmt.Errorf("lock: %w", err)
		}
		held, err := take(f, name)
		switch {
		case err != nil:
			_ = f.Close()
			return nil, fmt.Errorf("lock %s: %w", name, err)
		case held:
			return func() {
				_ = os.Remove(name) // while it is locked: whoever waits for it finds that it is gone
				_ = f.Close()
			}, nil
		}
		_ = f.Close()
	}
}

// take waits for the lock on f; held is false where f is no longer the file called name,
// because the server that had it locked has removed it.
func take(f *os.File, name string) (held bool, err error) {
	st, err := f.Stat()
	if err != nil {
		return false, err
	}
	// Whoever owns the file could keep it locked for ever.
	if owner := st.Sys().(*syscall.Stat_t).Uid; int(owner) != os.Geteuid() {
		return false, fmt.Errorf("it belongs to user %d", owner)
	}
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX)
		if err == nil {
			break
		}
		if !errors.Is(err, unix.EINTR) {
			return false, err
		}
	}
	there, err := os.Lstat(name)
	return err == nil && os.SameFile(st, there), nil
}

// beside is the name of a hidden file next to path.
func beside(path, suffix string) string {
	dir, base := filepath.Split(path)
	return dir + "." + base + suffix
}

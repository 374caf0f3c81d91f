// Package eventfd wraps the file descriptors through which a driver and a device
// wake each other: eventfds, or pipes and sockets where a front-end has none.
package eventfd

import (
	"fmt"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// FD is one notification descriptor. Notify may be called from any goroutine, also
// during and after Close; the rest belongs to the owner.
type FD struct {
	fd int
	// mu keeps Close from running during a Notify: the number of a closed descriptor is
	// soon reused for another file, and the 8 bytes would be written to that.
	mu     sync.RWMutex
	closed bool
}

// New makes a non-blocking eventfd.
func New() (*FD, error) {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("create eventfd: %w", err)
	}
	return &FD{fd: fd}, nil
}

// Own takes over fd, which a peer sent: an eventfd, a pipe or a socket. Files,
// directories, disks and character devices are refused: they are always readable, so
// that a wait for one would return at once, for ever. With an error, fd stays the
// caller's.
func Own(fd int) (*FD, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, fmt.Errorf("stat notification descriptor: %w", err)
	}
	if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0); err != nil || flags&unix.O_PATH != 0 {
		return nil, fmt.Errorf("notification descriptor cannot be used for I/O (flags %#x): %w", flags, unix.EBADF)
	}
	switch st.Mode & unix.S_IFMT {
	case 0, unix.S_IFIFO, unix.S_IFSOCK: // 0: an anonymous inode, as eventfds have
	default:
		return nil, fmt.Errorf("notification descriptor is a file (mode %#o), not an eventfd", st.Mode)
	}
	return &FD{fd: fd}, nil
}

// NonBlocking makes the descriptor non-blocking, so that Notify does not wait while the
// counter is full: the reader is woken anyhow. O_NONBLOCK is shared with the peer, which
// may clear it again. QEMU and libblkio expect it to be set on a call descriptor.
func (e *FD) NonBlocking() error {
	if err := unix.SetNonblock(e.fd, true); err != nil {
		return fmt.Errorf("make notification descriptor non-blocking: %w", err)
	}
	return nil
}

// Raw is the descriptor's number, for the owner to wait on. Close closes it.
func (e *FD) Raw() int { return e.fd }

var one = [8]byte{1}

// Notify wakes whoever waits. It ignores errors: with a full counter the reader is awake
// already, and a peer that has gone cannot be woken. After Close it does nothing.
func (e *FD) Notify() {
	e.mu.RLock()
	if !e.closed {
		rawWrite(e.fd, &one)
	}
	e.mu.RUnlock()
}

// Take reads the counter and sets it to zero; 0 means that nobody has notified. The
// descriptor must be non-blocking.
func (e *FD) Take() uint64 {
	var b [8]byte
	if n, err := unix.Read(e.fd, b[:]); err != nil || n != 8 {
		return 0
	}
	return uint64(b[0]) | uint64(b[1])<<8 | uint64(b[2])<<16 | uint64(b[3])<<24 |
		uint64(b[4])<<32 | uint64(b[5])<<40 | uint64(b[6])<<48 | uint64(b[7])<<56
}

// Wait blocks until somebody has notified, and returns true, or until d has passed. It
// leaves the counter as it is.
func (e *FD) Wait(d time.Duration) bool {
	p := []unix.PollFd{{Fd: int32(e.fd), Events: unix.POLLIN}}
	for {
		n, err := unix.Poll(p, int(d.Milliseconds()))
		if err == unix.EINTR {
			continue
		}
		return err == nil && n == 1 && p[0].Revents&unix.POLLIN != 0
	}
}

// Close closes the descriptor once.
func (e *FD) Close() {
	if e == nil {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.closed {
		e.closed = true
		_ = unix.Close(e.fd)
	}
}

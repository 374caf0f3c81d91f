package backend

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"
	"sync/atomic"

	"github.com/elevisor/elevisor/backend/uring"
	"golang.org/x/sys/unix"
)

// disk is an opened file or block device. It is shared by all loops that serve
// it: constant, but for what was learned of the system, which is atomic.
type disk struct {
	path  string
	opts  Options
	info  Info
	block bool // a block device

	main     *os.File // O_DIRECT where the cache mode says so
	buffered *os.File // of the same inode, through the page cache; main if not O_DIRECT

	fds [2]int // of both, by which

	memAlign  int64  // bytes, of buffers on main
	offAlign  int64  // bytes, of offsets and lengths on main
	zeroAlign int64  // bytes, of the ranges that fallocate and discards take
	zeros     []byte // lent by zeros

	// lost is set when dirty pages could not be written. The kernel has then
	// forgotten them: a second fsync would succeed, and a guest that is told so
	// would believe its data safe. So all flushes fail from there on, until the
	// disk is opened anew.
	lost atomic.Bool

	// What the system has refused, so as not to ask again.
	noDSync, noPunch, noZeroRange, noCommand, noTrim atomic.Bool
}

// zeroPiece is the length of the buffer that zeroes are written from.
const zeroPiece = 256 << 10

// zeros is that buffer, of all disks. It is never unmapped: the kernel may still
// write from it for a disk that was given up.
var zeros = sync.OnceValues(func() ([]byte, error) {
	return unix.Mmap(-1, 0, zeroPiece, unix.PROT_READ, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
})

func openFile(path string, o Options) (_ Image, err error) {
	d := &disk{path: path, opts: o, memAlign: 1, offAlign: 1, zeroAlign: 1}
	defer func() {
		if err != nil {
			_ = d.Close()
			err = fmt.Errorf("open disk %s: %w", path, err)
		}
	}()
	if err := d.open(); err != nil {
		return nil, err
	}
	d.fds = [2]int{viaMain: int(d.main.Fd()), viaCache: int(d.buffered.Fd())}
	if err := d.measure(); err != nil {
		return nil, err
	}
	if o.Lock {
		if err := d.lock(); err != nil {
			return nil, err
		}
	}
	if d.zeros, err = zeros(); err != nil {
		return nil, fmt.Errorf("map %d bytes: %w", zeroPiece, err)
	}
	return d, d.chooseEngine()
}

// open opens the file once, and once more past the page cache if wanted.
func (d *disk) open() error {
	st, err := os.Stat(d.path) // before opening: that would wait for a FIFO's other end
	if err != nil {
		return reason(err)
	}
	switch mode := st.Mode(); {
	case mode.IsDir():
		return errors.New("it is a directory, not a file or block device")
	case mode.IsRegular():
	case mode.Type() == fs.ModeDevice:
		d.block = true
	default:
		return fmt.Errorf("it is neither a regular file nor a block device (mode %v)", mode)
	}
	flags := os.O_RDWR
	if d.opts.ReadOnly {
		flags = os.O_RDONLY
	}
	exclusive := 0
	if d.block && d.opts.Lock && !d.opts.ReadOnly {
		exclusive = unix.O_EXCL // the kernel then refuses a device that is mounted or otherwise its own
	}
	if d.buffered, err = d.openOnce(flags | exclusive); err != nil {
		return err
	}
	d.main = d.buffered
	if !d.opts.Cache.Direct() {
		return nil
	}
	if d.main, err = d.openOnce(flags | unix.O_DIRECT); err != nil {
		d.main = d.buffered
		if errors.Is(err, unix.EINVAL) {
			return fmt.Errorf("its file system takes no O_DIRECT, which cache=%v needs; choose writeback or writethrough: %w", d.opts.Cache, err)
		}
		return err
	}
	a, errA := d.main.Stat()
	b, errB := d.buffered.Stat()
	if errors.Join(errA, errB) != nil || !os.SameFile(a, b) {
		return errors.New("it was replaced while it was being opened")
	}
	return nil
}

func (d *disk) openOnce(flags int) (*os.File, error) {
	// Not os.OpenFile: it would hand a FIFO that took the file's place to Go's poller.
	fd, err := unix.Open(d.path, flags|unix.O_CLOEXEC|unix.O_NOCTTY, 0)
	switch {
	case err == nil:
		return os.NewFile(uintptr(fd), d.path), nil
	case flags&unix.O_EXCL != 0 && errors.Is(err, unix.EBUSY):
		return nil, fmt.Errorf("%w: the device is mounted, part of a volume, or another program has it to itself: %w", ErrLocked, err)
	case !d.opts.ReadOnly && (errors.Is(err, unix.EACCES) || errors.Is(err, unix.EROFS) || errors.Is(err, unix.EPERM)):
		return nil, fmt.Errorf("it cannot be written; serve it with read-only to read it: %w", err)
	}
	return nil, err
}

// reason takes the path out of an error that will name it anyway.
func reason(err error) error {
	if e, ok := errors.AsType[*fs.PathError](err); ok {
		return e.Err
	}
	return err
}

// lock takes an advisory lock on the whole file. It belongs to the open file, not
// to the process, so it also works between disks of this one, and no close of
// another descriptor loses it. QEMU's locks are on bytes of the same file.
func (d *disk) lock() error {
	l := unix.Flock_t{Type: unix.F_WRLCK}
	if d.opts.ReadOnly {
		l.Type = unix.F_RDLCK
	}
	switch err := unix.FcntlFlock(d.buffered.Fd(), unix.F_OFD_SETLK, &l); {
	case err == nil:
		return nil
	case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.EACCES):
		use := "written"
		if !d.opts.ReadOnly {
			use = "used"
		}
		return fmt.Errorf("%w: it is being %s by another disk or program", ErrLocked, use)
	default:
		return fmt.Errorf("its file system has no locks; serve it without lock if nobody else uses it: %w", err)
	}
}

// chooseEngine settles what AIOAuto means, and refuses io_uring where there is none.
func (d *disk) chooseEngine() error {
	d.info.Engine = "threads"
	if d.opts.AIO == AIOThreads {
		return nil
	}
	switch err := uring.Probe(); {
	case err == nil:
		d.info.Engine = "io_uring"
	case d.opts.AIO == AIOURing:
		return fmt.Errorf("aio=io_uring: %w", err)
	}
	return nil
}

// Info implements Image.
func (d *disk) Info() Info { return d.info }

// Attach implements Image.
func (d *disk) Attach(h Host) (Backend, error) {
	if h.Depth < 1 {
		return nil, fmt.Errorf("attach disk %s: depth is %d, want at least 1", d.path, h.Depth)
	}
	if d.info.Engine == "io_uring" && h.Ring != nil {
		return newRingBackend(d, h)
	}
	if d.opts.AIO == AIOURing {
		return nil, fmt.Errorf("attach disk %s: aio=io_uring, but its loop has no ring: %w", d.path, uring.ErrUnavailable)
	}
	return newThreadsBackend(d, h)
}

// Close implements Image.
func (d *disk) Close() error {
	var errs []error
	if d.main != nil && d.main != d.buffered {
		errs = append(errs, d.main.Close())
	}
	if d.buffered != nil {
		errs = append(errs, d.buffered.Close())
	}
	d.main, d.buffered = nil, nil
	return errors.Join(errs...)
}

// within says whether n bytes at off lie on the disk.
func (d *disk) within(off, n int64) bool { return within(off, n, d.info.Sectors) }

func roundDown(n, align int64) int64 { return n &^ (align - 1) }
func roundUp(n, align int64) int64   { return (n + align - 1) &^ (align - 1) }

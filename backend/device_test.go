package backend

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/elevisor/elevisor/blk"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// loopDevice makes a block device of a file, which the test's end takes apart.
func loopDevice(t *testing.T, backing string, block, flags uint32) string {
	t.Helper()
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		t.Skipf("needs root and /dev/loop-control: %v", err)
	}
	defer func() { _ = control.Close() }()
	f, err := os.OpenFile(backing, os.O_RDWR, 0)
	require.NoError(t, err)
	defer func() { _ = f.Close() }()
	for range 20 {
		n, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
		require.NoError(t, err)
		path := fmt.Sprintf("/dev/loop%d", n)
		dev, err := os.OpenFile(path, os.O_RDWR, 0)
		if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EPERM) {
			t.Skipf("needs loop devices: %v", err)
		}
		require.NoError(t, err)
		c := unix.LoopConfig{Fd: uint32(f.Fd()), Size: block, Info: unix.LoopInfo64{Flags: flags}}
		switch err := unix.IoctlLoopConfigure(int(dev.Fd()), &c); {
		case errors.Is(err, unix.EBUSY): // somebody else was faster
			_ = dev.Close()
			continue
		case err != nil:
			_ = dev.Close()
			t.Skipf("needs LOOP_CONFIGURE (Linux 5.8): %v", err)
		}
		t.Cleanup(func() {
			_ = unix.IoctlSetInt(int(dev.Fd()), unix.LOOP_CLR_FD, 0)
			_ = dev.Close()
		})
		return path
	}
	t.Skip("needs a free loop device")
	return ""
}

func TestBlockDevicesAreArraysOfBytes(t *testing.T) {
	for _, block := range []uint32{512, 4096} {
		dev := loopDevice(t, sparse(t, modelSize), block, 0)
		for _, aio := range engines(t) {
			for _, cache := range []Cache{CacheWriteback, CacheNone} {
				t.Run(fmt.Sprintf("%d/%v/%v", block, aio, cache), func(t *testing.T) {
					// Only whole blocks can be discarded, so what a discard leaves is known
					// only where a block is a sector.
					checkArray(t, dev, Options{Cache: cache, AIO: aio, Lock: true, Discard: true}, block == 512)
				})
			}
		}
	}
}

func TestABlockDeviceIsMeasured(t *testing.T) {
	dev := loopDevice(t, sparse(t, modelSize), 4096, 0)
	img, err := Open(dev, Options{Cache: CacheNone, Discard: true, Lock: true})
	require.NoError(t, err)
	defer func() { require.NoError(t, img.Close()) }()
	i := img.Info()
	require.Equal(t, uint32(4096), i.LogicalBlock)
	require.Equal(t, uint32(4096), i.PhysicalBlock)
	require.Equal(t, uint32(4096), i.DiscardAlign)
	require.True(t, i.Discard)
	require.True(t, i.Direct)
	require.Zero(t, i.MemAlign&(i.MemAlign-1))
}

func TestBlockDevicesDiscardEveryWay(t *testing.T) {
	ways := map[string]func(d *disk){
		"first choice": func(*disk) {},
		"fallocate":    func(d *disk) { d.noCommand.Store(true); d.noTrim.Store(true) },
		"ioctl":        func(d *disk) { d.noCommand.Store(true); d.noPunch.Store(true) },
	}
	eachEngine(t, func(t *testing.T, aio AIO) {
		for name, way := range ways {
			t.Run(name, func(t *testing.T) {
				backing := sparse(t, modelSize)
				dev := loopDevice(t, backing, 512, 0)
				img, err := Open(dev, Options{AIO: aio, Discard: true, Cache: CacheNone})
				require.NoError(t, err)
				d := img.(*disk)
				way(d)
				g := attach(t, img, 4)
				w := data(blk.OpWrite, 0, fill(memory(t, modelSize), 7))
				x := ranges(blk.OpDiscard, 0, blk.Range{Sector: 16, Sectors: 1024}, blk.Range{Sector: 1032, Sectors: 8})
				g.do(w)
				g.do(x, &blk.Request{Op: blk.OpFlush})
				requireOK(t, w, x)
				g.close()
				require.NoError(t, img.Close())
				require.Equal(t, int64(modelSize-1024*512), allocated(t, backing), "the file behind the device kept its blocks")
			})
		}
		t.Run("none", func(t *testing.T) {
			dev := loopDevice(t, sparse(t, modelSize), 512, 0)
			g := open(t, dev, Options{AIO: aio, Discard: true})
			d := opsOf(g)[0].d
			d.noCommand.Store(true)
			d.noPunch.Store(true)
			d.noTrim.Store(true)
			x := ranges(blk.OpDiscard, 0, blk.Range{Sector: 16, Sectors: 1024})
			g.do(x)
			require.Equal(t, blk.StatusUnsupp, x.Status)
		})
	})
}

func TestAReadOnlyDeviceIsNeverOpenedForWriting(t *testing.T) {
	dev := loopDevice(t, sparse(t, modelSize), 512, unix.LO_FLAGS_READ_ONLY)
	_, err := Open(dev, Options{})
	require.ErrorContains(t, err, "read-only")
	require.ErrorContains(t, err, dev)
	img, err := Open(dev, Options{ReadOnly: true})
	require.NoError(t, err)
	require.True(t, img.Info().ReadOnly)
	require.NoError(t, img.Close())
}

func TestAMountedDeviceIsRefused(t *testing.T) {
	dev := loopDevice(t, sparse(t, modelSize), 512, 0)
	holder, err := unix.Open(dev, unix.O_RDWR|unix.O_EXCL|unix.O_CLOEXEC, 0) // what mount(2) does to it
	require.NoError(t, err)
	defer func() { _ = unix.Close(holder) }()
	_, err = Open(dev, Options{Lock: true})
	require.ErrorIs(t, err, ErrLocked)
	require.ErrorIs(t, err, unix.EBUSY)
	require.ErrorContains(t, err, "mounted")
	img, err := Open(dev, Options{Lock: true, ReadOnly: true})
	require.NoError(t, err)
	require.NoError(t, img.Close())
}

// mount mounts a file system of that type for the time of the test.
func mount(t *testing.T, fs, opts string) string {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount(fs, dir, fs, 0, opts); err != nil {
		t.Skipf("needs root to mount a %s: %v", fs, err)
	}
	t.Cleanup(func() { require.NoError(t, unix.Unmount(dir, unix.MNT_DETACH)) })
	return dir
}

func TestAFullFileSystemFailsOneRequestOnly(t *testing.T) {
	eachEngine(t, func(t *testing.T, aio AIO) {
		path := filepath.Join(mount(t, "tmpfs", "size=1m"), "disk")
		f, err := os.Create(path)
		require.NoError(t, err)
		require.NoError(t, f.Truncate(8<<20))
		require.NoError(t, f.Close())
		g := open(t, path, Options{AIO: aio, Discard: true})
		first := data(blk.OpWrite, 0, fill(memory(t, 64<<10), 1))
		g.do(first)
		requireOK(t, first)
		big := data(blk.OpWrite, 2048, fill(memory(t, 4<<20), 2))
		g.do(big)
		require.Equal(t, blk.StatusIOErr, big.Status)
		require.Equal(t, uint16(unix.ENOSPC), big.Errno)
		undo := ranges(blk.OpDiscard, 0, blk.Range{Sector: 2048, Sectors: 8192})
		g.do(undo)
		again := data(blk.OpWrite, 4096, fill(memory(t, 64<<10), 3))
		g.do(again, &blk.Request{Op: blk.OpFlush})
		got := memory(t, 64<<10)
		r := data(blk.OpRead, 0, got)
		g.do(r)
		requireOK(t, undo, again, r)
		require.Equal(t, first.Segs[0], got)
	})
}

// A device whose own backing store is full takes writes into the page cache and
// fails when they are written back.
func TestAFailedFlushIsNeverForgotten(t *testing.T) {
	eachEngine(t, func(t *testing.T, aio AIO) {
		backing := filepath.Join(mount(t, "tmpfs", "size=1m"), "disk")
		f, err := os.Create(backing)
		require.NoError(t, err)
		require.NoError(t, f.Truncate(8<<20))
		require.NoError(t, f.Close())
		dev := loopDevice(t, backing, 512, 0)
		g := open(t, dev, Options{AIO: aio, Cache: CacheWriteback, Discard: true})
		w := data(blk.OpWrite, 0, fill(memory(t, 4<<20), 2))
		flush := &blk.Request{Op: blk.OpFlush}
		g.do(w)
		requireOK(t, w) // into the page cache
		g.do(flush)
		require.Equal(t, blk.StatusIOErr, flush.Status)
		require.NotZero(t, flush.Errno)
		undo := ranges(blk.OpDiscard, 0, blk.Range{Sector: 0, Sectors: 8192})
		g.do(undo)
		again := data(blk.OpWrite, 0, fill(memory(t, 4096), 3))
		g.do(again)
		requireOK(t, undo, again) // there is room now: the system's own fsync would succeed
		g.do(flush)
		require.Equal(t, blk.StatusIOErr, flush.Status, "a flush succeeded although earlier writes are lost")
	})
}

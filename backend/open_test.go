package backend

import (
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/elevisor/elevisor/backend/uring"
	"github.com/elevisor/elevisor/blk"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func TestSpecs(t *testing.T) {
	for spec, sectors := range map[string]blk.Sector{
		"null:?size=1G": 1 << 21, "null:size=1g": 1 << 21, "mem:?size=64K": 128, "mem:size=1000b": 1, "null:size=7E": 7 << 51,
		"mem:size=2T": 1 << 32, "null:size=512": 1,
	} {
		img, err := Open(spec, Options{Discard: true})
		require.NoError(t, err, spec)
		i := img.Info()
		require.Equal(t, sectors, i.Sectors, spec)
		require.Equal(t, uint32(512), i.LogicalBlock)
		require.True(t, i.Discard && i.WriteZeroes && i.ZeroesUnmap)
		require.NoError(t, img.Close())
	}
}

func TestBadSpecsAreNamed(t *testing.T) {
	dir := t.TempDir()
	fifo := filepath.Join(dir, "fifo")
	require.NoError(t, unix.Mkfifo(fifo, 0o600))
	small := filepath.Join(dir, "small")
	require.NoError(t, os.WriteFile(small, make([]byte, 511), 0o600))
	for spec, want := range map[string]string{
		"null:":            `unknown key ""; valid: size`,
		"mem:?syze=1G":     `unknown key "syze"; valid: size`,
		"mem:?size=1G&x=1": `unknown key "x"`,
		"mem:?size=":       `size "" is not a number`,
		"mem:?size=1X":     `size "1X" is not a number`,
		"mem:?size=1kk":    `size "1kk" is not a number`,
		"mem:?size=-1":     `size "-1" is not a number`,
		"null:?size=511":   "511 bytes; a disk has at least one sector",
		"null:?size=8E":    `size "8E" is out of range`,
		"nul:size=1G":      `"nul:" is not a kind of disk; valid: mem:, null:, sim:, or a path`,
		dir:                "it is a directory",
		fifo:               "neither a regular file nor a block device",
		"/dev/null":        "neither a regular file nor a block device",
		small:              "511 bytes; a disk has at least one sector",
		dir + "/not/there": "no such file",
		"":                 "no such file",
	} {
		_, err := Open(spec, Options{})
		require.ErrorContains(t, err, want, spec)
		require.ErrorContains(t, err, "open disk "+spec, spec)
	}
}

func TestAFileMayLookLikeAKindOfDisk(t *testing.T) {
	t.Chdir(t.TempDir())
	require.NoError(t, os.WriteFile("mem:x", make([]byte, 1024), 0o600))
	require.NoError(t, os.WriteFile("a:b", make([]byte, 1024), 0o600))
	for _, spec := range []string{"./mem:x", "a:b"} {
		img, err := Open(spec, Options{})
		require.NoError(t, err)
		require.Equal(t, blk.Sector(2), img.Info().Sectors)
		require.NoError(t, img.Close())
	}
}

func TestWordsOfOptions(t *testing.T) {
	for c := CacheWriteback; c <= CacheUnsafe; c++ {
		got, err := ParseCache(c.String())
		require.NoError(t, err)
		require.Equal(t, c, got)
	}
	_, err := ParseCache("fast")
	require.EqualError(t, err, `unknown cache mode "fast"; valid: writeback, none, writethrough, directsync, unsafe`)
	for a := AIOAuto; a <= AIOThreads; a++ {
		got, err := ParseAIO(a.String())
		require.NoError(t, err)
		require.Equal(t, a, got)
	}
	_, err = ParseAIO("native")
	require.EqualError(t, err, `unknown aio "native"; valid: auto, io_uring, threads`)
	for _, o := range []Options{{LogicalBlock: 513}, {LogicalBlock: 256}, {PhysicalBlock: 4 << 20}, {LogicalBlock: 4096, PhysicalBlock: 512}, {Cache: 9}, {AIO: 9}} {
		_, err := Open("null:size=1M", o)
		require.Error(t, err, "%+v", o)
	}
	img, err := Open("null:size=1M", Options{LogicalBlock: 8192})
	require.NoError(t, err)
	require.Equal(t, uint32(8192), img.Info().LogicalBlock)
	require.Equal(t, uint32(8192), img.Info().PhysicalBlock)
}

func TestASecondWriterIsRefused(t *testing.T) {
	path := sparse(t, modelSize)
	writer := Options{Lock: true, Cache: CacheNone}
	reader := Options{Lock: true, ReadOnly: true}
	w, err := Open(path, writer)
	require.NoError(t, err)
	for _, o := range []Options{writer, reader} {
		_, err = Open(path, o)
		require.ErrorContains(t, err, path)
		require.ErrorIs(t, err, ErrLocked)
	}
	unlocked, err := Open(path, Options{})
	require.NoError(t, err)
	require.NoError(t, unlocked.Close())
	_, err = Open(path, writer)
	require.Error(t, err, "closing another descriptor gave up the lock")
	require.NoError(t, w.Close())

	a, err := Open(path, reader)
	require.NoError(t, err)
	b, err := Open(path, reader)
	require.NoError(t, err)
	_, err = Open(path, writer)
	require.ErrorIs(t, err, ErrLocked)
	require.NoError(t, a.Close())
	require.NoError(t, b.Close())
	w, err = Open(path, writer)
	require.NoError(t, err)
	require.NoError(t, w.Close())
}

func TestAFileThatCannotBeWrittenIsNoSilentReadOnly(t *testing.T) {
	dir, err := os.MkdirTemp("", "backend-test-")
	require.NoError(t, err)
	defer func() { _ = os.RemoveAll(dir) }()
	require.NoError(t, os.Chmod(dir, 0o755))
	path := filepath.Join(dir, "disk")
	require.NoError(t, os.WriteFile(path, make([]byte, 4096), 0o444))
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // and never unlocked: the thread ends with its identity
		if os.Getuid() == 0 {
			// Root may write anything. This thread shall not: setfsuid takes the capability
			// along, and returns nothing but the old identity.
			_, _, _ = unix.RawSyscall(unix.SYS_SETFSUID, 65534, 0, 0)
		}
		_, err = Open(path, Options{})
	}()
	<-done
	require.ErrorIs(t, err, unix.EACCES)
	require.ErrorContains(t, err, "serve it with read-only")
	img, err := Open(path, Options{ReadOnly: true, Lock: true})
	require.NoError(t, err)
	require.True(t, img.Info().ReadOnly)
	require.False(t, img.Info().WriteZeroes)
	require.NoError(t, img.Close())
}

func TestAFileSystemWithoutDirectIOIsNamed(t *testing.T) {
	path := filepath.Join(mount(t, "ramfs", ""), "disk")
	require.NoError(t, os.WriteFile(path, make([]byte, 4096), 0o600))
	_, err := Open(path, Options{Cache: CacheDirectsync})
	if err == nil {
		t.Skip("needs a file system that refuses O_DIRECT; ramfs takes it here")
	}
	require.ErrorContains(t, err, "cache=directsync")
	require.ErrorContains(t, err, path)
	img, err := Open(path, Options{})
	require.NoError(t, err)
	require.NoError(t, img.Close())
}

func TestAFileBeyondTheProcessLimitIsRefused(t *testing.T) {
	path := sparse(t, modelSize)
	var old unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_FSIZE, &old))
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: modelSize - 1, Max: old.Max}))
	_, err := Open(path, Options{})
	img, errRO := Open(path, Options{ReadOnly: true})
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_FSIZE, &old))
	require.ErrorContains(t, err, "RLIMIT_FSIZE")
	require.NoError(t, errRO)
	require.NoError(t, img.Close())
}

func FuzzOpenMemory(f *testing.F) {
	for _, s := range []string{"?size=1G", "size=64k", "?size=1&size=2", "size=9e", "==&", "size=kkk"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, query string) {
		img, err := Open("null:"+query, Options{})
		if (img == nil) == (err == nil) {
			t.Fatalf("image %v and error %v", img, err)
		}
		if err == nil && img.Info().Sectors == 0 {
			t.Fatal("an empty disk")
		}
	})
}

func TestTheEngineIsTheOneAskedFor(t *testing.T) {
	path := sparse(t, modelSize)
	img, err := Open(path, Options{AIO: AIOThreads})
	require.NoError(t, err)
	require.Equal(t, "threads", img.Info().Engine)
	require.NoError(t, img.Close())
	if err := uring.Probe(); err != nil {
		_, err = Open(path, Options{AIO: AIOURing})
		require.ErrorIs(t, err, uring.ErrUnavailable)
		t.Skipf("needs io_uring: %v", err)
	}
	h := Host{Depth: 1, Wakeup: func() {}}
	img, err = Open(path, Options{})
	require.NoError(t, err)
	require.Equal(t, "io_uring", img.Info().Engine)
	b, err := img.Attach(h) // the loop has no ring
	require.NoError(t, err)
	require.Equal(t, "threads", b.Info().Engine)
	require.NoError(t, b.Close())
	require.NoError(t, img.Close())
	img, err = Open(path, Options{AIO: AIOURing})
	require.NoError(t, err)
	_, err = img.Attach(h)
	require.ErrorIs(t, err, uring.ErrUnavailable)
	_, err = img.Attach(Host{})
	require.ErrorContains(t, err, "depth is 0")
	require.NoError(t, img.Close())
}

package eventfd

import (
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func TestFD(t *testing.T) {
	e, err := New()
	require.NoError(t, err)
	require.Zero(t, e.Take())
	require.False(t, e.Wait(0))
	e.Notify()
	e.Notify()
	require.True(t, e.Wait(time.Minute))
	require.EqualValues(t, 2, e.Take())
	require.Zero(t, e.Take())
	e.Close()
	e.Close()
	var none *FD
	none.Close()
}

// The number of a closed descriptor is the next file's: a late Notify must not
// write to that.
func TestNotify_afterClose(t *testing.T) {
	e, err := New()
	require.NoError(t, err)
	e.Close()
	next, err := New()
	require.NoError(t, err)
	defer next.Close()
	require.Equal(t, e.Raw(), next.Raw(), "the number is used again")
	e.Notify()
	require.Zero(t, next.Take())
}

// A full counter neither blocks the one who notifies nor loses the wake.
func TestNotify_fullCounter(t *testing.T) {
	e, err := New()
	require.NoError(t, err)
	defer e.Close()
	full := [8]byte{0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
	_, err = unix.Write(e.Raw(), full[:])
	require.NoError(t, err)
	e.Notify()
	require.EqualValues(t, ^uint64(0)-1, e.Take())
}

func TestOwn(t *testing.T) {
	var p [2]int
	require.NoError(t, unix.Pipe2(p[:], unix.O_CLOEXEC))
	for _, fd := range p {
		e, err := Own(fd)
		require.NoError(t, err)
		require.NoError(t, e.NonBlocking())
		defer e.Close()
	}
	path := t.TempDir() + "/file"
	require.NoError(t, os.WriteFile(path, nil, 0o600))
	for name, open := range map[string]func() (int, error){
		"file":             func() (int, error) { return unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC, 0) },
		"directory":        func() (int, error) { return unix.Open(t.TempDir(), unix.O_RDONLY|unix.O_CLOEXEC, 0) },
		"character device": func() (int, error) { return unix.Open("/dev/zero", unix.O_RDWR|unix.O_CLOEXEC, 0) },
		"O_PATH":           func() (int, error) { return unix.Open("/dev/null", unix.O_PATH|unix.O_CLOEXEC, 0) },
	} {
		fd, err := open()
		require.NoError(t, err)
		_, err = Own(fd)
		require.Error(t, err, name)
		require.NoError(t, unix.Close(fd), "it stays the caller's")
	}
	_, err := Own(-1)
	require.ErrorIs(t, err, unix.EBADF)
}

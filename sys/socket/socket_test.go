package socket

import (
	"net"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestListen_permissions(t *testing.T) {
	path := t.TempDir() + "/s"
	l, err := Listen(path, 0o600)
	require.NoError(t, err)
	st, err := os.Lstat(path)
	require.NoError(t, err)
	require.Equal(t, os.ModeSocket|0o600, st.Mode())
	c, err := net.Dial("unix", path)
	require.NoError(t, err)
	require.NoError(t, c.Close())
	require.NoError(t, l.Close())
	require.NoFileExists(t, path)
}

func TestListen_replacesTheDead(t *testing.T) {
	path := t.TempDir() + "/s"
	dead, err := Listen(path, 0o600)
	require.NoError(t, err)
	require.NoError(t, dead.UnixListener.Close()) // as a kill leaves it
	l, err := Listen(path, 0o600)
	require.NoError(t, err)
	_, err = Listen(path, 0o600)
	require.ErrorContains(t, err, "another server is using that socket")
	require.NoError(t, l.Close())
	require.NoFileExists(t, path)
}

func TestClose_leavesOthers(t *testing.T) {
	path := t.TempDir() + "/s"
	l, err := Listen(path, 0o600)
	require.NoError(t, err)
	require.NoError(t, os.Remove(path))
	successor, err := Listen(path, 0o600)
	require.NoError(t, err)
	require.NoError(t, l.Close())
	require.FileExists(t, path)
	require.NoError(t, successor.Close())
}

func TestListen_refuses(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(dir+"/file", nil, 0o600))
	for path, want := range map[string]string{
		"":                                   "has 0 bytes, want 1 to 107",
		dir + "/" + strings.Repeat("a", 107): "want 1 to 107",
		dir + "/file":                        "no socket",
		dir + "/no/such":                     "no such file or directory",
	} {
		_, err := Listen(path, 0o600)
		require.ErrorContains(t, err, want)
	}
	require.FileExists(t, dir+"/file")
}

// A path so long that no name of its own fits beside it.
func TestListen_longPath(t *testing.T) {
	dir := t.TempDir()
	require.Less(t, len(dir), maxPath-8)
	t.Chdir(dir)
	path := "./" + strings.Repeat("x", maxPath-2)
	l, err := Listen(path, 0o600)
	require.NoError(t, err)
	require.NoError(t, l.Close())
	require.NoFileExists(t, path)
}

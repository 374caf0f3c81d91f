package socket

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// contender is set in the environment of a process that starts servers; see contend.
const contender = "ELEVISOR_TEST_CONTENDER"

func TestMain(m *testing.M) {
	if os.Getenv(contender) != "" {
		contend(os.Stdin, os.Stdout)
		return
	}
	os.Exit(m.Run())
}

// contend listens on each path that it reads and says how that went; at an empty line it
// closes what it has.
func contend(in io.Reader, out io.Writer) {
	var l *Listener
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		if path := lines.Text(); path != "" {
			var err error
			l, err = Listen(path, 0o600)
			fmt.Fprintln(out, err)
			continue
		}
		if l != nil {
			_ = l.Close()
			l = nil
		}
		fmt.Fprintln(out, "closed")
	}
}

// contestant is the other end of contend.
type contestant struct {
	in  io.Writer
	out *bufio.Scanner
}

func (c *contestant) say(t *testing.T, line string) {
	_, err := fmt.Fprintln(c.in, line)
	require.NoError(t, err)
}

func (c *contestant) answer(t *testing.T) string {
	require.True(t, c.out.Scan(), "the process has ended")
	return c.out.Text()
}

// contestants are n goroutines, or n processes.
func contestants(t *testing.T, n int, processes bool) (all []*contestant) {
	for range n {
		if !processes {
			inR, inW := io.Pipe()
			outR, outW := io.Pipe()
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				contend(inR, outW)
			}()
			t.Cleanup(func() {
				_, _ = inW.Close(), outR.Close()
				<-ended
			})
			all = append(all, &contestant{inW, bufio.NewScanner(outR)})
			continue
		}
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), contender+"=1")
		cmd.Stderr = os.Stderr
		in, err := cmd.StdinPipe()
		require.NoError(t, err)
		out, err := cmd.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, cmd.Start())
		t.Cleanup(func() {
			_ = in.Close()
			_ = cmd.Wait()
		})
		all = append(all, &contestant{in, bufio.NewScanner(out)})
	}
	return all
}

// dead leaves a socket at path as a killed server does.
func dead(t *testing.T, path string) {
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	require.NoError(t, err)
	ln.SetUnlinkOnClose(false)
	require.NoError(t, ln.Close())
}

func names(t *testing.T, dir string) (list []string) {
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	for _, e := range entries {
		list = append(list, e.Name())
	}
	return list
}

// Servers that start together over a dead one's socket, or over none: exactly one gets
// it, and keeps it; the others say so, and by which name; nothing else is left.
func TestListen_together(t *testing.T) {
	for name, processes := range map[string]bool{"goroutines": false, "processes": true} {
		t.Run(name, func(t *testing.T) {
			all := contestants(t, 4, processes)
			dir := t.TempDir()
			for round := range 200 {
				path := filepath.Join(dir, "s")
				if round%4 != 0 {
					dead(t, path)
				}
				for _, c := range all {
					c.say(t, path)
				}
				winners := 0
				for _, c := range all {
					switch said := c.answer(t); {
					case said == "<nil>":
						winners++
					default:
						require.Equal(t, "listen on "+path+": another server is using that socket", said)
					}
				}
				require.Equal(t, 1, winners, "round %d", round)
				require.Equal(t, []string{"s"}, names(t, dir))
				c, err := net.Dial("unix", path)
				require.NoError(t, err, "the winner's socket is there")
				require.NoError(t, c.Close())
				for _, c := range all {
					c.say(t, "")
				}
				for _, c := range all {
					require.Equal(t, "closed", c.answer(t))
				}
				require.Empty(t, names(t, dir))
			}
		})
	}
}

// A server that ends while its successor starts does not take the successor's socket with
// it.
func TestClose_whileASuccessorStarts(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l, err := Listen(path, 0o600)
	require.NoError(t, err)
	for range 500 {
		closed := make(chan error)
		go func() { closed <- l.Close() }()
		next, err := Listen(path, 0o600)
		for err != nil {
			require.ErrorContains(t, err, "another server is using that socket")
			next, err = Listen(path, 0o600)
		}
		require.NoError(t, <-closed)
		c, err := net.Dial("unix", path)
		require.NoError(t, err)
		require.NoError(t, c.Close())
		l = next
	}
	require.NoError(t, l.Close())
}

// What a server that was killed while it started has left is no obstacle.
func TestListen_afterAKillInListen(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "s")
	require.NoError(t, os.WriteFile(beside(path, ".lock"), nil, 0o600))
	dead(t, beside(path, "~"))
	l, err := Listen(path, 0o600)
	require.NoError(t, err)
	require.Equal(t, []string{"s"}, names(t, dir))
	require.NoError(t, l.Close())
}

// Somebody else's lock could be held for ever.
func TestListen_refusesForeignLocks(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to give a file away")
	}
	path := filepath.Join(t.TempDir(), "s")
	require.NoError(t, os.WriteFile(beside(path, ".lock"), nil, 0o666))
	require.NoError(t, os.Chown(beside(path, ".lock"), 12345, 12345))
	_, err := Listen(path, 0o600)
	require.ErrorContains(t, err, "it belongs to user 12345")
	require.True(t, strings.HasPrefix(err.Error(), "listen on "+path+": "))
}

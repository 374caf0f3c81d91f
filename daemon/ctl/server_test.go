package ctl

import (
	"bufio"
	"context"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
)

// limit stops what hangs; no test waits for it.
const limit = time.Minute

// serve lets s run until the test ends.
func serve(t *testing.T, s *Server) {
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(ctx) }()
	t.Cleanup(func() {
		stop()
		select {
		case err := <-ended:
			require.NoError(t, err)
		case <-time.After(limit):
			t.Error("the server does not end")
		}
	})
}

type peer struct {
	t *testing.T
	*net.UnixConn
	in *bufio.Reader
}

func dial(t *testing.T, path string) *peer {
	t.Helper()
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	require.NoError(t, c.SetDeadline(time.Now().Add(limit)))
	return &peer{t, c, bufio.NewReader(c)}
}

func (p *peer) ask(line string) (reply string) {
	p.t.Helper()
	_, err := p.Write([]byte(line + "\n"))
	require.NoError(p.t, err)
	reply, err = p.in.ReadString('\n')
	require.NoError(p.t, err)
	return reply
}

// gone waits until the server has hung up.
func (p *peer) gone() {
	p.t.Helper()
	for {
		if _, err := p.in.ReadByte(); err != nil {
			require.NotErrorIs(p.t, err, os.ErrDeadlineExceeded)
			return
		}
	}
}

const (
	asked    = `{"jsonrpc":"2.0","id":1,"method":"scheduler","params":{"disk":"a"}}`
	answered = `"active":"deadline"`
)

func TestServer(t *testing.T) {
	path := start(t, newFake(), nil)
	st, err := os.Lstat(path)
	require.NoError(t, err)
	require.Equal(t, os.ModeSocket|0o600, st.Mode(), "for its owner only")
	p := dial(t, path)
	require.Contains(t, p.ask(asked), answered)
	require.Contains(t, p.ask("\r\n{"), "-32700")
	require.Contains(t, p.ask(asked), answered, "an error does not end the connection")
	require.Contains(t, dial(t, path).ask(asked), answered, "a second client")
	_, err = Listen(path, newFake(), zap.NewNop())
	require.ErrorContains(t, err, "another server is using that socket")
	require.Contains(t, p.ask(asked), answered)
}

func TestServer_ends(t *testing.T) {
	path := t.TempDir() + "/ctl"
	s, err := Listen(path, newFake(), zap.NewNop())
	require.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(ctx) }()
	p := dial(t, path)
	require.Contains(t, p.ask(asked), answered)
	stop()
	require.NoError(t, <-ended)
	p.gone()
	require.NoFileExists(t, path)
}

func TestServer_longLine(t *testing.T) {
	p := dial(t, start(t, newFake(), nil))
	longest := asked + strings.Repeat(" ", requestMax-1-len(asked))
	require.Contains(t, p.ask(longest), answered)
	require.Contains(t, p.ask(longest+" "), "a request has more than 65536 bytes")
	require.Contains(t, p.ask(strings.Repeat(longest, 10)), "a request has more than 65536 bytes")
	require.Contains(t, p.ask(asked), answered)
}

// Clients that do nothing, never end their line or never take their replies go;
// nobody else notices them.
func TestServer_slowClients(t *testing.T) {
	c := newFake()
	for range 20 {
		c.stat = append(c.stat, sample())
	}
	path := start(t, c, func(s *Server) { s.request, s.reply = 100*time.Millisecond, 100*time.Millisecond })
	idle, half, endless := dial(t, path), dial(t, path), dial(t, path)
	_, err := half.Write([]byte(asked))
	require.NoError(t, err)
	go func() {
		for err == nil {
			_, err = endless.Write([]byte(strings.Repeat("a", 10000)))
		}
	}()
	deaf := dial(t, path)
	go func() {
		for range 1000 {
			if _, err := deaf.Write([]byte(`{"jsonrpc":"2.0","id":1,"method":"stat"}` + "\n")); err != nil {
				return
			}
		}
	}()
	require.Contains(t, dial(t, path).ask(asked), answered)
	idle.gone()
	half.gone()
	endless.gone()
	require.Eventually(t, func() bool { // without reading: its writes begin to fail
		_, err := deaf.Write([]byte("\n"))
		return err != nil
	}, limit, 10*time.Millisecond)
	require.Contains(t, dial(t, path).ask(asked), answered)
}

func TestServer_manyClients(t *testing.T) {
	path := start(t, newFake(), nil)
	peers := make([]*peer, clientsMax)
	for i := range peers {
		peers[i] = dial(t, path)
		require.Contains(t, peers[i].ask(asked), answered)
	}
	reply, err := dial(t, path).in.ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, `{"jsonrpc":"2.0","error":{"code":-32000,"message":"there are 16 clients already"},"id":null}`+"\n", reply)
	require.ErrorContains(t, Call(t.Context(), path, "list", nil, &[]Disk{}), "there are 16 clients already")
	require.NoError(t, peers[3].Close())
	require.Eventually(t, func() bool { return Call(t.Context(), path, "list", nil, &[]Disk{}) == nil }, limit, time.Millisecond)
}

func TestCall(t *testing.T) {
	c := newFake()
	c.stat = []DiskStat{sample()}
	path := start(t, c, nil)
	var disks []Disk
	require.NoError(t, Call(t.Context(), path, "list", nil, &disks))
	require.Equal(t, c.List(), disks)
	var s Stat
	require.NoError(t, Call(t.Context(), path, "stat", nil, &s))
	require.Equal(t, NewStat(0, c.stat).Disks, s.Disks)
	require.Equal(t, NewStat(0, c.stat).Domains, s.Domains)
	require.Positive(t, s.Uptime)
	err := Call(t.Context(), path, "describe", map[string]string{"disk": "x"}, &Description{})
	require.Equal(t, &Error{Refused, `there is no disk "x"; there are: a, b`}, err)
	err = Call(t.Context(), path, "describe", map[string]string{"disk": strings.Repeat("x", requestMax)}, &Description{})
	require.ErrorContains(t, err, "want at most 65535")
}

func TestCall_nobody(t *testing.T) {
	path := t.TempDir() + "/ctl"
	err := Call(t.Context(), path, "list", nil, nil)
	require.EqualError(t, err, "nobody serves on the control socket "+path+
		" (no such file or directory): start the server with elevisor serve --control-socket="+path)
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	require.NoError(t, err)
	ln.SetUnlinkOnClose(false)
	require.NoError(t, ln.Close())
	require.ErrorContains(t, Call(t.Context(), path, "list", nil, nil), "(connection refused): start the server with")
	s, err := Listen(path, newFake(), zap.NewNop())
	require.NoError(t, err, "a dead server's socket is replaced")
	s.Close()
	require.NoFileExists(t, path)
}

// A server that does not answer does not keep its client.
func TestCall_interrupted(t *testing.T) {
	c := newFake()
	c.busy = make(chan struct{})
	path := start(t, c, nil)
	defer close(c.busy)
	ctx, stop := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer stop()
	err := Call(ctx, path, "describe", map[string]string{"disk": "a"}, &Description{})
	require.ErrorIs(t, err, context.DeadlineExceeded)
}

// Servers that start together over a dead one's control socket: one gets it, the others
// name it.
func TestListen_together(t *testing.T) {
	path := t.TempDir() + "/ctl"
	for range 50 {
		dead, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
		require.NoError(t, err)
		dead.SetUnlinkOnClose(false)
		require.NoError(t, dead.Close())
		type result struct {
			*Server
			error
		}
		results := make(chan result)
		for range 3 {
			go func() {
				s, err := Listen(path, newFake(), zap.NewNop())
				results <- result{s, err}
			}()
		}
		var winner *Server
		for range 3 {
			if r := <-results; r.error != nil {
				require.EqualError(t, r.error, "control socket: listen on "+path+": another server is using that socket")
			} else {
				require.Nil(t, winner)
				winner = r.Server
			}
		}
		require.NotNil(t, winner)
		_ = dial(t, path).Close()
		winner.Close()
		require.NoFileExists(t, path)
	}
}

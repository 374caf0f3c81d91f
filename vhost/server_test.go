package vhost

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	"golang.org/x/sys/unix"

	"github.com/elevisor/elevisor/sys/eventfd"
	"github.com/elevisor/elevisor/sys/shm"
)

// testTimeout only stops what hangs.
const testTimeout = 20 * time.Second

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// unixConn makes a connection of fd, which it takes over.
func unixConn(t testing.TB, fd int) *net.UnixConn {
	file := os.NewFile(uintptr(fd), "socket")
	defer file.Close()
	c, err := net.FileConn(file)
	require.NoError(t, err)
	return c.(*net.UnixConn)
}

// serving is a server at work.
type serving struct {
	t    *testing.T
	srv  *Server
	dev  *fake
	path string
	stop context.CancelFunc
	end  chan error
}

func serve(t *testing.T, srv *Server, path string) *serving {
	ctx, stop := context.WithCancel(context.Background())
	s := &serving{t: t, srv: srv, dev: newFake(2), path: path, stop: stop, end: make(chan error, 1)}
	go func() { s.end <- srv.Serve(ctx, s.dev, s.dev) }()
	t.Cleanup(func() {
		stop()
		s.dev.release()
		s.dev.close()
	})
	return s
}

func listen(t *testing.T) *serving {
	leakCheck(t)
	path := filepath.Join(t.TempDir(), "s")
	srv, err := Listen(path, zap.NewNop())
	require.NoError(t, err)
	s := serve(t, srv, path)
	t.Cleanup(func() {
		stopServing(s)
		require.NoFileExists(t, path)
	})
	return s
}

// stopServing ends a server and waits until it has.
func stopServing(s *serving) {
	s.stop()
	select {
	case err := <-s.end:
		require.NoError(s.t, err)
		s.end <- nil // for who asks again
	case <-time.After(testTimeout):
		s.t.Fatal("server does not end")
	}
}

func dial(t testing.TB, path string) *Frontend {
	f, err := Dial(path, testTimeout)
	require.NoError(t, err)
	t.Cleanup(f.Close)
	return f
}

// setUp negotiates everything and starts ring 0 in shared memory.
func setUp(t testing.TB, f *Frontend) {
	offer, err := f.GetFeatures()
	require.NoError(t, err)
	require.Equal(t, uint64(fakeFeatures|FeatureProtocolFeatures), offer)
	protocol, err := f.GetProtocolFeatures()
	require.NoError(t, err)
	require.NoError(t, f.SetProtocolFeatures(protocol))
	require.NoError(t, f.SetOwner())
	require.NoError(t, f.SetFeatures(offer))
	ram := memfd(t, "ram", 1<<20)
	defer unix.Close(ram)
	require.NoError(t, f.SetMemTable([]shm.Region{{GPA: 0, Size: 1 << 20, UVA: 0x7f0000000000}}, []int{ram}))
	require.NoError(t, f.SetVringNum(0, 128))
	require.NoError(t, f.SetVringBase(0, 7))
	require.NoError(t, f.SetVringAddr(VringAddr{Desc: 0x7f0000000000, Avail: 0x7f0000001000, Used: 0x7f0000002000}))
	kick, err := eventfd.New()
	require.NoError(t, err)
	defer kick.Close()
	require.NoError(t, f.SetVringKick(0, kick.Raw()))
	require.NoError(t, f.SetVringCall(0, kick.Raw()))
	require.NoError(t, f.SetVringErr(0, -1))
	require.NoError(t, f.SetVringEnable(0, true))
}

// TestEveryMessage takes the client through all that it can say.
func TestEveryMessage(t *testing.T) {
	s := listen(t)
	f := dial(t, s.path)
	setUp(t, f)
	queues, err := f.GetQueueNum()
	require.NoError(t, err)
	require.Equal(t, 2, queues)
	slots, err := f.GetMaxMemSlots()
	require.NoError(t, err)
	require.EqualValues(t, MaxMemSlots, slots)

	more := memfd(t, "more", 4096)
	defer unix.Close(more)
	r := shm.Region{GPA: 1 << 30, Size: 4096, UVA: 0x7e0000000000}
	require.NoError(t, f.AddMemReg(r, more))
	require.NoError(t, f.RemMemReg(r))
	var refused *RefusedError
	require.ErrorAs(t, f.RemMemReg(r), &refused)
	require.Equal(t, MsgRemMemReg, refused.ID)

	config, err := f.GetConfig(0, 60)
	require.NoError(t, err)
	want := newFake(0).config
	require.Equal(t, want[:], config)
	_, err = f.GetConfig(200, 57)
	require.ErrorIs(t, err, ErrConfig)
	require.NoError(t, f.SetConfig(fakeWriteback, []byte{0}))
	require.ErrorAs(t, f.SetConfig(0, []byte{0}), &refused)

	area, fd, err := f.GetInflight(2, 128)
	require.NoError(t, err)
	require.NoError(t, f.SetInflight(area, fd))
	closeAll([]int{fd})
	_, _, err = f.GetInflight(3, 128)
	require.ErrorIs(t, err, ErrMalformed, "no area")

	channel, err := f.OpenBackendReq()
	require.NoError(t, err)
	defer channel.Close()
	s.srv.ConfigChanged()
	m, _, err := channel.Recv()
	require.NoError(t, err)
	require.Equal(t, Message{ID: MsgConfigChange, Flags: Version}, m)

	base, err := f.GetVringBase(0)
	require.NoError(t, err)
	require.EqualValues(t, 12, base)
	require.NoError(t, f.ResetDevice())
	require.NoError(t, f.ResetOwner())
}

// TestNextClient: one after the other, and the second waits for the first.
func TestNextClient(t *testing.T) {
	s := listen(t)
	for range 3 {
		f := dial(t, s.path)
		setUp(t, f)
		f.Close()
	}
	first, second := dial(t, s.path), dial(t, s.path)
	require.NoError(t, second.Send(MsgGetFeatures, Version, nil))
	setUp(t, first)
	for range 10 {
		_, err := first.GetQueueNum()
		require.NoError(t, err)
	}
	first.Close()
	m, _, err := second.Recv()
	require.NoError(t, err)
	require.Equal(t, MsgGetFeatures, m.ID)
	setUp(t, second)
}

// requireClosed wants the end of the connection and not a byte before. What the
// server did not read makes the kernel call it a reset.
func requireClosed(t *testing.T, f *Frontend, name string) {
	m, _, err := f.Recv()
	require.Error(t, err, "%s: got %v", name, m)
	require.True(t, errors.Is(err, io.EOF) || errors.Is(err, unix.ECONNRESET), "%s: %v", name, err)
}

// TestBadClients: none of them keeps the next one from being served.
func TestBadClients(t *testing.T) {
	s := listen(t)
	for name, b := range map[string][]byte{
		"seven bytes":       {1, 0, 0, 0, 1, 0, 0},
		"eleven bytes":      {1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0},
		"header only":       {2, 0, 0, 0, 1, 0, 0, 0, 8, 0, 0, 0},
		"version 0":         make([]byte, 12),
		"version 2":         {1, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0},
		"a reply":           {1, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0},
		"4 GiB":             {3, 0, 0, 0, 1, 0, 0, 0, 0xff, 0xff, 0xff, 0xff},
		"payload of nobody": {3, 0, 0, 0, 1, 0, 0, 0, 8, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8},
	} {
		f := dial(t, s.path)
		require.NoError(t, f.SendBytes(b), name)
		require.NoError(t, f.CloseWrite(), name)
		requireClosed(t, f, name)
	}
	f := dial(t, s.path)
	require.NoError(t, f.SendBytes([]byte{3, 0, 0, 0, 1, 0, 0, 0, 0, 0x10, 0, 0})) // 4096 bytes that never come
	requireClosed(t, f, "closed at the header")
	setUp(t, dial(t, s.path))
}

// TestSingleBytes: a message may come in as many pieces as it has bytes.
func TestSingleBytes(t *testing.T) {
	s := listen(t)
	f := dial(t, s.path)
	kick, err := eventfd.New()
	require.NoError(t, err)
	defer kick.Close()
	for _, m := range []Message{
		{ID: MsgSetProtocolFeatures, Flags: Version, Payload: putU64(ProtocolReplyAck)},
		{ID: MsgSetVringCall, Flags: Version | FlagNeedReply, Payload: putU64(1)},
		{ID: MsgGetConfig, Flags: Version, Payload: configSpace{data: make([]byte, 60)}.bytes()},
	} {
		for i, b := range m.AppendTo(nil) {
			var fds []int
			if i == 0 && m.ID == MsgSetVringCall {
				fds = []int{kick.Raw()}
			}
			require.NoError(t, f.SendBytes([]byte{b}, fds...))
		}
	}
	ack, _, err := f.Recv()
	require.NoError(t, err)
	require.Equal(t, Message{ID: MsgSetVringCall, Flags: Version | FlagReply, Payload: putU64(0)}, ack)
	config, _, err := f.Recv()
	require.NoError(t, err)
	require.Len(t, config.Payload, configHead+60)
}

// TestLateDescriptors: descriptors on the payload belong to the message too, and
// never to the next one.
func TestLateDescriptors(t *testing.T) {
	s := listen(t)
	f := dial(t, s.path)
	require.NoError(t, f.SetProtocolFeatures(ProtocolReplyAck))
	kick, err := eventfd.New()
	require.NoError(t, err)
	defer kick.Close()
	b := Message{ID: MsgSetVringCall, Flags: Version | FlagNeedReply, Payload: putU64(0)}.AppendTo(nil)
	require.NoError(t, f.SendBytes(b[:HeaderSize]))
	require.NoError(t, f.SendBytes(b[HeaderSize:], kick.Raw()))
	v, err := f.recvU64(MsgSetVringCall)
	require.NoError(t, err)
	require.Zero(t, v)
	var refused *RefusedError
	require.ErrorAs(t, f.tell(MsgSetVringCall, putU64(0)), &refused, "no descriptor is left over")
}

// TestDescriptorFlood: what nobody asked for is closed at once; too many at once
// end the connection.
func TestDescriptorFlood(t *testing.T) {
	s := listen(t)
	f := dial(t, s.path)
	event, err := eventfd.New()
	require.NoError(t, err)
	defer event.Close()
	ask := func(id ID, payload []byte, fds ...int) {
		_, got, err := f.ask(id, payload, fds...)
		require.NoError(t, err)
		closeAll(got)
	}
	ask(MsgGetInflightFD, Inflight{Queues: 2, QueueSize: 8}.bytes(24)) // the device keeps one area
	settle := func() {                                                 // a reply's descriptor is closed after it was sent
		_, err := f.GetQueueNum()
		require.NoError(t, err)
	}
	settle()
	fds, maps := holdings(t)
	for range 1000 {
		ask(MsgGetFeatures, nil, event.Raw(), event.Raw(), event.Raw())
		ask(MsgGetInflightFD, Inflight{Queues: 2, QueueSize: 8}.bytes(24), event.Raw())
	}
	settle()
	fdsNow, mapsNow := holdings(t)
	require.Equal(t, fds, fdsNow)
	require.Equal(t, maps, mapsNow)

	nine := make([]int, MaxFDs+1)
	for i := range nine {
		nine[i] = event.Raw()
	}
	require.NoError(t, f.Send(MsgGetFeatures, Version, nil, nine[:MaxFDs]...))
	_, _, err = f.Recv()
	require.NoError(t, err)
	require.NoError(t, f.Send(MsgGetFeatures, Version, nil, nine...))
	_, _, err = f.Recv()
	require.Error(t, err)
	setUp(t, dial(t, s.path))
}

// TestNeverReading: a client that asks and does not read blocks nobody but itself.
func TestNeverReading(t *testing.T) {
	s := listen(t)
	f := dial(t, s.path)
	f.timeout = 300 * time.Millisecond
	for f.Send(MsgGetFeatures, Version, nil) == nil {
	}
	stopServing(s)
}

// TestCancelWhileStopping: the end of the server does not wait for a disk that
// hangs, and gives up what it can.
func TestCancelWhileStopping(t *testing.T) {
	s := listen(t)
	s.dev.holdStops()
	f := dial(t, s.path)
	setUp(t, f)
	require.NoError(t, f.Send(MsgGetVringBase, Version, VringState{}.bytes()))
	require.Equal(t, 0, <-s.dev.stopping)
	stopServing(s)
	_, _, err := f.Recv()
	require.Error(t, err)
}

// TestGoneWhileStopping: a client that goes away in GET_VRING_BASE is noticed, its
// other rings are stopped, and the next client waits for all of them.
func TestGoneWhileStopping(t *testing.T) {
	s := listen(t)
	s.dev.holdStops()
	f := dial(t, s.path)
	setUp(t, f)
	require.NoError(t, f.SetVringNum(1, 128))
	require.NoError(t, f.SetVringAddr(VringAddr{Index: 1, Desc: 0x7f0000003000, Avail: 0x7f0000004000, Used: 0x7f0000005000}))
	kick, err := eventfd.New()
	require.NoError(t, err)
	defer kick.Close()
	require.NoError(t, f.SetVringKick(1, kick.Raw()))
	require.NoError(t, f.Send(MsgGetVringBase, Version, VringState{}.bytes()))
	require.Equal(t, 0, <-s.dev.stopping)
	next := dial(t, s.path)
	f.Close()
	require.Equal(t, 1, <-s.dev.stopping)
	s.dev.release()
	setUp(t, next)
}

// TestSlowStop: a front-end that stands still in GET_VRING_BASE is heard of.
func TestSlowStop(t *testing.T) {
	leakCheck(t)
	core, logs := observer.New(zap.WarnLevel)
	path := filepath.Join(t.TempDir(), "s")
	srv, err := Listen(path, zap.New(core))
	require.NoError(t, err)
	srv.slow = time.Millisecond
	s := serve(t, srv, path)
	t.Cleanup(func() { stopServing(s) })
	s.dev.holdStops()
	f := dial(t, path)
	setUp(t, f)
	require.NoError(t, f.Send(MsgGetVringBase, Version, VringState{}.bytes()))
	require.Eventually(t, func() bool {
		return logs.FilterField(zap.String("waiting", "GET_VRING_BASE")).Len() > 0
	}, testTimeout, time.Millisecond)
	s.dev.release()
	m, _, err := f.Recv()
	require.NoError(t, err)
	require.Equal(t, MsgGetVringBase, m.ID)
}

// TestCancelIdle: also with a client that says nothing, and with one waiting.
func TestCancelIdle(t *testing.T) {
	s := listen(t)
	f := dial(t, s.path)
	setUp(t, f)
	dial(t, s.path)
	stopServing(s)
	_, _, err := f.Recv()
	require.Error(t, err)
}

func TestListenPath(t *testing.T) {
	leakCheck(t)
	dir := t.TempDir()

	t.Run("a dead server's socket is replaced", func(t *testing.T) {
		path := filepath.Join(dir, "stale")
		ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
		require.NoError(t, err)
		ln.SetUnlinkOnClose(false)
		require.NoError(t, ln.Close())
		srv, err := Listen(path, zap.NewNop())
		require.NoError(t, err)
		srv.Close()
		require.NoFileExists(t, path)
	})
	t.Run("a living server's is not", func(t *testing.T) {
		path := filepath.Join(dir, "alive")
		srv, err := Listen(path, zap.NewNop())
		require.NoError(t, err)
		defer srv.Close()
		_, err = Listen(path, zap.NewNop())
		require.ErrorContains(t, err, "another server")
		dial(t, path).Close()
	})
	t.Run("a file stays", func(t *testing.T) {
		path := filepath.Join(dir, "file")
		require.NoError(t, os.WriteFile(path, []byte("precious"), 0o600))
		_, err := Listen(path, zap.NewNop())
		require.ErrorContains(t, err, "no socket")
		b, err := os.ReadFile(path)
		require.NoError(t, err)
		require.Equal(t, "precious", string(b))
	})
	t.Run("a socket that took our place stays", func(t *testing.T) {
		path := filepath.Join(dir, "moved")
		srv, err := Listen(path, zap.NewNop())
		require.NoError(t, err)
		require.NoError(t, os.Remove(path))
		ours, err := Listen(path, zap.NewNop())
		require.NoError(t, err)
		defer ours.Close()
		srv.Close()
		dial(t, path).Close()
	})
	t.Run("names that cannot be", func(t *testing.T) {
		_, err := Listen("", zap.NewNop())
		require.Error(t, err)
		_, err = Listen(filepath.Join(dir, string(make([]byte, 200))), zap.NewNop())
		require.ErrorContains(t, err, "want 1 to 107")
		_, err = Listen(filepath.Join(dir, "no", "s"), zap.NewNop())
		require.Error(t, err)
	})
}

func TestFromFDConnected(t *testing.T) {
	leakCheck(t)
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	f := NewFrontend(unixConn(t, pair[0]), testTimeout)
	srv, err := FromFD(pair[1], zap.NewNop())
	require.NoError(t, err)
	s := serve(t, srv, "")
	setUp(t, f)
	f.Close()
	select {
	case err := <-s.end:
		require.NoError(t, err)
	case <-time.After(testTimeout):
		t.Fatal("the only client has gone, the server has not")
	}
}

func TestFromFDListening(t *testing.T) {
	leakCheck(t)
	path := filepath.Join(t.TempDir(), "s")
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	require.NoError(t, unix.Bind(fd, &unix.SockaddrUnix{Name: path}))
	require.NoError(t, unix.Listen(fd, 1))
	srv, err := FromFD(fd, zap.NewNop())
	require.NoError(t, err)
	s := serve(t, srv, path)
	for range 2 {
		f := dial(t, path)
		setUp(t, f)
		f.Close()
	}
	stopServing(s)
	require.FileExists(t, path, "not ours to remove")
}

func TestFromFDRefuses(t *testing.T) {
	leakCheck(t)
	_, err := FromFD(1<<20, zap.NewNop())
	require.ErrorIs(t, err, unix.EBADF)
	null, err := unix.Open("/dev/null", unix.O_RDWR|unix.O_CLOEXEC, 0)
	require.NoError(t, err)
	defer unix.Close(null)
	_, err = FromFD(null, zap.NewNop())
	require.ErrorIs(t, err, unix.ENOTSOCK)
	udp, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	defer unix.Close(udp)
	_, err = FromFD(udp, zap.NewNop())
	require.ErrorContains(t, err, "want UNIX")
}

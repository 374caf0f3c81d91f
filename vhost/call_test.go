package vhost_test

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/elevisor/elevisor/backend"
	"github.com/elevisor/elevisor/blk"
	"github.com/elevisor/elevisor/device"
	"github.com/elevisor/elevisor/sched"
	"github.com/elevisor/elevisor/sys/clock"
	"github.com/elevisor/elevisor/sys/eventfd"
	"github.com/elevisor/elevisor/sys/shm"
	"github.com/elevisor/elevisor/vhost"
	"go.uber.org/zap"
)

// hang only stops what hangs.
const hang = 20 * time.Second

// serveDisk serves a real device, and says where.
func serveDisk(t *testing.T, e device.Engine) (path string) {
	img, err := backend.Open("null:?size=1M", backend.Options{})
	require.NoError(t, err)
	loop := device.NewLoop(&sched.None{}, &sched.Config{}, 8)
	require.NoError(t, loop.Start(e, clock.Start().Now, nil, func(h backend.Host) error {
		_, err := loop.Attach(img, h)
		return err
	}))
	dev, err := device.New(device.Options{
		ID: "d", Disk: &blk.Disk{}, Info: img.Info(), Loops: []*device.Loop{loop}, NumQueues: 2,
	})
	require.NoError(t, err)
	path = filepath.Join(t.TempDir(), "s")
	server, err := vhost.Listen(path, zap.NewNop())
	require.NoError(t, err)
	ctx, stop := context.WithCancel(context.Background())
	end := make(chan error, 1)
	go func() { end <- server.Serve(ctx, dev, dev) }()
	t.Cleanup(func() {
		stop()
		require.NoError(t, <-end)
		loop.Stop()
		require.NoError(t, img.Close())
	})
	return path
}

// caller is a client that counts what comes on its call descriptors.
type caller struct {
	*vhost.Frontend
	t     *testing.T
	kick  *eventfd.FD
	calls []*eventfd.FD
}

const ringAt = 0x7f0000000000

// connect shakes hands and shares memory, so that ring 0 can start.
func connect(t *testing.T, path string) *caller {
	f, err := vhost.Dial(path, hang)
	require.NoError(t, err)
	kick, err := eventfd.New()
	require.NoError(t, err)
	c := &caller{Frontend: f, t: t, kick: kick}
	offer, err := f.GetFeatures()
	require.NoError(t, err)
	require.NoError(t, f.SetProtocolFeatures(vhost.ProtocolMQ|vhost.ProtocolReplyAck))
	require.NoError(t, f.SetFeatures(offer))
	fd, m, err := shm.Create("ram", 1<<16, shm.Region{Size: 1 << 16})
	require.NoError(t, err)
	m.Release()
	require.NoError(t, f.SetMemTable([]shm.Region{{Size: 1 << 16, UVA: ringAt}}, []int{fd}))
	require.NoError(t, unix.Close(fd))
	return c
}

func (c *caller) start() {
	require.NoError(c.t, c.SetVringNum(0, 8))
	require.NoError(c.t, c.SetVringBase(0, 0))
	require.NoError(c.t, c.SetVringAddr(vhost.VringAddr{Desc: ringAt, Avail: ringAt + 0x1000, Used: ringAt + 0x2000}))
	require.NoError(c.t, c.SetVringKick(0, c.kick.Raw()))
	require.NoError(c.t, c.SetVringEnable(0, true))
}

func (c *caller) stop() {
	_, err := c.GetVringBase(0)
	require.NoError(c.t, err)
}

// setCall sends a new descriptor for ring i and waits for the call.
func (c *caller) setCall(i int) {
	c.t.Helper()
	call, err := eventfd.New()
	require.NoError(c.t, err)
	c.calls = append(c.calls, call)
	require.NoError(c.t, c.SetVringCall(i, call.Raw()))
	require.True(c.t, call.Wait(hang), "SET_VRING_CALL without a call")
}

// end ends the connection, and says how often each descriptor was called in all: the
// server has written what it had to when it serves the next client.
func (c *caller) end(path string) (counts []uint64) {
	c.Close()
	next, err := vhost.Dial(path, hang)
	require.NoError(c.t, err)
	_, err = next.GetFeatures()
	require.NoError(c.t, err)
	next.Close()
	for _, call := range c.calls {
		counts = append(counts, call.Take())
		call.Close()
	}
	c.kick.Close()
	return counts
}

// QEMU's vhost-user-blk-test (idx) waits for the call at SET_VRING_CALL, which QEMU
// sends before the ring's kick; libblkio sends it after that.
func TestSetVringCall_isCalledOnce(t *testing.T) {
	for name, e := range map[string]device.Engine{"any engine": device.EngineAuto, "epoll": device.EnginePoll} {
		t.Run(name, func(t *testing.T) {
			path := serveDisk(t, e)
			for name, do := range map[string]func(c *caller) (want []uint64){
				"before the ring starts": func(c *caller) []uint64 {
					c.setCall(0)
					c.start()
					return []uint64{1}
				},
				"after it": func(c *caller) []uint64 {
					c.start()
					c.setCall(0)
					return []uint64{1}
				},
				"a ring that never starts": func(c *caller) []uint64 {
					c.setCall(1)
					c.start()
					return []uint64{1}
				},
				"replaced before, after, and between two starts": func(c *caller) []uint64 {
					c.setCall(0)
					c.setCall(0)
					c.start()
					c.setCall(0)
					c.stop()
					c.setCall(0)
					c.start()
					return []uint64{1, 1, 1, 1}
				},
				"no descriptor": func(c *caller) []uint64 {
					require.NoError(c.t, c.SetVringCall(0, -1))
					c.start()
					c.setCall(0)
					require.NoError(c.t, c.SetVringCall(0, -1))
					c.stop()
					require.NoError(c.t, c.SetVringCall(0, -1))
					return []uint64{1}
				},
				"the same file in two messages": func(c *caller) []uint64 {
					c.setCall(0)
					require.NoError(c.t, c.SetVringCall(0, c.calls[0].Raw()))
					c.start()
					return []uint64{2}
				},
			} {
				t.Run(name, func(t *testing.T) {
					for range 3 { // each time as another client
						c := connect(t, path)
						want := do(c)
						require.Equal(t, want, c.end(path))
					}
				})
			}
		})
	}
}

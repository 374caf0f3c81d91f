package vhost

import (
	"bytes"
	"encoding/binary"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/elevisor/elevisor/sys/eventfd"
	"github.com/elevisor/elevisor/sys/shm"
	"github.com/elevisor/elevisor/virtqueue"
)

// startPeer runs qemu-storage-daemon over an image whose every sector holds its
// number + 1 in all bytes, and is its socket.
func startPeer(t *testing.T) string {
	daemon, err := exec.LookPath("qemu-storage-daemon")
	if err != nil {
		require.NotEqual(t, "true", os.Getenv("CI"), "make test installs what is missing here")
		t.Skip("needs the program qemu-storage-daemon")
	}
	dir := t.TempDir()
	image, socket := filepath.Join(dir, "image"), filepath.Join(dir, "s")
	var content []byte
	for i := range 64 {
		content = append(content, bytes.Repeat([]byte{byte(i + 1)}, 512)...)
	}
	require.NoError(t, os.WriteFile(image, content, 0o600))
	cmd := exec.Command(daemon,
		"--blockdev", "driver=file,node-name=f,filename="+image,
		"--export", "type=vhost-user-blk,id=e,node-name=f,writable=on,num-queues=2,addr.type=unix,addr.path="+socket)
	cmd.Stderr = os.Stderr
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	require.Eventually(t, func() bool { // the file is there a moment before somebody listens
		c, err := net.Dial("unix", socket)
		if err != nil {
			return false
		}
		return c.Close() == nil
	}, testTimeout, 10*time.Millisecond)
	return socket
}

// TestPeer takes the front-end through a whole life against a back-end that is not
// ours: negotiation, memory, a request, stop.
func TestPeer(t *testing.T) {
	socket := startPeer(t)
	leakCheck(t)
	f := dial(t, socket)

	offer, err := f.GetFeatures()
	require.NoError(t, err)
	require.NotZero(t, offer&FeatureProtocolFeatures)
	protocol, err := f.GetProtocolFeatures()
	require.NoError(t, err)
	protocol &= ProtocolMQ | ProtocolReplyAck | ProtocolConfig | ProtocolConfigureMemSlots
	require.NoError(t, f.SetProtocolFeatures(protocol))
	queues, err := f.GetQueueNum()
	require.NoError(t, err)
	require.Equal(t, 2, queues)
	require.NoError(t, f.SetOwner())
	features := offer & (virtqueue.FeatureVersion1 | FeatureProtocolFeatures)
	require.NoError(t, f.SetFeatures(features))
	config, err := f.GetConfig(0, 60)
	require.NoError(t, err)
	require.EqualValues(t, 64, binary.LittleEndian.Uint64(config), "capacity")

	const size, gpa, uva = 1 << 16, 0x100000, 0x7f0000000000
	fd, m, err := shm.Create("ram", size, shm.Region{GPA: gpa, Size: size, UVA: uva})
	require.NoError(t, err)
	defer m.Release()
	defer unix.Close(fd)
	require.NoError(t, f.AddMemReg(m.Region, fd))

	call, err := eventfd.New()
	require.NoError(t, err)
	defer call.Close()
	kick, err := eventfd.New()
	require.NoError(t, err)
	defer kick.Close()
	const ring = 8
	avail, used, total := virtqueue.Layout(ring)
	driver, err := virtqueue.NewDriver(m.Bytes()[:total], ring, features)
	require.NoError(t, err)
	require.NoError(t, f.SetVringNum(0, ring))
	require.NoError(t, f.SetVringBase(0, 0))
	require.NoError(t, f.SetVringAddr(VringAddr{Desc: uva, Avail: uva + uint64(avail), Used: uva + uint64(used)}))
	require.NoError(t, f.SetVringKick(0, kick.Raw()))
	require.NoError(t, f.SetVringCall(0, call.Raw()))
	require.NoError(t, f.SetVringEnable(0, true))

	const head, data, status = 0x1000, 0x2000, 0x3000
	binary.LittleEndian.PutUint64(m.Bytes()[head+8:], 5) // sector; the type, 0, is a read
	m.Bytes()[status] = 0xee
	_, ok := driver.Add([]virtqueue.Elem{
		{Addr: gpa + head, Len: 16}, {Addr: gpa + data, Len: 512, Write: true}, {Addr: gpa + status, Len: 1, Write: true},
	})
	require.True(t, ok)
	driver.Publish()
	kick.Notify()
	for done := false; !done; { // the first call may only say that it is the call descriptor
		require.True(t, call.Wait(testTimeout))
		call.Take()
		_, _, done, err = driver.Reap()
		require.NoError(t, err)
	}
	require.Zero(t, m.Bytes()[status])
	require.Equal(t, bytes.Repeat([]byte{6}, 512), m.Bytes()[data:data+512])

	base, err := f.GetVringBase(0)
	require.NoError(t, err)
	require.EqualValues(t, 1, base)
	require.NoError(t, f.RemMemReg(m.Region))
}

package serve

import (
	"testing"

	"github.com/elevisor/elevisor/backend"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
)

func TestParseDisk(t *testing.T) {
	d, err := ParseDisk("id=vda,path=a,,b.img,socket=/s,read_only=on,serial=x=y,num-queues=4,queue-size=256,seg-max=10,size-max=65536," +
		"logical-block-size=4096,physical-block-size=8192,offset=1M,size=2M,max-discard-seg=3,cache=directsync,aio=threads,discard=ignore,lock=off")
	require.NoError(t, err)
	require.Equal(t, Disk{
		ID: "vda", Path: "a,b.img", Socket: "/s", ReadOnly: true, Serial: "x=y", NumQueues: 4, QueueSize: 256, SegMax: 10, SizeMax: 65536,
		LogicalBlock: 4096, PhysicalBlock: 8192, Offset: 1 << 20, Size: 2 << 20, DiscardSeg: 3,
		Cache: backend.CacheDirectsync, AIO: backend.AIOThreads, NoDiscard: true, NoLock: true,
	}, d)
}

func TestParseDisk_refuses(t *testing.T) {
	for s, want := range map[string]string{
		"path=a,socket=s,sokcet=t":               `unknown key "sokcet" in --disk; there are: id, path, socket`,
		"path=a,socket=s,read-only":              `"read-only" in --disk is not KEY=VALUE`,
		"path=a,socket=s,num-queues=0":           `num-queues="0": want a number from 1 to 256`,
		"path=a,socket=s,queue-size=x":           `queue-size="x": want a number from 1 to 32768`,
		"path=a,socket=s,cache=fast":             `cache="fast": unknown cache mode "fast"; valid: writeback, none, writethrough, directsync, unsafe`,
		"path=a,socket=s,discard=maybe":          `want unmap or ignore`,
		"path=a,socket=s,lock=maybe":             `want on or off`,
		"path=a,socket=s,offset=1z":              `size "1z" is not a number of bytes`,
		"path=a,socket=s,offset=100":             `must be multiples of 512`,
		"path=a,socket=s,logical-block-size=513": `513 is not a power of two`,
		"socket=s":                               `has no path`,
		"path=a":                                 `neither socket nor fd`,
		"path=a,socket=s,fd=3":                   `both socket=s and fd=3`,
		"path=a,fd=1":                            `fd="1": want a number from 3`,
	} {
		_, err := ParseDisk(s)
		require.ErrorContains(t, err, want, s)
	}
}

// With an error nothing stays open: the image's lock and the socket are free again.
func TestOpen_givesUpAll(t *testing.T) {
	dir := t.TempDir()
	good := Disk{Path: "mem:?size=1M", Socket: dir + "/s"}
	for _, bad := range []Disk{
		{Path: "mem:?size=1M", Socket: dir + "/s2"},             // the id "mem" twice
		{ID: "b", Path: dir + "/none", Socket: dir + "/s2"},     // no such image
		{ID: "b", Path: "mem:?size=1M", Socket: dir + "/no/s2"}, // no such directory
		{ID: "b", Path: "mem:?size=1M", Socket: dir + "/s"},     // the socket twice
		{ID: "b", Path: "mem:?size=1M", Socket: dir + "/s2", SegMax: 9999},
	} {
		_, err := Open([]Disk{good, bad}, zap.NewNop())
		require.Error(t, err)
		require.NoFileExists(t, good.Socket)
	}
	d, err := Open([]Disk{good}, zap.NewNop())
	require.NoError(t, err)
	d.Close()
	require.NoFileExists(t, good.Socket)
}

func TestStats(t *testing.T) {
	d, err := Open([]Disk{{ID: "a", Path: "null:?size=1M", Socket: t.TempDir() + "/s"}}, zap.NewNop())
	require.NoError(t, err)
	defer d.Close()
	_, err = d.Stats("a")
	require.NoError(t, err)
	_, err = d.Stats("b")
	require.ErrorContains(t, err, `no disk "b"`)
}

package qemu

import (
	"crypto/md5"
	"encoding/hex"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

const mib = 1 << 20

// TestGuestDisk takes one boot through everything that a guest does with a disk,
// and looks at the image from outside when the guest is gone.
func TestGuestDisk(t *testing.T) {
	needGuest(t)
	d := newDisk(t, 384*mib)
	d.more = "serial=elevisor-7,seg-max=62,physical-block-size=4096"
	s := serve(t, d)
	g := boot(t, d)
	for _, step := range []struct {
		name string
		test func(*testing.T, *guest)
	}{
		{"identity and limits", limits},
		{"file system", fileSystem},
		{"fio verify on two queues", fioVerify},
		{"discard", func(t *testing.T, g *guest) { discard(t, g, d) }},
		{"write zeroes", writeZeroes},
		{"write-back and write-through", cacheMode},
	} {
		ok := t.Run(step.name, func(t *testing.T) {
			defer g.reportTo(t)()
			step.test(t, g)
		})
		if !ok {
			return // the disk's state is unknown: what follows would mislead
		}
	}
	g.run("mkfs.ext4 -q -F /dev/vda && mount -t ext4 /dev/vda /mnt")
	g.run("dd if=/dev/urandom of=/mnt/last bs=1M count=8 2> /dev/null && umount /mnt")
	want := g.sum(0, 64)
	g.quit()
	s.stop()
	require.Equal(t, want, imageSum(t, d, 64), "the image is what the guest saw last")
	out, err := exec.Command("/sbin/e2fsck", "-fn", d.image).CombinedOutput()
	require.NoError(t, err, "e2fsck on the host:\n%s", out)
}

// limits compares what the guest's kernel says with what was configured.
func limits(t *testing.T, g *guest) {
	want := map[string]string{
		"size":                      "786432",
		"ro":                        "0",
		"serial":                    "elevisor-7",
		"queue/write_cache":         "write back",
		"queue/logical_block_size":  "512",
		"queue/physical_block_size": "4096",
		"queue/max_segments":        "62",
		"queue/nr_requests":         "128",
		"queue/scheduler":           "[none] mq-deadline kyber bfq",
	}
	if peer { // has no word for these
		want["serial"], want["queue/write_cache"] = "vhost_user_blk", "write through"
		want["queue/max_segments"], want["queue/physical_block_size"] = "126", "512"
	}
	for name, value := range want {
		require.Equal(t, value, g.run("cat /sys/block/vda/"+name), name)
	}
	require.Equal(t, "0\n1", g.run("ls -1 /sys/block/vda/mq"), "hardware queues")
	require.Positive(t, g.number("cat /sys/block/vda/queue/discard_max_bytes"), "discard")
	require.Positive(t, g.number("cat /sys/block/vda/queue/write_zeroes_max_bytes"), "write zeroes")
}

func fileSystem(t *testing.T, g *guest) {
	g.run("mkfs.ext4 -q -F /dev/vda && mount -t ext4 /dev/vda /mnt")
	g.run("mkdir /mnt/many && for i in $(seq 200); do echo file $i > /mnt/many/$i; done")
	g.run("dd if=/dev/urandom of=/tmp/data bs=1M count=24 2> /dev/null && cp /tmp/data /mnt/data")
	want := firstWord(g.run("md5sum < /tmp/data"))
	g.run("rm /tmp/data")
	g.dropCaches()
	require.Equal(t, want, firstWord(g.run("md5sum < /mnt/data")), "read back from the disk")
	require.Equal(t, "200", g.run("cat /mnt/many/* | grep -c '^file '"))
	g.run("umount /mnt && e2fsck -fn /dev/vda")
}

// fioVerify loads each queue from a CPU of its own; fio checks every block it reads.
func fioVerify(t *testing.T, g *guest) {
	before := g.interrupts()
	g.run("fio --name=v --filename=/dev/vda --ioengine=libaio --direct=1 --rw=randwrite --bsrange=4k-64k " +
		"--iodepth=32 --size=48M --numjobs=2 --offset_increment=64M --cpus_allowed=0,1 --cpus_allowed_policy=split " +
		"--verify=crc32c --verify_fatal=1 --group_reporting")
	g.run("fio --name=u --filename=/dev/vda --ioengine=io_uring --direct=1 --rw=randrw --bs=4k --offset=256M " +
		"--iodepth=64 --iodepth_batch_submit=16 --iodepth_batch_complete_min=1 --size=32M --verify=crc32c --verify_fatal=1")
	for i, n := range g.interrupts() {
		require.Greater(t, n, before[i], "completions of queue %d", i)
	}
}

// discard wants the range to read as zeros, its neighbours untouched, and the
// image smaller where its file system can.
func discard(t *testing.T, g *guest, d disk) {
	g.run("dd if=/dev/urandom of=/dev/vda bs=1M seek=64 count=24 2> /dev/null && sync")
	left, right := g.sum(64, 8), g.sum(80, 8)
	before := blocks(t, d)
	g.run("blkdiscard -o 72MiB -l 8MiB /dev/vda")
	require.Equal(t, zeros(8), g.sum(72, 8), "the discarded range")
	require.Equal(t, left, g.sum(64, 8), "before it")
	require.Equal(t, right, g.sum(80, 8), "behind it")
	if punches(t) {
		require.LessOrEqual(t, blocks(t, d), before-8*mib/512, "512-byte blocks that the image takes")
	}
}

func writeZeroes(t *testing.T, g *guest) {
	g.run("dd if=/dev/urandom of=/dev/vda bs=1M seek=64 count=24 2> /dev/null && sync")
	left, right := g.sum(64, 8), g.sum(80, 8)
	g.run("blkdiscard -z -o 72MiB -l 8MiB /dev/vda")
	require.Equal(t, zeros(8), g.sum(72, 8), "the zeroed range")
	require.Equal(t, left, g.sum(64, 8), "before it")
	require.Equal(t, right, g.sum(80, 8), "behind it")
}

// cacheMode switches as an administrator would; the guest reads back what the
// device says.
func cacheMode(t *testing.T, g *guest) {
	for _, mode := range []string{"write through", "write back"} {
		g.run("echo '" + mode + "' > /sys/block/vda/cache_type")
		require.Equal(t, mode, g.run("cat /sys/block/vda/cache_type"))
		g.run("dd if=/dev/urandom of=/dev/vda bs=1M count=4 conv=fsync 2> /dev/null")
	}
}

func TestGuestReadOnly(t *testing.T) {
	needGuest(t)
	d := newDisk(t, 16*mib)
	random := make([]byte, 16*mib)
	rand.NewChaCha8([32]byte{7}).Read(random)
	require.NoError(t, os.WriteFile(d.image, random, 0o400))
	want := imageSum(t, d, 16)
	d.readOnly = true
	s := serve(t, d)
	g := boot(t, d)
	require.Equal(t, "1", g.run("cat /sys/block/vda/ro"))
	require.Equal(t, want, g.sum(0, 16))
	for _, refused := range []string{
		"dd if=/dev/zero of=/dev/vda bs=4k count=1 conv=fsync",
		"blkdiscard /dev/vda",
		"blkdiscard -z /dev/vda",
		"mkfs.ext4 -q -F /dev/vda",
	} {
		out, status := g.try(refused)
		require.NotZero(t, status, "%s\n%s", refused, out)
	}
	require.Equal(t, want, g.sum(0, 16), "still readable, still the same")
	g.quit()
	s.stop()
	require.Equal(t, want, imageSum(t, d, 16), "the image is untouched")
}

// interrupts counts each queue's completion interrupts.
func (g *guest) interrupts() []int {
	g.t.Helper()
	var n []int
	for _, queue := range []string{"0", "1"} {
		n = append(n, g.number("awk '/virtio.*-req."+queue+"$/ {print $2 + $3}' /proc/interrupts"))
	}
	return n
}

// reportTo makes a sub-test's failures its own, until the returned function is called.
func (g *guest) reportTo(t *testing.T) (restore func()) {
	outer := g.t
	g.t = t
	return func() { g.t = outer }
}

// imageSum is the checksum of the image's first n MiB.
func imageSum(t *testing.T, d disk, n int64) string {
	t.Helper()
	f, err := os.Open(d.image)
	require.NoError(t, err)
	defer f.Close()
	h := md5.New()
	_, err = io.CopyN(h, f, n*mib)
	require.NoError(t, err)
	return hex.EncodeToString(h.Sum(nil))
}

// zeros is the checksum of n MiB of zeros.
func zeros(n int) string {
	sum := md5.Sum(make([]byte, n*mib))
	return hex.EncodeToString(sum[:])
}

// blocks is how many 512-byte blocks the image takes on the host.
func blocks(t *testing.T, d disk) int64 {
	t.Helper()
	var st unix.Stat_t
	require.NoError(t, unix.Stat(d.image, &st))
	return st.Blocks
}

// punches is whether the file system of temporary files can punch holes.
func punches(t *testing.T) bool {
	t.Helper()
	f, err := os.CreateTemp(t.TempDir(), "punch")
	require.NoError(t, err)
	defer f.Close()
	return unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, 4096) == nil
}

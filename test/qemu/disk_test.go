package qemu

import (
	"crypto/md5"
	"encoding/hex"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

const mib = 1 << 20

// TestGuestDisk takes one boot through everything that a guest does with a disk, and with a
// second one that is read-only, and looks at the images from outside when the guest is gone.
func TestGuestDisk(t *testing.T) {
	needGuest(t)
	d, fixed := newDisk(t, 384*mib), newReadOnlyDisk(t)
	d.more = "serial=elevisor-7,seg-max=62,physical-block-size=4096"
	s, s2 := serve(t, d), serve(t, fixed.disk)
	g := boot(t, d, fixed.disk)
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
		{"read-only", func(t *testing.T, g *guest) { readOnly(t, g, fixed) }},
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
	g.run("dd if=/dev/urandom of=/mnt/last bs=1M count=4 2> /dev/null && umount /mnt")
	want := g.sum(0, 24)
	g.quit()
	s.stop()
	s2.stop()
	require.Equal(t, want, imageSum(t, d, 24), "the image is what the guest saw last")
	require.Equal(t, fixed.sum, imageSum(t, fixed.disk, 8), "the read-only image is untouched")
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
	var names, values []string
	for name, value := range want {
		names, values = append(names, name), append(values, value)
	}
	seen := strings.Split(g.run("cd /sys/block/vda && for f in "+strings.Join(names, " ")+"; do read -r v < $f; echo \"$v\"; done"), "\n")
	require.Len(t, seen, len(names))
	for i, name := range names {
		require.Equal(t, values[i], seen[i], name)
	}
	require.Equal(t, "0\n1", g.run("ls -1 /sys/block/vda/mq"), "hardware queues")
	require.Positive(t, g.number("cat /sys/block/vda/queue/discard_max_bytes"), "discard")
	require.Positive(t, g.number("cat /sys/block/vda/queue/write_zeroes_max_bytes"), "write zeroes")
}

func fileSystem(t *testing.T, g *guest) {
	g.run("mkfs.ext4 -q -F /dev/vda && mount -t ext4 /dev/vda /mnt")
	g.run("mkdir /mnt/many && for i in $(seq 200); do echo file $i > /mnt/many/$i; done")
	want := firstWord(g.run("dd if=/dev/urandom of=/tmp/data bs=1M count=8 2> /dev/null && cp /tmp/data /mnt/data && md5sum < /tmp/data && rm /tmp/data"))
	require.Equal(t, want, firstWord(g.run(dropCaches+" && md5sum < /mnt/data")), "read back from the disk")
	require.Equal(t, "200", g.run("cat /mnt/many/* | grep -c '^file '"))
	g.run("umount /mnt && e2fsck -fn /dev/vda")
}

// fioVerify loads each queue from a CPU of its own; fio checks every block it reads.
func fioVerify(t *testing.T, g *guest) {
	before := g.interrupts()
	g.run("fio --name=v --filename=/dev/vda --ioengine=libaio --direct=1 --rw=randwrite --bsrange=4k-64k " +
		"--iodepth=32 --size=16M --numjobs=2 --offset_increment=64M --cpus_allowed=0,1 --cpus_allowed_policy=split " +
		"--verify=crc32c --verify_fatal=1 --group_reporting")
	g.run("fio --name=u --filename=/dev/vda --ioengine=io_uring --direct=1 --rw=randrw --bs=4k --offset=256M " +
		"--iodepth=64 --iodepth_batch_submit=16 --iodepth_batch_complete_min=1 --size=12M --verify=crc32c --verify_fatal=1")
	for i, n := range g.interrupts() {
		require.Greater(t, n, before[i], "completions of queue %d", i)
	}
}

// discard wants the range to read as zeros, its neighbours untouched, and the
// image smaller where its file system can.
func discard(t *testing.T, g *guest, d disk) {
	zeroed(t, g, "blkdiscard", func() int64 { return blocks(t, d) })
}

func writeZeroes(t *testing.T, g *guest) {
	zeroed(t, g, "blkdiscard -z", func() int64 { return 0 })
}

// zeroed runs a command for the middle of three parts of the disk, 2 MiB each. size is what
// the image takes of its file system, in blocks of 512 bytes.
func zeroed(t *testing.T, g *guest, command string, size func() int64) {
	const part = 2
	g.run(fmt.Sprintf("dd if=/dev/urandom of=/dev/vda bs=1M seek=64 count=%d 2> /dev/null && sync", 3*part))
	left, right := g.sum(64, part), g.sum(64+2*part, part)
	before := size()
	g.run(fmt.Sprintf("%s -o %dMiB -l %dMiB /dev/vda", command, 64+part, part))
	require.Equal(t, zeros(part), g.sum(64+part, part), "the range itself")
	require.Equal(t, left, g.sum(64, part), "before it")
	require.Equal(t, right, g.sum(64+2*part, part), "behind it")
	if before > 0 && punches(t) {
		require.LessOrEqual(t, size(), before-part*mib/512, "512-byte blocks that the image takes")
	}
}

// cacheMode switches as an administrator would; the guest reads back what the
// device says.
func cacheMode(t *testing.T, g *guest) {
	for _, mode := range []string{"write through", "write back"} {
		require.Equal(t, mode, g.run("cd /sys/block/vda && echo '"+mode+"' > cache_type && cat cache_type"))
		g.run("dd if=/dev/urandom of=/dev/vda bs=1M count=1 conv=fsync 2> /dev/null")
	}
}

// readOnlyDisk is full of data that nobody may change.
type readOnlyDisk struct {
	disk
	sum string
}

func newReadOnlyDisk(t *testing.T) readOnlyDisk {
	t.Helper()
	d := newDisk(t, 8*mib)
	random := make([]byte, 8*mib)
	rand.NewChaCha8([32]byte{7}).Read(random)
	require.NoError(t, os.WriteFile(d.image, random, 0o400))
	d.readOnly = true
	return readOnlyDisk{d, imageSum(t, d, 8)}
}

// readOnly wants the second disk to be readable, and each way to write to it refused.
func readOnly(t *testing.T, g *guest, d readOnlyDisk) {
	require.Equal(t, "1", g.run("cat /sys/block/vdb/ro"))
	require.Equal(t, d.sum, g.sumOf("/dev/vdb", 0, 8))
	for _, refused := range []string{
		"dd if=/dev/zero of=/dev/vdb bs=4k count=1 conv=fsync",
		"blkdiscard /dev/vdb",
		"blkdiscard -z /dev/vdb",
		"mkfs.ext4 -q -F /dev/vdb",
	} {
		out, status := g.try(refused)
		require.NotZero(t, status, "%s\n%s", refused, out)
	}
	require.Equal(t, d.sum, g.sumOf("/dev/vdb", 0, 8), "still readable, still the same")
}

// interrupts counts the completion interrupts of each queue of the first disk.
func (g *guest) interrupts() []int {
	g.t.Helper()
	var n []int
	for _, queue := range []string{"0", "1"} {
		n = append(n, g.number("awk '/virtio0-req."+queue+"$/ {print $2 + $3}' /proc/interrupts"))
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

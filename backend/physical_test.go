package backend

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/elevisor/elevisor/blk"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// machine is a tree like /sys, and what stat says of files.
type machine struct {
	t     *testing.T
	root  string
	files map[string]unix.Stat_t
}

func newMachine(t *testing.T) *machine {
	root, err := filepath.EvalSymlinks(t.TempDir())
	require.NoError(t, err)
	m := &machine{t: t, root: root, files: map[string]unix.Stat_t{}}
	require.NoError(t, os.MkdirAll(filepath.Join(root, "dev/block"), 0o755))
	require.NoError(t, os.MkdirAll(filepath.Join(root, "block"), 0o755))
	return m
}

func (m *machine) sysfs() *sysfs {
	return &sysfs{root: m.root, stat: func(path string, st *unix.Stat_t) error {
		f, ok := m.files[path]
		if !ok {
			return unix.ENOENT
		}
		*st = f
		return nil
	}}
}

func (m *machine) write(path, value string) {
	path = filepath.Join(m.root, path)
	require.NoError(m.t, os.MkdirAll(filepath.Dir(path), 0o755))
	require.NoError(m.t, os.WriteFile(path, []byte(value+"\n"), 0o644))
}

// link makes path a relative link to target, as those of sysfs are.
func (m *machine) link(path, target string) {
	path, target = filepath.Join(m.root, path), filepath.Join(m.root, target)
	require.NoError(m.t, os.MkdirAll(filepath.Dir(path), 0o755))
	require.NoError(m.t, os.MkdirAll(target, 0o755))
	rel, err := filepath.Rel(filepath.Dir(path), target)
	require.NoError(m.t, err)
	require.NoError(m.t, os.Symlink(rel, path))
}

// block makes a block device and returns its directory. parent is that of the
// device it hangs on, or "virtual".
func (m *machine) block(parent, name, number, rotational string) string {
	dir := filepath.Join("devices", parent, "block", name)
	m.link("dev/block/"+number, dir)
	m.link("block/"+name, dir)
	m.write(dir+"/dev", number)
	if rotational != "" {
		m.write(dir+"/queue/rotational", rotational)
	}
	require.NoError(m.t, os.MkdirAll(filepath.Join(m.root, dir, "slaves"), 0o755))
	if parent != "virtual" {
		m.link(dir+"/device", filepath.Join("devices", parent))
	}
	return dir
}

// sata makes a disk on a real controller.
func (m *machine) sata(name, number, rotational string) string {
	host := "pci0000:00/0000:00:17.0/ata1/host0"
	target := host + "/target0:0:0/" + name
	m.write("devices/"+target+"/vendor", "ATA     ")
	m.write("devices/"+target+"/model", "WDC WD40EFRX-68N")
	m.link("devices/"+target+"/driver", "bus/scsi/drivers/sd")
	if _, err := os.Lstat(filepath.Join(m.root, "devices/pci0000:00/0000:00:17.0/driver")); err != nil {
		m.link("devices/pci0000:00/0000:00:17.0/driver", "bus/pci/drivers/ahci")
	}
	return m.block(target, name, number, rotational)
}

func (m *machine) partition(disk string, index int, number string, start int) string {
	dir := fmt.Sprintf("%s/%s%d", disk, filepath.Base(disk), index)
	m.write(dir+"/partition", fmt.Sprint(index))
	m.write(dir+"/start", fmt.Sprint(start))
	m.link("dev/block/"+number, dir)
	return dir
}

// stacked makes a device on others.
func (m *machine) stacked(name, number string, on ...string) string {
	dir := m.block("virtual", name, number, "1")
	for _, lower := range on {
		m.link(dir+"/slaves/"+filepath.Base(lower), lower)
	}
	return dir
}

func (m *machine) loop(name, number, file string) string {
	dir := m.block("virtual", name, number, "1")
	m.write(dir+"/loop/backing_file", file)
	return dir
}

// fileOn is what stat says of a regular file on block device number.
func fileOn(number string) (st unix.Stat_t) {
	st.Mode, st.Dev = unix.S_IFREG|0o644, devno(number)
	return st
}

func node(number string) (st unix.Stat_t) {
	st.Mode, st.Dev, st.Rdev = unix.S_IFBLK|0o660, unix.Mkdev(0, 6), devno(number)
	return st
}

func devno(number string) uint64 {
	var major, minor uint32
	if _, err := fmt.Sscanf(number, "%d:%d", &major, &minor); err != nil {
		panic(err)
	}
	return unix.Mkdev(major, minor)
}

// The trees that the cases below look at.
func bigMachine(t *testing.T) *machine {
	m := newMachine(t)
	sda := m.sata("sda", "8:0", "1")
	m.partition(sda, 1, "8:1", 2048)
	sda2 := m.partition(sda, 2, "8:2", 1050624)
	sdb := m.sata("sdb", "8:16", "0")
	sdb1 := m.partition(sdb, 1, "8:17", 63)
	sdc := m.sata("sdc", "8:32", "1")
	m.sata("sdd", "8:48", "")
	md0 := m.stacked("md0", "9:0", sda2, sdb1)
	m.partition(md0, 1, "259:0", 4096)
	m.stacked("dm-0", "252:0", md0)
	m.stacked("dm-1", "252:1", m.stacked("dm-2", "252:2", sdc), m.stacked("dm-3", "252:3", sdc, sda))
	m.stacked("dm-4", "252:4", sdb1)
	m.stacked("dm-5", "252:5")

	vda := m.block("pci0000:00/0000:00:02.0/virtio1", "vda", "254:0", "1")
	m.link("devices/pci0000:00/0000:00:02.0/virtio1/driver", "bus/virtio/drivers/virtio_blk")
	m.partition(vda, 1, "254:1", 2048)
	m.stacked("dm-6", "252:6", vda, sdb)
	m.stacked("dm-7", "252:7", vda, sda)
	m.block("pci0000:00/0000:00:02.0/virtio1/fixed", "vdb", "254:16", "0")
	m.block("vbd-51712", "xvda", "202:0", "1")
	m.link("devices/vbd-51712/driver", "bus/xen/drivers/vbd")
	m.block("LNXSYSTM:00/VMBUS:00/host2/target2:0:0/2:0:0:0", "sde", "8:64", "1")
	m.link("devices/LNXSYSTM:00/VMBUS:00/host2/target2:0:0/2:0:0:0/driver", "bus/scsi/drivers/sd")
	m.link("devices/LNXSYSTM:00/VMBUS:00/driver", "bus/vmbus/drivers/hv_storvsc")
	m.block("ata2/host3/3:0:0:0", "sdf", "8:80", "1")
	m.write("devices/ata2/host3/3:0:0:0/vendor", "ATA     ")
	m.write("devices/ata2/host3/3:0:0:0/model", "QEMU HARDDISK   ")
	m.block("rbd/0", "rbd0", "251:0", "1")
	m.link("devices/rbd/0/subsystem", "bus/rbd")
	m.block("virtual", "nbd0", "43:0", "1")
	m.block("virtual", "zram0", "253:0", "0")

	m.loop("loop0", "7:0", "/images/a")
	m.files["/images/a"] = fileOn("8:1")
	m.loop("loop1", "7:1", "/dev/sdc")
	m.files["/dev/sdc"] = node("8:32")
	m.loop("loop2", "7:2", "/tmp/a")
	m.files["/tmp/a"] = fileOn("0:44")
	m.loop("loop3", "7:3", "/gone (deleted)")
	m.loop("loop4", "7:4", "/on loop5")
	m.loop("loop5", "7:5", "/on loop4")
	m.files["/on loop4"], m.files["/on loop5"] = fileOn("7:4"), fileOn("7:5")
	loop6 := m.loop("loop6", "7:6", "/on loop0")
	m.files["/on loop0"] = fileOn("7:0")
	m.partition(loop6, 1, "259:1", 34)
	return m
}

func TestPhysical(t *testing.T) {
	m := bigMachine(t)
	for _, c := range []struct {
		name    string
		image   unix.Stat_t
		devices string
		claims  string
		base    blk.Sector
		reason  string
	}{
		{"disk", node("8:0"), "sda", "rotational, believed", 0, "sda is rotational"},
		{"file on a disk", fileOn("8:0"), "sda", "rotational, believed", 0, "sda is rotational"},
		{"partition", node("8:2"), "sda", "rotational, believed", 1050624, "sda is rotational"},
		{"file on a partition", fileOn("8:2"), "sda", "rotational, believed", 0, "sda is rotational"},
		{"flash", node("8:17"), "sdb", "believed", 63, "sdb is not rotational"},
		{"silent disk", node("8:48"), "sdd", "", 0, "whether sdd is rotational is not known"},
		{"RAID", node("9:0"), "sda sdb", "rotational, believed", 0, "sda is rotational"},
		{"partition of a RAID", node("259:0"), "sda sdb", "rotational, believed", 0, "sda is rotational"},
		{"volume on a RAID", fileOn("252:0"), "sda sdb", "rotational, believed", 0, "sda is rotational"},
		{"volumes on volumes", fileOn("252:1"), "sda sdc", "rotational, believed", 0, "sda, sdc are rotational"},
		{"volume on flash", node("252:4"), "sdb", "believed", 0, "sdb is not rotational"},
		{"volume of nothing", node("252:5"), "dm-5", "rotational", 0, "dm-5 claims to be rotational, but is virtual (dm)"},
		{"virtio", fileOn("254:0"), "vda", "rotational", 0, "vda claims to be rotational, but is virtual (virtio_blk)"},
		{"partition on virtio", node("254:1"), "vda", "rotational", 2048, "vda claims to be rotational, but is virtual (virtio_blk)"},
		{"virtio that says it is fixed", node("254:16"), "vdb", "believed", 0, "vdb is not rotational"},
		{"virtual and flash", node("252:6"), "sdb vda", "rotational", 0, "vda claims to be rotational, but is virtual (virtio_blk)"},
		{"virtual and real", node("252:7"), "sda vda", "rotational, believed", 0, "sda is rotational"},
		{"Xen", node("202:0"), "xvda", "rotational", 0, "xvda claims to be rotational, but is virtual (vbd)"},
		{"Hyper-V", node("8:64"), "sde", "rotational", 0, "sde claims to be rotational, but is virtual (hv_storvsc)"},
		{"emulated", node("8:80"), "sdf", "rotational", 0, "sdf claims to be rotational, but is virtual (ATA QEMU HARDDISK)"},
		{"rbd", node("251:0"), "rbd0", "rotational", 0, "rbd0 claims to be rotational, but is virtual (rbd)"},
		{"nbd", node("43:0"), "nbd0", "rotational", 0, "nbd0 claims to be rotational, but is virtual (nbd)"},
		{"zram", node("253:0"), "zram0", "believed", 0, "zram0 is not rotational"},
		{"loop on a partition's file", node("7:0"), "sda", "rotational, believed", 0, "sda is rotational"},
		{"loop on a disk", node("7:1"), "sdc", "rotational, believed", 0, "sdc is rotational"},
		{"loop on tmpfs", node("7:2"), "loop2", "rotational", 0, "loop2 claims to be rotational, but is virtual (loop)"},
		{"loop on a deleted file", node("7:3"), "loop3", "rotational", 0, "loop3 claims to be rotational, but is virtual (loop)"},
		{"partition of a loop on a loop", node("259:1"), "sda", "rotational, believed", 0, "sda is rotational"},
		{"unknown device", node("8:99"), "", "", 0, "image is on block device 8:99, which is not in " + m.root},
		{"loops in a circle", node("7:4"), "loop4", "rotational", 0, "loop4 claims to be rotational, but is virtual (loop)"},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := m.sysfs().physical(&c.image, 0)
			require.Equal(t, Physical{
				Devices: devices(c.devices), Base: c.base, Reason: c.reason,
				Rotational: strings.Contains(c.claims, "rotational"), Believed: strings.Contains(c.claims, "believed"),
			}, p)
		})
	}
}

func devices(s string) []string {
	if s == "" {
		return nil
	}
	return strings.Fields(s)
}

func TestPhysical_withoutDevice(t *testing.T) {
	m := newMachine(t)
	st := fileOn("0:44")
	for fs, reason := range map[uint32]string{
		unix.TMPFS_MAGIC:           "image is not on a block device (tmpfs)",
		unix.NFS_SUPER_MAGIC:       "image is not on a block device (nfs)",
		unix.SMB2_SUPER_MAGIC:      "image is not on a block device (smb2)",
		unix.BTRFS_SUPER_MAGIC:     "image is on btrfs, which does not say on which block device",
		unix.OVERLAYFS_SUPER_MAGIC: "image is on overlayfs, which does not say on which block device",
		0x2fc12fc1:                 "image is on zfs, which does not say on which block device",
		0x1234:                     "image is not on a block device (file system type 0x1234)",
	} {
		require.Equal(t, Physical{Reason: reason}, m.sysfs().physical(&st, fs))
	}
}

func TestPhysical_SharesDisk(t *testing.T) {
	of := func(s string) *Physical { return &Physical{Devices: devices(s)} }
	for _, c := range []struct {
		a, b   string
		shared bool
	}{
		{"sda", "sda", true}, {"sda sdb", "sdb sdc", true}, {"nvme0n1 sda sdb", "sdb", true},
		{"sda", "sdb", false}, {"sda sdb", "sdc sdd", false}, {"sda", "", false}, {"", "", false},
	} {
		require.Equal(t, c.shared, of(c.a).SharesDisk(of(c.b)), "%q %q", c.a, c.b)
		require.Equal(t, c.shared, of(c.b).SharesDisk(of(c.a)), "%q %q", c.b, c.a)
	}
}

// On whatever machine this runs: what is said is possible.
func TestPhysical_here(t *testing.T) {
	img, err := Open(sparse(t, 4096), Options{})
	require.NoError(t, err)
	defer func() { require.NoError(t, img.Close()) }()
	i := img.Info()
	p := i.Physical
	t.Logf("%+v", p)
	require.NotEmpty(t, p.Reason)
	require.NotContains(t, p.Reason, "\n")
	require.Zero(t, p.Base, "of a file")
	require.Equal(t, p.Rotational && p.Believed, i.Rotational)
	require.True(t, slices.IsSorted(p.Devices))
	require.Equal(t, len(p.Devices) > 0, p.SharesDisk(&p))
	require.True(t, len(p.Devices) > 0 || !p.Rotational && !p.Believed)
	for _, d := range p.Devices {
		require.FileExists(t, filepath.Join("/sys/block", d, "dev"))
	}
	again, err := Open(sparse(t, 4096), Options{})
	require.NoError(t, err)
	require.Equal(t, p, again.Info().Physical, "of another file beside it")
	require.NoError(t, again.Close())
}

func TestPhysical_memory(t *testing.T) {
	for _, kind := range []string{"mem", "null"} {
		i := open(t, kind+":size=1M", Options{}).b.Info()
		require.False(t, i.Rotational)
		require.Equal(t, Physical{Believed: true, Reason: "image is not on a block device (" + kind + ")"}, i.Physical)
	}
}

// The devices of this machine are found as its kernel shows them, and nothing that
// a device is made of is taken for a disk.
func TestPhysical_blockDevicesHere(t *testing.T) {
	numbers, err := os.ReadDir("/sys/dev/block")
	if err != nil || len(numbers) == 0 {
		t.Skip("needs block devices in /sys/dev/block")
	}
	for _, e := range numbers {
		st := node(e.Name())
		p := hostSysfs.physical(&st, 0)
		if _, err := os.Lstat(filepath.Join("/sys/dev/block", e.Name())); err != nil {
			continue // it is gone
		}
		require.NotEmpty(t, p.Devices, e.Name())
		for _, d := range p.Devices {
			slaves, err := os.ReadDir(filepath.Join("/sys/block", d, "slaves"))
			require.NoError(t, err)
			require.Empty(t, slaves)
		}
	}
}

func TestPhysical_loopDeviceHere(t *testing.T) {
	path := sparse(t, modelSize)
	file, err := Open(path, Options{})
	require.NoError(t, err)
	want := file.Info().Physical
	require.NoError(t, file.Close())
	if len(want.Devices) == 0 {
		t.Skip("needs a temporary directory on a block device")
	}
	loop, err := Open(loopDevice(t, path, 512, 0), Options{})
	require.NoError(t, err)
	require.Equal(t, want, loop.Info().Physical)
	require.NoError(t, loop.Close())
}

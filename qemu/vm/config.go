package vm

import (
	"cmp"
	"context"
	"fmt"
	"os/exec"
	"regexp"
	"strconv"
	"time"
)

// DefaultProgram is QEMU's.
const DefaultProgram = "qemu-system-x86_64"

// defaultQueueSize is QEMU's for such a disk.
const defaultQueueSize = 128

// probeLimit is long enough for a boot under KVM on a busy machine.
const probeLimit = 30 * time.Second

// kernelOptions make a quick and quiet boot. random.trust_cpu: without entropy,
// mkfs.ext4 waits seconds for its UUID. reboot=t: a triple fault, the quickest end.
const kernelOptions = "console=ttyS0 quiet loglevel=4 panic=-1 reboot=t mitigations=off nokaslr " +
	"tsc=reliable no_timer_check random.trust_cpu=on audit=0 selinux=0 apparmor=0 cryptomgr.notests init_on_alloc=0"

// Version is QEMU's.
type Version struct{ Major, Minor int }

func (v Version) String() string { return fmt.Sprintf("%d.%d", v.Major, v.Minor) }

// IgnoresQueueSize says whether that QEMU gives every virtqueue 1024 entries, whatever
// queue-size says: 10.0 to 11.0 (virtio_add_queue in hw/virtio/virtio.c).
func (v Version) IgnoresQueueSize() bool {
	return v.Major == 10 || v.Major == 11 && v.Minor < 1
}

var versionText = regexp.MustCompile(`version (\d+)\.(\d+)`)

// QEMUVersion asks a program for it.
func QEMUVersion(ctx context.Context, program string) (v Version, err error) {
	program = cmp.Or(program, DefaultProgram)
	out, err := exec.CommandContext(ctx, program, "--version").Output()
	if ctx.Err() != nil {
		err = ctx.Err()
	}
	if err != nil {
		return v, fmt.Errorf("%s --version: %w", program, err)
	}
	found := versionText.FindSubmatch(out)
	if found == nil {
		return v, fmt.Errorf("%s --version: no version in %.80q", program, out)
	}
	v.Major, _ = strconv.Atoi(string(found[1]))
	v.Minor, _ = strconv.Atoi(string(found[2]))
	return v, nil
}

// withDefaults fills in what is not given, but for the accelerator.
func (c Config) withDefaults() Config {
	c.Program = cmp.Or(c.Program, DefaultProgram)
	c.Machine = cmp.Or(c.Machine, "pc")
	c.CPUs = cmp.Or(c.CPUs, 2)
	c.MemoryMiB = cmp.Or(c.MemoryMiB, 512)
	c.Probe.CPUInfo = cmp.Or(c.Probe.CPUInfo, "/proc/cpuinfo")
	c.Probe.KVM = cmp.Or(c.Probe.KVM, "/dev/kvm")
	c.Probe.Limit = cmp.Or(c.Probe.Limit, probeLimit)
	return c
}

// check completes a configuration and wants QEMU and the guest to be there.
func (c Config) check(ctx context.Context) (Config, Version, error) {
	c = c.withDefaults()
	if err := c.Guest.Check(); err != nil {
		return c, Version{}, err
	}
	v, err := QEMUVersion(ctx, c.Program)
	return c, v, err
}

// arguments are QEMU's, without the disks'.
func (c *Config) arguments() []string {
	// Nehalem has SSE 4.2 for fio's crc32c; without RDRAND the guest has no entropy.
	accel := []string{"-accel", "tcg,thread=multi", "-cpu", "Nehalem,+rdrand"}
	if c.Accel == AccelKVM {
		accel = []string{"-accel", "kvm", "-cpu", "host"}
	}
	options := kernelOptions
	if len(c.Disks) == 0 {
		options += " elevisor.disk=later"
	}
	return append(accel,
		"-machine", c.Machine+",hpet=off,usb=off,vmport=off,memory-backend=mem", "-smp", strconv.Itoa(c.CPUs), "-m", strconv.Itoa(c.MemoryMiB),
		"-object", fmt.Sprintf("memory-backend-memfd,id=mem,size=%dM,share=on", c.MemoryMiB),
		"-nodefaults", "-no-user-config", "-display", "none",
		"-serial", "file:"+consoleFile(c.Dir), "-chardev", "stdio,id=agent,signal=off", "-serial", "chardev:agent",
		"-qmp", "unix:"+controlSocket(c.Dir)+",server=on,wait=off", "-qmp", "unix:"+monitorSocket(c.Dir)+",server=on,wait=off",
		"-kernel", c.Guest.Kernel, "-initrd", c.Guest.Initrd, "-append", options)
}

// diskArguments are QEMU's for the disks. The option by which QEMU connects again, in
// whole seconds, was removed after the newer one came.
func (c *Config) diskArguments(v Version) (args []string) {
	reconnect := "reconnect=1"
	if v.Major >= 10 {
		reconnect = "reconnect-ms=200"
	}
	for i, d := range c.Disks {
		id := "disk"
		if i > 0 {
			id += strconv.Itoa(i)
		}
		args = append(args, "-chardev", fmt.Sprintf("socket,id=vu-%s,path=%s,%s", id, d.Socket, reconnect),
			"-device", fmt.Sprintf("vhost-user-blk-pci,id=%s,chardev=vu-%s,num-queues=%d,queue-size=%d", id, id, d.NumQueues, cmp.Or(d.QueueSize, defaultQueueSize)))
	}
	return args
}

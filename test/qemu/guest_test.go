package qemu

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

const memory = 512 // MiB of the guest

// kernelOptions make a quick and quiet boot. random.trust_cpu: without entropy,
// mkfs.ext4 waits seconds for its UUID. reboot=t: a triple fault, the quickest end.
const kernelOptions = "console=ttyS0 quiet loglevel=4 panic=-1 reboot=t mitigations=off nokaslr " +
	"tsc=reliable no_timer_check random.trust_cpu=on audit=0 selinux=0 apparmor=0 cryptomgr.notests init_on_alloc=0"

// guest is a running virtual machine whose /dev/vda is a disk of ours. Its second
// serial line carries commands and answers (test/guest/agent).
type guest struct {
	t       *testing.T
	cmd     *exec.Cmd
	stdin   io.WriteCloser
	lines   chan string // what the agent prints; closed at QEMU's end
	done    chan struct{}
	log     *logBuffer // what QEMU itself prints
	console string     // file with the kernel's console
	qmp     *qmp
	monitor string // a second QMP socket, for the program under test
	serial  int    // number of the last command
}

// boot starts a machine on the server's socket and returns when its agent answers.
// The machine reconnects when the server goes away.
func boot(t *testing.T, d disk) *guest {
	t.Helper()
	return bootMachine(t, d, "pc")
}

// bootMachine boots one of QEMU's machines, with further arguments.
func bootMachine(t *testing.T, d disk, machine string, more ...string) *guest {
	t.Helper()
	files, err := guestFiles()
	require.NoError(t, err)
	dir := t.TempDir()
	g := &guest{
		t: t, log: &logBuffer{}, console: filepath.Join(dir, "console"),
		lines: make(chan string, 1024), done: make(chan struct{}), monitor: filepath.Join(dir, "attach.sock"),
	}
	control := filepath.Join(dir, "qmp.sock")
	g.cmd = exec.Command(qemuProgram(), append(g.arguments(files, control, machine, d), more...)...)
	g.cmd.Stderr = g.log
	g.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	g.stdin, err = g.cmd.StdinPipe()
	require.NoError(t, err)
	out, err := g.cmd.StdoutPipe()
	require.NoError(t, err)
	start := time.Now()
	require.NoError(t, g.cmd.Start())
	go g.read(out)
	t.Cleanup(g.cleanup)
	g.qmp = dialQMP(t, control, g.ended)
	g.await(0)
	t.Logf("guest is up after %.1f s", time.Since(start).Seconds())
	return g
}

func (g *guest) arguments(files, control, machine string, d disk) []string {
	kernel := filepath.Join(files, "vmlinux")
	if _, err := os.Stat(kernel); err != nil {
		kernel = filepath.Join(files, "vmlinuz")
	}
	// Nehalem has SSE 4.2 for fio's crc32c; without RDRAND the guest has no entropy.
	accel := []string{"-accel", "tcg,thread=multi", "-cpu", "Nehalem,+rdrand"}
	if unix.Access("/dev/kvm", unix.R_OK|unix.W_OK) == nil {
		accel = []string{"-accel", "kvm", "-cpu", "host"}
	}
	return append(accel,
		"-machine", machine+",hpet=off,usb=off,vmport=off,memory-backend=mem", "-smp", "2", "-m", strconv.Itoa(memory),
		"-object", fmt.Sprintf("memory-backend-memfd,id=mem,size=%dM,share=on", memory),
		"-nodefaults", "-no-user-config", "-display", "none",
		"-serial", "file:"+g.console, "-chardev", "stdio,id=agent,signal=off", "-serial", "chardev:agent",
		"-qmp", "unix:"+control+",server=on,wait=off", "-qmp", "unix:"+g.monitor+",server=on,wait=off",
		"-kernel", kernel, "-initrd", filepath.Join(files, "base.cpio"), "-append", kernelOptions,
		"-chardev", "socket,id=vu,path="+d.socket+","+reconnect(g.t),
		"-device", fmt.Sprintf("vhost-user-blk-pci,id=disk,chardev=vu,num-queues=%d,queue-size=128", d.queues))
}

// reconnect is the option by which QEMU connects again; the older one, in whole
// seconds, was removed after the newer one came.
func reconnect(t *testing.T) string {
	t.Helper()
	out, err := exec.Command(qemuProgram(), "--version").Output()
	require.NoError(t, err)
	m := regexp.MustCompile(`version (\d+)\.`).FindSubmatch(out)
	require.NotNil(t, m, "%s", out)
	if major, _ := strconv.Atoi(string(m[1])); major >= 10 {
		return "reconnect-ms=200"
	}
	return "reconnect=1"
}

// read hands over the agent's lines until QEMU ends.
func (g *guest) read(out io.Reader) {
	scan := bufio.NewScanner(out)
	scan.Buffer(nil, 1<<20)
	for scan.Scan() {
		g.lines <- strings.TrimRight(scan.Text(), "\r")
	}
	g.cmd.Wait()
	close(g.done)
	close(g.lines)
}

func (g *guest) ended() bool {
	select {
	case <-g.done:
		return true
	default:
		return false
	}
}

// cleanup ends QEMU, and after a failure shows what it and the guest's kernel said.
func (g *guest) cleanup() {
	g.cmd.Process.Kill()
	for range g.lines { // until the reader has seen the end
	}
	if !g.t.Failed() {
		return
	}
	console, _ := os.ReadFile(g.console)
	g.t.Logf("QEMU printed:\n%s", g.log)
	g.t.Logf("the guest's console, its end:\n%s", console[max(0, len(console)-4096):])
}

// await collects what the agent prints up to the end of command n.
func (g *guest) await(n int) (output string, status int) {
	g.t.Helper()
	var text strings.Builder
	mark := fmt.Sprintf("=%d ", n)
	timeout := time.After(patience)
	for {
		select {
		case line, ok := <-g.lines:
			if !ok {
				require.FailNow(g.t, "QEMU has ended", "waiting for command %d; so far:\n%s", n, text.String())
			}
			if rest, found := strings.CutPrefix(line, mark); found {
				status, err := strconv.Atoi(rest)
				require.NoError(g.t, err, "line %q", line)
				return strings.TrimSpace(text.String()), status
			}
			text.WriteString(line + "\n")
		case <-timeout:
			require.FailNow(g.t, "the guest does not answer", "command %d, %v; so far:\n%s", n, patience, text.String())
		}
	}
}

// ask runs a shell command in the guest, as root.
func (g *guest) ask(command string) (output string, status int) {
	g.t.Helper()
	require.NotContains(g.t, command, "\n", "a command is one line")
	g.serial++
	_, err := fmt.Fprintf(g.stdin, "%d %s\n", g.serial, command)
	require.NoError(g.t, err, "the guest is gone")
	return g.await(g.serial)
}

// try is ask, with a line in the test's log.
func (g *guest) try(command string) (output string, status int) {
	g.t.Helper()
	start := time.Now()
	output, status = g.ask(command)
	g.t.Logf("[%.1f s] status %d: %s", time.Since(start).Seconds(), status, command)
	return output, status
}

// run is try for a command that must succeed.
func (g *guest) run(command string) string {
	g.t.Helper()
	output, status := g.try(command)
	require.Zero(g.t, status, "%s\n%s", command, output)
	return output
}

// number is what a command prints; without a line in the log, since it is asked often.
func (g *guest) number(command string) int {
	g.t.Helper()
	output, status := g.ask(command)
	require.Zero(g.t, status, "%s\n%s", command, output)
	n, err := strconv.Atoi(output)
	require.NoError(g.t, err, "%s\n%s", command, output)
	return n
}

// reboot restarts the guest from within: the disk is reset and started again.
func (g *guest) reboot() {
	g.t.Helper()
	_, err := io.WriteString(g.stdin, "0 reboot -f\n")
	require.NoError(g.t, err)
	g.await(0)
}

// quit ends the machine as a user would, and waits for QEMU's end.
func (g *guest) quit() {
	g.t.Helper()
	g.qmp.do("quit")
	eventually(g.t, "QEMU's end", g.ended)
	require.True(g.t, g.cmd.ProcessState.Success(), "QEMU: %v\n%s", g.cmd.ProcessState, g.log)
}

// dropCaches makes the guest read from the disk what it reads next.
func (g *guest) dropCaches() {
	g.t.Helper()
	g.run("sync && echo 3 > /proc/sys/vm/drop_caches")
}

// sum is the checksum of a range of the guest's disk, in MiB.
func (g *guest) sum(offset, length int) string {
	g.t.Helper()
	g.dropCaches()
	return firstWord(g.run(fmt.Sprintf("dd if=/dev/vda bs=1M skip=%d count=%d 2> /dev/null | md5sum", offset, length)))
}

func firstWord(s string) string {
	word, _, _ := strings.Cut(s, " ")
	return word
}

// Package vm boots virtual machines under QEMU and drives them: each has a shell at the
// end of a serial line, QMP, and the console's text for when it does not come up.
//
// A machine belongs to its process: whatever way that ends, the machine ends too. What
// waits for a machine has a context; a command that was given up leaves the shell
// undefined, and the machine is to be killed.
package vm

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/elevisor/elevisor/qemu/qmp"
	"golang.org/x/sys/unix"
)

const (
	// commandTime bounds QMP commands; a guest that boots under emulation holds them up.
	commandTime = 5 * time.Minute
	// pollTime is between two looks at what tells nobody.
	pollTime = 20 * time.Millisecond
	// consoleEnd is how much of the console an error quotes, in bytes.
	consoleEnd = 4096
)

// Disk is a vhost-user-blk disk that the machine has from its start. It reconnects when
// its server goes away.
type Disk struct {
	Socket    string
	NumQueues int
	QueueSize int // 0: 128
}

// Config is a machine. Zero values are defaults.
type Config struct {
	Program   string // qemu-system-x86_64
	Guest     Guest
	Machine   string   // QEMU's type: pc
	Accel     string   // kvm or tcg; default: kvm where it can be used
	CPUs      int      // 2
	MemoryMiB int      // 512
	Dir       string   // where its sockets and the console's file go; the caller removes it
	Disks     []Disk   // without any the guest does not wait for one
	More      []string // further arguments
}

// Machine is a running VM. One goroutine at a time gives commands to its shell.
type Machine struct {
	cmd     *exec.Cmd
	stdin   io.WriteCloser
	lines   chan string   // what the shell prints; closed at QEMU's end
	done    chan struct{} // closed then, too
	err     error         // how QEMU ended; after done
	said    output        // what QEMU itself prints
	dir     string
	monitor *qmp.Monitor
	serial  int // number of the last command
}

// Boot starts a machine and returns when its shell answers.
func Boot(ctx context.Context, c Config) (*Machine, error) {
	c, err := c.complete()
	if err != nil {
		return nil, err
	}
	v, err := QEMUVersion(ctx, c.Program)
	if err != nil {
		return nil, err
	}
	m := &Machine{lines: make(chan string, 1024), done: make(chan struct{}), dir: c.Dir}
	m.cmd = exec.Command(c.Program, slices.Concat(c.arguments(), c.diskArguments(v), c.More)...)
	m.cmd.Stderr = &m.said
	m.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	if err := m.start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", c.Program, err)
	}
	if err = m.dial(ctx); err == nil {
		err = m.Ready(ctx)
	}
	if err != nil {
		m.Kill()
		return nil, fmt.Errorf("boot: %w%s", err, m.Diagnosis())
	}
	return m, nil
}

// start starts QEMU from a thread that lives as long: Linux sends the signal of Pdeathsig
// at the end of the thread, not of the process.
func (m *Machine) start() (err error) {
	if m.stdin, err = m.cmd.StdinPipe(); err != nil {
		return err
	}
	out, err := m.cmd.StdoutPipe()
	if err != nil {
		return err
	}
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := m.cmd.Start()
		started <- err
		if err == nil {
			m.read(out)
		}
	}()
	return <-started
}

// read hands over the shell's lines until QEMU ends.
func (m *Machine) read(out io.Reader) {
	scan := bufio.NewScanner(out)
	scan.Buffer(nil, 1<<20)
	for scan.Scan() {
		m.lines <- strings.TrimRight(scan.Text(), "\r")
	}
	m.err = m.cmd.Wait()
	close(m.done)
	close(m.lines)
}

// dial waits for QMP's socket, which QEMU makes a moment after its start.
func (m *Machine) dial(ctx context.Context) error {
	path := controlSocket(m.dir)
	for {
		mon, err := qmp.Dial(ctx, path, commandTime)
		if err == nil {
			m.monitor = mon
			return nil
		}
		late := errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ECONNREFUSED)
		switch {
		case ctx.Err() != nil || late && !m.Ended() && pause(ctx, pollTime) != nil:
			return fmt.Errorf("%w; %w", ctx.Err(), err)
		case !late || m.Ended():
			return err
		}
	}
}

// Monitor is the machine's QMP connection.
func (m *Machine) Monitor() *qmp.Monitor { return m.monitor }

// MonitorSocket is a second QMP socket, for others.
func (m *Machine) MonitorSocket() string { return monitorSocket(m.dir) }

// PID is QEMU's.
func (m *Machine) PID() int { return m.cmd.Process.Pid }

// Ended says whether QEMU has.
func (m *Machine) Ended() bool {
	select {
	case <-m.done:
		return true
	default:
		return false
	}
}

// Quit ends the machine by QMP and waits for its end; an error is how QEMU failed. After
// ctx the machine is killed.
func (m *Machine) Quit(ctx context.Context) error {
	defer m.Kill()
	if err := m.monitor.Execute(ctx, "quit", nil, nil); err != nil && !m.Ended() && ctx.Err() != nil {
		return err
	}
	for { // unread lines would hold QEMU up
		select {
		case _, more := <-m.lines:
			if more {
				continue
			}
			if m.err != nil {
				return fmt.Errorf("QEMU: %w%s", m.err, m.Diagnosis())
			}
			return nil
		case <-ctx.Done():
			return fmt.Errorf("QEMU does not quit: %w", ctx.Err())
		}
	}
}

// Kill ends the machine at once, if it has not ended yet.
func (m *Machine) Kill() {
	_ = m.cmd.Process.Kill()
	for range m.lines { // until the reader has seen the end
	}
	if m.monitor != nil {
		_ = m.monitor.Disconnect()
	}
}

// Diagnosis is what QEMU and the guest's kernel have said last, for the end of an error.
func (m *Machine) Diagnosis() string {
	var b strings.Builder
	if said := strings.TrimSpace(m.said.String()); said != "" {
		fmt.Fprintf(&b, "\nQEMU said:\n%s", said)
	}
	console, _ := os.ReadFile(m.console())
	if text := strings.TrimSpace(string(console[max(0, len(console)-consoleEnd):])); text != "" {
		fmt.Fprintf(&b, "\nthe end of the guest's console (%s):\n%s", m.console(), text)
	}
	return b.String()
}

func (m *Machine) console() string { return consoleFile(m.dir) }

// What a machine has in its directory.
func controlSocket(dir string) string { return filepath.Join(dir, "qmp.sock") }
func monitorSocket(dir string) string { return filepath.Join(dir, "monitor.sock") }
func consoleFile(dir string) string   { return filepath.Join(dir, "console") }

// output keeps what a process prints; any goroutine may read it.
type output struct {
	mu sync.Mutex
	b  strings.Builder
}

// Write implements io.Writer.
func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

// pause waits for d; an error is ctx's end.
func pause(ctx context.Context, d time.Duration) error {
	t, stop := context.WithTimeout(ctx, d)
	defer stop()
	<-t.Done()
	return ctx.Err()
}

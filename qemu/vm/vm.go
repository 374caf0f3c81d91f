// Package vm boots virtual machines under QEMU and drives them. Each has a shell on a
// serial line, QMP, and a console, whose last lines stand in the errors.
//
// A machine belongs to its process: however that ends, the machine ends too. All that waits
// for a guest takes a context, and ends early when the guest has stopped, panicked, reset or
// shut down by itself, or QEMU has ended ([qmp.Monitor.Watch]). After an error from a
// command the shell's state is unknown: kill the machine.
package vm

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
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
	// exitTime is what QEMU may take to exit after it has closed its QMP connection.
	exitTime = 2 * time.Second
	// resetsMax is how many RESET events a restart may bring: the firmware may add some.
	resetsMax = 3
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
	Accel     string   // one of Accels; empty: what AccelVariable says, or auto
	CPUs      int      // 2
	MemoryMiB int      // 512
	Dir       string   // where its sockets and the console's file go; the caller removes it
	Disks     []Disk   // without any the guest does not wait for one
	More      []string // further arguments
	Probe     Probe    // of KVM, where Accel does not force one
	// Log is told of a fall-back to TCG; may be nil.
	Log func(line string)
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

	alive   context.Context // ends when the guest will not answer any more; its cause says why
	unwatch context.CancelFunc
	paused  atomic.Bool  // by Pause
	resets  atomic.Int32 // that are still expected
}

// Boot starts a machine and returns when its shell answers. An error carries what QEMU and
// the guest's kernel have said last.
func Boot(ctx context.Context, c Config) (*Machine, error) {
	accel, err := ChooseAccel(ctx, c)
	if err != nil {
		return nil, err
	}
	c.Accel = accel.Name
	c, v, err := c.check(ctx)
	if err != nil {
		return nil, err
	}
	m, err := boot(ctx, c, v)
	switch {
	case err == nil:
		return m, nil
	case m == nil:
		return nil, err
	}
	return nil, fmt.Errorf("boot: %w%s", err, m.Diagnosis())
}

// boot starts a machine of a complete configuration. One whose shell does not answer is
// returned with the error, killed.
func boot(ctx context.Context, c Config, v Version) (m *Machine, err error) {
	m = &Machine{lines: make(chan string, 1024), done: make(chan struct{}), dir: c.Dir}
	m.cmd = exec.Command(c.Program, slices.Concat(c.arguments(), c.diskArguments(v), c.More)...)
	m.cmd.Stderr = &m.said
	m.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	if err := m.start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", c.Program, err)
	}
	if err = m.dial(ctx); err == nil {
		m.alive, m.unwatch = m.monitor.Watch(context.Background(), qmp.WatchOptions{Expected: m.expected})
		_, _, err = m.await(ctx, 0)
	}
	if err != nil {
		m.Kill()
	}
	return m, err
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
func (m *Machine) dial(ctx context.Context) (err error) {
	path := controlSocket(m.dir)
	for {
		if m.monitor, err = qmp.Dial(ctx, path, commandTime); err == nil {
			return nil
		}
		if !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ECONNREFUSED) || m.Ended() {
			return m.because(err)
		}
		if late := pause(ctx, pollTime); late != nil {
			return fmt.Errorf("%w; %w", late, err)
		}
	}
}

// expected says whether a restart or a pause was asked for.
func (m *Machine) expected(event string) bool {
	switch event {
	case qmp.EventStop:
		return m.paused.Load()
	case qmp.EventReset:
		return m.resets.Add(-1) >= 0
	}
	return false
}

// because is why the guest does not answer: err, unless QEMU's end is the reason.
func (m *Machine) because(err error) error {
	if errors.As(err, new(*qmp.StopError)) {
		return err
	}
	t, stop := context.WithTimeout(context.Background(), exitTime)
	defer stop()
	select {
	case <-m.done:
		return m.ended()
	case <-t.Done():
		return err
	}
}

// ended says how QEMU has; after done.
func (m *Machine) ended() error {
	if m.err == nil {
		return errors.New("QEMU has ended (without an error)")
	}
	return fmt.Errorf("QEMU has ended (%w)", m.err)
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

// Pause stops the virtual CPUs until Continue.
func (m *Machine) Pause(ctx context.Context) error {
	m.paused.Store(true)
	return m.monitor.Execute(ctx, "stop", nil, nil)
}

// Continue ends a Pause.
func (m *Machine) Continue(ctx context.Context) error {
	err := m.monitor.Execute(ctx, "cont", nil, nil)
	if err == nil {
		m.paused.Store(false)
	}
	return err
}

// Quit ends the machine by QMP and waits for its end; an error is how QEMU failed. When ctx
// ends first, the machine is killed.
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
	if !m.Ended() { // the program may be a script that has started QEMU
		_ = unix.Kill(-m.cmd.Process.Pid, unix.SIGKILL)
	}
	for range m.lines { // until the reader has seen the end
	}
	if m.monitor != nil {
		m.unwatch()
		_ = m.monitor.Disconnect()
	}
}

// pause waits for d; an error is why ctx has ended.
func pause(ctx context.Context, d time.Duration) error {
	t, stop := context.WithTimeout(ctx, d)
	defer stop()
	<-t.Done()
	return context.Cause(ctx)
}

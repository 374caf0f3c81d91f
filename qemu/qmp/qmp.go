// Package qmp speaks to a running VM: to QEMU's monitor (QMP) and to the guest agent.
//
// [Monitor] is a go-qemu qmp.Monitor, so that go-qemu's typed commands (its package
// qmp/raw) run over it. It stands in for go-qemu's own SocketMonitor, whose replies lie
// in the scanner's memory, which the next line overwrites; which ends at a line of
// 64 KiB (query-pci in a large VM); and which waits for ever for a VM that is stuck.
// Here every reply is its caller's, a line may be 4 MiB long, and every command has a
// deadline. A reply that comes after its deadline is dropped: commands carry an id.
package qmp

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"sync"
	"time"

	goqemu "github.com/digitalocean/go-qemu/qmp"
	"github.com/elevisor/elevisor/sys/clock"
)

const (
	// lineMax bounds what a VM can make us keep.
	lineMax = 4 << 20
	// eventsMax is how many events wait for a slow listener; later ones are lost.
	eventsMax = 256
)

// Error is what QEMU or the guest agent refused.
type Error struct {
	Command string
	Class   string // GenericError, CommandNotFound, DeviceNotFound, …
	Desc    string
}

func (e *Error) Error() string { return e.Command + ": " + e.Desc }

// Classes of errors that callers tell apart.
const (
	CommandNotFound = "CommandNotFound"
	DeviceNotFound  = "DeviceNotFound"
)

// harmful are queries that harm the VM which they look at: the first sends
// GET_VRING_BASE for a running queue, which stops it, so that the guest hangs
// (QEMU 7.2 to 11); the second ends QEMU 11.1 with a failed assertion.
var harmful = map[string]bool{
	"x-query-virtio-queue-status": true,
	"x-query-virtio-status":       true,
}

// Monitor is a client of QEMU's monitor socket. All methods may be called by any
// goroutine; Connect is called once, before the others.
type Monitor struct {
	path    string
	timeout time.Duration // of each command, unless its context ends earlier
	conn    net.Conn
	version goqemu.Version

	mu        sync.Mutex
	serial    int
	waiting   map[string]chan []byte // by the command's id
	listeners map[chan goqemu.Event]struct{}
	err       error // why the connection has ended; set once

	gone chan struct{} // closed when err is set
}

var _ goqemu.Monitor = (*Monitor)(nil)

// Dial connects to the monitor at path. timeout is for connecting and for each command.
func Dial(ctx context.Context, path string, timeout time.Duration) (*Monitor, error) {
	var d net.Dialer
	ctx, stop := context.WithTimeout(ctx, timeout)
	defer stop()
	conn, err := d.DialContext(ctx, "unix", path)
	if err != nil {
		return nil, fmt.Errorf("QMP socket %s: %w; want QEMU's -qmp unix:%s,server=on,wait=off", path, cause(err), path)
	}
	m := &Monitor{
		path: path, timeout: timeout, conn: conn, gone: make(chan struct{}),
		waiting: map[string]chan []byte{}, listeners: map[chan goqemu.Event]struct{}{},
	}
	defer context.AfterFunc(ctx, func() { _ = conn.SetReadDeadline(time.Unix(1, 0)) })()
	if err := m.Connect(); err != nil {
		conn.Close()
		if errors.Is(ctx.Err(), context.Canceled) {
			err = fmt.Errorf("QMP socket %s: %w", path, context.Cause(ctx))
		}
		return nil, err
	}
	return m, nil
}

// Version is QEMU's.
func (m *Monitor) Version() (major, minor int) { return m.version.QEMU.Major, m.version.QEMU.Minor }

// Connect waits for QEMU's greeting and leaves the negotiation mode.
func (m *Monitor) Connect() error {
	_ = m.conn.SetReadDeadline(clock.Deadline(m.timeout))
	lines := bufio.NewReaderSize(m.conn, 64<<10)
	line, err := readLine(lines)
	if late := net.Error(nil); errors.As(err, &late) && late.Timeout() {
		return fmt.Errorf("QMP socket %s: no greeting: it serves another client (libvirt, a shell), or the VM is stuck", m.path)
	}
	if err != nil {
		return fmt.Errorf("QMP socket %s: greeting: %w", m.path, err)
	}
	var greeting struct {
		QMP *struct{ Version goqemu.Version }
	}
	if json.Unmarshal(line, &greeting) != nil || greeting.QMP == nil {
		return fmt.Errorf("QMP socket %s: this is no QEMU monitor, it greets with %.60q", m.path, line)
	}
	m.version = greeting.QMP.Version
	_ = m.conn.SetReadDeadline(time.Time{})
	go m.listen(lines)
	if err := m.Execute(context.Background(), "qmp_capabilities", nil, nil); err != nil {
		_ = m.Disconnect()
		return err
	}
	return nil
}

// Disconnect ends the connection; commands that wait fail.
func (m *Monitor) Disconnect() error {
	err := m.conn.Close()
	<-m.gone
	return err
}

// Err is why the connection has ended, nil while it lives.
func (m *Monitor) Err() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.err
}

// Events are QEMU's from now on, until ctx ends. A listener that lets too many wait
// loses some: what must be known is to be asked for, too.
func (m *Monitor) Events(ctx context.Context) (<-chan goqemu.Event, error) {
	c := make(chan goqemu.Event, eventsMax)
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.err != nil {
		return nil, m.err
	}
	m.listeners[c] = struct{}{}
	context.AfterFunc(ctx, func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		delete(m.listeners, c)
	})
	return c, nil
}

// Run executes a command as go-qemu's typed commands write it, and returns the whole
// reply. What QEMU refuses is an *[Error].
func (m *Monitor) Run(command []byte) ([]byte, error) {
	var c struct {
		Execute   string          `json:"execute"`
		Arguments json.RawMessage `json:"arguments"`
	}
	if err := json.Unmarshal(command, &c); err != nil {
		return nil, fmt.Errorf("QMP command %.60q: %w", command, err)
	}
	var args any
	if c.Arguments != nil {
		args = c.Arguments
	}
	reply, err := m.run(context.Background(), c.Execute, args)
	if err == nil {
		err = returned(c.Execute, reply, nil)
	}
	return reply, err
}

// Execute executes a command and reads what it returns into result, unless that is
// nil. What QEMU refuses is an *[Error].
func (m *Monitor) Execute(ctx context.Context, command string, args, result any) error {
	reply, err := m.run(ctx, command, args)
	if err != nil {
		return err
	}
	return returned(command, reply, result)
}

func (m *Monitor) run(ctx context.Context, command string, args any) ([]byte, error) {
	if harmful[command] {
		return nil, fmt.Errorf("%s harms the running VM: never sent", command)
	}
	if ctx.Err() != nil {
		return nil, fmt.Errorf("%s: %w", command, context.Cause(ctx))
	}
	ctx, stop := context.WithTimeout(ctx, m.timeout)
	defer stop()
	id, reply, err := m.expect()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", command, err)
	}
	defer m.forget(id)
	line, err := json.Marshal(struct {
		goqemu.Command
		ID string `json:"id"`
	}{goqemu.Command{Execute: command, Args: args}, id})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", command, err)
	}
	_ = m.conn.SetWriteDeadline(clock.Deadline(m.timeout))
	if _, err := m.conn.Write(append(line, '\n')); err != nil {
		return nil, fmt.Errorf("%s: QMP socket %s: %w", command, m.path, err)
	}
	select {
	case r := <-reply:
		return r, nil
	case <-m.gone:
		return nil, fmt.Errorf("%s: %w", command, m.err)
	case <-ctx.Done():
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			return nil, fmt.Errorf("%s: QEMU has not answered in time: %w", command, context.Cause(ctx))
		}
		return nil, fmt.Errorf("%s: %w", command, context.Cause(ctx))
	}
}

// expect makes the place where a reply will arrive.
func (m *Monitor) expect() (id string, reply chan []byte, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.err != nil {
		return "", nil, m.err
	}
	m.serial++
	id, reply = strconv.Itoa(m.serial), make(chan []byte, 1)
	m.waiting[id] = reply
	return id, reply, nil
}

func (m *Monitor) forget(id string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.waiting, id)
}

// listen hands out replies and events until the connection ends.
func (m *Monitor) listen(lines *bufio.Reader) {
	for {
		line, err := readLine(lines)
		if err == nil {
			err = m.take(line)
		}
		if err == nil {
			continue
		}
		if errors.Is(err, io.EOF) {
			err = errors.New("QEMU has closed the connection")
		}
		m.conn.Close()
		m.mu.Lock()
		m.err = fmt.Errorf("QMP socket %s: %w", m.path, err)
		m.mu.Unlock()
		close(m.gone)
		return
	}
}

// take files one line.
func (m *Monitor) take(line []byte) error {
	var l struct {
		goqemu.Event
		ID json.RawMessage `json:"id"`
	}
	if err := json.Unmarshal(line, &l); err != nil {
		return fmt.Errorf("%.60q: %w", line, err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if l.Event.Event == "" {
		var id string
		_ = json.Unmarshal(l.ID, &id) // a reply to nobody is dropped
		if c := m.waiting[id]; c != nil {
			delete(m.waiting, id)
			c <- line
		}
		return nil
	}
	for c := range m.listeners {
		select {
		case c <- l.Event:
		default:
		}
	}
	return nil
}

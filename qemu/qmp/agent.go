package qmp

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/elevisor/elevisor/sys/clock"
)

const (
	// agentSync begins the answer to guest-sync-delimited: no JSON contains that byte.
	agentSync = 0xff
	// fileMax is how much ReadFile reads: files of sysfs are a page.
	fileMax = 4096
)

// Agent is a client of the QEMU guest agent, at the host's end of its serial port. It
// greets nobody and knows no ids, so that a late answer would be taken for the next
// one: after an error other than *[Error] the connection is of no use. One goroutine
// uses it.
type Agent struct {
	path    string
	timeout time.Duration
	conn    net.Conn
	lines   *bufio.Reader
}

// DialAgent connects to the agent at path. timeout is for connecting and for each
// command.
func DialAgent(ctx context.Context, path string, timeout time.Duration) (*Agent, error) {
	var d net.Dialer
	dialing, stop := context.WithTimeout(ctx, timeout)
	defer stop()
	conn, err := d.DialContext(dialing, "unix", path)
	if err != nil {
		return nil, fmt.Errorf("guest agent socket %s: %w", path, cause(err))
	}
	a := &Agent{path: path, timeout: timeout, conn: conn, lines: bufio.NewReader(conn)}
	if err := a.sync(ctx); err != nil {
		conn.Close()
		return nil, err
	}
	return a, nil
}

// Close ends the connection.
func (a *Agent) Close() { a.conn.Close() }

// sync drops what an earlier client has left in the line: half a command there, and
// answers that it did not wait for here.
func (a *Agent) sync(ctx context.Context) error {
	const command = "guest-sync-delimited"
	id := int64(clock.Deadline(0).UnixNano() >> 16) // differs from the earlier client's
	return a.exchange(ctx, command, map[string]int64{"id": id}, []byte{agentSync}, func() error {
		for {
			if _, err := a.lines.ReadSlice(agentSync); errors.Is(err, bufio.ErrBufferFull) {
				continue
			} else if err != nil {
				return err
			}
			line, err := readLine(a.lines)
			if err != nil {
				return err
			}
			var got int64
			if returned(command, line, &got) == nil && got == id {
				return nil
			}
		}
	})
}

// Execute executes a command and reads what it returns into result, unless that is
// nil. What the agent refuses is an *[Error].
func (a *Agent) Execute(ctx context.Context, command string, args, result any) error {
	var line []byte
	err := a.exchange(ctx, command, args, nil, func() (err error) {
		line, err = readLine(a.lines)
		return err
	})
	if err != nil {
		return err
	}
	return returned(command, line, result)
}

// exchange sends a command behind prefix and lets read take the answer.
func (a *Agent) exchange(ctx context.Context, command string, args any, prefix []byte, read func() error) error {
	m := map[string]any{"execute": command}
	if args != nil {
		m["arguments"] = args
	}
	line, err := json.Marshal(m)
	if err != nil {
		return fmt.Errorf("%s: %w", command, err)
	}
	ctx, stop := context.WithTimeout(ctx, a.timeout)
	defer stop()
	_ = a.conn.SetDeadline(time.Time{})
	defer context.AfterFunc(ctx, func() { _ = a.conn.SetDeadline(time.Unix(1, 0)) })()
	_, err = a.conn.Write(append(append(bytes.Clone(prefix), line...), '\n'))
	if err == nil {
		err = read()
	}
	switch {
	case err == nil:
		return nil
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return fmt.Errorf("%s: the guest agent at %s has not answered in time: it does not run in the guest, or serves another client: %w", command, a.path, ctx.Err())
	case ctx.Err() != nil:
		err = context.Cause(ctx)
	}
	return fmt.Errorf("%s: guest agent at %s: %w", command, a.path, err)
}

// GuestDisk is one of guest-get-disks.
type GuestDisk struct {
	Name      string // /dev/vda
	Partition bool
	Address   *struct {
		PCI struct{ Bus, Slot, Function int64 } `json:"pci-controller"`
	}
}

// Disks are the guest's block devices.
func (a *Agent) Disks(ctx context.Context) (disks []GuestDisk, err error) {
	err = a.Execute(ctx, "guest-get-disks", nil, &disks)
	return disks, err
}

// ReadFile reads the beginning of a file in the guest, a page of it.
func (a *Agent) ReadFile(ctx context.Context, name string) (text string, err error) {
	err = a.file(ctx, name, "r", func(handle int64) error {
		var r struct {
			Data []byte `json:"buf-b64"`
		}
		err := a.Execute(ctx, "guest-file-read", map[string]int64{"handle": handle, "count": fileMax}, &r)
		text = string(r.Data)
		return err
	})
	return text, err
}

// WriteFile writes a file in the guest, by one write, as sysfs wants it.
func (a *Agent) WriteFile(ctx context.Context, name, text string) error {
	return a.file(ctx, name, "w", func(handle int64) error {
		err := a.Execute(ctx, "guest-file-write", map[string]any{
			"handle": handle, "buf-b64": base64.StdEncoding.EncodeToString([]byte(text)),
		}, nil)
		if err != nil {
			return err
		}
		return a.Execute(ctx, "guest-file-flush", map[string]int64{"handle": handle}, nil) // writes, in fact
	})
}

// file opens a file in the guest, does something with it, and closes it.
func (a *Agent) file(ctx context.Context, name, mode string, do func(handle int64) error) error {
	var handle int64
	if err := a.Execute(ctx, "guest-file-open", map[string]string{"path": name, "mode": mode}, &handle); err != nil {
		return fmt.Errorf("%s in the guest: %w", name, err)
	}
	err := do(handle)
	// The handle is the agent's: it would stay open after us.
	if closed := a.Execute(context.WithoutCancel(ctx), "guest-file-close", map[string]int64{"handle": handle}, nil); err == nil {
		err = closed
	}
	if err != nil {
		return fmt.Errorf("%s in the guest: %w", name, err)
	}
	return nil
}

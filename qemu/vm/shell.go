package vm

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// The guest's end is guest/agent: a line in is "NUMBER COMMAND"; out comes what the
// command prints, and "=NUMBER STATUS".

// Ready waits for the shell of a guest that has been started, or restarted.
func (m *Machine) Ready(ctx context.Context) error {
	_, _, err := m.await(ctx, 0)
	return err
}

// Ask runs a command of one line in the guest, as root, and returns what it prints and
// its exit status. A newline in it would be another command's begin.
func (m *Machine) Ask(ctx context.Context, command string) (printed string, status int, err error) {
	if strings.Contains(command, "\n") {
		return "", 0, fmt.Errorf("a command for the guest is one line: %q", command)
	}
	m.serial++
	if err := m.send(m.serial, command); err != nil {
		return "", 0, err
	}
	return m.await(ctx, m.serial)
}

// Reboot restarts the guest from within, and waits for its shell.
func (m *Machine) Reboot(ctx context.Context) error {
	if err := m.send(0, "reboot -f"); err != nil {
		return err
	}
	return m.Ready(ctx)
}

func (m *Machine) send(n int, command string) error {
	if _, err := io.WriteString(m.stdin, strconv.Itoa(n)+" "+command+"\n"); err != nil {
		return fmt.Errorf("the guest is gone: %w", err)
	}
	return nil
}

// await collects what the shell prints up to the end of command n.
func (m *Machine) await(ctx context.Context, n int) (printed string, status int, err error) {
	var text strings.Builder
	mark := fmt.Sprintf("=%d ", n)
	for {
		select {
		case line, more := <-m.lines:
			if !more {
				return text.String(), 0, fmt.Errorf("QEMU has ended (%w); the guest has printed %q", m.how(), text.String())
			}
			if rest, found := strings.CutPrefix(line, mark); found {
				if status, err = strconv.Atoi(rest); err != nil {
					return "", 0, fmt.Errorf("the guest's line %q: %w", line, err)
				}
				return strings.TrimSpace(text.String()), status, nil
			}
			text.WriteString(line + "\n")
		case <-ctx.Done():
			return text.String(), 0, fmt.Errorf("the guest does not answer: %w; it has printed %q", context.Cause(ctx), text.String())
		}
	}
}

// how QEMU ended; after the last line.
func (m *Machine) how() error {
	if m.err == nil {
		return fmt.Errorf("without an error")
	}
	return m.err
}

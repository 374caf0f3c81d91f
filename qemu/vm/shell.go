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

// Ready waits for the shell of a guest that restarts.
func (m *Machine) Ready(ctx context.Context) error {
	_, _, err := m.await(ctx, 0)
	m.resets.Store(0)
	return m.explained(err)
}

// Ask runs a command of one line in the guest, as root, and returns what it prints and its
// exit status. A newline in it would begin another command.
func (m *Machine) Ask(ctx context.Context, command string) (printed string, status int, err error) {
	if strings.Contains(command, "\n") {
		return "", 0, fmt.Errorf("a command for the guest is one line: %q", command)
	}
	m.serial++
	if err = m.send(m.serial, command); err == nil {
		printed, status, err = m.await(ctx, m.serial)
	}
	return printed, status, m.explained(err)
}

// Reboot restarts the guest from within, and waits for its shell.
func (m *Machine) Reboot(ctx context.Context) error {
	m.resets.Store(resetsMax)
	if err := m.send(0, "reboot -f"); err != nil {
		return m.explained(err)
	}
	return m.Ready(ctx)
}

// Reset restarts the guest as a reset button does, and waits for its shell.
func (m *Machine) Reset(ctx context.Context) error {
	m.resets.Store(resetsMax)
	if err := m.monitor.Execute(ctx, "system_reset", nil, nil); err != nil {
		return m.explained(err)
	}
	return m.Ready(ctx)
}

func (m *Machine) send(n int, command string) error {
	if _, err := io.WriteString(m.stdin, strconv.Itoa(n)+" "+command+"\n"); err != nil {
		return m.because(fmt.Errorf("the guest's shell: %w", err))
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
				return text.String(), 0, fmt.Errorf("%w%s", m.ended(), soFar(text.String()))
			}
			if rest, found := strings.CutPrefix(line, mark); found {
				if status, err = strconv.Atoi(rest); err != nil {
					return "", 0, fmt.Errorf("the guest's line %q: %w", line, err)
				}
				return strings.TrimSpace(text.String()), status, nil
			}
			text.WriteString(line + "\n")
		case <-m.alive.Done():
			return text.String(), 0, fmt.Errorf("%w%s", m.because(context.Cause(m.alive)), soFar(text.String()))
		case <-ctx.Done():
			return text.String(), 0, fmt.Errorf("the guest does not answer: %w%s", context.Cause(ctx), soFar(text.String()))
		}
	}
}

// soFar is what a command has printed without ending, for an error.
func soFar(printed string) string {
	if printed == "" {
		return ""
	}
	return fmt.Sprintf("; its shell has printed %.1000q", printed)
}

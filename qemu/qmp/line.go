package qmp

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// readLine is the next line, however long, in memory of its own.
func readLine(r *bufio.Reader) ([]byte, error) {
	var line []byte
	for {
		part, err := r.ReadSlice('\n')
		line = append(line, part...)
		switch {
		case len(line) > lineMax:
			return nil, fmt.Errorf("a line of more than %d bytes", lineMax)
		case errors.Is(err, bufio.ErrBufferFull):
		case err != nil:
			return nil, err
		default:
			return line, nil
		}
	}
}

// returned reads a reply's result, or its error.
func returned(command string, reply []byte, result any) error {
	var r struct {
		Return json.RawMessage
		Error  *struct{ Class, Desc string }
	}
	err := json.Unmarshal(reply, &r)
	switch {
	case err != nil:
		return fmt.Errorf("%s: reply %.60q: %w", command, reply, err)
	case r.Error != nil:
		return &Error{Command: command, Class: r.Error.Class, Desc: r.Error.Desc}
	case r.Return == nil:
		return fmt.Errorf("%s: reply %.60q has neither a return nor an error", command, reply)
	case result == nil:
		return nil
	}
	if err := json.Unmarshal(r.Return, result); err != nil {
		return fmt.Errorf("%s: reply %.60q: %w", command, r.Return, err)
	}
	return nil
}

// cause is the system's error inside err.
func cause(err error) error {
	var errno unix.Errno
	if errors.As(err, &errno) {
		return errno
	}
	return err
}

package ctl

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/elevisor/elevisor/sys/clock"
	"golang.org/x/sys/unix"
)

const (
	// callTime bounds a call: a switch under load, and a busy server.
	callTime = 10 * time.Second
	// resultMax bounds what a server can make a client keep.
	resultMax = 64 << 20
)

// Call connects to the control socket at path, calls a method there, and reads its
// result into result. What the server refuses is an *Error.
func Call(ctx context.Context, path, method string, params map[string]string, result any) error {
	ctx, stop := context.WithTimeout(ctx, callTime)
	defer stop()
	var d net.Dialer
	c, err := d.DialContext(ctx, "unix", path)
	if errors.Is(err, unix.ECONNREFUSED) || errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("nobody serves on the control socket %s (%w): start the server with elevisor serve --control-socket=%s", path, cause(err), path)
	}
	if err != nil {
		return fmt.Errorf("control socket %s: %w", path, err)
	}
	defer c.Close()
	defer context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })()
	_ = c.SetDeadline(clock.Deadline(callTime))
	if err := call(c, method, params, result); err != nil {
		if refused := new(Error); errors.As(err, &refused) {
			return err
		}
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return fmt.Errorf("control socket %s: %s: %w", path, method, err)
	}
	return nil
}

// call does one request on a connection.
func call(c io.ReadWriter, method string, params map[string]string, result any) error {
	m := map[string]any{"jsonrpc": "2.0", "id": 1, "method": method}
	if params != nil {
		m["params"] = params
	}
	request := encode(m)
	if len(request) >= requestMax {
		return fmt.Errorf("a request of %d bytes; want at most %d", len(request), requestMax-1)
	}
	// A server that has too many clients has answered and gone: then its reply says more.
	_, wrote := c.Write(append(request, '\n'))
	var r response
	if err := json.NewDecoder(io.LimitReader(c, resultMax)).Decode(&r); err != nil {
		return errors.Join(wrote, err)
	}
	if r.Error != nil {
		return r.Error
	}
	return json.Unmarshal(r.Result, result)
}

// cause is the system's error inside err.
func cause(err error) error {
	var errno unix.Errno
	if errors.As(err, &errno) {
		return errno
	}
	return err
}

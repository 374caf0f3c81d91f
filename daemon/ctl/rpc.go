package ctl

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
)

// The error codes of JSON-RPC 2.0, and our one.
const (
	ParseError     = -32700 // not JSON
	InvalidRequest = -32600 // JSON, but no request
	MethodNotFound = -32601
	InvalidParams  = -32602
	Refused        = -32000 // the request is well-formed; the server will not do it
)

const (
	// requestMax is the length of a line, its newline included.
	requestMax = 64 << 10
	// batchMax bounds what one line can ask for: some answers are long.
	batchMax = 64
)

// Error is a JSON-RPC error object.
type Error struct {
	Code    int    `json:"code"`
	Message string `json:"message"`
}

func (e *Error) Error() string { return e.Message }

// message is a request as it comes: each member is judged by itself, so that an
// error can name the request that it belongs to.
type message struct {
	Version json.RawMessage `json:"jsonrpc"`
	Method  json.RawMessage `json:"method"`
	Params  json.RawMessage `json:"params"`
	ID      json.RawMessage `json:"id"` // nil: a notification; the id null is "null"
}

type response struct {
	Version string          `json:"jsonrpc"`
	Result  json.RawMessage `json:"result,omitempty"`
	Error   *Error          `json:"error,omitempty"`
	ID      json.RawMessage `json:"id"`
}

// method carries out a request. The result is marshalled to JSON.
type method func(params json.RawMessage) (any, *Error)

// answer is the reply to one line, without a newline; nil, if there is none to give.
func answer(methods map[string]method, line []byte) []byte {
	line = bytes.TrimSpace(line)
	switch {
	case len(line) == 0: // between messages
		return nil
	case !json.Valid(line):
		return encode(failure(nil, &Error{ParseError, "this is not JSON"}))
	case line[0] != '[':
		if r := answerOne(methods, line); r != nil {
			return encode(r)
		}
		return nil
	}
	var batch []json.RawMessage
	if err := json.Unmarshal(line, &batch); err != nil || len(batch) == 0 || len(batch) > batchMax {
		return encode(failure(nil, &Error{InvalidRequest, fmt.Sprintf("a batch of %d requests; want 1 to %d", len(batch), batchMax)}))
	}
	var replies []*response
	for _, raw := range batch {
		if r := answerOne(methods, raw); r != nil {
			replies = append(replies, r)
		}
	}
	if replies == nil {
		return nil
	}
	return encode(replies)
}

func answerOne(methods map[string]method, raw json.RawMessage) *response {
	var m message
	if raw[0] != '{' || json.Unmarshal(raw, &m) != nil {
		return failure(nil, &Error{InvalidRequest, "a request is an object"})
	}
	name, err := m.check()
	if err != nil {
		return failure(m.ID, err)
	}
	do, ok := methods[name]
	var result any
	if ok {
		result, err = do(m.Params)
	} else {
		err = &Error{MethodNotFound, fmt.Sprintf("there is no method %q", name)}
	}
	switch {
	case m.ID == nil:
		return nil
	case err != nil:
		return failure(m.ID, err)
	}
	return &response{Version: "2.0", Result: encode(result), ID: m.ID}
}

// check refuses what is no request, and returns its method.
func (m *message) check() (name string, _ *Error) {
	if m.ID != nil && bytes.IndexByte([]byte(`"-0123456789n`), m.ID[0]) < 0 {
		m.ID = nil // it cannot be given back
		return "", &Error{InvalidRequest, "id is neither a string nor a number"}
	}
	if string(m.Version) != `"2.0"` {
		return "", &Error{InvalidRequest, `jsonrpc is not "2.0"`}
	}
	if len(m.Method) == 0 || m.Method[0] != '"' || json.Unmarshal(m.Method, &name) != nil {
		return "", &Error{InvalidRequest, "method is not a string"}
	}
	return name, nil
}

func failure(id json.RawMessage, e *Error) *response {
	if id == nil {
		id = json.RawMessage("null")
	}
	return &response{Version: "2.0", Error: e, ID: id}
}

// decode reads parameters by name into a struct; an unknown name is an error.
func decode(params json.RawMessage, to any) *Error {
	if params == nil {
		return nil
	}
	if params[0] != '{' {
		return &Error{InvalidParams, "params is not an object: parameters go by name"}
	}
	d := json.NewDecoder(bytes.NewReader(params))
	d.DisallowUnknownFields()
	err := d.Decode(to)
	if wrong := new(json.UnmarshalTypeError); errors.As(err, &wrong) {
		return &Error{InvalidParams, fmt.Sprintf("params: %s is no %v", wrong.Field, wrong.Type)}
	}
	if err != nil {
		return &Error{InvalidParams, "params: " + err.Error()}
	}
	return nil
}

// encode writes what this package made itself.
func encode(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("ctl: %T as JSON: %v", v, err))
	}
	return b
}

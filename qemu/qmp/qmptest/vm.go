// Package qmptest plays the VM for tests of what attaches disks: QEMU's monitor and the
// guest agent, on real sockets. A [VM] does as QEMU does with devices and chardevs, in
// QEMU's words; what goes wrong is asked for.
package qmptest

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
)

// Fault is what goes wrong with a command.
type Fault int

// The faults. After Silent and HangUp the command has been carried out all the same.
const (
	Refuse Fault = iota + 1 // answered with an error
	Silent                  // never answered, this once
	Stuck                   // never answered, nor anything after it
	HangUp                  // the connection ends instead
)

// VM is a machine. Its fields are set before it is listened to.
type VM struct {
	Major, Minor int
	Machine      string            // pc-i440fx-7.2-machine
	Paused       bool              // the guest stands still
	Memory       map[string]string // memory objects by id: "shared", "private", or a type of QEMU's, shared
	Ports        []string          // pcie-root-ports
	Devices      map[string]string // by id: the type; at first, those that are there
	Chardevs     map[string]string // by id: the filename
	Chatty       bool              // events come between all replies
	Long         int               // a reply to query-pci is at least that long
	Unreachable  bool              // a new chardev does not connect
	Deaf         bool              // the guest does not start the disk
	Clinging     bool              // the guest does not let go of it
	Unwilling    bool              // ... and says so
	Unplugging   bool              // ... for an earlier device_del; it does for the second look
	Quiet        bool              // no event tells of a device's end
	Busy         int               // that many times a chardev is not removed at once
	Faults       map[string]Fault  // by command

	mu       sync.Mutex
	behind   map[string]string // the chardev of a device
	bus      map[string]string // the bus of a device
	asked    map[string]int    // how often a device's start was asked for
	log      []string
	listener net.Listener
	conns    []net.Conn
	served   sync.WaitGroup
}

// New is a running i440fx machine of QEMU 7.2 with shared memory.
func New() *VM {
	return &VM{
		Major: 7, Minor: 2, Machine: "pc-i440fx-7.2-machine", Memory: map[string]string{"mem": "shared"},
		Devices: map[string]string{}, Chardevs: map[string]string{}, Faults: map[string]Fault{},
		behind: map[string]string{}, bus: map[string]string{}, asked: map[string]int{},
	}
}

// Listen serves the monitor at path until Close.
func (v *VM) Listen(path string) error {
	l, err := net.Listen("unix", path)
	if err != nil {
		return err
	}
	v.listener = l
	v.served.Go(func() {
		for { // one client at a time, as QEMU
			c, err := l.Accept()
			if err != nil {
				return
			}
			v.mu.Lock()
			v.conns = append(v.conns, c)
			v.mu.Unlock()
			v.serve(c)
		}
	})
	return nil
}

// Close ends the machine.
func (v *VM) Close() {
	v.listener.Close()
	v.mu.Lock()
	for _, c := range v.conns {
		c.Close()
	}
	v.mu.Unlock()
	v.served.Wait()
}

// Log is what was executed since the last call: "COMMAND ARGUMENTS", a command that
// comes several times in a row once.
func (v *VM) Log() []string {
	v.mu.Lock()
	defer v.mu.Unlock()
	log := slices.Compact(v.log)
	v.log = nil
	return log
}

// State is what the machine has, in words.
func (v *VM) State() string {
	v.mu.Lock()
	defer v.mu.Unlock()
	return fmt.Sprintf("devices %v, chardevs %v", v.Devices, v.Chardevs)
}

type request struct {
	Execute   string
	Arguments json.RawMessage
	ID        json.RawMessage
}

func (v *VM) serve(c net.Conn) {
	defer c.Close()
	fmt.Fprintf(c, `{"QMP": {"version": {"qemu": {"micro": 1, "minor": %d, "major": %d}, "package": ""}, "capabilities": ["oob"]}}`+"\r\n", v.Minor, v.Major)
	stuck := false
	for in := bufio.NewScanner(c); in.Scan(); {
		var r request
		if json.Unmarshal(in.Bytes(), &r) != nil {
			return
		}
		v.mu.Lock()
		reply, events, fault := v.execute(r)
		v.mu.Unlock()
		stuck = stuck || fault == Stuck
		switch {
		case fault == HangUp:
			return
		case fault == Silent || stuck:
			continue
		}
		out := slices.Concat(v.chatter(), []string{reply}, events, v.chatter())
		if _, err := c.Write([]byte(strings.Join(out, "\r\n") + "\r\n")); err != nil {
			return
		}
	}
}

func (v *VM) chatter() []string {
	if !v.Chatty {
		return nil
	}
	return slices.Repeat([]string{event("RTC_CHANGE", `{"offset": 0, "qom-path": "/machine/unattached/device[7]"}`)}, 20)
}

func event(name, data string) string {
	return fmt.Sprintf(`{"timestamp": {"seconds": 1, "microseconds": 2}, "event": %q, "data": %s}`, name, data)
}

// execute carries out one command.
func (v *VM) execute(r request) (reply string, events []string, fault Fault) {
	args := string(r.Arguments)
	if args == "{}" {
		args = ""
	}
	v.log = append(v.log, strings.TrimSpace(r.Execute+" "+args))
	fault = v.Faults[r.Execute]
	if fault == Silent || fault == HangUp { // this once
		delete(v.Faults, r.Execute)
	}
	var a arguments
	_ = json.Unmarshal(r.Arguments, &a)
	var result any
	err := refusal{"GenericError", "it is refused"}
	if fault != Refuse {
		result, events, err = v.do(r.Execute, &a)
	}
	body, name := result, "return"
	if err.Class != "" {
		body, name = err, "error"
	}
	b, _ := json.Marshal(map[string]any{name: body, "id": r.ID})
	return string(b), events, fault
}

// Package qmptest has fakes of QEMU for tests: its monitor ([VM]), the guest agent
// ([Agent]), both on real sockets, and the whole program with a guest ([Program]). A VM
// treats devices and chardevs as QEMU does, and answers in QEMU's words; each test says
// what goes wrong.
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
	Status       string            // the run state, of query-status
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
	StopsAt      map[string]string // by command: after it, the guest stops in this run state
	OnQuit       func()            // called after the reply to quit
	OnReset      func()            // called after the reply to system_reset

	mu        sync.Mutex
	behind    map[string]string // the chardev of a device
	bus       map[string]string // the bus of a device
	asked     map[string]int    // how often a device's start was asked for
	log       []string
	listeners []net.Listener
	conns     []net.Conn
	served    sync.WaitGroup
}

// New is a running i440fx machine of QEMU 7.2 with shared memory.
func New() *VM {
	return &VM{
		Major: 7, Minor: 2, Machine: "pc-i440fx-7.2-machine", Memory: map[string]string{"mem": "shared"},
		Status: "running", Devices: map[string]string{}, Chardevs: map[string]string{}, Faults: map[string]Fault{}, StopsAt: map[string]string{},
		behind: map[string]string{}, bus: map[string]string{}, asked: map[string]int{},
	}
}

// Listen serves a monitor at path until Close; a VM may have several.
func (v *VM) Listen(path string) error {
	l, err := net.Listen("unix", path)
	if err != nil {
		return err
	}
	v.listeners = append(v.listeners, l)
	v.served.Go(func() {
		for { // one client at a time, as QEMU
			c, err := l.Accept()
			if err != nil {
				return
			}
			v.serve(c)
		}
	})
	return nil
}

// Close ends the machine.
func (v *VM) Close() {
	for _, l := range v.listeners {
		l.Close()
	}
	v.mu.Lock()
	for _, c := range v.conns {
		c.Close()
	}
	v.mu.Unlock()
	v.served.Wait()
}

// Stop stops the guest in a run state: internal-error, paused, …
func (v *VM) Stop(status string) { v.enter(status, "STOP") }

// Resume lets the guest run again.
func (v *VM) Resume() { v.enter("running", "RESUME") }

func (v *VM) enter(status, event string) {
	v.mu.Lock()
	v.Status = status
	v.mu.Unlock()
	v.Tell(event, "{}")
}

// Tell sends an event to all clients; data is JSON.
func (v *VM) Tell(name, data string) { v.tellOthers(nil, []string{event(name, data)}) }

// tellOthers sends events to all clients but one.
func (v *VM) tellOthers(but net.Conn, events []string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, c := range v.conns {
		if c != but && len(events) > 0 {
			_ = send(c, events...) // it may have gone
		}
	}
}

// send writes lines, all at once.
func send(c net.Conn, lines ...string) error {
	_, err := c.Write([]byte(strings.Join(lines, "\r\n") + "\r\n"))
	return err
}

// greet makes c a client: it hears of events after the greeting.
func (v *VM) greet(c net.Conn) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.conns = append(v.conns, c)
	_ = send(c, fmt.Sprintf(`{"QMP": {"version": {"qemu": {"micro": 1, "minor": %d, "major": %d}, "package": ""}, "capabilities": ["oob"]}}`, v.Minor, v.Major))
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
	v.greet(c)
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
		if err := send(c, out...); err != nil {
			return
		}
		v.tellOthers(c, events)
		switch {
		case r.Execute == "quit" && v.OnQuit != nil:
			v.OnQuit()
		case r.Execute == "system_reset" && v.OnReset != nil:
			v.OnReset()
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
	if status := v.StopsAt[r.Execute]; status != "" {
		v.Status = status
		events = append(events, event("STOP", "{}"))
	}
	body, name := result, "return"
	if err.Class != "" {
		body, name = err, "error"
	}
	b, _ := json.Marshal(map[string]any{name: body, "id": r.ID})
	return string(b), events, fault
}

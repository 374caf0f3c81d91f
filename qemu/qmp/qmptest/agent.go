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

// Agent is a guest agent. Its fields are set before it is listened to.
type Agent struct {
	Dead      bool     // nothing runs in the guest: the socket is QEMU's
	Forbidden bool     // it may not touch files
	Late      int      // that many polls show no new disk
	Disk      string   // /dev/vdb, whose PCI address is Slot on Bus
	Bus, Slot int      //
	Choices   []string // the guest's schedulers
	// Exec runs a shell's script in the guest; nil: no program may be started there.
	Exec func(script string) (printed string, status int)

	mu       sync.Mutex
	active   string
	written  string
	programs []program // that were started, by pid
	listener net.Listener
	conns    []net.Conn
	served   sync.WaitGroup
}

// Listen serves the agent's port at path until Close.
func (g *Agent) Listen(path string) error {
	l, err := net.Listen("unix", path)
	if err != nil {
		return err
	}
	g.listener, g.active = l, "none"
	g.served.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			g.mu.Lock()
			g.conns = append(g.conns, c)
			g.mu.Unlock()
			g.serve(c)
		}
	})
	return nil
}

// Close ends it.
func (g *Agent) Close() {
	g.listener.Close()
	g.mu.Lock()
	for _, c := range g.conns {
		c.Close()
	}
	g.mu.Unlock()
	g.served.Wait()
}

func (g *Agent) serve(c net.Conn) {
	defer c.Close()
	// What an earlier client did not wait for.
	fmt.Fprintf(c, `{"return": {"version": "8.0"}}`+"\n"+"\xff"+`{"return": 7}`+"\n")
	for in := bufio.NewScanner(c); in.Scan(); {
		if g.Dead {
			continue
		}
		line, _ := strings.CutPrefix(in.Text(), "\xff")
		var r request
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			return
		}
		g.mu.Lock()
		result, err := g.do(r)
		g.mu.Unlock()
		body, name, prefix := result, "return", ""
		if err.Class != "" {
			body, name = err, "error"
		}
		if r.Execute == "guest-sync-delimited" {
			prefix = "\xff"
		}
		b, _ := json.Marshal(map[string]any{name: body})
		if _, err := fmt.Fprintf(c, "%s%s\n", prefix, b); err != nil {
			return
		}
	}
}

// program has been started in the guest.
type program struct {
	asked   bool // whether it has ended
	printed string
	status  int
}

// exec starts a program, or tells how one has ended: it does so at the second look.
func (g *Agent) exec(r request) (any, refusal) {
	var a struct {
		PID  int
		Path string
		Arg  []string
	}
	_ = json.Unmarshal(r.Arguments, &a)
	if r.Execute == "guest-exec" {
		if a.Path != "/bin/sh" || len(a.Arg) != 2 || a.Arg[0] != "-c" {
			return nil, generic("Guest agent command failed, error was 'Failed to execute child process'")
		}
		printed, status := g.Exec(a.Arg[1])
		g.programs = append(g.programs, program{printed: printed, status: status})
		return map[string]int{"pid": len(g.programs)}, refusal{}
	}
	if a.PID < 1 || a.PID > len(g.programs) {
		return nil, generic("Invalid parameter 'pid'")
	}
	p := &g.programs[a.PID-1]
	if !p.asked {
		p.asked = true
		return map[string]bool{"exited": false}, refusal{}
	}
	return map[string]any{"exited": true, "exitcode": p.status, "out-data": []byte(p.printed)}, refusal{}
}

func (g *Agent) do(r request) (any, refusal) {
	var a struct {
		ID     int64
		Path   string
		Mode   string
		Handle int64
		Data   []byte `json:"buf-b64"`
	}
	_ = json.Unmarshal(r.Arguments, &a)
	if g.Forbidden && strings.HasPrefix(r.Execute, "guest-file-") {
		return nil, refusal{"CommandNotFound", "Command " + r.Execute + " has been disabled"}
	}
	switch r.Execute {
	case "guest-exec", "guest-exec-status":
		if g.Exec != nil {
			return g.exec(r)
		}
	case "guest-sync-delimited":
		return a.ID, refusal{}
	case "guest-get-disks":
		return g.disks(), refusal{}
	case "guest-file-open":
		if a.Path != "/sys/block/"+strings.TrimPrefix(g.Disk, "/dev/")+"/queue/scheduler" {
			return nil, generic("failed to open file '%s' (mode: '%s'): No such file or directory", a.Path, a.Mode)
		}
		return 1000, refusal{}
	case "guest-file-write":
		g.written = string(a.Data)
		return map[string]any{"count": len(a.Data), "eof": false}, refusal{}
	case "guest-file-flush":
		if !slices.Contains(g.Choices, g.written) {
			return nil, generic("failed to flush file: Invalid argument")
		}
		g.active = g.written
		return struct{}{}, refusal{}
	case "guest-file-read":
		text := strings.ReplaceAll(strings.Join(g.Choices, " "), g.active, "["+g.active+"]") + "\n"
		return map[string]any{"count": len(text), "buf-b64": []byte(text), "eof": true}, refusal{}
	case "guest-file-close":
		return struct{}{}, refusal{}
	}
	return nil, refusal{"CommandNotFound", "The command " + r.Execute + " has not been found"}
}

func (g *Agent) disks() any {
	disk := func(name string, bus, slot int) any {
		return map[string]any{"name": name, "partition": false, "address": map[string]any{"bus-type": "virtio", "dev": name, "bus": 0, "unit": 0, "target": 0,
			"pci-controller": map[string]int{"domain": 0, "bus": bus, "slot": slot, "function": 0}}}
	}
	all := []any{disk("/dev/vda", 0, 2), map[string]any{"name": "/dev/loop0", "partition": false}}
	if g.Late--; g.Late < 0 {
		all = append(all, disk(g.Disk, g.Bus, g.Slot))
	}
	return all
}

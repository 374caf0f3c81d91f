package qemu

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/elevisor/elevisor/qemu/attach"
	"github.com/elevisor/elevisor/qemu/qmp"
)

const (
	// agentTime bounds one command of the guest agent.
	agentTime = 30 * time.Second
	// execPoll is between two looks whether a program in the guest has ended.
	execPoll = 100 * time.Millisecond
)

// running is a machine of somebody else, whose shell is the guest agent.
type running struct {
	monitor, agent string // sockets
}

// join takes the machine that runs.
func (w *world) join(context.Context) (machine, error) {
	return &running{monitor: w.o.Attach, agent: w.o.GuestAgent}, nil
}

// execStatus is what guest-exec-status tells.
type execStatus struct {
	Exited   bool
	ExitCode int `json:"exitcode"`
	Signal   int
	Out      []byte `json:"out-data"`
	Err      []byte `json:"err-data"`
}

// Sh has QEMU watched while it waits: the agent of a guest that has stopped only keeps silent.
func (r *running) Sh(ctx context.Context, script string) (string, error) {
	m, err := qmp.Dial(ctx, r.monitor, agentTime)
	if err != nil {
		return "", err
	}
	defer func() { _ = m.Disconnect() }()
	ctx, stop := m.Watch(ctx, qmp.WatchOptions{})
	defer stop()
	return r.execute(ctx, script)
}

// execute runs a script by the guest agent.
func (r *running) execute(ctx context.Context, script string) (string, error) {
	a, err := qmp.DialAgent(ctx, r.agent, agentTime)
	if err != nil {
		return "", err
	}
	defer a.Close()
	var begun struct{ PID int }
	err = a.Execute(ctx, "guest-exec", map[string]any{"path": "/bin/sh", "arg": []string{"-c", script}, "capture-output": true}, &begun)
	if err != nil {
		return "", fmt.Errorf("the guest agent starts no program: %w", err)
	}
	for {
		var s execStatus
		if err := a.Execute(ctx, "guest-exec-status", map[string]int{"pid": begun.PID}, &s); err != nil {
			return "", err
		}
		if s.Exited {
			return strings.TrimSpace(string(s.Out)), failed(script, string(s.Out)+string(s.Err), s.ExitCode+s.Signal)
		}
		if err := pause(ctx, execPoll); err != nil {
			return "", fmt.Errorf("in the guest: %.200s: does not end: %w", script, err)
		}
	}
}

func (r *running) Plug(ctx context.Context, socket string, queues, queueSize int) (string, error) {
	// The scheduler is set here, too, because the guest's name of the disk is known then.
	a, err := attach.Attach(ctx, attach.Disk{ID: diskID, Socket: socket, NumQueues: queues, QueueSize: queueSize},
		attach.Options{Monitor: r.monitor, Agent: r.agent, Scheduler: "none", Timeout: stepTime})
	if err != nil {
		return "", err
	}
	return strings.TrimPrefix(a.GuestName, "/dev/"), nil
}

func (r *running) Unplug(ctx context.Context) error {
	return attach.Detach(ctx, diskID, attach.Options{Monitor: r.monitor, Timeout: stepTime})
}

func (r *running) Ours() bool { return false }

func (r *running) Close(context.Context) error { return nil }

// check says whether the machine is there, and its guest has what a run needs.
func (r *running) check(ctx context.Context) error {
	printed, err := r.Sh(ctx, "for p in fio base64 gzip mktemp; do command -v $p > /dev/null || echo $p; done")
	if err != nil {
		return err
	}
	if lacking := strings.Fields(printed); len(lacking) != 0 {
		return fmt.Errorf("the guest lacks %s: install Debian's packages fio, coreutils and gzip there", strings.Join(lacking, ", "))
	}
	return nil
}

// Package attach plugs a served disk into a running QEMU, and unplugs it again.
//
// Attach either succeeds as a whole, up to the guest's driver having started the disk,
// or leaves nothing behind; what could not be removed is named. Everything that can be
// known beforehand is asked beforehand: a device_add whose server does not answer would
// stop the whole VM, for as long as that lasts.
package attach

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/elevisor/elevisor/qemu/qmp"
)

const (
	// commandTime bounds one command; none of ours takes QEMU long.
	commandTime = 10 * time.Second
	// pollTime is between two looks at what has no event.
	pollTime = 100 * time.Millisecond
	// reconnectSeconds is how often QEMU looks for a server that has gone.
	reconnectSeconds = 1
)

// Disk says what to plug in.
type Disk struct {
	ID        string // the device's in QEMU
	Socket    string // the server's, absolute
	NumQueues int    // 0: one for each virtual CPU, as far as the server has them
	QueueSize int    // 0: QEMU's default
	Bus       string // empty: a free one
}

// Options says where, and how long to wait.
type Options struct {
	Monitor string        // QEMU's QMP socket
	Timeout time.Duration // of the whole; undoing it has as long again
	// Agent is the guest agent's socket, through which the guest gets Scheduler for
	// the disk; both or none.
	Agent     string
	Scheduler string
}

// command bounds one command.
func (o *Options) command() time.Duration { return min(o.Timeout, commandTime) }

// Attached is what has come of it.
type Attached struct {
	Device    string // its path in QEMU
	NumQueues int
	Bus       string // empty: QEMU has chosen
	GuestName string // /dev/vdb; with a guest scheduler only
	Scheduler string // the guest's, as its sysfs shows it
}

// chardev is the name of a disk's socket in QEMU.
func chardev(id string) string { return "vu-" + id }

// deviceID is what QEMU takes for an id (util/id.c).
var deviceID = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9._-]*$`)

// CheckID refuses what QEMU would not take for a device's id.
func CheckID(id string) error {
	if !deviceID.MatchString(id) {
		return fmt.Errorf("%q is no device id of QEMU's; want a letter, then letters, digits, '-', '.' and '_'", id)
	}
	return nil
}

// Attach plugs d in and returns when the guest uses it.
func Attach(ctx context.Context, d Disk, o Options) (*Attached, error) {
	if err := CheckID(d.ID); err != nil {
		return nil, err
	}
	ctx, stop := context.WithTimeout(ctx, o.Timeout)
	defer stop()
	m, err := dial(ctx, o)
	if err != nil {
		return nil, err
	}
	defer m.close()
	var agent *qmp.Agent
	if o.Scheduler != "" {
		if agent, err = qmp.DialAgent(ctx, o.Agent, o.command()); err != nil {
			return nil, err
		}
		defer agent.Close()
	}
	if err := m.check(ctx, &d); err != nil {
		return nil, err
	}
	p := plugging{machine: m, disk: d}
	a, err := p.plugWatched(ctx, agent, o.Scheduler)
	if err == nil {
		return a, nil
	}
	undoing, stop := context.WithTimeout(context.WithoutCancel(ctx), o.Timeout)
	defer stop()
	if undone := p.undo(undoing); undone != nil {
		return nil, fmt.Errorf("attach %s: %w; undoing it failed: %w; what is left goes with elevisor detach --disk %s", d.ID, err, undone, d.ID)
	}
	return nil, fmt.Errorf("attach %s: %w; nothing of it is left in the VM", d.ID, err)
}

// plugging is an attach under way; what it has begun is undone after a failure.
type plugging struct {
	*machine
	disk    Disk
	chardev bool // chardev-add was not refused
	device  bool // device_add was not refused
}

// plugWatched does not wait for a guest that has stopped.
func (p *plugging) plugWatched(ctx context.Context, agent *qmp.Agent, scheduler string) (*Attached, error) {
	ctx, stop := p.watch(ctx)
	defer stop()
	return p.plug(ctx, agent, scheduler)
}

func (p *plugging) plug(ctx context.Context, agent *qmp.Agent, scheduler string) (*Attached, error) {
	d := &p.disk
	if err := began(&p.chardev, p.mon.Execute(ctx, "chardev-add", chardevArguments(d, p.major()), nil)); err != nil {
		return nil, err
	}
	if err := p.awaitConnected(ctx, d); err != nil {
		return nil, err
	}
	if err := began(&p.device, p.mon.Execute(ctx, "device_add", deviceArguments(d), nil)); err != nil {
		if errors.Is(err, context.DeadlineExceeded) {
			err = fmt.Errorf("%w (it waits for the server at %s, and the VM stands still for as long)", err, d.Socket)
		}
		return nil, err
	}
	if err := p.awaitStarted(ctx, d.ID); err != nil {
		return nil, err
	}
	a := &Attached{Device: peripheral + "/" + d.ID, NumQueues: d.NumQueues, Bus: d.Bus}
	if agent == nil {
		return a, nil
	}
	where, err := p.pciAddress(d.ID)
	if err != nil {
		return nil, err
	}
	a.GuestName, a.Scheduler, err = setScheduler(ctx, agent, where, scheduler)
	return a, err
}

// began notes whether a command has, or may have, taken effect: one without an answer
// may have.
func began(what *bool, err error) error {
	refused := new(qmp.Error)
	*what = !errors.As(err, &refused)
	return err
}

func chardevArguments(d *Disk, major int) map[string]any {
	socket := map[string]any{
		"addr":   map[string]any{"type": "unix", "data": map[string]any{"path": d.Socket}},
		"server": false,
	}
	key, value := reconnect(major)
	socket[key] = value
	return map[string]any{"id": chardev(d.ID), "backend": map[string]any{"type": "socket", "data": socket}}
}

// reconnect is the option by which QEMU connects again: in whole seconds before QEMU 10;
// QEMU 11 has only the other.
func reconnect(major int) (key string, value int) {
	if major >= 10 {
		return "reconnect-ms", reconnectSeconds * 1000
	}
	return "reconnect", reconnectSeconds
}

func deviceArguments(d *Disk) map[string]any {
	args := map[string]any{"driver": driver, "id": d.ID, "chardev": chardev(d.ID), "num-queues": d.NumQueues}
	if d.QueueSize != 0 {
		args["queue-size"] = d.QueueSize
	}
	if d.Bus != "" {
		args["bus"] = d.Bus
	}
	return args
}

// awaitConnected returns when QEMU's socket is connected: with reconnect, chardev-add
// does not wait for that, and device_add would, with the VM stopped.
func (p *plugging) awaitConnected(ctx context.Context, d *Disk) error {
	for {
		found, err := p.chardevFile(chardev(d.ID))
		if err != nil {
			return err
		}
		if !strings.HasPrefix(found, "disconnected:") {
			return nil
		}
		switch err := pause(ctx, pollTime); {
		case errors.Is(err, context.DeadlineExceeded):
			return fmt.Errorf("QEMU cannot connect to %s, though this process can: do they see the same file system, may QEMU write to the socket?", d.Socket)
		case err != nil:
			return err
		}
	}
}

// awaitStarted returns when the guest's driver has set up the disk. Nothing else in QEMU
// tells: such a disk has no statistics there, and the queries in qmp's list of harmful
// ones may not be used.
func (p *plugging) awaitStarted(ctx context.Context, id string) error {
	args := map[string]any{"path": peripheral + "/" + id + "/virtio-backend", "queue": 0}
	for {
		err := p.mon.Execute(ctx, "x-query-virtio-vhost-queue-status", args, nil)
		refused := new(qmp.Error)
		switch {
		case err == nil:
			return nil
		case p.mon.Err() != nil:
			return err
		case ctx.Err() != nil:
			return notStarted(ctx)
		case !errors.As(err, &refused) || refused.Class == qmp.CommandNotFound:
			return err
		}
		if pause(ctx, pollTime) != nil {
			return notStarted(ctx)
		}
	}
}

func notStarted(ctx context.Context) error {
	err := context.Cause(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("the guest has not begun to use the disk: is it up, has it virtio-blk and PCI hot-plug (%w)", err)
	}
	return fmt.Errorf("the guest has not begun to use the disk: %w", err)
}

// undo removes what was begun, in reverse order; a chardev cannot go before its device.
func (p *plugging) undo(ctx context.Context) error {
	if !p.chardev {
		return nil
	}
	if err := p.again(ctx); err != nil {
		return err
	}
	if p.device {
		if err := p.unplug(ctx, p.disk.ID); err != nil {
			return err
		}
	}
	return p.removeChardev(ctx, chardev(p.disk.ID))
}

// pause waits for d; an error is why ctx has ended.
func pause(ctx context.Context, d time.Duration) error {
	t, stop := context.WithTimeout(ctx, d)
	defer stop()
	<-t.Done()
	return context.Cause(ctx)
}

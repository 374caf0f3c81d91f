package attach

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	goqemu "github.com/digitalocean/go-qemu/qmp"
	"github.com/elevisor/elevisor/qemu/qmp"
)

// Detach unplugs the disk id from the VM and returns when the guest has let go of it:
// when QEMU has deleted the device, and has closed its connection to the server. It
// takes any vhost-user-blk device, also one of QEMU's command line.
func Detach(ctx context.Context, id string, o Options) error {
	ctx, stop := context.WithTimeout(ctx, o.Timeout)
	defer stop()
	m, err := dial(ctx, o)
	if err != nil {
		return err
	}
	defer m.close()
	label, err := m.disk(ctx, id)
	if err != nil {
		return err
	}
	if label == "" { // an attach was killed half-way
		return m.removeChardev(ctx, chardev(id))
	}
	if err := m.running(ctx); err != nil {
		return err
	}
	if err := m.unplug(ctx, id); err != nil {
		return fmt.Errorf("detach %s: %w", id, err)
	}
	if err := m.removeChardev(ctx, label); err != nil {
		return fmt.Errorf("detach %s: the device is gone, its chardev is not: %w", id, err)
	}
	return nil
}

// disk is the name of a disk's chardev; empty if only the chardev of an attach is there.
func (m *machine) disk(ctx context.Context, id string) (label string, err error) {
	devices, err := m.devices()
	if err != nil {
		return "", err
	}
	kind, found := devices[id]
	if found && !isDisk(kind) {
		return "", fmt.Errorf("device %q of the VM is no vhost-user disk but a %s", id, kind)
	}
	if !found {
		if file, err := m.chardevFile(chardev(id)); err != nil || file != "" {
			return "", err
		}
		var disks []string
		for id, kind := range devices {
			if isDisk(kind) {
				disks = append(disks, id)
			}
		}
		slices.Sort(disks)
		return "", fmt.Errorf("the VM has no device %q; its vhost-user disks: [%s]", id, strings.Join(disks, " "))
	}
	err = m.mon.Execute(ctx, "qom-get", map[string]any{"path": peripheral + "/" + id, "property": "chardev"}, &label)
	if err == nil && label == "" {
		err = fmt.Errorf("device %q of the VM has no chardev", id)
	}
	return label, err
}

func isDisk(kind string) bool { return strings.HasPrefix(kind, "vhost-user-blk") }

// unplug asks the guest to let go of a device, and waits until QEMU has deleted it. A
// device that is not there is gone.
func (m *machine) unplug(ctx context.Context, id string) error {
	listening, stop := context.WithCancel(ctx)
	defer stop()
	events, err := m.mon.Events(listening)
	if err != nil {
		return err
	}
	refused := new(qmp.Error)
	err = m.mon.Execute(ctx, "device_del", map[string]string{"id": id}, nil)
	switch {
	case gone(err):
		return nil
	case errors.As(err, &refused) && strings.Contains(refused.Desc, "in the process of unplug"): // an earlier one's wait was over
	case err != nil:
		return err
	}
	watched, stop := m.watch(ctx)
	defer stop()
	for {
		over, err := m.deleted(watched, id, events)
		if over || err != nil {
			return err
		}
	}
}

// deleted waits a while for the device's end.
func (m *machine) deleted(ctx context.Context, id string, events <-chan goqemu.Event) (over bool, err error) {
	look, stop := context.WithTimeout(ctx, 10*pollTime)
	defer stop()
	select {
	case e := <-events:
		if e.Data["device"] != id {
			return false, nil
		}
		if e.Event == "DEVICE_UNPLUG_GUEST_ERROR" {
			return false, errors.New("the guest refuses to let go of the device")
		}
		return e.Event == "DEVICE_DELETED", nil
	case <-look.Done():
	}
	switch err := context.Cause(ctx); {
	case errors.Is(err, context.DeadlineExceeded):
		return false, fmt.Errorf("the guest has not let go of the device (%w): is it up, and has it PCI hot-plug? QEMU keeps the request, and the device works until the guest does", err)
	case err != nil:
		return false, fmt.Errorf("the guest has not let go of the device: %w", err)
	}
	devices, err := m.devices() // an event may have been lost
	_, there := devices[id]
	return err == nil && !there, err
}

// removeChardev removes a chardev; QEMU may be busy with it for a moment after its
// device has gone. One that is not there is removed.
func (m *machine) removeChardev(ctx context.Context, label string) error {
	for {
		if file, err := m.chardevFile(label); err != nil || file == "" {
			return err
		}
		err := m.raw.ChardevRemove(label)
		refused := new(qmp.Error)
		busy := errors.As(err, &refused) && strings.Contains(refused.Desc, "busy")
		if err == nil || !busy || pause(ctx, pollTime) != nil {
			return err
		}
	}
}

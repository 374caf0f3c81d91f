package attach

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/digitalocean/go-qemu/qmp/raw"
	"github.com/elevisor/elevisor/qemu/qmp"
)

const (
	driver = "vhost-user-blk-pci"
	// peripheral is where QEMU keeps the devices that have an id.
	peripheral = "/machine/peripheral"
	// oldestMajor.oldestMinor is the first QEMU that can be asked whether a vhost device has started.
	oldestMajor, oldestMinor = 7, 2
)

// machine is a running VM.
type machine struct {
	options Options
	mon     *qmp.Monitor
	raw     *raw.Monitor // the same, with go-qemu's types
}

func dial(ctx context.Context, o Options) (*machine, error) {
	m := &machine{options: o}
	return m, m.connect(ctx)
}

func (m *machine) connect(ctx context.Context) error {
	mon, err := qmp.Dial(ctx, m.options.Monitor, m.options.command())
	if err != nil {
		return err
	}
	m.mon, m.raw = mon, raw.NewMonitor(mon)
	return nil
}

// again connects anew if the connection was lost.
func (m *machine) again(ctx context.Context) error {
	if m.mon.Err() == nil {
		return nil
	}
	return m.connect(ctx)
}

// watch returns a context for waits that need the guest's help. A guest that restarts
// meanwhile finds, and loses, disks all the same.
func (m *machine) watch(ctx context.Context) (context.Context, context.CancelFunc) {
	return m.mon.Watch(ctx, qmp.WatchOptions{Expected: func(event string) bool { return event == qmp.EventReset }})
}

func (m *machine) close() { _ = m.mon.Disconnect() }

func (m *machine) major() int {
	major, _ := m.mon.Version()
	return major
}

// check asks all that can be known before anything is changed, and completes d.
func (m *machine) check(ctx context.Context, d *Disk) error {
	major, minor := m.mon.Version()
	if major < oldestMajor || major == oldestMajor && minor < oldestMinor {
		return fmt.Errorf("QEMU %d.%d is too old: want %d.%d or later", major, minor, oldestMajor, oldestMinor)
	}
	if err := m.running(ctx); err != nil {
		return err
	}
	if err := m.free(d.ID); err != nil {
		return err
	}
	if err := m.sharedMemory(ctx); err != nil {
		return err
	}
	if err := m.queues(ctx, d); err != nil {
		return err
	}
	return m.bus(ctx, d)
}

// running refuses a VM that stands still: its guest could neither take nor let go of
// a disk.
func (m *machine) running(ctx context.Context) error {
	var s struct {
		Running bool
		Status  string
	}
	if err := m.mon.Execute(ctx, "query-status", nil, &s); err != nil {
		return err
	}
	if !s.Running {
		return fmt.Errorf("the VM does not run (it is %s): its guest takes and gives up disks only while it does", s.Status)
	}
	return nil
}

// free refuses an id that is taken.
func (m *machine) free(id string) error {
	devices, err := m.devices()
	if err != nil {
		return err
	}
	if kind, taken := devices[id]; taken {
		return fmt.Errorf("the VM already has a device %q (%s): detach that one first, or give another --disk name", id, kind)
	}
	file, err := m.chardevFile(chardev(id))
	if err != nil {
		return err
	}
	if file != "" {
		return fmt.Errorf("the VM already has a chardev %q without its device, left by an attach that was killed: elevisor detach --disk %s removes it", chardev(id), id)
	}
	return nil
}

// devices are the types of the VM's devices by id, those that have one.
func (m *machine) devices() (map[string]string, error) {
	children, err := m.raw.QomList(peripheral)
	if err != nil {
		return nil, err
	}
	devices := map[string]string{}
	for _, c := range children {
		if kind, ok := strings.CutPrefix(c.Type, "child<"); ok {
			devices[c.Name] = strings.TrimSuffix(kind, ">")
		}
	}
	return devices, nil
}

// chardevFile is what a chardev is connected to, as QEMU writes that; empty, if there is
// no such chardev.
func (m *machine) chardevFile(label string) (string, error) {
	all, err := m.raw.QueryChardev()
	if err != nil {
		return "", err
	}
	for _, c := range all {
		if c.Label == label {
			return c.Filename, nil
		}
	}
	return "", nil
}

// sharedMemory refuses a VM whose memory the server cannot map: QEMU says nothing, and
// the guest hangs at its first request.
func (m *machine) sharedMemory(ctx context.Context) error {
	var all []struct {
		ID    string
		Share bool
		Size  uint64
	}
	if err := m.mon.Execute(ctx, "query-memdev", nil, &all); err != nil {
		return err
	}
	const want = "start it with -object memory-backend-memfd,id=mem,size=%s,share=on -machine memory-backend=mem"
	if len(all) == 0 {
		return fmt.Errorf("the VM's memory is no memory object, which a vhost-user server could map: "+want, "SIZE")
	}
	for _, b := range all {
		if !b.Share || m.anonymous(ctx, b.ID) {
			return fmt.Errorf("the VM's memory %q is not shared, so that no vhost-user server can map it: "+want, b.ID, fmt.Sprintf("%dM", b.Size>>20))
		}
	}
	return nil
}

// anonymous is whether a shared memory object has no file behind it that could be given
// away: memory-backend-ram before QEMU 10.
func (m *machine) anonymous(ctx context.Context, id string) bool {
	var kind string
	err := m.mon.Execute(ctx, "qom-get", map[string]any{"path": "/objects/" + id, "property": "type"}, &kind)
	return err == nil && kind == "memory-backend-ram" && m.major() < 10
}

// queues asks the server, and chooses.
func (m *machine) queues(ctx context.Context, d *Disk) error {
	most, err := ask(d.Socket, min(m.options.Timeout, serverTime))
	if err != nil {
		return err
	}
	if d.NumQueues > most {
		return fmt.Errorf("--num-queues=%d: the server at %s has %d", d.NumQueues, d.Socket, most)
	}
	if d.NumQueues != 0 {
		return nil
	}
	var cpus []struct{}
	if err := m.mon.Execute(ctx, "query-cpus-fast", nil, &cpus); err != nil {
		return err
	}
	d.NumQueues = max(1, min(most, len(cpus)))
	return nil
}

// bus chooses a place where a device can be plugged in while the VM runs: on PCI Express
// machines only behind a root port, each of which takes one.
func (m *machine) bus(ctx context.Context, d *Disk) error {
	if d.Bus != "" {
		return nil
	}
	var kind string
	if err := m.mon.Execute(ctx, "qom-get", map[string]any{"path": "/machine", "property": "type"}, &kind); err != nil {
		return err
	}
	if strings.HasPrefix(kind, "pc-i440fx") {
		return nil // QEMU takes pci.0
	}
	devices, err := m.devices()
	if err != nil {
		return err
	}
	buses, err := m.raw.QueryPCI()
	if err != nil {
		return err
	}
	var ports []string
	walk(buses, func(p *raw.PCIDeviceInfo) {
		if devices[p.QdevID] != "pcie-root-port" {
			return
		}
		ports = append(ports, p.QdevID)
		if d.Bus == "" && p.PCIBridge != nil && len(p.PCIBridge.Devices) == 0 && m.hotplug(ctx, p.QdevID) {
			d.Bus = p.QdevID
		}
	})
	if d.Bus != "" {
		return nil
	}
	slices.Sort(ports)
	return fmt.Errorf("the VM (%s) has no free pcie-root-port, taken: [%s]: start it with one for each disk to come, -device pcie-root-port,id=rp1,chassis=1,slot=1, or give --bus",
		kind, strings.Join(ports, " "))
}

// hotplug is whether a root port takes devices at run time; they do unless told not to.
func (m *machine) hotplug(ctx context.Context, id string) bool {
	on := true
	_ = m.mon.Execute(ctx, "qom-get", map[string]any{"path": peripheral + "/" + id, "property": "hotplug"}, &on)
	return on
}

// walk visits all PCI devices, those behind bridges too.
func walk(buses []raw.PCIInfo, visit func(*raw.PCIDeviceInfo)) {
	var level func(devices []raw.PCIDeviceInfo)
	level = func(devices []raw.PCIDeviceInfo) {
		for i := range devices {
			visit(&devices[i])
			if b := devices[i].PCIBridge; b != nil {
				level(b.Devices)
			}
		}
	}
	for _, b := range buses {
		level(b.Devices)
	}
}

// pci is a device's place in the guest.
type pci struct{ bus, slot, function int64 }

func (m *machine) pciAddress(id string) (where pci, err error) {
	buses, err := m.raw.QueryPCI()
	if err != nil {
		return pci{}, err
	}
	err = fmt.Errorf("query-pci: there is no device %q", id)
	walk(buses, func(d *raw.PCIDeviceInfo) {
		if d.QdevID == id {
			where, err = pci{d.Bus, d.Slot, d.Function}, nil
		}
	})
	return where, err
}

// gone is whether QEMU's refusal says that there is no such device.
func gone(err error) bool {
	refused := new(qmp.Error)
	return errors.As(err, &refused) && refused.Class == qmp.DeviceNotFound
}

package qmptest

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// arguments are those of all commands.
type arguments struct {
	ID, Path, Property, Driver, Chardev, Bus string
	Backend                                  struct {
		Data struct {
			Addr         struct{ Data struct{ Path string } }
			Reconnect    *int
			Milliseconds *int `json:"reconnect-ms"`
		}
	}
	Queue     *int
	NumQueues *int `json:"num-queues"`
	QueueSize *int `json:"queue-size"`
	Server    *bool
}

type refusal struct {
	Class string `json:"class"`
	Desc  string `json:"desc"`
}

func generic(format string, args ...any) refusal {
	return refusal{"GenericError", fmt.Sprintf(format, args...)}
}

// do is the commands that the machine knows.
func (v *VM) do(command string, a *arguments) (result any, events []string, err refusal) {
	result = map[string]any{}
	switch command {
	case "qmp_capabilities":
	case "query-status":
		result = map[string]any{"running": v.Status == "running", "status": v.Status, "singlestep": false}
	case "stop", "cont", "system_reset", "quit":
		events = v.power(command)
	case "query-cpus-fast":
		result = make([]struct{}, 2)
	case "query-memdev":
		result = v.memory()
	case "qom-get":
		result, err = v.get(a)
	case "qom-list":
		result = v.list()
	case "query-chardev":
		result = v.chardevs()
	case "query-pci":
		result = v.pci()
	case "chardev-add":
		err = v.addChardev(a)
	case "chardev-remove":
		err = v.removeChardev(a.ID)
	case "device_add":
		err = v.addDevice(a)
	case "device_del":
		events, err = v.deleteDevice(a.ID)
	case "x-query-virtio-vhost-queue-status":
		id, _ := strings.CutSuffix(strings.TrimPrefix(a.Path, "/machine/peripheral/"), "/virtio-backend")
		if v.asked[id]++; v.Deaf || v.asked[id] < 2 {
			err = generic("Error: vhost device has not started yet")
		}
	default:
		err = refusal{"CommandNotFound", "The command " + command + " has not been found"}
	}
	return result, events, err
}

// power carries out the commands that stop, continue, reset and end the machine.
func (v *VM) power(command string) []string {
	switch command {
	case "stop":
		v.Status = "paused"
		return []string{event("STOP", "{}")}
	case "cont":
		v.Status = "running"
		return []string{event("RESUME", "{}")}
	case "system_reset":
		return []string{event("RESET", `{"guest": false, "reason": "host-qmp-system-reset"}`)}
	}
	return []string{event("SHUTDOWN", `{"guest": false, "reason": "host-qmp-quit"}`)}
}

func (v *VM) memory() (all []any) {
	for _, id := range slices.Sorted(maps.Keys(v.Memory)) {
		all = append(all, map[string]any{"id": id, "share": v.Memory[id] != "private", "size": 512 << 20, "policy": "default", "host-nodes": []int{}})
	}
	return all
}

func (v *VM) get(a *arguments) (any, refusal) {
	kind, object := strings.CutPrefix(a.Path, "/objects/")
	id, device := strings.CutPrefix(a.Path, "/machine/peripheral/")
	switch {
	case a.Path == "/machine" && a.Property == "type":
		return v.Machine, refusal{}
	case object && a.Property == "type" && strings.HasPrefix(v.Memory[kind], "memory-backend-"):
		return v.Memory[kind], refusal{}
	case object && a.Property == "type":
		return "memory-backend-memfd", refusal{}
	case device && a.Property == "chardev":
		return v.behind[id], refusal{}
	case device && a.Property == "hotplug":
		return !strings.HasSuffix(id, "-off"), refusal{}
	}
	return nil, generic("Property '%s.%s' not found", a.Path, a.Property)
}

func (v *VM) list() any {
	all := []map[string]string{{"name": "type", "type": "string"}}
	for _, p := range v.Ports {
		all = append(all, map[string]string{"name": p, "type": "child<pcie-root-port>"})
	}
	for _, id := range slices.Sorted(maps.Keys(v.Devices)) {
		all = append(all, map[string]string{"name": id, "type": "child<" + v.Devices[id] + ">"})
	}
	return all
}

func (v *VM) chardevs() any {
	all := []any{}
	for _, id := range slices.Sorted(maps.Keys(v.Chardevs)) {
		all = append(all, map[string]any{"label": id, "filename": v.Chardevs[id], "frontend-open": false})
	}
	return all
}

// pci is the guest's view: devices from slot 4 on, those on a root port behind it.
func (v *VM) pci() any {
	device := func(id string, bus, slot int) map[string]any {
		return map[string]any{"bus": bus, "slot": slot, "function": 0, "qdev_id": id, "regions": []any{},
			"class_info": map[string]any{"class": 256, "desc": strings.Repeat("x", v.Long)}, "id": map[string]any{"device": 4162, "vendor": 6900}}
	}
	var devices []any
	on := map[string][]any{}
	for i, id := range slices.Sorted(maps.Keys(v.Devices)) {
		if port := v.bus[id]; port != "" {
			on[port] = append(on[port], device(id, 1+slices.Index(v.Ports, port), 0))
		} else {
			devices = append(devices, device(id, 0, 4+i))
		}
	}
	for i, p := range v.Ports {
		d := device(p, 0, 20+i)
		behind := on[p]
		if behind == nil {
			behind = []any{}
		}
		d["pci_bridge"] = map[string]any{"devices": behind, "bus": map[string]any{"number": 0, "secondary": i + 1, "subordinate": i + 1,
			"io_range": struct{}{}, "memory_range": struct{}{}, "prefetchable_range": struct{}{}}}
		devices = append(devices, d)
	}
	return []any{map[string]any{"bus": 0, "devices": devices}}
}

func (v *VM) addChardev(a *arguments) refusal {
	d := &a.Backend.Data
	switch {
	case v.Chardevs[a.ID] != "":
		return generic("Chardev with id '%s' already exists", a.ID)
	case d.Reconnect != nil && v.Major >= 11:
		return generic("Parameter 'backend.data.reconnect' is unexpected")
	case d.Milliseconds != nil && v.Major < 10:
		return generic("Parameter 'backend.data.reconnect-ms' is unexpected")
	}
	v.Chardevs[a.ID] = "unix:"
	if v.Unreachable {
		v.Chardevs[a.ID] = "disconnected:unix:" + d.Addr.Data.Path
	}
	return refusal{}
}

func (v *VM) removeChardev(id string) refusal {
	if v.Chardevs[id] == "" {
		return generic("Chardev '%s' not found", id)
	}
	for _, c := range v.behind {
		if c == id {
			return generic("Chardev '%s' is busy", id)
		}
	}
	if v.Busy--; v.Busy >= 0 {
		return generic("Chardev '%s' is busy", id)
	}
	delete(v.Chardevs, id)
	return refusal{}
}

func (v *VM) addDevice(a *arguments) refusal {
	switch {
	case v.Devices[a.ID] != "":
		return generic("Duplicate device ID '%s'", a.ID)
	case v.Chardevs[a.Chardev] == "":
		return generic("Property 'vhost-user-blk-pci.chardev' can't find value '%s'", a.Chardev)
	case a.Bus != "" && !slices.Contains(v.Ports, a.Bus):
		return generic("Bus '%s' not found", a.Bus)
	}
	v.Devices[a.ID], v.behind[a.ID], v.bus[a.ID] = a.Driver, a.Chardev, a.Bus
	v.asked[a.ID] = 0
	return refusal{}
}

// deleteDevice also tells of the device inside, as QEMU does.
func (v *VM) deleteDevice(id string) (events []string, _ refusal) {
	if v.Devices[id] == "" {
		return nil, refusal{"DeviceNotFound", fmt.Sprintf("Device '%s' not found", id)}
	}
	path := "/machine/peripheral/" + id
	what := fmt.Sprintf(`{"device": %q, "path": %q}`, id, path)
	switch {
	case v.Clinging:
		return nil, refusal{}
	case v.Unwilling:
		return []string{event("DEVICE_UNPLUG_GUEST_ERROR", what)}, refusal{}
	}
	delete(v.Devices, id)
	delete(v.behind, id)
	delete(v.bus, id)
	switch {
	case v.Unplugging:
		return nil, generic("Device %s is already in the process of unplug", id)
	case v.Quiet:
		return nil, refusal{}
	}
	return []string{event("DEVICE_DELETED", fmt.Sprintf(`{"path": %q}`, path+"/virtio-backend")), event("DEVICE_DELETED", what)}, refusal{}
}

// Plug makes a device with its chardev, as a command line does.
func (v *VM) Plug(id, kind, chardev, bus string) {
	v.Devices[id], v.behind[id], v.bus[id] = kind, chardev, bus
	if chardev != "" {
		v.Chardevs[chardev] = "unix:"
	}
}

package attach

import (
	"encoding/xml"
	"fmt"
	"io"
	"strings"
)

// WriteQEMU writes the arguments with which a QEMU of that major version is started on
// the disk, those for its memory included; SIZE is the VM's.
func WriteQEMU(w io.Writer, d Disk, major int) error {
	comma := func(s string) string { return strings.ReplaceAll(s, ",", ",,") } // QEMU's way to write one
	key, value := reconnect(major)
	device := fmt.Sprintf("%s,id=%s,chardev=%s", driver, d.ID, chardev(d.ID))
	if d.NumQueues != 0 {
		device += fmt.Sprintf(",num-queues=%d", d.NumQueues)
	}
	if d.QueueSize != 0 {
		device += fmt.Sprintf(",queue-size=%d", d.QueueSize)
	}
	if d.Bus != "" {
		device += ",bus=" + comma(d.Bus)
	}
	_, err := fmt.Fprintf(w, "-object memory-backend-memfd,id=mem,size=SIZE,share=on -machine memory-backend=mem \\\n"+
		"-chardev %s \\\n-device %s\n",
		quote(fmt.Sprintf("socket,id=%s,path=%s,%s=%d", chardev(d.ID), comma(d.Socket), key, value)), quote(device))
	return err
}

// quote makes one word of s for a shell.
func quote(s string) string {
	if strings.Trim(s, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789,=._/+:@%-") == "" {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// The XML of libvirt (formatdomain, "vhostuser" disks).
type (
	libvirtDisk struct {
		XMLName xml.Name      `xml:"disk"`
		Type    string        `xml:"type,attr"`
		Device  string        `xml:"device,attr"`
		Note    string        `xml:",comment"`
		Driver  libvirtDriver `xml:"driver"`
		Source  libvirtSource `xml:"source"`
		Target  libvirtTarget `xml:"target"`
		Alias   libvirtAlias  `xml:"alias"`
	}
	libvirtDriver struct {
		Name      string `xml:"name,attr"`
		Type      string `xml:"type,attr"`
		Queues    int    `xml:"queues,attr,omitempty"`
		QueueSize int    `xml:"queue_size,attr,omitempty"`
	}
	libvirtSource struct {
		Type      string           `xml:"type,attr"`
		Path      string           `xml:"path,attr"`
		Reconnect libvirtReconnect `xml:"reconnect"`
	}
	libvirtReconnect struct {
		Enabled string `xml:"enabled,attr"`
		Timeout int    `xml:"timeout,attr"`
	}
	libvirtTarget struct {
		Dev string `xml:"dev,attr"`
		Bus string `xml:"bus,attr"`
	}
	libvirtAlias struct {
		Name string `xml:"name,attr"`
	}
)

// WriteLibvirt writes the disk as libvirt's XML, for a domain or for virsh attach-device;
// target is its name among the domain's disks (vdb).
func WriteLibvirt(w io.Writer, d Disk, target string) error {
	e := xml.NewEncoder(w)
	e.Indent("", "  ")
	err := e.Encode(libvirtDisk{
		Type: "vhostuser", Device: "disk",
		Note:   " the domain needs <memoryBacking><source type='memfd'/><access mode='shared'/></memoryBacking> ",
		Driver: libvirtDriver{Name: "qemu", Type: "raw", Queues: d.NumQueues, QueueSize: d.QueueSize},
		Source: libvirtSource{Type: "unix", Path: d.Socket, Reconnect: libvirtReconnect{"yes", reconnectSeconds}},
		Target: libvirtTarget{Dev: target, Bus: "virtio"},
		Alias:  libvirtAlias{"ua-" + strings.ReplaceAll(d.ID, ".", "-")}, // takes no dots
	})
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(w)
	return err
}

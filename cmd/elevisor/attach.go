package main

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/elevisor/elevisor/cmd/cli"
	"github.com/elevisor/elevisor/daemon/ctl"
	"github.com/elevisor/elevisor/qemu/attach"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// hotplugTime is what a guest may take to find a disk, or to let go of one; a quiet one
// takes a second.
const hotplugTime = 30 * time.Second

type attachFlags struct {
	options attach.Options
	disk    attach.Disk
	control string
	print   string
	version int
	target  string
}

func newAttach() *cobra.Command {
	var f attachFlags
	c := &cobra.Command{
		Use:   "attach",
		Short: "plug a served disk into a running QEMU",
		Long: `Plugs a disk that a server serves into a running QEMU (7.2 or later), over its QMP
socket, and returns when the guest uses it. When that fails, what was done is undone.

The VM needs shared memory, and on a PCI Express machine (q35) a free root port:
  -object memory-backend-memfd,id=mem,size=4G,share=on -machine memory-backend=mem
  -device pcie-root-port,id=rp1,chassis=1,slot=1
  -qmp unix:/run/vm.qmp,server=on,wait=off

--print writes the arguments of qemu, or the XML of libvirt, for a VM that is to be
started, and needs none that runs.`,
		Example: `  elevisor attach --qmp /run/vm.qmp --disk vdb
  elevisor attach --qmp /run/vm.qmp --socket-path /run/b.sock --num-queues 2
  elevisor attach --disk vdb --print libvirt`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return f.run(c) },
	}
	fl := c.Flags()
	addMachine(fl, &f.options)
	fl.StringVar(&f.disk.ID, "disk", "", "the disk's id: at the control socket, and in QEMU (default: the name of its socket)")
	fl.StringVarP(&f.disk.Socket, "socket-path", "s", "", "the disk's socket, instead of asking the control socket for it")
	fl.StringVar(&f.control, "control-socket", defaultControlSocket(), "the server's control socket")
	fl.IntVar(&f.disk.NumQueues, "num-queues", 0, "queues (default: one for each virtual CPU, as far as the server has them)")
	fl.IntVar(&f.disk.QueueSize, "queue-size", 0, "entries of a queue, a power of 2 (default: QEMU's)")
	fl.StringVar(&f.disk.Bus, "bus", "", "QEMU's id of the bus to plug it into (default: a free one)")
	fl.StringVar(&f.options.Agent, "guest-agent", "", "the socket of the QEMU guest agent, for --guest-scheduler")
	fl.StringVar(&f.options.Scheduler, "guest-scheduler", "", "the I/O scheduler that the guest's kernel is to use for the disk, by the guest agent")
	fl.StringVar(&f.print, "print", "", "qemu or libvirt: only print how a VM is started on the disk")
	fl.IntVar(&f.version, "qemu-version", 10, "with --print=qemu: QEMU's major version")
	fl.StringVar(&f.target, "target", "vdb", "with --print=libvirt: the disk's name in the domain")
	return c
}

// addMachine adds the flags of both commands.
func addMachine(fl *pflag.FlagSet, o *attach.Options) {
	fl.StringVar(&o.Monitor, "qmp", "", "QEMU's QMP socket")
	fl.DurationVar(&o.Timeout, "timeout", hotplugTime, "how long the guest may take")
}

func checkMachine(o *attach.Options) error {
	if o.Monitor == "" {
		return errors.New("--qmp is missing: the socket of QEMU's -qmp unix:PATH,server=on,wait=off")
	}
	if o.Timeout <= 0 {
		return fmt.Errorf("--timeout=%v: want more than 0s", o.Timeout)
	}
	return nil
}

func (f *attachFlags) run(c *cobra.Command) error {
	if err := f.check(c); err != nil {
		return err
	}
	if err := f.find(c); err != nil {
		return err
	}
	switch f.print {
	case "qemu":
		return attach.WriteQEMU(c.OutOrStdout(), f.disk, f.version)
	case "libvirt":
		return attach.WriteLibvirt(c.OutOrStdout(), f.disk, f.target)
	}
	a, err := attach.Attach(c.Context(), f.disk, f.options)
	if err != nil {
		return err
	}
	fmt.Fprintf(c.OutOrStdout(), "%s: the guest uses it; queues: %d, bus: %s\n", f.disk.ID, a.NumQueues, either(a.Bus == "", "QEMU's default", a.Bus))
	if a.GuestName != "" {
		fmt.Fprintf(c.OutOrStdout(), "%s in the guest: %s\n", a.GuestName, a.Scheduler)
	}
	return nil
}

// check judges the flags by themselves.
func (f *attachFlags) check(c *cobra.Command) error {
	d, o := &f.disk, &f.options
	if d.ID == "" && d.Socket == "" {
		return errors.New("no disk: give --disk, which the control socket knows, or --socket-path")
	}
	if f.print != "" {
		if err := cli.OneOf("print", f.print, "qemu", "libvirt"); err != nil {
			return err
		}
	} else if err := checkMachine(o); err != nil {
		return err
	}
	switch {
	case (o.Agent == "") != (o.Scheduler == ""):
		return errors.New("give --guest-scheduler and --guest-agent, or neither: a guest's scheduler is changed through its agent")
	case o.Scheduler != "" && f.print != "":
		return errors.New("--guest-scheduler has no meaning with --print: it is set in a guest that runs")
	case strings.ContainsAny(o.Scheduler, " \t\n[]"):
		return fmt.Errorf("--guest-scheduler=%q is no scheduler's name", o.Scheduler)
	case c.Flags().Changed("num-queues") && (d.NumQueues < 1 || d.NumQueues > 1024):
		return fmt.Errorf("--num-queues=%d: want 1 to 1024", d.NumQueues)
	case c.Flags().Changed("queue-size") && (d.QueueSize < 4 || d.QueueSize > 1024 || d.QueueSize&(d.QueueSize-1) != 0):
		return fmt.Errorf("--queue-size=%d: want a power of 2 from 4 to 1024", d.QueueSize)
	case f.version < 7:
		return fmt.Errorf("--qemu-version=%d: want 7 or more, the major version", f.version)
	}
	return nil
}

// find completes the disk: its socket by its id, or its id by its socket.
func (f *attachFlags) find(c *cobra.Command) (err error) {
	if f.disk.Socket == "" {
		if err := f.ask(c); err != nil {
			return err
		}
	}
	if f.disk.Socket, err = filepath.Abs(f.disk.Socket); err != nil { // QEMU works in another directory
		return fmt.Errorf("--socket-path: %w", err)
	}
	if f.disk.ID == "" {
		f.disk.ID = strings.TrimSuffix(filepath.Base(f.disk.Socket), filepath.Ext(f.disk.Socket))
	}
	if err := attach.CheckID(f.disk.ID); err != nil {
		return fmt.Errorf("%w: give --socket-path, and another --disk", err)
	}
	return nil
}

// ask asks the control socket for the disk's.
func (f *attachFlags) ask(c *cobra.Command) error {
	var disks []ctl.Disk
	if err := ctl.Call(c.Context(), f.control, "list", nil, &disks); err != nil {
		return fmt.Errorf("where is disk %s? %w, or give --socket-path", f.disk.ID, err)
	}
	var ids []string
	for _, d := range disks {
		ids = append(ids, d.ID)
		switch {
		case d.ID != f.disk.ID:
			continue
		case d.Socket == "":
			return fmt.Errorf("disk %s has no socket with a name: it came to its server as --fd", d.ID)
		case d.Connected && f.print == "":
			return fmt.Errorf("disk %s is attached already: its server has one front-end at a time; elevisor detach it from that VM first", d.ID)
		}
		f.disk.Socket = d.Socket
		if f.print != "" && f.disk.NumQueues == 0 {
			f.disk.NumQueues = d.NumQueues // QEMU, left alone, may want more, and then gives up
		}
		return nil
	}
	return fmt.Errorf("there is no disk %q; there are: %s", f.disk.ID, strings.Join(ids, ", "))
}

func newDetach() *cobra.Command {
	var o attach.Options
	var disk string
	c := &cobra.Command{
		Use:   "detach",
		Short: "unplug a vhost-user disk from a running QEMU",
		Long: `Asks the guest to let go of a disk, and returns when it has, and QEMU has closed its
connection to the server. Unmount it in the guest first. Disks of QEMU's command
line are taken too, by the id of their -device.`,
		Example: "  elevisor detach --qmp /run/vm.qmp --disk vdb",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if disk == "" {
				return errors.New("--disk is missing: the device's id in QEMU")
			}
			if err := checkMachine(&o); err != nil {
				return err
			}
			if err := attach.Detach(c.Context(), disk, o); err != nil {
				return err
			}
			fmt.Fprintf(c.OutOrStdout(), "%s: detached\n", disk)
			return nil
		},
	}
	addMachine(c.Flags(), &o)
	c.Flags().StringVar(&disk, "disk", "", "the device's id in QEMU")
	return c
}

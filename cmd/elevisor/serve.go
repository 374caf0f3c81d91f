package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/elevisor/elevisor/cmd/cli"
	"github.com/elevisor/elevisor/daemon"
	"github.com/spf13/cobra"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// capabilities is what --print-capabilities says, in the schema
// VhostUserBackendCapabilitiesBlock of docs/interop/vhost-user.json.
const capabilities = `{
  "type": "block",
  "features": [
    "read-only",
    "blk-file"
  ]
}`

// endWithin is how long SIGTERM may take: a manager sends SIGKILL a few seconds
// later, and a disk that hangs must not make us wait for that. What was in flight
// is in the in-flight record.
const endWithin = 900 * time.Millisecond

type serveFlags struct {
	disks        []string
	domains      []string
	socket       string
	fd           int
	file         string
	readOnly     bool
	control      string
	capabilities bool
	verbose      bool
}

func newServe() *cobra.Command {
	var f serveFlags
	c := &cobra.Command{
		Use:   "serve",
		Short: "serve disks to virtual machines (also the default when only flags are given)",
		Long: `Serves each disk on its own vhost-user socket. One disk:

  elevisor serve --socket-path=/run/vm.sock --blk-file=vm.img

Several: repeat --disk with KEY=VALUE,... (write a comma inside a value twice):

` + daemon.DiskKeys() + `
Disks on one physical disk share a scheduling domain, which is named after it;
domain=private keeps a disk out. --domain describes one by its id:

` + daemon.DomainKeys(),
		Example: "  elevisor serve --disk path=vm.img,socket=/run/vm.sock,cache=none,num-queues=2",
		Args:    cobra.NoArgs,
		RunE:    func(c *cobra.Command, _ []string) error { return f.run(c) },
	}
	fl := c.Flags()
	fl.StringVarP(&f.socket, "socket-path", "s", "", "listen on this UNIX socket")
	fl.IntVarP(&f.fd, "fd", "f", 0, "serve on this descriptor: a listening or a connected UNIX socket")
	fl.StringVarP(&f.file, "blk-file", "b", "", "the disk: a file or a block device")
	fl.BoolVarP(&f.readOnly, "read-only", "r", false, "the guest cannot write")
	fl.StringArrayVar(&f.disks, "disk", nil, "a disk as KEY=VALUE,... ; may be repeated")
	fl.StringVar(&f.control, "control-socket", "", "answer elevisor ctl on this UNIX socket")
	fl.StringArrayVar(&f.domains, "domain", nil, "a scheduling domain as KEY=VALUE,... ; may be repeated")
	fl.BoolVarP(&f.capabilities, "print-capabilities", "c", false, "print what this program can do, as JSON, and exit")
	fl.BoolVar(&f.verbose, "verbose", false, "log every vhost-user message")
	return c
}

func (f *serveFlags) run(c *cobra.Command) error {
	if f.capabilities {
		fmt.Fprintln(c.OutOrStdout(), capabilities)
		return nil
	}
	specs, err := f.specs(c)
	if err != nil {
		return err
	}
	log := newLogger(f.verbose)
	defer func() { _ = log.Sync() }() // a terminal cannot be synced
	cli.TuneRuntime()
	domains := make([]daemon.Domain, len(f.domains))
	for i, s := range f.domains {
		if domains[i], err = daemon.ParseDomain(s); err != nil {
			return err
		}
	}
	over := make(chan struct{})
	defer close(over)
	go endInTime(c.Context(), over, log) // from here on: opening waits for locks, and for disks
	d, err := daemon.Open(specs, domains, log)
	if err != nil {
		return err
	}
	if f.control != "" {
		end, err := serveControl(c.Context(), f.control, d, log)
		if err != nil {
			d.Close()
			return err
		}
		defer end()
	}
	err = d.Run(c.Context())
	log.Info("ended")
	return err
}

// endInTime ends the process if a disk keeps it from ending by itself.
func endInTime(ctx context.Context, over <-chan struct{}, log *zap.Logger) {
	select {
	case <-ctx.Done():
	case <-over:
		return
	}
	select {
	case <-over:
	case <-time.After(endWithin):
		log.Error("a disk does not answer; ended without waiting for it")
		os.Exit(1)
	}
}

// specs are the disks of --disk, and the one of the single-disk flags.
func (f *serveFlags) specs(c *cobra.Command) (specs []daemon.Disk, err error) {
	for _, s := range f.disks {
		d, err := daemon.ParseDisk(s)
		if err != nil {
			return nil, err
		}
		specs = append(specs, d)
	}
	one := c.Flags().Changed("socket-path") || c.Flags().Changed("fd") || c.Flags().Changed("blk-file")
	switch {
	case !one && len(specs) == 0:
		return nil, errors.New("no disk: give --blk-file and --socket-path, or --disk (see elevisor serve --help)")
	case !one && f.readOnly:
		return nil, errors.New("--read-only belongs to --blk-file; write read-only=on into --disk")
	case !one:
		return specs, nil
	case f.file == "":
		return nil, errors.New("--blk-file is missing")
	case c.Flags().Changed("fd") && f.fd < 3:
		// Whatever is opened next would get the number of a standard stream that we
		// took over, and with it all that is logged: an image, or a guest's socket.
		return nil, fmt.Errorf("--fd=%d: want a descriptor from 3 on, which is none of the standard streams", f.fd)
	case (f.socket == "") == !c.Flags().Changed("fd"):
		return nil, errors.New("give one of --socket-path and --fd")
	}
	d := daemon.Disk{Path: f.file, Socket: f.socket, ReadOnly: f.readOnly}
	if c.Flags().Changed("fd") {
		d.FD = f.fd
	}
	return append(specs, d), nil
}

func newLogger(verbose bool) *zap.Logger {
	enc := zap.NewProductionEncoderConfig()
	enc.EncodeTime = zapcore.ISO8601TimeEncoder
	level := zapcore.InfoLevel
	if verbose {
		level = zapcore.DebugLevel
	}
	return zap.New(zapcore.NewCore(zapcore.NewConsoleEncoder(enc), zapcore.Lock(os.Stderr), level))
}

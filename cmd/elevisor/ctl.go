package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/elevisor/elevisor/cmd/cli"
	"github.com/elevisor/elevisor/daemon"
	"github.com/elevisor/elevisor/daemon/ctl"
	"github.com/elevisor/elevisor/sched"
	"github.com/spf13/cobra"
	"go.uber.org/zap"
)

// controlled is what serve's control socket controls; tests put something else there.
var controlled = func(d *daemon.Daemon) ctl.Control { return d }

// serveControl answers ctl on path until ctx ends or end is called, which waits for
// the last answer. The disks are served on without it.
func serveControl(ctx context.Context, path string, d *daemon.Daemon, log *zap.Logger) (end func(), err error) {
	s, err := ctl.Listen(path, controlled(d), log)
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := s.Serve(ctx); err != nil {
			log.Error("control socket is lost", zap.Error(err))
		}
	}()
	log.Info("control socket", zap.String("path", path))
	return func() {
		stop()
		<-ended
	}, nil
}

type ctlFlags struct {
	socket string
	format string
}

func newCtl() *cobra.Command {
	var f ctlFlags
	c := &cobra.Command{
		Use:   "ctl",
		Short: "look at a running server and change it",
		Long: `Talks to a server that was started with --control-socket. Anything that speaks
JSON-RPC 2.0, one message a line, can do the same.`,
		Args: func(c *cobra.Command, args []string) error {
			if len(args) == 0 {
				return nil
			}
			var names []string
			for _, sub := range c.Commands() {
				names = append(names, sub.Name())
			}
			return fmt.Errorf("unknown command %q; there are: %s", args[0], strings.Join(names, ", "))
		},
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
		PersistentPreRunE: func(*cobra.Command, []string) error {
			return cli.OneOf("format", f.format, "text", "json")
		},
	}
	fl := c.PersistentFlags()
	fl.StringVar(&f.socket, "control-socket", defaultControlSocket(), "the server's control socket")
	fl.StringVar(&f.format, "format", "text", "text or json")
	c.AddCommand(f.list(), f.stat(), f.scheduler(), f.set(), f.tunables(), f.describe(), f.export())
	return c
}

// defaultControlSocket is where ctl looks for a server, where it is told nothing.
func defaultControlSocket() string {
	dir := os.Getenv("XDG_RUNTIME_DIR")
	if dir == "" {
		dir = "/run"
	}
	return filepath.Join(dir, "elevisor.sock")
}

// call asks the server.
func (f *ctlFlags) call(c *cobra.Command, method string, params map[string]string, result any) error {
	return ctl.Call(c.Context(), f.socket, method, params, result)
}

// print prints v as JSON, or as text prints it.
func (f *ctlFlags) print(c *cobra.Command, v any, text func(w io.Writer)) error {
	if f.format == "json" {
		e := json.NewEncoder(c.OutOrStdout())
		e.SetIndent("", "  ")
		return e.Encode(v)
	}
	w := tabwriter.NewWriter(c.OutOrStdout(), 0, 0, 2, ' ', 0)
	text(w)
	return w.Flush()
}

func (f *ctlFlags) list() *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "list the disks",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			var disks []ctl.Disk
			if err := f.call(c, "list", nil, &disks); err != nil {
				return err
			}
			return f.print(c, disks, func(w io.Writer) {
				fmt.Fprintln(w, "DISK\tDOMAIN\tSCHEDULER\tBYTES\tACCESS\tQUEUES\tENGINE\tFRONT-END\tSOCKET\tPATH")
				for _, d := range disks {
					fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%s\t%d\t%s\t%s\t%s\t%s\n", d.ID, d.Domain, d.Scheduler, d.Bytes,
						either(d.ReadOnly, "read-only", "read-write"), d.NumQueues, d.Engine,
						either(d.Connected, "connected", "none"), either(d.Socket == "", "-", d.Socket), d.Path)
				}
			})
		},
	}
}

func either(is bool, yes, no string) string {
	if is {
		return yes
	}
	return no
}

func (f *ctlFlags) scheduler() *cobra.Command {
	return &cobra.Command{
		Use:   "scheduler DISK [NAME]",
		Short: "print the schedulers, the active one in brackets; or switch to another",
		Long: `Prints the available schedulers, the active one in brackets, as
/sys/block/X/queue/scheduler does. With NAME, switches to that one, under load. The
whole domain of the disk is switched; its other disks are listed.

` + sched.Help() + `
auto chooses one of them by the domain's disks.`,
		Args: cobra.RangeArgs(1, 2),
		RunE: func(c *cobra.Command, args []string) error {
			params := map[string]string{"disk": args[0]}
			if len(args) == 2 {
				params["name"] = args[1]
			}
			var s ctl.Scheduler
			if err := f.call(c, "scheduler", params, &s); err != nil {
				return err
			}
			return f.print(c, s, func(w io.Writer) {
				fmt.Fprintln(w, brackets(s.Available, s.Active))
				if len(args) == 2 {
					others := slices.DeleteFunc(slices.Clone(s.Disks), func(d string) bool { return d == args[0] })
					fmt.Fprintf(w, "domain %s, other disks of it: %s\n", s.Domain, either(len(others) == 0, "none", strings.Join(others, ", ")))
				}
			})
		},
	}
}

// brackets is how sysfs shows a choice.
func brackets(names []string, active string) string {
	names = slices.Clone(names)
	for i, n := range names {
		if n == active {
			names[i] = "[" + n + "]"
		}
	}
	return strings.Join(names, " ")
}

func (f *ctlFlags) set() *cobra.Command {
	c := &cobra.Command{
		Use:     "set DISK KEY VALUE",
		Short:   "change a knob of the disk's domain or of its scheduler",
		Example: "  elevisor ctl set vda read_expire 250",
		Args:    cobra.ExactArgs(3),
		RunE: func(c *cobra.Command, args []string) error {
			return f.call(c, "set", map[string]string{"disk": args[0], "key": args[1], "value": args[2]}, &struct{}{})
		},
	}
	c.Flags().SetInterspersed(false) // a value may be negative
	return c
}

func (f *ctlFlags) tunables() *cobra.Command {
	return &cobra.Command{
		Use:   "tunables DISK",
		Short: "list the knobs: name, value, range, unit, and whether it was set by hand",
		Args:  cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			var knobs []ctl.Tunable
			if err := f.call(c, "tunables", map[string]string{"disk": args[0]}, &knobs); err != nil {
				return err
			}
			return f.print(c, knobs, func(w io.Writer) {
				fmt.Fprintln(w, "NAME\tVALUE\tRANGE\tUNIT\tSET")
				for _, k := range knobs {
					fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", k.Name, k.Value, k.Valid, either(k.Unit == "", "-", k.Unit), either(k.ByHand, "by hand", "-"))
				}
			})
		},
	}
}

func (f *ctlFlags) describe() *cobra.Command {
	return &cobra.Command{
		Use:   "describe DISK",
		Short: "print the state of the disk's scheduler, its merges and its latencies",
		Args:  cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			var d struct {
				ctl.Description
				Scheduler ctl.Scheduler  `json:"scheduler"`
				Domain    ctl.DomainStat `json:"domain"`
				Simulated *ctl.Simulated `json:"simulated,omitempty"`
				Recorded  *ctl.Recorded  `json:"recorded,omitempty"`
			}
			var s ctl.Stat
			disk := map[string]string{"disk": args[0]}
			for _, q := range []struct {
				method string
				params map[string]string
				result any
			}{{"describe", disk, &d.Description}, {"scheduler", disk, &d.Scheduler}, {"stat", nil, &s}} {
				if err := f.call(c, q.method, q.params, q.result); err != nil {
					return err
				}
			}
			for _, domain := range s.Domains {
				if domain.Domain == d.Scheduler.Domain {
					d.Domain = domain
				}
			}
			for _, one := range s.Disks {
				if one.Disk == args[0] {
					d.Simulated, d.Recorded = one.Simulated, one.Recorded
				}
			}
			return f.print(c, d, func(w io.Writer) {
				fmt.Fprintf(w, "domain %s: disks %s; scheduler %s: %s\n%s", d.Scheduler.Domain,
					strings.Join(d.Scheduler.Disks, ", "), d.Scheduler.Active, d.Scheduler.Reason, d.Text)
				_ = d.Domain.WriteText(w) // the writer keeps its error
				if d.Simulated != nil {
					_ = d.Simulated.WriteText(w)
				}
				if d.Recorded != nil {
					_ = d.Recorded.WriteText(w)
				}
			})
		},
	}
}

package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	drives "github.com/elevisor/elevisor/backend/drive"
	"github.com/elevisor/elevisor/cmd/cli"
	"github.com/elevisor/elevisor/lab/tables"
	"github.com/spf13/cobra"
)

// simLength are the flags that say how much is simulated.
type simLength struct {
	seeds, workers int
	total, ramp    time.Duration
}

func (l *simLength) flags(c *cobra.Command, seeds int, total time.Duration) {
	f := c.Flags()
	f.IntVar(&l.seeds, "seeds", seeds, "runs of each cell, with the seeds 1, 2, ...")
	f.DurationVar(&l.total, "runtime", total, "virtual time of a run, ramp included; copies run to their end")
	f.DurationVar(&l.ramp, "ramp-time", 300*time.Millisecond, "virtual time at the beginning in which nothing is counted")
	f.IntVar(&l.workers, "workers", runtime.GOMAXPROCS(0), "runs at a time; results do not depend on it")
}

func (l *simLength) suite() (tables.Suite, error) {
	switch {
	case l.seeds < 1 || l.seeds > 1000:
		return tables.Suite{}, fmt.Errorf("--seeds %d is out of range 1 to 1000", l.seeds)
	case l.ramp < 0 || l.total <= l.ramp || l.total > time.Hour:
		return tables.Suite{}, fmt.Errorf("--runtime %v with --ramp-time %v: want 0 <= ramp < runtime <= 1h", l.total, l.ramp)
	case l.workers < 1:
		return tables.Suite{}, fmt.Errorf("--workers %d is not at least 1", l.workers)
	}
	return tables.Suite{Seeds: l.seeds, Workers: l.workers, Length: tables.Length{Total: l.total, Ramp: l.ramp}}, nil
}

func newSimTables() *cobra.Command {
	var length simLength
	var format, params string
	var names []string
	c := &cobra.Command{
		Use:   "tables",
		Short: "repeat the published scheduler tables in virtual time and compare",
		Long: `Runs the published experiments (the time-slice RFC of 2016, BFQ against CFQ in 2017)
with the same jobs, these schedulers and a model of the drive, and prints for each cell the
published mean (sd), the simulated mean (sd) and the residual; then, for each group, the RMS
residual and how many of the clearly different pairs come out in the published order.

Tables: ` + strings.Join(tables.Names(), ", ") + `.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := cli.OneOf("format", format, tables.Formats...); err != nil {
				return err
			}
			suite, err := length.suite()
			if err != nil {
				return err
			}
			if suite.Machine, err = machineWith(params, ""); err != nil {
				return err
			}
			selected, err := tables.Load(names...)
			if err != nil {
				return fmt.Errorf("--table: %w", err)
			}
			cli.TuneRuntime()
			suite.Progress = progress(c.ErrOrStderr())
			results, err := suite.Run(c.Context(), selected, nil)
			if err != nil {
				return interrupted(c, err)
			}
			return tables.Write(c.OutOrStdout(), format, results)
		},
	}
	c.Flags().StringVar(&format, "format", "text", strings.Join(tables.Formats, ", "))
	c.Flags().StringSliceVar(&names, "table", nil, "only these tables")
	c.Flags().StringVar(&params, "params", "", "a parameter file, for the drive that it names")
	length.flags(c, 5, 4*time.Second)
	return c
}

// machineWith puts the drive of a parameter file in the place of the preset that has its
// name, which must be that of a table: of group, if one is named. nil: there is no file.
func machineWith(params, group string) (func(string) (tables.Machine, error), error) {
	if params == "" {
		return nil, nil
	}
	p, err := drives.Load(params)
	if err != nil {
		return nil, fmt.Errorf("--params: %w", err)
	}
	if group != "" && slices.Contains(tables.FitGroups, group) {
		if m, err := tables.LoadMachine(group); err != nil || m.Drive.Name != p.Name || m.Drive.Model != p.Model {
			return nil, errors.Join(err, fmt.Errorf("--params: %s (%s) is not the drive of %s, which is %s (%s)", p.Name, p.Model, group, m.Drive.Name, m.Drive.Model))
		}
	} else if drives := tables.Drives(); !slices.Contains(drives, p.Name) {
		return nil, fmt.Errorf("--params: %s is not the drive of a table; these are %s", p.Name, strings.Join(drives, ", "))
	}
	return func(group string) (tables.Machine, error) {
		m, err := tables.LoadMachine(group)
		if err == nil && m.Drive.Name == p.Name {
			m.Drive = p
		}
		return m, err
	}, nil
}

// progress tells a terminal how far it is.
func progress(w io.Writer) func(done, of int) {
	f, ok := w.(*os.File)
	if !ok {
		return nil
	}
	if i, err := f.Stat(); err != nil || i.Mode()&os.ModeCharDevice == 0 {
		return nil
	}
	return func(done, of int) {
		fmt.Fprintf(f, "\r%d of %d runs", done, of)
		if done == of {
			fmt.Fprint(f, "\r\033[K")
		}
	}
}

func newSimFit() *cobra.Command {
	var length simLength
	var group, out, params string
	var free []string
	c := &cobra.Command{
		Use:   "fit",
		Short: "refit a drive's parameters to one half of a published table",
		Long: `Moves the parameters of the drive behind a group of tables until the cells with odd job
counts come out best, and reports the error on these and, apart, on the cells with even job
counts, which the search never looks at. A fit is not a prediction: docs/EXPERIMENTS.md.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			suite, err := length.suite()
			if err != nil {
				return err
			}
			if suite.Machine, err = machineWith(params, group); err != nil {
				return err
			}
			var file io.WriteCloser
			if out != "" { // now, and not when the search has taken its minutes
				if file, err = os.OpenFile(out, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644); err != nil {
					return fmt.Errorf("--output: %w", err)
				}
				defer file.Close()
			}
			cli.TuneRuntime()
			fit := tables.Fit{Group: group, Free: free, Suite: suite, Steps: tables.StepsByDefault}
			fit.Tried = func(n int, rms float64) { fmt.Fprintf(c.ErrOrStderr(), "%4d tried, best %.3f%%\n", n, rms) }
			done, err := fit.Run(c.Context())
			if err != nil {
				if out != "" {
					_ = os.Remove(out) // nothing is in it
				}
				return interrupted(c, err)
			}
			printFit(c.OutOrStdout(), done)
			if out == "" {
				return nil
			}
			text, err := done.Machine.Drive.Encode()
			if err != nil {
				return err
			}
			if _, err = file.Write(text); err != nil {
				return fmt.Errorf("--output: %w", err)
			}
			return file.Close()
		},
	}
	f := c.Flags()
	f.StringVar(&group, "table", "rfc-2016", "group of tables: "+strings.Join(tables.FitGroups, " or "))
	f.StringSliceVar(&free, "free", tables.FreeByDefault, "parameters to move")
	f.StringVar(&out, "output", "", "write the new parameter file here; it must not exist")
	f.StringVar(&params, "params", "", "a parameter file to begin with; default: the preset")
	length.flags(c, 1, 2*time.Second)
	return c
}

func printFit(w io.Writer, f *tables.Fitted) {
	fmt.Fprintf(w, "drive %s, %d sets of parameters tried\n\n", f.Machine.Drive.Name, f.Tried)
	fmt.Fprintf(w, "RMS residual            before    after\n")
	fmt.Fprintf(w, "  odd jobs (fitted)    %6.2f%%  %6.2f%%\n", f.Before.Odd, f.After.Odd)
	fmt.Fprintf(w, "  even jobs (held out) %6.2f%%  %6.2f%%\n\n", f.Before.Even, f.After.Even)
	for _, m := range f.Moved {
		fmt.Fprintf(w, "  %-22s %10.1f -> %.1f\n", m.Name, m.From, m.To)
	}
	if len(f.Moved) == 0 {
		fmt.Fprintln(w, "  nothing moved: the parameters were at their best")
	}
}

func newSimPresets() *cobra.Command {
	return &cobra.Command{
		Use:   "presets",
		Short: "list the drives that can be simulated",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			for _, name := range drives.Presets() {
				p, err := drives.Load(name)
				if err != nil {
					return err
				}
				fmt.Fprintf(c.OutOrStdout(), "%-12s %-4s %8.1f GB  %s\n", name, p.Model, float64(p.Capacity.Bytes())/1e9, p.Description)
			}
			return nil
		},
	}
}

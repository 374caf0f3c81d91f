package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"

	"github.com/elevisor/elevisor/cmd/cli"
	"github.com/elevisor/elevisor/lab/plan"
	"github.com/elevisor/elevisor/lab/report"
	"github.com/elevisor/elevisor/sys/clock"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// compareFlags describe an experiment and where its results go.
type compareFlags struct {
	matrix matrixFlags
	worlds worldFlags

	output, resume, format string
	from, against          string
	verbose                bool
}

func newCompare() *cobra.Command {
	f := &compareFlags{}
	c := &cobra.Command{
		Use:   "compare [WORD=VALUE...]",
		Short: "compare I/O schedulers in the guest with I/O schedulers in the host",
		Long: `Measures every guest scheduler with every host scheduler on every workload, repeatedly and
in random order, and reports which differences are statistically significant.

A workload is a preset (--preset), a fio job file (--jobfile) or job options in fio's
syntax, such as rw=randread bs=4k iodepth=16 runtime=4. A scheduler may have knobs:
timeslice:slice_by=queue+time_slice_us=500. Each combination runs --repeats times, in
blocks: a block has every pair of schedulers once, in an order drawn from --seed, and all
runs of a block see the same requests.

An experiment runs in one of three worlds. virtual: in virtual time, with models of disk
and processors; the same command gives the same figures again. loopback: in real time,
with the built-in guest on a real vhost-user socket. qemu: in a real VM.

With --output, each run is stored as soon as it has finished, and an interrupted experiment
continues with --resume. The files are documented in docs/RESULTS_FORMAT.md.

--from A/results.json --against B/results.json compares two stored experiments. Only these
two files are needed.

Presets:` + presetDocs(),
		Example: `  elevisor-lab compare --host none,deadline,timeslice --preset linear4k
  elevisor-lab compare --guest none,deadline --host none,bfq rw=randrw bs=4k iodepth=16 runtime=4
  elevisor-lab compare --world qemu --guest none,mq-deadline --host none,deadline --preset merge --output results`,
		RunE: func(c *cobra.Command, args []string) error { return f.run(c, args) },
	}
	fl := c.Flags()
	f.matrix.flags(fl)
	f.worlds.flags(fl)
	fl.StringVar(&f.output, "output", "", "directory for results.json, results.csv, report.html and every run")
	fl.StringVar(&f.resume, "resume", "", "continue the experiment in this directory; its options need not be repeated")
	fl.StringVar(&f.format, "format", "text", "output format: text, json (as results.json) or csv (as results.csv)")
	fl.StringVar(&f.from, "from", "", "a results.json to compare with --against; nothing is run")
	fl.StringVar(&f.against, "against", "", "the other results.json")
	fl.BoolVar(&f.verbose, "verbose", false, "print progress messages to stderr")
	return c
}

// apart are the flags that do not affect what is measured.
var apart = []string{"output", "resume", "format", "from", "against", "verbose", "help"}

func (f *compareFlags) run(c *cobra.Command, args []string) error {
	if err := cli.OneOf("format", f.format, "text", "json", "csv"); err != nil {
		return err
	}
	if f.matrix.world == "sim" { // its old name
		f.matrix.world = virtualName
	}
	measures := len(args) > 0
	c.Flags().Visit(func(fl *pflag.Flag) { measures = measures || !slices.Contains(apart, fl.Name) })
	switch {
	case f.from != "" || f.against != "":
		if f.from == "" || f.against == "" || measures || f.output != "" || f.resume != "" || f.format != "text" {
			return errors.New("--from A.json --against B.json compares two stored results and takes no other options")
		}
		return compareStored(c.OutOrStdout(), f.from, f.against)
	case f.resume != "" && f.output != "":
		return errors.New("--resume continues in its own directory: --output cannot be given as well")
	}
	return f.experiment(c, args, measures)
}

func compareStored(w io.Writer, from, against string) error {
	a, err := report.Load(from)
	if err != nil {
		return err
	}
	b, err := report.Load(against)
	if err != nil {
		return err
	}
	return report.Against(w, a, b)
}

// experiment runs a new experiment, or continues one.
func (f *compareFlags) experiment(c *cobra.Command, args []string, measures bool) (err error) {
	var state *plan.State
	if f.resume != "" {
		if state, err = plan.OpenState(f.resume); err != nil {
			return err
		}
		defer state.Close()
	}
	p, err := f.plan(c, args, measures, state)
	if err != nil {
		return err
	}
	for _, n := range f.matrix.notes {
		fmt.Fprintln(c.ErrOrStderr(), n)
	}
	cli.TuneRuntime()
	world, err := f.worlds.open(p.World, f.output != "" || f.resume != "", c.ErrOrStderr())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, world.Close()) }()
	if err := world.Check(p); err != nil {
		return err
	}
	started := plan.Experiment{Version: cli.Version(), Command: command(c, args), Environment: world.Environment(), Plan: *p}
	var changed []string
	switch {
	case state != nil:
		changed = differences(&state.Experiment, &started)
		started = state.Experiment
	case f.output != "":
		if state, err = plan.CreateState(f.output, started); err != nil {
			return err
		}
		defer state.Close()
	}
	results, err := f.measure(c, world, p, state)
	if err != nil {
		return err
	}
	results.Version, results.Command = started.Version, started.Command
	results.Summary.Warnings = append(results.Summary.Warnings, changed...)
	return f.write(c.OutOrStdout(), results)
}

// plan returns the plan that the options describe, or the stored one. With both, they must
// be equal.
func (f *compareFlags) plan(c *cobra.Command, args []string, measures bool, state *plan.State) (*plan.Plan, error) {
	if state != nil && !measures {
		for name, value := range state.Plan.Options {
			if err := c.Flags().Set(name, value); err != nil {
				return nil, fmt.Errorf("--resume %s: %w", f.resume, err)
			}
		}
		return &state.Plan, nil
	}
	options, err := f.worlds.options(f.matrix.world)
	if err != nil {
		return nil, err
	}
	p, err := f.matrix.plan(args, options)
	if err == nil && state != nil {
		if d := state.Plan.Difference(p); d != "" {
			return nil, fmt.Errorf("--resume %s: that is a different experiment: there, %s", f.resume, d)
		}
	}
	return p, err
}

// measure carries out the plan.
func (f *compareFlags) measure(c *cobra.Command, world plan.World, p *plan.Plan, state *plan.State) (*plan.Results, error) {
	err := c.ErrOrStderr()
	r := plan.Runner{World: world, Plan: p, State: state, Progress: timeLeft(err)}
	if f.verbose {
		var mu sync.Mutex
		r.Progress = nil
		r.Stream = func(line string) {
			mu.Lock()
			defer mu.Unlock()
			fmt.Fprintln(err, line)
		}
	}
	runs, failed := r.Run(c.Context())
	if failed != nil {
		return nil, f.interrupted(failed, runs)
	}
	summary, failed := plan.Summarize(p, runs)
	if failed != nil {
		return nil, failed
	}
	return &plan.Results{
		Environment: world.Environment(), Notes: world.Notes(p), Plan: *p, Runs: runs, Summary: summary,
	}, nil
}

// interrupted reports what happened to the runs that had finished.
func (f *compareFlags) interrupted(err error, runs []plan.Run) error {
	done := 0
	for i := range runs {
		if runs[i].Outcome != nil {
			done++
		}
	}
	dir := f.output + f.resume
	if errors.Is(err, context.Canceled) {
		err = errors.New("interrupted")
	}
	if dir == "" {
		return fmt.Errorf("%w; %d of %d runs had finished and are lost: use --output DIR to keep them", err, done, len(runs))
	}
	return fmt.Errorf("%w; %d of %d runs are stored: continue with --resume %s", err, done, len(runs), dir)
}

// write prints the results, and writes the files of --output.
func (f *compareFlags) write(w io.Writer, r *plan.Results) error {
	if dir := f.output + f.resume; dir != "" {
		if err := report.WriteDir(dir, r); err != nil {
			return err
		}
	}
	switch f.format {
	case "json":
		return report.JSON(w, r)
	case "csv":
		return report.CSV(w, r)
	}
	return report.Text(w, r)
}

// differences lists what has changed since the experiment was started, except the plan.
func differences(was, is *plan.Experiment) (all []string) {
	if was.Version != is.Version {
		all = append(all, fmt.Sprintf("The experiment was started by version %s and finished by %s.", was.Version, is.Version))
	}
	names := maps.Clone(was.Environment)
	maps.Copy(names, is.Environment)
	for _, n := range slices.Sorted(maps.Keys(names)) {
		if a, b := was.Environment[n], is.Environment[n]; a != b && n != "load" {
			all = append(all, fmt.Sprintf("The machine changed between the runs: %s was %q and is now %q.", n, a, b))
		}
	}
	return all
}

// command is the command line without the flags in apart; flags are sorted by name.
func command(c *cobra.Command, args []string) []string {
	words := []string{"elevisor-lab", "compare"}
	c.Flags().Visit(func(fl *pflag.Flag) {
		if slices.Contains(apart, fl.Name) {
			return
		}
		value := fl.Value.String()
		if s, ok := fl.Value.(pflag.SliceValue); ok {
			value = strings.Join(s.GetSlice(), ",")
		}
		words = append(words, "--"+fl.Name+"="+value)
	})
	return append(words, args...)
}

// timeLeft shows progress on a terminal; nil if w is not one.
func timeLeft(w io.Writer) func(plan.Progress) {
	f, ok := w.(*os.File)
	if !ok {
		return nil
	}
	if i, err := f.Stat(); err != nil || i.Mode()&os.ModeCharDevice == 0 {
		return nil
	}
	began := clock.Start()
	return func(p plan.Progress) {
		if p.Done == p.Total {
			fmt.Fprint(f, "\r\033[K")
			return
		}
		fmt.Fprintf(f, "\r%s\033[K", progressLine(p, began.Now()))
	}
}

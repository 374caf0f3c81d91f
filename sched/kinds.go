package sched

import (
	"fmt"
	"slices"
	"strings"
)

// Kind describes one kind of scheduler. Whatever follows from a scheduler's name is in
// this table, and code outside this package does not compare names (test/fences). A new
// scheduler is one file and one row.
type Kind struct {
	Name    string
	Aliases []string // other names that are accepted for it
	Linux   string   // its name in /sys/block/X/queue/scheduler, Linux 5.0 or later; empty: Linux has none
	Summary string   // one line, for help texts
	New     func(*Config) Scheduler

	// Depth is how many requests a domain keeps on its disks unless the operator says
	// otherwise.
	Depth int
	// Meets says that requests of different queues meet: the order in which they are
	// served depends on each other. A domain with such a scheduler needs a single loop. One
	// in which they do not meet is the kernel's "none": several loops may each run one for
	// their own queues, and a guest's block layer holds no more requests than the device
	// has tags.
	Meets bool
	// Auto says for which disks this kind is the automatic choice.
	Auto Disks
}

// Disks is a class of disks.
type Disks uint8

// The classes of disks that the automatic choice tells apart.
const (
	NoDisks Disks = iota
	RotationalDisks
	OtherDisks
)

// kinds are in the order in which they are listed everywhere.
var kinds = [...]Kind{
	{
		Name: "none", Aliases: []string{"noop"}, Linux: "none", Depth: 256, Auto: OtherDisks,
		Summary: "in order of arrival; merges with the newest 8 requests of the same queue",
		New:     func(c *Config) Scheduler { return &None{cfg: c} },
	},
	{
		Name: "deadline", Aliases: []string{"mq-deadline"}, Linux: "mq-deadline", Depth: 256, Meets: true,
		Summary: "in batches sorted by position, reads before writes, with a deadline for each request",
		New:     func(c *Config) Scheduler { return newDeadline(c) },
	},
	{
		// With a deep queue a greedy guest would fill it in its slice, and then be served
		// during the slices of the others.
		Name: "timeslice", Depth: 2, Meets: true, Auto: RotationalDisks,
		Summary: "one device or queue at a time, for a time slice (the blk-mq RFC of 2016)",
		New:     func(c *Config) Scheduler { return newTimeslice(c) },
	},
	{
		Name: "cfq", Depth: 256, Meets: true,
		Summary: "fair shares of disk time; waits for a reader's next request (Linux up to 4.20)",
		New:     func(c *Config) Scheduler { return newCFQ(c) },
	},
	{
		Name: "bfq", Linux: "bfq", Depth: 256, Meets: true,
		Summary: "fair shares of throughput by weight; interactive and soft real-time flows first",
		New:     func(c *Config) Scheduler { return newBFQ(c) },
	},
	{
		Name: "kyber", Linux: "kyber", Depth: 256, Meets: true,
		Summary: "limits the requests on the disk by type to meet latency targets; for fast disks",
		New:     func(c *Config) Scheduler { return newKyber(c) },
	},
}

// Kinds returns a copy of the table.
func Kinds() []Kind { return slices.Clone(kinds[:]) }

// Names are the names of all kinds, in the order of the table.
var Names = func() (all []string) {
	for _, k := range kinds {
		all = append(all, k.Name)
	}
	return all
}()

// Find returns the kind called name, which may be an alias.
func Find(name string) (Kind, error) {
	for _, k := range kinds {
		if name == k.Name || slices.Contains(k.Aliases, name) {
			return k, nil
		}
	}
	return Kind{}, fmt.Errorf("scheduler %q is unknown; there are %s", name, strings.Join(Names, ", "))
}

// Resolve returns the name in Names that name, which may be an alias, stands for.
func Resolve(name string) (string, error) {
	k, err := Find(name)
	return k.Name, err
}

// New makes the scheduler called name, as Find takes it, for the loop that c belongs to.
func New(name string, c *Config) (Scheduler, error) {
	k, err := Find(name)
	if err != nil {
		return nil, err
	}
	return k.New(c), nil
}

// Auto returns the kind that is chosen for a disk where the operator does not choose.
func Auto(rotational bool) Kind {
	want := OtherDisks
	if rotational {
		want = RotationalDisks
	}
	return kinds[slices.IndexFunc(kinds[:], func(k Kind) bool { return k.Auto == want })]
}

// Knobs lists the knobs of a new scheduler of this kind, with their default values.
func (k Kind) Knobs(c *Config) []Info { return Tunables(k.New(c)) }

// Help describes all kinds for a help text, one a line.
func Help() string {
	var b strings.Builder
	for _, k := range kinds {
		name := strings.Join(append([]string{k.Name}, k.Aliases...), ", ")
		fmt.Fprintf(&b, "  %-22s %s\n", name, k.Summary)
	}
	return b.String()
}

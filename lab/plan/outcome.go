// Package expt compares I/O schedulers in the guest with I/O schedulers in the host: it
// plans runs, has a [World] carry them out, and keeps what came of them.
//
// A [Plan] is a matrix: guest scheduler x host scheduler x workload x queues x depth. One
// element is a [Cell]; it is run Repeats times, in randomised complete blocks: a block
// holds every cell of one comparison once, in an order that follows from the seed. Cells
// of one block share their job seed, so that two schedulers see the same requests.
//
// A world is virtual time (sim), the built-in guest over a real socket (loopback) or a
// real VM (qemu). All speak the same job words (guest/fio) and give the same
// [Outcome].
package plan

import (
	"context"
	"encoding/json"

	"github.com/elevisor/elevisor/backend"
	"github.com/elevisor/elevisor/guest/fio"
	"github.com/elevisor/elevisor/sched"
)

// Scheduler is one choice of a scheduler with its knobs, by the kernel's names.
type Scheduler struct {
	Name  string       `json:"name"`
	Knobs []sched.Knob `json:"knobs,omitempty"`
}

// Cell is one element of the matrix.
type Cell struct {
	Guest    Scheduler    `json:"guest"`
	Host     Scheduler    `json:"host"`
	Workload fio.Workload `json:"workload"`
	VMs      int          `json:"vms"`
	Queues   int          `json:"queues"`      // virtqueues of each VM
	QSize    int          `json:"queue_size"`  // entries of each: what the guest has at the device at most
	Depth    int          `json:"queue_depth"` // requests on the disk at a time; 0: the scheduler's default
	NoMerges int          `json:"nomerges"`    // of the guest's block layer
	// MaxSectorsKB is Load.MaxSectorsKB, which Guest and Host have among their knobs
	// unless one was given to them.
	MaxSectorsKB int `json:"max_sectors_kb,omitempty"`
}

// Spec is one run of a cell.
type Spec struct {
	Cell
	Disk string // in backend.Open's words
	IOPS uint64 // what the disk is slowed down to (backend.NewRate); 0: not
	Seed uint64 // of the jobs
	// Trace asks for the first so many requests that reach the disk after the ramp.
	Trace int
	// Stream is told what goes on, a line at a time, for a log; may be nil.
	Stream func(line string)
}

// World carries runs out, one at a time.
type World interface {
	// Check says whether everything is there that the plan needs, before anything runs.
	// An error names what is missing and the package that brings it.
	Check(p *Plan) error
	// Run carries one run out. ctx ends it early, with ctx's error.
	Run(ctx context.Context, s Spec) (*Outcome, error)
	// Environment describes what was measured on: version, kernel, CPU, governor, QEMU
	// and whatever else a reader needs to judge the figures. Sorted by name when printed.
	Environment() map[string]string
	// Notes are what a reader must know of how this world measures, one sentence each.
	Notes(p *Plan) []string
	Close() error
}

// Outcome is what came of one run. Counts are without the ramp.
type Outcome struct {
	Read    Direction `json:"read"`
	Write   Direction `json:"write"`
	Seconds float64   `json:"seconds"` // measured; virtual ones in the sim world
	Jobs    []Share   `json:"jobs"`

	Guest Merging `json:"guest_merging"`
	Host  Merging `json:"host_merging"`
	Disk  Disk    `json:"disk"`

	Trace []Access        `json:"trace,omitempty"`
	Fio   json.RawMessage `json:"fio,omitempty"` // fio's output, or ours in its form

	// Warnings are what a reader of this run's figures must know, one sentence each.
	Warnings []string `json:"warnings,omitempty"`
}

// IOPS is of both directions.
func (o *Outcome) IOPS() float64 { return o.Read.IOPS + o.Write.IOPS }

// Direction is what the jobs did in one direction. Latencies are from submission in the
// guest to completion there, of this run alone: runs are never pooled.
type Direction struct {
	IOs   uint64  `json:"ios"`
	Bytes uint64  `json:"bytes"`
	IOPS  float64 `json:"iops"`
	Mean  float64 `json:"mean_us"`
	P50   float64 `json:"p50_us"`
	P99   float64 `json:"p99_us"`
	Max   float64 `json:"max_us"`
	// CDF are quantiles 0, 0.5, 0.9, ... with their latencies, for a picture.
	CDF []Quantile `json:"cdf,omitempty"`
}

// Quantile is one point of a distribution.
type Quantile struct {
	Q  float64 `json:"q"`
	US float64 `json:"us"`
}

// Share is what one job got.
type Share struct {
	VM   int     `json:"vm"`
	Job  int     `json:"job"`
	IOPS float64 `json:"iops"`
}

// Merging is what became of requests in one place, the guest's block layer or the
// host's scheduler.
type Merging struct {
	Known     bool   `json:"known"` // a guest that was only attached to may not tell
	Submitted uint64 `json:"submitted"`
	Merged    uint64 `json:"merged"`
	Issued    uint64 `json:"issued"`
	// Who met whom; of the host only.
	SameQueue  uint64 `json:"same_queue"`
	CrossQueue uint64 `json:"cross_queue"`
	CrossVM    uint64 `json:"cross_vm"`
	// Refused are neighbours that were found and not merged, by reason.
	Refused [sched.ReasonCount]uint64 `json:"refused"` // by sched.ReasonNames
}

// Disk is what reached the disk, in the order in which it was issued.
type Disk struct {
	Requests uint64 `json:"requests"`
	Sectors  uint64 `json:"sectors"`
	Seeks    uint64 `json:"seeks"`        // requests that do not begin where one of the same image ended last
	SeekSum  uint64 `json:"seek_sectors"` // and how far away they begin, summed up
	// Lost merges: requests that adjoin one of the last LostWindow issued, in the same
	// direction, and were issued apart. By who they are to each other.
	LostSameQueue  uint64 `json:"lost_same_queue"`
	LostCrossQueue uint64 `json:"lost_cross_queue"`
	LostCrossVM    uint64 `json:"lost_cross_vm"`
	// LostLate are those of them that arrived when the other had been issued already:
	// without waiting, no scheduler could have made the two one.
	LostLate uint64 `json:"lost_late"`
	// HeadMoves and HeadSeconds are a simulated drive's own count; 0 of others.
	HeadMoves   uint64  `json:"head_moves"`
	HeadSeconds float64 `json:"head_seconds"`
}

// LostWindow is how many issued requests a neighbour is looked for among.
const LostWindow = backend.RecorderWindow

// Segments are announced to the guest in every world, whatever the queue's size, as QEMU's
// own server does: with few of them a small queue could not carry what the guest has merged.
const Segments = 126

// Access is one request on its way to the disk, for the picture of positions over time.
type Access struct {
	Seconds float64 `json:"t"` // since the ramp
	Sector  uint64  `json:"sector"`
	Sectors uint32  `json:"sectors"`
	VM      uint16  `json:"vm"`
	Queue   uint16  `json:"queue"`
	Write   bool    `json:"write"`
}

// Plan is what is to be run.
type Plan struct {
	World   string `json:"world"`
	Disk    string `json:"disk"`
	IOPS    uint64 `json:"disk_iops,omitempty"` // see Spec
	Cells   []Cell `json:"cells"`
	Repeats int    `json:"repeats"`
	Seed    uint64 `json:"seed"`
	// Baseline is the cell that others of the same workload are compared with, by its
	// guest and host scheduler (Scheduler.String).
	BaseGuest string `json:"baseline_guest"`
	BaseHost  string `json:"baseline_host"`
	// Trace is how many requests of each cell's first run are kept: Spec.Trace of block 0.
	Trace int `json:"trace"`
	// Options are the world's own, by their flags: what else the figures depend on.
	Options map[string]string `json:"options,omitempty"`
}

// Run is one run's place in the plan and what came of it.
type Run struct {
	Cell    int      `json:"cell"` // of Plan.Cells
	Block   int      `json:"block"`
	Order   int      `json:"order"` // within all runs
	Seed    uint64   `json:"seed"`
	Outcome *Outcome `json:"outcome"`
}

// Results are a whole experiment: what results.json holds.
type Results struct {
	Format      int               `json:"format"` // 1
	Version     string            `json:"version"`
	Command     []string          `json:"command"`
	Environment map[string]string `json:"environment"`
	Notes       []string          `json:"notes"`
	Plan        Plan              `json:"plan"`
	Runs        []Run             `json:"runs"`
	Summary     *Summary          `json:"summary,omitempty"`
}

// Summary is what the runs show.
type Summary struct {
	Headline    string       `json:"headline"` // one sentence
	Cells       []CellStats  `json:"cells"`    // by Plan.Cells
	Comparisons []Comparison `json:"comparisons"`
	Warnings    []string     `json:"warnings"` // drift, correlation, too few runs
}

// CellStats sum up the runs of a cell; each quantity has one number a run.
type CellStats struct {
	Cell                                 int    `json:"cell"`
	Runs                                 int    `json:"runs"`
	IOPS, BW                             Sample // BW in MiB/s
	P50, P99, Max                        Sample // us, of both directions' worst
	Jain                                 Sample // of the jobs' shares
	GuestMergePct, HostMergePct          Sample // 100 * merged / (merged + issued)
	CrossQueuePct, CrossVMPct            Sample // of the host's merges
	RequestsPerGiB, MeanKiB              Sample // at the disk
	SeeksPerGiB, MeanSeekMiB, LostPerGiB Sample
	MissedPerGiB                         Sample // lost merges of requests that were there together
}

// Sample describes one quantity over runs.
type Sample struct {
	N                          int `json:"n"`
	Mean, SD, Min, Median, Max float64
}

// Comparison is one cell against its baseline.
type Comparison struct {
	Cell, Base int
	Metric     string  // iops, p99_us
	Pairs      int     // blocks in which both ran
	Ratio      float64 // cell by base, geometric mean of the pairs
	Low, High  float64 // 95 % confidence interval
	T          float64
	P          float64 // paired t
	PFlip      float64 // exact sign flips
	PHolm      float64 // P, corrected for all comparisons of the metric
	Mark       string  // "", "*" before and "**" after correction
	Verdict    string
}

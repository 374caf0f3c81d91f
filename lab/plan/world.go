package plan

import (
	"context"

	"github.com/elevisor/elevisor/backend"
)

// World is where an experiment runs. It carries out one run at a time, unless it is
// [Concurrent].
type World interface {
	// Check reports whether everything that the plan needs is there, before anything runs.
	// An error names what is missing and the package that provides it.
	Check(p *Plan) error
	// Run carries out one run. Cancelling ctx ends it early, with ctx's error.
	Run(ctx context.Context, s Spec) (*Outcome, error)
	// Environment describes the machine: version, kernel, CPU, governor, QEMU and whatever
	// else a reader needs to judge the figures.
	Environment() map[string]string
	// Notes tell a reader how this world measures, one sentence each.
	Notes(p *Plan) []string
	Close() error
}

// LostWindow is how many of the last requests issued are searched for a neighbour.
const LostWindow = backend.RecorderWindow

// Segments is the seg_max that every world announces to the guest, whatever the size of
// its queues, as QEMU's own server does: with fewer, a small queue could not carry what
// the guest has merged.
const Segments = 126

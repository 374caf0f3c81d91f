package plan

import (
	"fmt"

	"github.com/elevisor/elevisor/guest/fio"
	"github.com/elevisor/elevisor/sched"
)

// Scheduler is a scheduler and the values of its knobs, under the kernel's names.
type Scheduler struct {
	Name  string       `json:"name"`
	Knobs []sched.Knob `json:"knobs,omitempty"`
}

// Cell is one element of the matrix: one configuration that is measured.
type Cell struct {
	Guest    Scheduler    `json:"guest_scheduler"`
	Host     Scheduler    `json:"host_scheduler"`
	Workload fio.Workload `json:"workload"`
	VMs      int          `json:"vms"`
	Queues   int          `json:"queues"`      // virtqueues of each VM
	QSize    int          `json:"queue_size"`  // entries of each virtqueue: the most that a guest has at the device
	Depth    int          `json:"queue_depth"` // requests on the disk at a time; 0: the scheduler's default
	NoMerges int          `json:"nomerges"`    // of the guest's block layer
	// MaxSectorsKB is Load.MaxSectorsKB. Guest and Host have it among their knobs, unless
	// they were given a limit of their own.
	MaxSectorsKB int `json:"max_sectors_kb,omitempty"`
}

// Name is the short name of a cell: its guest and its host scheduler.
func (c *Cell) Name() string { return c.Guest.String() + " / " + c.Host.String() }

// String is the full name of a cell; settings that have their default are left out.
func (c *Cell) String() string {
	s := c.Workload.Name + ": " + c.Name()
	for _, v := range []struct {
		name     string
		n, usual int
	}{{"vms", c.VMs, 1}, {"queues", c.Queues, 1}, {"queue-size", c.QSize, 128}, {"depth", c.Depth, 0}, {"nomerges", c.NoMerges, 0}} {
		if v.n != v.usual {
			s += fmt.Sprintf(", %s=%d", v.name, v.n)
		}
	}
	return s
}

// Spec is one run of a cell.
type Spec struct {
	Cell
	Disk string // as backend.Open takes it
	IOPS uint64 // what the disk is slowed down to (backend.NewRate); 0: not at all
	Seed uint64 // of the jobs
	// Trace is how many requests to keep of those that reach the disk after the ramp.
	Trace int
	// Stream receives progress messages, one line each, for a log; it may be nil.
	Stream func(line string)
}

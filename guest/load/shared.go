package load

import (
	"context"
	"fmt"

	"github.com/elevisor/elevisor/blk"
	"github.com/elevisor/elevisor/sys/clock"
)

// Shared is a queue that stands for several rings and is driven by several jobs at once,
// such as a guest's block layer, which one goroutine owns. Of all clones of all jobs,
// counted through, the i-th has slots of ring i % Rings.
type Shared struct {
	Queue Queue
	Rings int // the queue's slots are theirs, one ring's behind the other's, and equally many
	// First is the first clone's number: clones of one experiment with different numbers
	// make different requests.
	First int
	// Ramped is called by the goroutine that owns the queue when the longest ramp is over,
	// unless all jobs have ended before; may be nil.
	Ramped func()
}

// Room is how many slots each ring needs for jobs, and how large a buffer each slot, in
// bytes. Jobs are checked: see Options.Check.
func Room(rings int, jobs []Options) (slots, buffer int) {
	taken := make([]int, rings)
	n := 0
	for i := range jobs {
		o := &jobs[i]
		buffer = max(buffer, o.MaxBlock())
		for range o.Jobs {
			taken[n%rings] += o.Depth
			slots = max(slots, taken[n%rings])
			n++
		}
	}
	return slots, buffer
}

// RunShared runs all of jobs at once on s, of a disk of capacity sectors, and returns one
// result for each clone, and its options, when all have ended and nothing is in flight; a
// cancelled ctx ends them early. The error is about jobs alone.
func RunShared(ctx context.Context, capacity blk.Sector, s Shared, jobs []Options) ([]JobResult, []Options, error) {
	jobs = append([]Options(nil), jobs...)
	for i := range jobs {
		if err := jobs[i].Check(capacity); err != nil {
			return nil, nil, fmt.Errorf("job %d: %w", i, err)
		}
	}
	if len(jobs) == 0 || s.Rings < 1 || s.Queue.Depth()%s.Rings != 0 {
		return nil, nil, fmt.Errorf("%d jobs on %d rings of %d slots: not at least 1 of each, equally large", len(jobs), s.Rings, s.Queue.Depth())
	}
	each := s.Queue.Depth() / s.Rings
	if slots, buffer := Room(s.Rings, jobs); slots > each || buffer > len(s.Queue.Buffer(0).Bytes) {
		return nil, nil, fmt.Errorf("%d slots of %d bytes are wanted of each ring, it has %d of %d", slots, buffer, each, len(s.Queue.Buffer(0).Bytes))
	}
	d := newDriver(s.Queue, clock.Start())
	d.ramped = s.Ramped
	taken := make([]int, s.Rings)
	var options []Options
	for i := range jobs {
		for clone := range jobs[i].Jobs {
			n := len(d.jobs)
			ring := n % s.Rings
			d.add(&jobs[i], clone, s.First+n, ring*each+taken[ring])
			taken[ring] += jobs[i].Depth
			options = append(options, jobs[i])
		}
	}
	d.run(ctx)
	results := make([]JobResult, len(d.jobs))
	for i, j := range d.jobs {
		results[i] = j.res
	}
	return results, options, nil
}

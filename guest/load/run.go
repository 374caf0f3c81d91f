package load

import (
	"context"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/elevisor/elevisor/blk"
	"github.com/elevisor/elevisor/sys/clock"
)

// Result is what a run found out.
type Result struct {
	Options Options // with the defaults filled in
	Jobs    []JobResult
}

// JobResult is one job's part of it.
type JobResult struct {
	Index      int               // of the job and its queue
	Errno      unix.Errno        // 0: no failure; EIO: a request failed; EILSEQ: wrong data
	Failures   []error           // the first of them
	Runtime    time.Duration     // of the measured phase
	Stats      [directions]Stats // reads, writes; without the reads of the verify pass
	Verified   uint64            // blocks read back and compared, in both phases
	Mismatches uint64            // of those, with wrong data
}

// Reads are the counts and latencies of the job's reads.
func (r *JobResult) Reads() *Stats { return &r.Stats[Reading] }

// Writes are the counts and latencies of the job's writes.
func (r *JobResult) Writes() *Stats { return &r.Stats[Writing] }

// All are the job's reads and writes together.
func (r *JobResult) All() Stats {
	all := NewStats()
	for d := range r.Stats {
		all.merge(&r.Stats[d])
	}
	return all
}

// Run puts the load of o on queues, of a disk of capacity sectors, and returns
// when all jobs have ended and nothing is in flight; a cancelled ctx ends them
// early. The error is about o alone; what went wrong at the disk is in the
// result. The queues are the run's until it returns.
func Run(ctx context.Context, capacity blk.Sector, queues []Queue, o Options) (*Result, error) {
	if err := o.normalize(capacity, queues); err != nil {
		return nil, err
	}
	res := &Result{Options: o, Jobs: make([]JobResult, o.Jobs)}
	clk := clock.Start()
	jobs := make([]*job, o.Jobs)
	for i := range jobs {
		jobs[i] = newDriver(queues[i], clk).add(&res.Options, i, i, 0)
	}
	var wg sync.WaitGroup
	for _, j := range jobs {
		wg.Go(func() { j.d.run(ctx) })
	}
	wg.Wait()
	for i, j := range jobs {
		res.Jobs[i] = j.res
	}
	return res, nil
}

// Total is all jobs together.
func (r *Result) Total() JobResult { return Total(r.Jobs) }

// Total is these jobs together. Its runtime is the longest, as of fio's groups.
func Total(jobs []JobResult) JobResult {
	t := JobResult{Stats: [directions]Stats{NewStats(), NewStats()}}
	for i := range jobs {
		j := &jobs[i]
		if t.Errno == 0 {
			t.Errno = j.Errno
		}
		t.Failures = append(t.Failures, j.Failures...)
		t.Runtime = max(t.Runtime, j.Runtime)
		t.Verified += j.Verified
		t.Mismatches += j.Mismatches
		for d := range t.Stats {
			t.Stats[d].merge(&j.Stats[d])
		}
	}
	return t
}

package qemu

import (
	"fmt"
	"time"

	"github.com/elevisor/elevisor/internal/expt"
	"github.com/elevisor/elevisor/internal/jobs"
)

// The kernel counts a request that is merged into another once as a merge, and what is
// left once as an I/O when it completes (blk_account_io_merge_bio and blk_account_io_done
// in block/blk-mq.c). So merges = submitted - completed, unless a request was split.

// rampSlack is how far the counts may lie apart after a ramp, whose end fio and the kernel
// do not see at the same moment: a share of all, beside twice what was in flight.
const rampSlack = 0.05

// mismatch says how fio's and the kernel's counts contradict each other, or nothing. It
// says nothing either where they cannot be compared: requests through the page cache, or
// as large as may be split.
func mismatch(m *expt.Merging, w *jobs.Workload, splits int, ramp time.Duration) string {
	flight := 0
	for _, j := range w.Jobs {
		if !j.Direct || j.Verify || largest(&j) > splits {
			return ""
		}
		flight += max(j.IODepth, 1) * max(j.NumJobs, 1)
	}
	counted := m.Merged + m.Issued
	apart := max(counted, m.Submitted) - min(counted, m.Submitted)
	var allowed uint64
	if ramp > 0 {
		allowed = uint64(2*flight) + uint64(rampSlack*float64(m.Submitted))
	}
	if apart <= allowed {
		return ""
	}
	return fmt.Sprintf("fio submitted %d requests, and the guest's kernel counted %d merged and %d completed, which is %d apart (at most %d were expected).",
		m.Submitted, m.Merged, m.Issued, apart, allowed)
}

// largest is a job's largest request, in bytes.
func largest(j *jobs.Job) int {
	if len(j.BSSplit) == 0 {
		return j.BS
	}
	most := 0
	for _, s := range j.BSSplit {
		most = max(most, s.BS)
	}
	return most
}

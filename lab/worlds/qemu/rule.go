package qemu

import (
	"fmt"
	"time"

	"github.com/elevisor/elevisor/guest/fio"
	"github.com/elevisor/elevisor/lab/plan"
)

// The kernel counts a request that is merged into another once as a merge, and what is
// left once as an I/O when it completes (blk_account_io_merge_bio and blk_account_io_done
// in block/blk-mq.c). So merges = submitted - completed, unless a request was split; flushes,
// which are counted among the writes, are taken out before.

// rampSlack is how far the counts may lie apart after a ramp, whose end fio and the kernel
// do not see at the same moment: a share of all, beside twice what was in flight.
const rampSlack = 0.05

// mismatch says how fio's and the kernel's counts contradict each other, or nothing. It
// says nothing either where they cannot be compared: requests through the page cache, or
// as large as may be split.
func mismatch(m *plan.Merging, w *fio.Workload, splits int, ramp time.Duration) string {
	flight := 0
	for _, j := range w.Jobs {
		if !j.Direct || j.Verify || largest(&j) > splits {
			return ""
		}
		flight += max(j.IODepth, 1) * max(j.NumJobs, 1)
	}
	counted := m.Merged + m.Issued
	if apart, allowed := compare(counted, m.Submitted, flight, ramp); apart > allowed {
		return fmt.Sprintf("fio submitted %d requests, and the guest's kernel counted %d merged and %d completed, which is %d apart (at most %d were expected).",
			m.Submitted, m.Merged, m.Issued, apart, allowed)
	}
	return ""
}

// compare says how far two counts of the same requests lie apart, and how far they may.
func compare(a, b uint64, flight int, ramp time.Duration) (apart, allowed uint64) {
	if ramp > 0 {
		allowed = uint64(2*flight) + uint64(rampSlack*float64(b))
	}
	return max(a, b) - min(a, b), allowed
}

// lost says how the guests' counts and the server's contradict each other, or nothing.
func lost(guest, host *plan.Merging, w *fio.Workload, vms int, ramp time.Duration) string {
	flight := 0
	for _, j := range w.Jobs {
		if !j.Direct || j.Verify {
			return ""
		}
		flight += max(j.IODepth, 1) * max(j.NumJobs, 1)
	}
	if apart, allowed := compare(host.Submitted, guest.Issued, vms*flight, ramp); apart > allowed {
		return fmt.Sprintf("%d requests completed in the guests, and the host counted %d, which is %d apart (at most %d were expected): where there is a ramp, the guests did not begin together.",
			guest.Issued, host.Submitted, apart, allowed)
	}
	return ""
}

// largest is a job's largest request, in bytes.
func largest(j *fio.Job) int {
	if len(j.BSSplit) == 0 {
		return j.BS
	}
	most := 0
	for _, s := range j.BSSplit {
		most = max(most, s.BS)
	}
	return most
}

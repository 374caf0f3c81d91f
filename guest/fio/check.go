package fio

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Check fills in the defaults of words that cannot be 0, and says which words do not go
// together. How large the disk is and what a world can do is not its business.
func (j *Job) Check() error {
	j.RW, j.BS = cmp.Or(j.RW, "read"), cmp.Or(j.BS, 4096)
	j.IODepth, j.NumJobs = cmp.Or(j.IODepth, 1), cmp.Or(j.NumJobs, 1)
	if j.skip != 0 {
		j.Stride, j.skip = j.skip+int64(j.BS), 0
		if j.Stride == 0 {
			return fmt.Errorf("rw=%s:%d with bs=%d: the job would stay where it is; want another number than -%d", j.RW, -j.BS, j.BS, j.BS)
		}
	}
	for _, n := range []struct {
		key            string
		v, least, most int
	}{
		{"iodepth", j.IODepth, 1, DepthMax}, {"iodepth_batch", j.Batch, 0, j.IODepth}, {"numjobs", j.NumJobs, 1, NumJobsMax},
		{"bs", j.BS, blockUnit, BlockMax}, {"rwmixread", j.MixRead, 0, 100}, {"rate_iops", j.RateIOPS, 0, rateMax}, {"fsync", j.Fsync, 0, rateMax},
	} {
		if n.v < n.least || n.v > n.most {
			return fmt.Errorf("%s=%d: want %d to %d", n.key, n.v, n.least, n.most)
		}
	}
	return j.together()
}

// together is about words that do not go with each other.
func (j *Job) together() error {
	switch {
	case !slices.Contains(rws, j.RW):
		return fmt.Errorf("rw=%s: want one of %v", j.RW, rws)
	case j.BS%blockUnit != 0 || j.Stride%blockUnit != 0:
		return fmt.Errorf("bs=%d, stride=%d: want multiples of %d", j.BS, j.Stride, blockUnit)
	case min(j.Size, j.Offset, j.OffsetIncrement, int64(j.Runtime), int64(j.Ramp), int64(j.ThinkTime)) < 0:
		return fmt.Errorf("a size or a time is below 0")
	case j.TimeBased && j.Runtime == 0:
		return fmt.Errorf("time_based=1: want a runtime above 0")
	case j.Stride != 0 && strings.HasPrefix(j.RW, "rand"):
		return fmt.Errorf("a stride of %d bytes with rw=%s: want read, write or rw", j.Stride, j.RW)
	case j.Stride != 0 && len(j.BSSplit) > 0:
		return fmt.Errorf("a stride of %d bytes with bssplit: want bs", j.Stride)
	case j.Verify && (j.Stride != 0 || len(j.BSSplit) > 0):
		return fmt.Errorf("verify=pattern: want blocks of one size without a stride")
	}
	sum := 0
	for _, s := range j.BSSplit {
		if s.BS < blockUnit || s.BS > BlockMax || s.BS%blockUnit != 0 || s.Percent < 1 {
			return fmt.Errorf("bssplit=%d/%d: want a multiple of %d from %d to %d, and per cent from 1", s.BS, s.Percent, blockUnit, blockUnit, BlockMax)
		}
		sum += s.Percent
	}
	if len(j.BSSplit) > 0 && sum != 100 {
		return fmt.Errorf("bssplit: %d per cent in all, want 100", sum)
	}
	return nil
}

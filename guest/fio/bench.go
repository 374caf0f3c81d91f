package fio

import (
	"fmt"

	"github.com/elevisor/elevisor/guest/load"
)

// Bench are the job's words as the built-in guest takes them, in real and in virtual time
// (sim.Job.Options). An error names a word that only a real guest knows the meaning of.
func (j Job) Bench() (load.Options, error) {
	if err := j.Check(); err != nil {
		return load.Options{}, err
	}
	if !j.Direct {
		return load.Options{}, fmt.Errorf("job %s: direct=0: the built-in guest has no page cache; want direct=1, or a real guest", j.Name)
	}
	rw, err := load.ParseRW(j.RW)
	if err != nil {
		return load.Options{}, err
	}
	o := load.Options{
		Name: j.Name, RW: rw, MixRead: j.MixRead, BlockSize: j.BS, Depth: j.IODepth, Batch: max(j.Batch, 1), Jobs: j.NumJobs,
		Runtime: j.Runtime, RampTime: j.Ramp, TimeBased: j.TimeBased,
		Offset: j.Offset, Size: j.Size, Increment: j.OffsetIncrement, Stride: j.Stride,
		ThinkTime: j.ThinkTime, RateIOPS: j.RateIOPS, Fsync: j.Fsync, Seed: j.Seed, Verify: j.Verify,
	}
	for _, s := range j.BSSplit {
		o.Split = append(o.Split, load.Split{BlockSize: s.BS, Percent: s.Percent})
	}
	return o, nil
}

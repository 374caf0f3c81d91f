// Package fio describes workloads in fio's terms: as options on the command line, in fio
// job files, and as presets. compare takes them from here, whether the built-in guest runs
// them or fio itself in a real guest. bench and sim have flags of their own, with the same
// names where they have the same options.
package fio

import "time"

// Workload is a load with a name: jobs that run at once, in each VM.
type Workload struct {
	Name string `json:"name"`
	Jobs []Job  `json:"jobs"`
	// PerVM has each VM run one of the jobs only, in their order, instead of all.
	PerVM bool `json:"one_job_per_vm,omitempty"`
}

// Of are the jobs that a VM runs, of VMs that count from 0.
func (w *Workload) Of(vm int) []Job {
	if !w.PerVM {
		return w.Jobs
	}
	i := vm % len(w.Jobs)
	return w.Jobs[i : i+1]
}

// Job holds the options of one job; fio's names for them are in brackets. Zero values are
// fio's defaults unless said otherwise. In JSON, sizes and times have their units in their
// names (json.go), so that no name of fio's stands for another unit.
type Job struct {
	Name    string  `json:"name"`
	RW      string  `json:"rw"`                // (rw) read, write, randread, randwrite, rw, randrw
	BS      int     `json:"bs_bytes"`          // (bs) bytes; 4096
	BSSplit []Split `json:"bssplit,omitempty"` // (bssplit) of both directions; none: BS
	IODepth int     `json:"iodepth"`           // (iodepth)
	// Batch (iodepth_batch) is how many requests are submitted at once, as soon as there is
	// room for so many: fio does so with iodepth_batch_complete_min of the same value. 0 and
	// 1: one by one.
	Batch           int           `json:"iodepth_batch"`
	NumJobs         int           `json:"numjobs"`                // (numjobs)
	Offset          int64         `json:"offset_bytes"`           // (offset) bytes
	OffsetIncrement int64         `json:"offset_increment_bytes"` // (offset_increment) bytes
	Size            int64         `json:"size_bytes"`             // (size) bytes; 0: the rest of the disk
	Runtime         time.Duration `json:"-"`                      // (runtime)
	Ramp            time.Duration `json:"-"`                      // (ramp_time)
	TimeBased       bool          `json:"time_based"`             // (time_based)
	MixRead         int           `json:"rwmixread"`              // (rwmixread) per cent
	RateIOPS        int           `json:"rate_iops"`              // (rate_iops)
	ThinkTime       time.Duration `json:"-"`                      // (thinktime)
	Seed            uint64        `json:"randseed"`               // (randseed) 0: the run's
	Verify          bool          `json:"verify_data"`            // (verify)
	Direct          bool          `json:"direct"`                 // (direct) always 1 but in a real guest
	Fsync           int           `json:"fsync"`                  // (fsync) a flush after so many writes
	// Stride, if not 0, has a sequential job go on that many bytes after the beginning of
	// its last block, as fio's rw=read:N does with N = Stride - BS. Below 0 it goes
	// backwards, from the last block on.
	Stride int64 `json:"stride_bytes"`

	skip int64 // rw's :N, until Check knows the block it stands behind
}

// Split is one size of bssplit.
type Split struct {
	BS      int `json:"bs_bytes"`
	Percent int `json:"percent"`
}

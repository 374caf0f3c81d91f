package fio

import "time"

// merge are loads whose requests adjoin. A disk that is limited to so many requests a
// second makes requests wait, and pays for every merge; with a small queue they wait in
// the guest, with a large one in the host.
func merge() Preset {
	slow := Setup{QueueSizes: []int{8, 128}, Depths: []int{4}}
	with := func(w Workload, change func(*Setup)) Load {
		l := Load{w, slow}
		if change != nil {
			change(&l.Setup)
		}
		return l
	}
	return Preset{
		Name: "merge", Disks: everywhere(Disk{Path: "null:size=8g", IOPS: 1000}),
		Doc: "adjacent requests on a disk that does 1000 requests per second, 4 at a time; with queues of 8 entries they wait and are merged in the guest, with 128 in the host. " +
			"Discards, which could be merged as well, cannot be expressed as jobs",
		Loads: []Load{
			with(alone("batch", batch()), nil),
			with(alone("streams-4", streams(4)), nil),
			with(alone("streams-16", streams(16)), nil),
			with(strided(), func(s *Setup) { s.Queues = []int{1, 2} }),
			with(alone("append", appending()), func(s *Setup) { s.VMs = 3 }),
			with(alone("descending", descending()), nil),
			with(alone("limit-64k", large()), func(s *Setup) { s.MaxSectorsKB = 64 }),
			with(alone("fsync-16", syncing()), nil),
		},
	}
}

// mergeTime is how long a merge load runs.
const mergeTime = 3 * time.Second

// batch submits 16 requests at once: they meet in the guest's plug list, before any
// scheduler.
func batch() Job {
	j := timed("write", 1, mergeTime)
	j.IODepth, j.Batch = 32, 16
	return j
}

// large submits 128 KiB at once, of which a limit on the size of requests makes two.
func large() Job {
	j := batch()
	j.Batch = 32
	return j
}

// streams are interleaved in one queue. None looks for a neighbour among the last few
// groups only, so that it finds those of 4 streams and not those of 16.
func streams(n int) Job {
	j := timed("write", n, mergeTime)
	j.IODepth, j.Size, j.OffsetIncrement = 8, 64<<20, 64<<20
	return j
}

// strided are two jobs, one of which has the even blocks and one the odd ones: only what
// joins groups that grew towards each other merges them.
func strided() Workload {
	even, odd := timed("write", 1, mergeTime), timed("write", 1, mergeTime)
	even.Name, odd.Name = "even", "odd"
	for _, j := range []*Job{&even, &odd} {
		j.IODepth, j.Size, j.Stride = 16, 1<<30, 2*int64(j.BS)
	}
	odd.Offset = int64(odd.BS)
	return Workload{Name: "strided", Jobs: []Job{even, odd}}
}

// appending is a VM that writes a log, one of several on the disk.
func appending() Job {
	j := timed("write", 1, mergeTime)
	j.IODepth, j.Size = 16, 1<<30
	return j
}

// descending is a writer that goes backwards: every merge is a front merge.
func descending() Job {
	j := timed("write", 1, mergeTime)
	j.IODepth, j.Size, j.Stride = 32, 1<<30, -int64(j.BS)
	return j
}

// syncing flushes after every 16 writes, over which nothing merges.
func syncing() Job {
	j := timed("write", 1, mergeTime)
	j.IODepth, j.Fsync = 32, 16
	return j
}

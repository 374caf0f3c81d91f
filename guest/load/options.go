// Package bench puts a fio-like load on the queues of a disk and measures it:
// what `elevisor-lab bench` and `elevisor-lab demo` run. Words, defaults and the meaning
// of sequential, random and mixed are fio's (HOWTO, "I/O type"), so that numbers
// can be laid beside fio's.
//
// One goroutine drives one queue and owns everything it counts; nothing is shared
// between jobs and nothing is allocated per request.
package load

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/elevisor/elevisor/blk"
)

// RW is fio's rw=.
type RW uint8

// The workloads.
const (
	Read RW = iota
	Write
	RandRead
	RandWrite
	ReadWrite
	RandReadWrite
)

var rwNames = []string{"read", "write", "randread", "randwrite", "rw", "randrw"}

func (w RW) String() string {
	if int(w) < len(rwNames) {
		return rwNames[w]
	}
	return fmt.Sprintf("rw(%d)", uint8(w))
}

// ParseRW reads fio's name of a workload.
func ParseRW(s string) (RW, error) {
	if s == "readwrite" {
		return ReadWrite, nil
	}
	if i := slices.Index(rwNames, s); i >= 0 {
		return RW(i), nil
	}
	return 0, fmt.Errorf("rw=%s: not one of %s", s, strings.Join(rwNames, ", "))
}

func (w RW) random() bool { return w == RandRead || w == RandWrite || w == RandReadWrite }
func (w RW) mixed() bool  { return w == ReadWrite || w == RandReadWrite }

// Writes says whether there are writes in w.
func (w RW) Writes() bool { return w != Read && w != RandRead }

// Reads says whether there are reads in w.
func (w RW) Reads() bool { return w != Write && w != RandWrite }

// Options are one run's. The names in brackets are fio's.
type Options struct {
	Name      string        // (name) of the jobs in the output; default the workload's
	RW        RW            // (rw)
	MixRead   int           // (rwmixread) percent of reads in a mixed workload, 0 to 100; fio's default is 50
	BlockSize int           // (bs) bytes, a multiple of 512
	Depth     int           // (iodepth) requests in flight per job
	Jobs      int           // (numjobs) job i drives queue i
	Runtime   time.Duration // (runtime) 0: until the bytes are done
	TimeBased bool          // (time_based) go round the region until Runtime is over
	Offset    int64         // (offset) bytes; where the region begins
	Size      int64         // (size) bytes of the region; 0: to the end of the disk
	IOSize    int64         // (io_size) bytes a job moves; 0: the size of its region
	Increment int64         // (offset_increment) bytes between the regions of two jobs
	NoRandMap bool          // (norandommap) random blocks may repeat before all were touched
	Segments  int           // data segments a block is split into, evenly; 0 and 1: one

	// Split (bssplit) draws the size of each request; BlockSize is then the smallest of
	// them, random requests begin at multiples of it, and where a larger one does not fit
	// one of it is taken. Stride, if it is not 0, is how many bytes a sequential job goes
	// from the beginning of one block to that of the next, and around where none would fit;
	// below 0 it goes backwards, from its region's last block on.
	Split  []Split
	Stride int64
	// Batch (iodepth_batch, and iodepth_batch_complete_min of the same value) is how many
	// requests are submitted with one kick, as soon as there is room for so many. 0: as
	// many as there is room for.
	Batch int
	// ThinkTime (thinktime) is how long a job rests when what it had in flight has come
	// back, before it submits again; up to Depth requests at a time, as fio does.
	ThinkTime time.Duration
	// RateIOPS (rate_iops) is the most requests a second in either direction; a job that
	// was held up makes up for it. 0: no limit.
	RateIOPS int
	// Fsync (fsync) has a flush follow every so many writes, alone in flight; 0: none. 1
	// is what sync=1 comes to on such a disk.
	Fsync int
	// RampTime (ramp_time) is how long a job runs before anything is counted. Runtime and
	// the bytes of IOSize count from there.
	RampTime time.Duration

	// Verify (verify=pattern) writes, into each sector, what it is and when it was
	// written, checks each read of a block that this run wrote, and reads all
	// written blocks back in the end. Jobs that write then get equal parts of the
	// region each (unless Increment is set), and no two requests in flight overlap.
	Verify bool
	// Seed makes a run repeatable: blocks, directions and contents follow from it.
	Seed uint64
	// ContinueOnError (continue_on_error) counts failed requests and goes on; else
	// the first one ends its job.
	ContinueOnError bool
	// Stall is how long a job with requests in flight waits for any completion
	// before it gives the disk up; 0: 60 s.
	Stall time.Duration
}

// Split is one size of requests and its share.
type Split struct {
	BlockSize int
	Percent   int
}

// DefaultStall is Options.Stall's default.
const DefaultStall = 60 * time.Second

// normalize fills defaults in and checks o against a disk of capacity sectors and
// the number and depth of its queues.
func (o *Options) normalize(capacity blk.Sector, queues []Queue) error {
	if err := o.Check(capacity); err != nil {
		return err
	}
	switch {
	case o.Jobs > len(queues):
		return fmt.Errorf("numjobs=%d: not 1 to %d, the disk's queues", o.Jobs, len(queues))
	case o.Depth > queues[0].Depth():
		return fmt.Errorf("iodepth=%d: not 1 to %d, the guest's slots", o.Depth, queues[0].Depth())
	case o.MaxBlock() > len(queues[0].Buffer(0).Bytes):
		return fmt.Errorf("bs=%d: above the guest's %d a request", o.MaxBlock(), len(queues[0].Buffer(0).Bytes))
	}
	return nil
}

// Check fills defaults in and checks o against a disk of capacity sectors.
func (o *Options) Check(capacity blk.Sector) error {
	o.Name = cmp.Or(o.Name, o.RW.String())
	o.BlockSize = cmp.Or(o.BlockSize, 4096)
	o.Depth, o.Jobs, o.Segments = cmp.Or(o.Depth, 1), cmp.Or(o.Jobs, 1), cmp.Or(o.Segments, 1)
	o.Stall = cmp.Or(o.Stall, DefaultStall)
	for i, s := range o.Split {
		if i == 0 || s.BlockSize < o.BlockSize {
			o.BlockSize = s.BlockSize
		}
	}
	disk := capacity.Bytes()
	if o.Size == 0 {
		o.Size = disk - o.Offset
	}
	switch {
	case o.BlockSize < 0 || o.BlockSize%blk.SectorSize != 0:
		return fmt.Errorf("bs=%d: not a positive multiple of %d", o.BlockSize, blk.SectorSize)
	case o.MixRead < 0 || o.MixRead > 100:
		return fmt.Errorf("rwmixread=%d: not 0 to 100", o.MixRead)
	case o.Jobs < 0 || o.Depth < 0:
		return fmt.Errorf("numjobs=%d, iodepth=%d: not at least 1", o.Jobs, o.Depth)
	case o.Segments < 0 || o.BlockSize/blk.SectorSize%o.Segments != 0:
		return fmt.Errorf("segments=%d: do not divide a block of %d bytes into whole sectors", o.Segments, o.BlockSize)
	case o.TimeBased && o.Runtime == 0:
		return fmt.Errorf("time_based without a runtime")
	case o.Runtime < 0 || o.IOSize < 0 || o.Increment < 0:
		return fmt.Errorf("runtime, io_size or offset_increment below 0")
	}
	if err := o.checkPace(); err != nil {
		return err
	}
	return o.checkRegion(disk)
}

// checkPace is about when requests go, and about their sizes.
func (o *Options) checkPace() error {
	switch {
	case o.ThinkTime < 0 || o.RampTime < 0:
		return fmt.Errorf("thinktime=%v, ramp_time=%v: not 0 or more", o.ThinkTime, o.RampTime)
	case o.RateIOPS < 0 || o.RateIOPS > second:
		return fmt.Errorf("rate_iops=%d is out of range 0 to %d", o.RateIOPS, second)
	case o.Fsync < 0:
		return fmt.Errorf("fsync=%d: not 0 or more", o.Fsync)
	case o.Batch < 0 || o.Batch > o.Depth:
		return fmt.Errorf("iodepth_batch=%d: not 0 to %d, the iodepth", o.Batch, o.Depth)
	case o.RateIOPS > 0 && o.Batch > 1:
		return fmt.Errorf("iodepth_batch=%d with rate_iops=%d: a batch has no rate; want 1", o.Batch, o.RateIOPS)
	case o.Stride != 0 && (o.RW.random() || len(o.Split) > 0) || o.Stride%blk.SectorSize != 0:
		return fmt.Errorf("stride=%d: not a multiple of %d, or not of a sequential job with one size of requests", o.Stride, blk.SectorSize)
	case len(o.Split) > 0 && o.Segments > 1:
		return fmt.Errorf("segments=%d with bssplit: not 1", o.Segments)
	case o.Verify && (o.Stride != 0 || len(o.Split) > 0):
		return fmt.Errorf("verify with bssplit or a stride: not blocks of one size, one behind the other")
	}
	sum := 0
	for _, s := range o.Split {
		if s.BlockSize <= 0 || s.BlockSize%blk.SectorSize != 0 || s.Percent < 1 {
			return fmt.Errorf("bssplit=%d/%d: not a positive multiple of %d, or below 1 per cent", s.BlockSize, s.Percent, blk.SectorSize)
		}
		sum += s.Percent
	}
	if len(o.Split) > 0 && sum != 100 {
		return fmt.Errorf("bssplit: %d per cent in all, not 100", sum)
	}
	return nil
}

// second is 10^9 nanoseconds.
const second = 1_000_000_000

// MaxBlock is the largest request that a job makes, in bytes.
func (o *Options) MaxBlock() int {
	n := o.BlockSize
	for _, s := range o.Split {
		n = max(n, s.BlockSize)
	}
	return n
}

func (o *Options) checkRegion(disk int64) error {
	if max(o.Offset, o.Size, o.Increment) > disk {
		return fmt.Errorf("offset=%d, size=%d, offset_increment=%d: above the disk's %d bytes", o.Offset, o.Size, o.Increment, disk)
	}
	// What is left behind the first job's region is shared out: a sum might overflow.
	fits := o.Offset >= 0 && o.Size >= 0 && o.Size <= disk-o.Offset &&
		(o.Increment == 0 || int64(o.Jobs-1) <= (disk-o.Offset-o.Size)/o.Increment)
	if !fits || o.Offset%blk.SectorSize != 0 || o.Increment%blk.SectorSize != 0 {
		return fmt.Errorf("offset=%d, size=%d, offset_increment=%d, numjobs=%d: not whole sectors within the disk's %d bytes",
			o.Offset, o.Size, o.Increment, o.Jobs, disk)
	}
	if _, size := o.Region(0); size < int64(o.BlockSize) {
		return fmt.Errorf("size=%d: less than a block of %d bytes for each job", o.Size, o.BlockSize)
	}
	if stride := max(o.Stride, -o.Stride); stride > o.Size-int64(o.BlockSize) && stride != 0 {
		return fmt.Errorf("stride=%d: above size=%d less a block of %d bytes", o.Stride, o.Size, o.BlockSize)
	}
	if o.Verify && o.RW.Writes() && o.Increment != 0 && o.Increment < o.Size && o.Jobs > 1 {
		return fmt.Errorf("offset_increment=%d below size=%d: jobs that verify would overwrite each other", o.Increment, o.Size)
	}
	return nil
}

// Region is where job works: its first byte and its length.
func (o *Options) Region(job int) (offset, size int64) {
	if o.Verify && o.RW.Writes() && o.Increment == 0 {
		blocks := o.Size / int64(o.BlockSize) / int64(o.Jobs)
		size = blocks * int64(o.BlockSize)
		return o.Offset + int64(job)*size, size
	}
	return o.Offset + int64(job)*o.Increment, o.Size
}

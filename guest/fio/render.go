package fio

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Percentiles are those of the completion latency that fio is asked for.
var Percentiles = []float64{1, 5, 10, 20, 30, 40, 50, 60, 70, 80, 90, 95, 99, 99.5, 99.9, 99.95, 99.99}

// seedMask keeps a seed in what fio reads as a number.
const seedMask = 1<<63 - 1

// Fio renders w as a job file for fio 3 in a real guest: all jobs at once on device, by
// libaio. Jobs without a seed of their own take seed; fio tells jobs of one seed apart.
func Fio(w Workload, device string, seed uint64) string {
	var b strings.Builder
	list := make([]string, len(Percentiles))
	for i, p := range Percentiles {
		list[i] = strconv.FormatFloat(p, 'f', -1, 64)
	}
	fmt.Fprintf(&b, "# %s\n[global]\nfilename=%s\nioengine=libaio\npercentile_list=%s\n",
		strings.ReplaceAll(w.Name, "\n", " "), device, strings.Join(list, ":"))
	for i := range w.Jobs {
		j := w.Jobs[i]
		if j.Name == "" {
			j.Name = "job" + strconv.Itoa(i)
		}
		if j.Seed == 0 {
			j.Seed = seed
		}
		fmt.Fprintf(&b, "\n[%s]\n", sectionName(j.Name))
		for _, word := range j.words() {
			b.WriteString(word + "\n")
		}
	}
	return b.String()
}

// sectionName keeps a name within its brackets; fio's own defaults are called global.
func sectionName(name string) string {
	name = strings.Map(func(r rune) rune {
		if r < ' ' || r == '[' || r == ']' {
			return '_'
		}
		return r
	}, name)
	if name == "global" {
		return "global_"
	}
	return name
}

// words are j's, in fio's form; those with fio's defaults are left out.
func (j *Job) words() (list []string) {
	add := func(given bool, format string, args ...any) {
		if given {
			list = append(list, fmt.Sprintf(format, args...))
		}
	}
	add(true, "rw=%s%s", j.RW, j.stride())
	add(j.BS != 0 && len(j.BSSplit) == 0, "bs=%d", j.BS)
	add(len(j.BSSplit) != 0, "bssplit=%s", splits(j.BSSplit))
	add(true, "direct=%d", flag(j.Direct))
	add(j.IODepth != 0, "iodepth=%d", j.IODepth)
	// A batch is submitted at once only if as many have been waited for: FIO's
	// iodepth_batch alone would go on with each that completes.
	batch := min(j.Batch, max(j.IODepth, 1))
	add(batch > 1, "iodepth_batch_submit=%d\niodepth_batch_complete_min=%d\niodepth_batch_complete_max=%d", batch, batch, j.IODepth)
	add(j.NumJobs > 1, "numjobs=%d", j.NumJobs)
	add(j.Offset != 0, "offset=%d", j.Offset)
	add(j.OffsetIncrement != 0, "offset_increment=%d", j.OffsetIncrement)
	add(j.Size != 0, "size=%d", j.Size)
	add(j.Runtime != 0, "runtime=%s", duration(j.Runtime))
	add(j.Ramp != 0, "ramp_time=%s", duration(j.Ramp))
	add(j.TimeBased, "time_based=1")
	add(j.MixRead != 0, "rwmixread=%d", j.MixRead)
	add(j.RateIOPS != 0, "rate_iops=%d", j.RateIOPS)
	add(j.ThinkTime != 0, "thinktime=%d", j.ThinkTime.Microseconds())
	add(j.Verify, "verify=crc32c\nverify_fatal=1")
	add(j.Fsync != 0, "fsync=%d", j.Fsync)
	add(true, "randseed=%d", j.Seed&seedMask)
	return list
}

// stride is the word's end by which a sequential job leaves out, or reads again, a part
// behind each block: fio counts from the block's end.
func (j *Job) stride() string {
	bs := int64(j.BS)
	if bs == 0 {
		bs = 4096
	}
	if j.Stride == 0 || j.Stride == bs || strings.HasPrefix(j.RW, "rand") {
		return ""
	}
	return ":" + strconv.FormatInt(j.Stride-bs, 10)
}

func splits(list []Split) string {
	parts := make([]string, len(list))
	for i, s := range list {
		parts[i] = fmt.Sprintf("%d/%d", s.BS, s.Percent)
	}
	return strings.Join(parts, ":")
}

// duration is d in fio's units.
func duration(d time.Duration) string {
	switch {
	case d%time.Second == 0:
		return fmt.Sprintf("%ds", d/time.Second)
	case d%time.Millisecond == 0:
		return fmt.Sprintf("%dms", d/time.Millisecond)
	}
	return fmt.Sprintf("%dus", d.Microseconds())
}

func flag(on bool) int {
	if on {
		return 1
	}
	return 0
}

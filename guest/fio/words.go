package fio

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Word is a key that jobs know.
type Word struct {
	Key, Value, Doc string

	set func(j *Job, value string) error // nil: accepted, and nothing follows from it
}

// words are all keys, those that mean the same one behind the other.
var words = []Word{
	{"name", "TEXT", "of the job in the output", func(j *Job, v string) error { j.Name = v; return nil }},
	{"rw", "read|write|randread|randwrite|rw|randrw[:N]", "what the job does; with N, a sequential one skips N bytes after each block (below 0: goes backwards)", setRW},
	{"readwrite", "the same", "is rw", setRW},
	{"bs", "BYTES", "of a request; default 4k", setBS},
	{"blocksize", "BYTES", "is bs", setBS},
	{"bssplit", "BYTES/PERCENT:BYTES/PERCENT:...", "several sizes of requests, drawn at random", setSplit},
	{"iodepth", "N", "requests in flight; default 1", count(1, DepthMax, func(j *Job) *int { return &j.IODepth })},
	{"iodepth_batch", "N", "requests submitted at once, when there is room for all of them; default 1", count(1, DepthMax, func(j *Job) *int { return &j.Batch })},
	{"iodepth_batch_submit", "N", "is iodepth_batch", count(1, DepthMax, func(j *Job) *int { return &j.Batch })},
	{"numjobs", "N", "clones of the job; default 1", count(1, NumJobsMax, func(j *Job) *int { return &j.NumJobs })},
	{"size", "BYTES", "of a job's region; default: the rest of the disk", size(func(j *Job) *int64 { return &j.Size })},
	{"offset", "BYTES", "where the first clone's region begins", size(func(j *Job) *int64 { return &j.Offset })},
	{"offset_increment", "BYTES", "from one clone's region to the next one's", size(func(j *Job) *int64 { return &j.OffsetIncrement })},
	{"runtime", "TIME", "when the job ends, at the latest; bare numbers are seconds", span(time.Second, func(j *Job) *time.Duration { return &j.Runtime })},
	{"ramp_time", "TIME", "runs for so long before anything counts; bare numbers are seconds", span(time.Second, func(j *Job) *time.Duration { return &j.Ramp })},
	{"time_based", "0|1", "goes round the region until runtime is over", yes(func(j *Job) *bool { return &j.TimeBased })},
	{"rwmixread", "PERCENT", "reads in rw and randrw; default 50", count(0, 100, func(j *Job) *int { return &j.MixRead })},
	{"rate_iops", "N", "most requests a second in each direction", count(1, rateMax, func(j *Job) *int { return &j.RateIOPS })},
	{"thinktime", "TIME", "rest before the next iodepth requests, when all in flight have come back; bare numbers are microseconds", span(time.Microsecond, func(j *Job) *time.Duration { return &j.ThinkTime })},
	{"randseed", "N", "of blocks, directions and sizes; default: the run's", setSeed},
	{"verify", "pattern|0", "writes patterns and checks what is read", setVerify},
	{"direct", "0|1", "past the guest's page cache; default 1", yes(func(j *Job) *bool { return &j.Direct })},
	{"fsync", "N", "a flush after every so many writes", count(1, rateMax, func(j *Job) *int { return &j.Fsync })},
	{"ioengine", "libaio|io_uring", "accepted, and nothing follows from it", nil},
	{"filename", "FILE", "accepted, and nothing follows from it: the load goes to the VM's disk", nil},
	{"group_reporting", "0|1", "accepted, and nothing follows from it", nil},
}

// The largest values of some words.
const (
	DepthMax   = 1024
	NumJobsMax = 1024
	BlockMax   = 16 << 20
	TimeMax    = 7 * 24 * time.Hour
	rateMax    = 1_000_000_000
	splitsMax  = 64
	blockUnit  = 512 // a sector
)

// Words are the keys that jobs know, in the order in which help prints them.
func Words() []Word { return slices.Clone(words) }

// Ignored says whether the word is accepted only so that a job file of fio's is.
func (w Word) Ignored() bool { return w.set == nil }

// Default is a job of which nothing was said.
func Default() Job {
	return Job{RW: "read", BS: 4096, IODepth: 1, NumJobs: 1, MixRead: 50, Direct: true}
}

// ParseWords makes a job of key=value words, such as those of a command line. Notes say
// which of them nothing follows from.
func ParseWords(args []string) (j Job, notes []string, err error) {
	j = Default()
	for _, a := range args {
		note, err := j.set(a)
		if err != nil {
			return j, nil, err
		}
		if note != "" {
			notes = append(notes, note)
		}
	}
	if j.Name == "" {
		j.Name = j.RW
	}
	return j, notes, j.Check()
}

// set takes one word, key=value or a key alone.
func (j *Job) set(word string) (note string, err error) {
	key, value, given := strings.Cut(word, "=")
	key, value = strings.TrimSpace(key), strings.TrimSpace(value)
	i := slices.IndexFunc(words, func(w Word) bool { return w.Key == key })
	if i < 0 {
		return "", fmt.Errorf("%q is not a known key; valid: %s", key, keys())
	}
	w := &words[i]
	if !given && w.Value == "0|1" {
		value, given = "1", true
	}
	switch {
	case !given || value == "":
		return "", fmt.Errorf("%s: want %s=%s", word, key, w.Value)
	case strings.Contains(value, "$"):
		return "", fmt.Errorf("%s=%s: variables are not replaced; want %s", key, value, w.Value)
	case strings.HasSuffix(value, "%"):
		return "", fmt.Errorf("%s=%s: per cent of a disk's size are not known here; want %s", key, value, w.Value)
	case w.set == nil:
		return w.ignore(value)
	}
	if err := w.set(j, value); err != nil {
		return "", fmt.Errorf("%s=%s: %w", key, value, err)
	}
	return "", nil
}

// ignore is what becomes of a word that nothing follows from.
func (w *Word) ignore(value string) (note string, err error) {
	if valid := strings.Split(w.Value, "|"); len(valid) > 1 && !slices.Contains(valid, value) {
		return "", fmt.Errorf("%s=%s: want %s", w.Key, value, strings.Join(valid, " or "))
	}
	return fmt.Sprintf("%s=%s: %s", w.Key, value, w.Doc), nil
}

func keys() string {
	var all []string
	for _, w := range words {
		all = append(all, w.Key)
	}
	return strings.Join(all, ", ")
}

func setRW(j *Job, v string) error {
	v, skip, has := strings.Cut(v, ":")
	if v == "readwrite" {
		v = "rw"
	}
	if !slices.Contains(rws, v) {
		return fmt.Errorf("want one of %s", strings.Join(rws, ", "))
	}
	j.RW, j.skip = v, 0
	if !has {
		return nil
	}
	if strings.HasPrefix(v, "rand") {
		return errors.New("a number behind a random workload is not supported; want it behind read, write or rw")
	}
	negative := strings.HasPrefix(skip, "-")
	n, err := parseSize(strings.TrimPrefix(skip, "-"))
	if err != nil {
		return fmt.Errorf("skipped bytes: %w", err)
	}
	if negative {
		n = -n
	}
	j.skip = n
	return nil
}

// rws are the values of rw.
var rws = []string{"read", "write", "randread", "randwrite", "rw", "randrw"}

func setBS(j *Job, v string) error {
	if strings.Contains(v, ",") {
		return errors.New("one size for each direction is not supported; want one for both")
	}
	n, err := parseBlock(v)
	if err == nil {
		j.BS, j.BSSplit = n, nil
	}
	return err
}

func setSeed(j *Job, v string) (err error) {
	if j.Seed, err = strconv.ParseUint(v, 10, 64); err != nil || j.Seed == 0 {
		return errors.New("want a whole number from 1 to 2^64-1")
	}
	return nil
}

func setVerify(j *Job, v string) error {
	if v != "pattern" && v != "0" {
		return errors.New("want pattern, or 0 for none")
	}
	j.Verify = v == "pattern"
	return nil
}

// count is a whole number.
func count(least, most int, to func(*Job) *int) func(*Job, string) error {
	return func(j *Job, v string) error {
		n, err := strconv.Atoi(v)
		if err != nil || n < least || n > most {
			return fmt.Errorf("want a whole number from %d to %d", least, most)
		}
		*to(j) = n
		return nil
	}
}

func size(to func(*Job) *int64) func(*Job, string) error {
	return func(j *Job, v string) (err error) {
		n, err := parseSize(v)
		if err == nil && n%blockUnit != 0 {
			err = fmt.Errorf("want a multiple of %d bytes", blockUnit)
		}
		if err == nil {
			*to(j) = n
		}
		return err
	}
}

func span(unit time.Duration, to func(*Job) *time.Duration) func(*Job, string) error {
	return func(j *Job, v string) error {
		d, err := parseTime(v, unit)
		if err == nil {
			*to(j) = d
		}
		return err
	}
}

func yes(to func(*Job) *bool) func(*Job, string) error {
	return func(j *Job, v string) error {
		if v != "0" && v != "1" {
			return errors.New("want 0 or 1")
		}
		*to(j) = v == "1"
		return nil
	}
}

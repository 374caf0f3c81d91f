package fio

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestParseWords(t *testing.T) {
	j, notes, err := ParseWords([]string{
		"rw=randrw", "bs=8k", "iodepth=32", "iodepth_batch=16", "numjobs=2", "size=1g", "offset=4k", "offset_increment=1g",
		"runtime=2", "ramp_time=300ms", "time_based", "rwmixread=70", "rate_iops=100", "thinktime=50", "randseed=7",
		"fsync=3", "ioengine=libaio", "group_reporting", "filename=/dev/vdb",
	})
	require.NoError(t, err)
	require.Len(t, notes, 3)
	require.Equal(t, Job{
		Name: "randrw", RW: "randrw", BS: 8192, IODepth: 32, Batch: 16, NumJobs: 2, Size: 1 << 30, Offset: 4096, OffsetIncrement: 1 << 30,
		Runtime: 2 * time.Second, Ramp: 300 * time.Millisecond, TimeBased: true, MixRead: 70, RateIOPS: 100, ThinkTime: 50 * time.Microsecond,
		Seed: 7, Fsync: 3, Direct: true,
	}, j)
}

func TestParseWords_forms(t *testing.T) {
	for word, want := range map[string]func(*Job){
		"rw=readwrite":              func(j *Job) { j.RW, j.Name = "rw", "rw" },
		"rw=write:4k":               func(j *Job) { j.RW, j.Name, j.Stride = "write", "write", 8192 },
		"readwrite=read:-8k":        func(j *Job) { j.Stride = -4096 },
		"blocksize=512":             func(j *Job) { j.BS = 512 },
		"bssplit=4k/10:64k/50:32kb": func(j *Job) { j.BSSplit = []Split{{4096, 10}, {65536, 50}, {32768, 40}} },
		"bssplit=4k/:8k/50:1m":      func(j *Job) { j.BSSplit = []Split{{4096, 25}, {8192, 50}, {1 << 20, 25}} },
		"iodepth_batch_submit=1":    func(j *Job) { j.Batch = 1 },
		"runtime=1m":                func(j *Job) { j.Runtime = time.Minute },
		"ramp_time=7usec":           func(j *Job) { j.Ramp = 7 * time.Microsecond },
		"verify=pattern":            func(j *Job) { j.Verify = true },
		"direct=0":                  func(j *Job) { j.Direct = false },
		"size=1B":                   nil,
		" name = a b ":              func(j *Job) { j.Name = "a b" },
	} {
		j, _, err := ParseWords([]string{word})
		if want == nil {
			require.Error(t, err, word)
			continue
		}
		require.NoError(t, err, word)
		expected := Default()
		expected.Name = "read"
		want(&expected)
		require.Equal(t, expected, j, word)
	}
}

func TestParseWords_refused(t *testing.T) {
	for word, want := range map[string]string{
		"bsize=4k":        `"bsize" is not a known key; valid: name, rw, `,
		"size=50%":        "size=50%: per cent",
		"bs=4ki":          `"4ki" is not a size: want digits and one of the suffixes`,
		"bs=100":          "bs=100: \"100\" is not a size of requests: want a multiple of 512 from 512 to 16777216 bytes",
		"bs=4k,8k":        "one size for each direction",
		"size=9999999t":   "below 2^63 bytes",
		"runtime=1x":      "one of the suffixes d, h, m, s, ms, us",
		"runtime=9d":      "up to 168h0m0s",
		"iodepth=0":       "iodepth=0: want a whole number from 1 to 1024",
		"iodepth_batch=2": "iodepth_batch=2: want 0 to 1",
		"rw=trim":         "want one of read, write, randread",
		"rw=randread:8":   "behind a random workload",
		"rw=read:-4k":     "would stay where it is",
		"ioengine=mmap":   "want libaio or io_uring",
		"bssplit=4k/90":   "100 per cent in all",
		"time_based=1":    "want a runtime above 0",
		"direct=yes":      "want 0 or 1",
		"verify=crc32c":   "want pattern",
		"rw":              "want rw=read|write",
		"size=${SIZE}":    "variables are not replaced",
		"stonewall":       `"stonewall" is not a known key`,
		"randseed=-1":     "from 1 to 2^64-1",
	} {
		_, _, err := ParseWords([]string{word})
		require.ErrorContains(t, err, want, word)
	}
	_, _, err := ParseWords([]string{"rw=write:4k", "bssplit=4k/50:8k/50"})
	require.ErrorContains(t, err, "a stride of 8192 bytes with bssplit")
}

const file = `; two readers
[global]
direct=1
bs = 8k	# a comment
rw=read:8k
runtime=4

[first]
offset=1m
[second job]
bs=16k
numjobs=2
[global]
iodepth=4
[third]
ioengine=io_uring
`

func TestParseFile(t *testing.T) {
	w, notes, err := ParseFile("dir/two.fio", []byte(file))
	require.NoError(t, err)
	require.Equal(t, []string{"dir/two.fio:16: ioengine=io_uring: accepted, and nothing follows from it"}, notes)
	base := Default()
	base.BS, base.Stride, base.Runtime = 8192, 16384, 4*time.Second
	first, second, third := base, base, base
	first.Name, first.Offset = "first", 1<<20
	second.Name, second.BS, second.Stride, second.NumJobs = "second job", 16384, 24576, 2
	third.Name, third.IODepth = "third", 4
	require.Equal(t, Workload{Name: "two", Jobs: []Job{first, second, third}}, w)
}

func TestParseFile_refused(t *testing.T) {
	for text, want := range map[string]string{
		"":                             "f: no job: want a section such as [job1]",
		"[global]\nbs=4k":              "f: no job",
		"bs=4k":                        `f:1: "bs=4k" stands before any section`,
		"[a\nbs=4k":                    `f:1: "[a" is not a section`,
		"[a]\n\nbandwidth=1":           `f:3: "bandwidth" is not a known key; valid: name,`,
		"[a]\ntime_based\nbs=4k\n[b]":  "f:1: time_based=1: want a runtime above 0",
		"[b]\n[a]\niodepth_batch=3":    "f:2: iodepth_batch=3: want 0 to 1",
		"[global]\nsize=10%\n[a]\nrw=": "f:2: size=10%: per cent of a disk's size are not known here; want BYTES",
	} {
		_, _, err := ParseFile("f", []byte(text))
		require.ErrorContains(t, err, want, text)
	}
}

// FuzzParseFile has nothing that is accepted be out of range, or refused by the converter
// for another reason than direct.
func FuzzParseFile(f *testing.F) {
	f.Add([]byte(file))
	f.Add([]byte("[a]\nrw=write:-4096\nbssplit=4k/50:8k\nthinktime=9\nverify=pattern"))
	f.Fuzz(func(t *testing.T, text []byte) {
		w, _, err := ParseFile("f", text)
		if err != nil {
			return
		}
		for _, j := range w.Jobs {
			again := j
			require.NoError(t, again.Check())
			require.Equal(t, j, again, "Check changes nothing the second time")
			j.Direct = true
			_, err := j.Bench()
			require.NoError(t, err)
		}
	})
}

func TestPresets(t *testing.T) {
	loads := map[string]int{"linear4k": 8, "rfc-2016": 24, "virtio-none-2023": 32, "merge": 8, "two-vms": 2}
	require.Len(t, Presets(), len(loads))
	for _, p := range Presets() {
		require.Len(t, p.Loads, loads[p.Name], p.Name)
		require.NotEmpty(t, p.Doc)
		require.Len(t, p.Disks, 3)
		names := map[string]bool{}
		for _, l := range p.Loads {
			require.False(t, names[l.Name], l.Name)
			names[l.Name] = true
			for _, j := range l.Jobs {
				checked := j
				require.NoError(t, checked.Check())
				require.Equal(t, j, checked)
				_, err := j.Bench()
				require.NoError(t, err)
			}
		}
		found, err := Find(p.Name)
		require.NoError(t, err)
		require.Equal(t, p, found)
	}
	_, err := Find("linear")
	require.EqualError(t, err, `preset "linear" is not known; valid: linear4k, rfc-2016, virtio-none-2023, merge, two-vms`)
}

func TestWorkload_Of(t *testing.T) {
	w := Workload{Jobs: []Job{{Name: "a"}, {Name: "b"}}}
	require.Len(t, w.Of(1), 2)
	w.PerVM = true
	require.Equal(t, "b", w.Of(1)[0].Name)
	require.Equal(t, "a", w.Of(2)[0].Name)
}

func TestBench_direct(t *testing.T) {
	j := Default()
	j.Direct = false
	_, err := j.Bench()
	require.ErrorContains(t, err, "direct=0: the built-in guest has no page cache")
}

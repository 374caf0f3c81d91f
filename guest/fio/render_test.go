package fio

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestFio(t *testing.T) {
	for name, c := range map[string]struct {
		job  Job
		want string
	}{
		"nothing said": {Job{RW: "read"}, "[job0]\nrw=read\ndirect=0\nrandseed=77\n"},
		"linear": {
			Job{Name: "lin", RW: "write", BS: 4096, IODepth: 1, NumJobs: 4, Size: 5 << 30, OffsetIncrement: 5 << 30, Runtime: 4 * time.Second, TimeBased: true, Direct: true},
			"[lin]\nrw=write\nbs=4096\ndirect=1\niodepth=1\nnumjobs=4\noffset_increment=5368709120\nsize=5368709120\nruntime=4s\ntime_based=1\nrandseed=77\n",
		},
		"mixed": {
			Job{RW: "randrw", BSSplit: []Split{{4096, 60}, {65536, 40}}, BS: 512, IODepth: 8, MixRead: 70, RateIOPS: 500, ThinkTime: 1500 * time.Microsecond, Seed: 3, Ramp: 500 * time.Millisecond},
			"[job0]\nrw=randrw\nbssplit=4096/60:65536/40\ndirect=0\niodepth=8\nramp_time=500ms\nrwmixread=70\nrate_iops=500\nthinktime=1500\nrandseed=3\n",
		},
		"batches": {
			Job{RW: "read", BS: 4096, IODepth: 32, Batch: 16, Direct: true, Runtime: 1500 * time.Microsecond},
			"[job0]\nrw=read\nbs=4096\ndirect=1\niodepth=32\niodepth_batch_submit=16\niodepth_batch_complete_min=16\niodepth_batch_complete_max=32\nruntime=1500us\nrandseed=77\n",
		},
		"a batch larger than the depth": {
			Job{RW: "read", IODepth: 4, Batch: 16},
			"[job0]\nrw=read\ndirect=0\niodepth=4\niodepth_batch_submit=4\niodepth_batch_complete_min=4\niodepth_batch_complete_max=4\nrandseed=77\n",
		},
		"a stride":             {Job{RW: "read", BS: 4096, Stride: 8192}, "[job0]\nrw=read:4096\nbs=4096\ndirect=0\nrandseed=77\n"},
		"a stride of a block":  {Job{RW: "read", BS: 4096, Stride: 4096}, "[job0]\nrw=read\nbs=4096\ndirect=0\nrandseed=77\n"},
		"a stride from random": {Job{RW: "randread", BS: 4096, Stride: 8192}, "[job0]\nrw=randread\nbs=4096\ndirect=0\nrandseed=77\n"},
		"verify and fsync": {
			Job{RW: "randwrite", Verify: true, Fsync: 4, Offset: 1 << 20},
			"[job0]\nrw=randwrite\ndirect=0\noffset=1048576\nverify=crc32c\nverify_fatal=1\nfsync=4\nrandseed=77\n",
		},
		"a name": {Job{Name: "a]\n[b", RW: "read"}, "[a___b]\nrw=read\ndirect=0\nrandseed=77\n"},
	} {
		t.Run(name, func(t *testing.T) {
			text := Fio(Workload{Name: "w", Jobs: []Job{c.job}}, "/dev/vda", 77)
			head, job, found := strings.Cut(text, "\n\n")
			require.True(t, found)
			require.Equal(t, "# w\n[global]\nfilename=/dev/vda\nioengine=libaio\n"+
				"percentile_list=1:5:10:20:30:40:50:60:70:80:90:95:99:99.5:99.9:99.95:99.99", head)
			require.Equal(t, c.want, job)
		})
	}
}

// TestFioTakesIt has fio parse every word that is rendered.
func TestFioTakesIt(t *testing.T) {
	if _, err := exec.LookPath("fio"); err != nil {
		require.NotEqual(t, "true", os.Getenv("CI"), "nothing may be missing in CI")
		t.Skip("program fio is missing")
	}
	dir := t.TempDir()
	disk, file := filepath.Join(dir, "disk"), filepath.Join(dir, "jobs.fio")
	require.NoError(t, os.WriteFile(disk, make([]byte, 1<<20), 0o600))
	w := Workload{Name: "all", Jobs: []Job{
		{RW: "read", BS: 4096, Stride: 8192, IODepth: 8, Batch: 4, NumJobs: 2, Offset: 4096, OffsetIncrement: 65536, Size: 65536, Runtime: time.Second,
			Ramp: 100 * time.Millisecond, TimeBased: true, RateIOPS: 100, ThinkTime: time.Millisecond},
		{RW: "randrw", BSSplit: []Split{{4096, 50}, {8192, 50}}, MixRead: 70, Verify: true, Fsync: 2, Seed: 1<<64 - 1},
	}}
	require.NoError(t, os.WriteFile(file, []byte(Fio(w, disk, 5)), 0o600))
	out, err := exec.Command("fio", "--parse-only", file).CombinedOutput()
	require.NoError(t, err, "%s", out)
}

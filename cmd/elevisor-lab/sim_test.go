package main

import (
	"encoding/json"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
)

// One seed has one output, byte for byte, however many processors there are.
func TestSimIsDeterministic(t *testing.T) {
	for _, args := range [][]string{
		{"--scheduler=timeslice", "--vms=2", "--rw=randrw", "--iodepth=4", "--numjobs=3", "--num-queues=2"},
		{"--scheduler=deadline", "--guest-scheduler=deadline", "--guest-tags=2", "--rw=readwrite", "--iodepth=16", "--fsync=8"},
	} {
		for _, format := range []string{"text", "json"} {
			args := append([]string{"sim", "--runtime=300ms", "--ramp-time=20ms", "--cost-read=20", "--cost-write=30", "--cost-switch=100", "--format=" + format}, args...)
			var out [2]string
			for i := range out {
				func() {
					defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1 + i))
					var err error
					out[i], err = run(t.Context(), args...)
					require.NoError(t, err)
				}()
			}
			require.NotEmpty(t, out[0])
			require.Equal(t, out[0], out[1])
			other, err := run(t.Context(), append(args, "--seed=2")...)
			require.NoError(t, err)
			require.NotEqual(t, out[0], other)
		}
	}
}

func TestSimJSON(t *testing.T) {
	out, err := run(t.Context(), "sim", "--rw", "write", "--bs", "8k", "--size=1m", "--numjobs=2", "--offset_increment=1m",
		"--cost-write=10.5us", "--thinktime=7", "--set", "nomerges=2", "--scheduler", "deadline", "--format", "json")
	require.NoError(t, err)
	var r struct {
		Jobs []struct {
			Write   struct{ Total_ios int }
			Options map[string]string `json:"job options"`
		}
		Virtual struct {
			Elapsed int64 `json:"elapsed_ns"`
			Costs   struct {
				Write int64 `json:"write_ns"`
			}
			Host struct {
				Scheduler string
				Writes    int `json:"wr_operations"`
			}
			VMs   []struct{ Jobs []int }
			Drive struct{ Commands map[string]int }
		}
	}
	require.NoError(t, json.Unmarshal([]byte(out), &r))
	require.Len(t, r.Jobs, 2)
	require.Equal(t, 128, r.Jobs[1].Write.Total_ios)
	require.Equal(t, "7", r.Jobs[0].Options["thinktime"])
	require.EqualValues(t, 10_500, r.Virtual.Costs.Write)
	require.Greater(t, r.Virtual.Elapsed, int64(128*(10_500+7_000)*9/10))
	require.Equal(t, "deadline", r.Virtual.Host.Scheduler)
	require.Equal(t, 256, r.Virtual.Host.Writes)
	require.Equal(t, 256, r.Virtual.Drive.Commands["write"])
	require.Equal(t, []int{0, 1}, r.Virtual.VMs[0].Jobs)
}

func TestSimRefusals(t *testing.T) {
	for _, c := range []struct {
		want string
		args []string
	}{
		{`unknown command "x"`, []string{"x"}},
		{"--rw=x: not one of read", []string{"--rw=x"}},
		{`invalid argument "1x" for "--bs" flag: size "1x" is not a number of bytes`, []string{"--bs=1x"}},
		{"--bs=0 is out of range 512 to", []string{"--bs=0"}},
		{"bs=1000: not a positive multiple of 512", []string{"--bs=1000"}},
		{"--iodepth=0 is out of range 1 to 1024", []string{"--iodepth=0"}},
		{"--numjobs=0 is out of range 1 to 1024", []string{"--numjobs=0"}},
		{"--vms=0 is out of range 1 to 256", []string{"--vms=0"}},
		{"--num-queues=257 is out of range 1 to 256", []string{"--num-queues=257"}},
		{"--queue-size=0 is out of range 1 to 32768", []string{"--queue-size=0"}},
		{"queue-size=3 is not a power of two", []string{"--queue-size=3"}},
		{"rwmixread=101: not 0 to 100", []string{"--rwmixread=101"}},
		{"--direct=false: there is no page cache", []string{"--direct=false"}},
		{`invalid argument "-1" for "--thinktime" flag: not a time from 0`, []string{"--thinktime=-1"}},
		{`invalid argument "1y" for "--runtime" flag: not a time from 0`, []string{"--runtime=1y"}},
		{`invalid argument "1e99" for "--cost-read" flag: not a time from 0`, []string{"--cost-read=1e99"}},
		{`invalid argument "nan" for "--cost-read" flag: not a time from 0`, []string{"--cost-read=nan"}},
		{"jitter=1.5 is out of range 0 to 1", []string{"--cost-jitter=1.5"}},
		{"--params: sata-ssd is not the drive of a table; these are hd103sj, hd155ui", []string{"tables", "--params=sata-ssd"}},
		{"--params: generic7200 (hdd) is not the drive of rfc-2016, which is hd155ui (hdd)", []string{"fit", "--params=generic7200"}},
		{"--params: hd103sj (hdd) is not the drive of rfc-2016, which is hd155ui (hdd)", []string{"fit", "--params=hd103sj"}},
		{`cannot fit to "x"; valid: rfc-2016`, []string{"fit", "--table=x", "--params=hd103sj"}},
		{"--set=x is not KNOB=VALUE", []string{"--set=x"}},
		{`there is no knob "x"`, []string{"--set=x=1"}},
		{`scheduler "x" is unknown`, []string{"--scheduler=x"}},
		{`scheduler "x" is unknown`, []string{"--guest-scheduler=x"}},
		{"--guest-tags=1 without a --guest-scheduler", []string{"--guest-tags=1"}},
		{"queue-depth=2000 is out of range 1 to", []string{"--queue-depth=2000"}},
		{"--format=x is neither text nor json", []string{"--format=x"}},
		{`"x" is not a kind of simulated drive`, []string{"--disk=sim:x"}},
		{"--vms=9: the disk has less than 4096 bytes for each", []string{"--disk=null:size=32k", "--vms=9"}},
		{"time_based without a runtime", []string{"--time-based"}},
		{"above the disk's", []string{"--disk=null:size=32k", "--size=64k"}},
		{"time stands still", []string{"--disk=null:size=32k", "--runtime=1"}},
	} {
		_, err := run(t.Context(), append([]string{"sim"}, c.args...)...)
		require.ErrorContains(t, err, c.want, "%q", c.args)
	}
}

package ctl

import (
	"bufio"
	"bytes"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"github.com/elevisor/elevisor/blk"
	"github.com/elevisor/elevisor/device"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// busy is what a disk has counted after n seconds of a fixed load.
func busy(n uint64) device.Stats {
	var s device.Stats
	s.Op[blk.OpRead] = device.OpStats{IOs: 1234 * n, Merges: 777 * n, Sectors: 98765 * n, Time: 345_678_901 * n}
	s.Op[blk.OpWrite] = device.OpStats{IOs: 4321 * n, Merges: 35 * n, Sectors: 56789 * n, Time: 1_234_567_890 * n}
	s.Op[blk.OpWriteZeroes] = device.OpStats{IOs: 11 * n, Merges: 1 * n, Sectors: 2048 * n, Time: 10_000_000 * n}
	s.Op[blk.OpDiscard] = device.OpStats{IOs: 17 * n, Merges: 5 * n, Sectors: 80008 * n, Time: 54_321_000 * n}
	s.Op[blk.OpFlush] = device.OpStats{IOs: 7 * n, Time: 23_456_000 * n}
	s.InFlight, s.IOTime = 3, 432_109_876*n
	return s
}

// reading has a busy disk, one that stands still, and one with a slash in a long name.
func reading(n uint64) *Stat {
	return NewStat(0, []DiskStat{
		{ID: "vda", Total: busy(10 * n)}, {ID: "still", Total: busy(1)}, {ID: "vm/a-disk-of-a-very-long-name", Total: busy(n)},
	})
}

func report(before, after *Stat, interval time.Duration) (rows []Iostat) {
	for i, d := range after.Disks {
		rows = append(rows, NewIostat(d.Disk, before.Disks[i].Stat, d.Stat, interval))
	}
	return rows
}

func TestWriteIostat(t *testing.T) {
	datadriven.RunTest(t, "testdata/iostat", func(t *testing.T, d *datadriven.TestData) string {
		var out bytes.Buffer
		require.NoError(t, WriteIostat(&out, report(reading(1), reading(3), 2*time.Second), d.HasArg("x")))
		return out.String()
	})
}

// Counters that went back, and no time: no number that is none.
func TestNewIostat_senseless(t *testing.T) {
	require.Equal(t, Iostat{Disk: "a"}, NewIostat("a", reading(2).Disks[0].Stat, reading(1).Disks[0].Stat, time.Second))
	for _, row := range report(reading(1), reading(2), 0) {
		require.False(t, math.IsInf(row.Reads, 0) || math.IsNaN(row.Reads))
	}
}

// The real iostat, reading what Export writes, agrees with our counters and prints
// what WriteIostat prints, to the character.
func TestIostat(t *testing.T) {
	for _, extended := range []bool{false, true} {
		interval, real := iostat(t, extended)
		var ours bytes.Buffer
		rows := report(reading(1), reading(3), interval)
		require.NoError(t, WriteIostat(&ours, rows, extended))
		want := lines(ours.String())
		require.Len(t, want, 1+len(rows))
		for _, line := range want {
			require.Contains(t, real, line, "as the real iostat prints it")
		}
		if !extended {
			continue
		}
		d := busy(20) // what vda did in the interval
		wr := d.Op[blk.OpWrite]
		wr.Add(&d.Op[blk.OpWriteZeroes])
		for column, count := range map[string]uint64{
			"r/s": d.Op[blk.OpRead].IOs, "rrqm/s": d.Op[blk.OpRead].Merges, "w/s": wr.IOs, "wrqm/s": wr.Merges,
		} {
			require.InDelta(t, count, cell(t, real, "vda", column)*interval.Seconds(), 1, column)
		}
	}
}

// iostat lets the real program make two readings of an exported directory, and
// returns its second report and the time that it took for the interval.
func iostat(t *testing.T, extended bool) (interval time.Duration, report []string) {
	program, err := exec.LookPath("iostat")
	if err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal("iostat (sysstat) is missing")
		}
		t.Skip("iostat (sysstat) is missing")
	}
	dir := t.TempDir()
	require.NoError(t, Export(dir, reading(1)))
	// A clock in the form of a disk: what iostat makes of a known count tells the
	// interval that it divides by, in its unit of 10 ms.
	const ticks = 1_000_000_000
	tick := DiskCounts{Disk: "clock"}
	tick.Stat[readIOs] = 1
	require.NoError(t, Export(dir, &Stat{Disks: []DiskCounts{tick}}))

	args := []string{"-d", "-f", dir, "3600", "2"}
	if extended {
		args = append([]string{"-x"}, args...)
	}
	c := exec.CommandContext(t.Context(), program, args...)
	c.Env = append(os.Environ(), "LC_ALL=C", "S_COLORS=never")
	out, err := c.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, c.Start())
	in := bufio.NewScanner(out)
	for seen := false; in.Scan() && !(seen && in.Text() == ""); { // to the end of the first report
		seen = seen || strings.HasPrefix(in.Text(), "Device")
	}
	tick.Stat[readIOs] += ticks
	after := reading(3)
	require.NoError(t, Export(dir, &Stat{Disks: append(after.Disks, tick)}))
	// Its alarm clock, which wakes it for the next reading, is rung by hand: again
	// and again, since it may not be asleep yet.
	time.Sleep(300 * time.Millisecond)
	read := make(chan struct{})
	rung := make(chan struct{})
	go func() {
		defer close(rung)
		for {
			_ = c.Process.Signal(unix.SIGALRM)
			select {
			case <-read:
				return
			case <-time.After(20 * time.Millisecond):
			}
		}
	}()
	for in.Scan() {
		report = append(report, in.Text())
	}
	close(read)
	<-rung
	require.NoError(t, c.Wait())
	column := "tps"
	if extended {
		column = "r/s"
	}
	hundredths := math.Round(ticks / cell(t, report, "clock", column) * 100)
	return time.Duration(hundredths) * 10 * time.Millisecond, report
}

func lines(s string) []string { return strings.Split(strings.TrimSpace(s), "\n") }

// cell is a disk's number in a column of a report.
func cell(t *testing.T, report []string, disk, column string) float64 {
	t.Helper()
	var head []string
	for _, line := range report {
		f := strings.Fields(line)
		if len(f) == 0 {
			continue
		}
		if f[0] == "Device" {
			head = f
		}
		for i := range f {
			if f[0] == disk && head[i] == column {
				v, err := strconv.ParseFloat(f[i], 64)
				require.NoError(t, err)
				return v
			}
		}
	}
	t.Fatalf("no %s of %s in %q", column, disk, report)
	return 0
}

func TestExport(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new")
	for n := uint64(1); n < 4; n++ {
		s := reading(n)
		require.NoError(t, Export(dir, s))
		text, err := os.ReadFile(dir + "/block/vda/stat")
		require.NoError(t, err)
		var got [17]uint64
		f := strings.Fields(string(text))
		require.Len(t, f, len(got))
		for i := range got {
			got[i], err = strconv.ParseUint(f[i], 10, 64)
			require.NoError(t, err)
		}
		require.Equal(t, s.Disks[0].Stat, got)
	}
	files, err := os.ReadDir(dir + "/block/vm!a-disk-of-a-very-long-name")
	require.NoError(t, err)
	require.Len(t, files, 1, "nothing is left behind")
	for _, id := range []string{"", ".", ".."} {
		require.ErrorContains(t, Export(dir, &Stat{Disks: []DiskCounts{{Disk: id}}}), "cannot name a directory")
	}
	require.NoError(t, Export(dir, &Stat{Disks: []DiskCounts{{Disk: "../../x"}}}))
	require.FileExists(t, dir+"/block/..!..!x/stat")
}

package ctl

import (
	"fmt"
	"io"
	"time"
)

// The places in /sys/block/X/stat (Documentation/block/stat.rst).
const (
	readIOs = iota
	readMerges
	readSectors
	readTicks // ms, as all ticks
	writeIOs
	writeMerges
	writeSectors
	writeTicks
	inFlight
	ioTicks
	timeInQueue
	discardIOs
	discardMerges
	discardSectors
	discardTicks
	flushIOs
	flushTicks
)

// Iostat is one disk's line of iostat's reports (sysstat 12.6): what it did in an
// interval. The JSON names are those of iostat -o JSON.
type Iostat struct {
	Disk     string  `json:"disk_device"`
	TPS      float64 `json:"tps"`
	Reads    float64 `json:"r/s"` // after merging, as all operations here
	Writes   float64 `json:"w/s"`
	Discards float64 `json:"d/s"`
	Flushes  float64 `json:"f/s"`
	RdKBps   float64 `json:"rkB/s"`
	WrKBps   float64 `json:"wkB/s"`
	DcKBps   float64 `json:"dkB/s"`
	RdMerges float64 `json:"rrqm/s"`
	WrMerges float64 `json:"wrqm/s"`
	DcMerges float64 `json:"drqm/s"`
	RdMerged float64 `json:"rrqm"` // percent of what came in
	WrMerged float64 `json:"wrqm"`
	DcMerged float64 `json:"drqm"`
	RdAwait  float64 `json:"r_await"` // ms
	WrAwait  float64 `json:"w_await"`
	DcAwait  float64 `json:"d_await"`
	FlAwait  float64 `json:"f_await"`
	RdSize   float64 `json:"rareq-sz"` // KiB
	WrSize   float64 `json:"wareq-sz"`
	DcSize   float64 `json:"dareq-sz"`
	Queue    float64 `json:"aqu-sz"`
	Util     float64 `json:"util"` // percent
	RdKB     uint64  `json:"kB_read"`
	WrKB     uint64  `json:"kB_wrtn"`
	DcKB     uint64  `json:"kB_dscd"`
}

// NewIostat computes the columns from two readings of the 17 numbers, and the time
// between them.
func NewIostat(disk string, before, after [17]uint64, interval time.Duration) Iostat {
	var d [17]uint64
	for i := range d {
		d[i] = after[i] - min(before[i], after[i])
	}
	// The order of operations is iostat's, whose unit of time is 10 ms, so that the
	// last printed digit is the same.
	hundredths := float64(interval) / float64(10*time.Millisecond)
	rate := func(n uint64) float64 { return ratio(float64(n), hundredths) * 100 }
	per := func(n, of uint64) float64 { return ratio(float64(n), float64(of)) }
	merged := func(merges, ios uint64) float64 { return ratio(float64(merges), float64(merges+ios)) * 100 }
	return Iostat{
		Disk:  disk,
		TPS:   rate(d[readIOs] + d[writeIOs] + d[discardIOs]),
		Reads: rate(d[readIOs]), Writes: rate(d[writeIOs]), Discards: rate(d[discardIOs]), Flushes: rate(d[flushIOs]),
		RdKBps: rate(d[readSectors]) / 2, WrKBps: rate(d[writeSectors]) / 2, DcKBps: rate(d[discardSectors]) / 2,
		RdMerges: rate(d[readMerges]), WrMerges: rate(d[writeMerges]), DcMerges: rate(d[discardMerges]),
		RdMerged: merged(d[readMerges], d[readIOs]),
		WrMerged: merged(d[writeMerges], d[writeIOs]),
		DcMerged: merged(d[discardMerges], d[discardIOs]),
		RdAwait:  per(d[readTicks], d[readIOs]),
		WrAwait:  per(d[writeTicks], d[writeIOs]),
		DcAwait:  per(d[discardTicks], d[discardIOs]),
		FlAwait:  per(d[flushTicks], d[flushIOs]),
		RdSize:   per(d[readSectors], d[readIOs]) / 2,
		WrSize:   per(d[writeSectors], d[writeIOs]) / 2,
		DcSize:   per(d[discardSectors], d[discardIOs]) / 2,
		Queue:    rate(d[timeInQueue]) / 1000,
		Util:     rate(d[ioTicks]) / 10,
		RdKB:     d[readSectors] / 2, WrKB: d[writeSectors] / 2, DcKB: d[discardSectors] / 2,
	}
}

func ratio(a, b float64) float64 {
	if b == 0 {
		return 0
	}
	return a / b
}

// WriteIostat prints a report in the columns of iostat -d, or of iostat -d -x.
func WriteIostat(w io.Writer, disks []Iostat, extended bool) error {
	var err error
	print := func(format string, args ...any) {
		if err == nil {
			_, err = fmt.Fprintf(w, format, args...)
		}
	}
	print("%-13s", "Device")
	if extended {
		for _, op := range "rwd" {
			print(" %7s %9s %8s %6s %7s %8s", fmt.Sprintf("%c/s", op), fmt.Sprintf("%ckB/s", op), fmt.Sprintf("%crqm/s", op),
				fmt.Sprintf("%%%crqm", op), fmt.Sprintf("%c_await", op), fmt.Sprintf("%careq-sz", op))
		}
		print(" %7s %7s %7s %6s\n", "f/s", "f_await", "aqu-sz", "%util")
	} else {
		print(" %8s %12s %12s %12s %10s %10s %10s\n", "tps", "kB_read/s", "kB_wrtn/s", "kB_dscd/s", "kB_read", "kB_wrtn", "kB_dscd")
	}
	for _, d := range disks {
		print("%-13s", d.Disk)
		if !extended {
			print(" %8.2f %12.2f %12.2f %12.2f %10d %10d %10d\n", d.TPS, d.RdKBps, d.WrKBps, d.DcKBps, d.RdKB, d.WrKB, d.DcKB)
			continue
		}
		const op = " %7.2f %9.2f %8.2f %6.2f %7.2f %8.2f"
		print(op, d.Reads, d.RdKBps, d.RdMerges, d.RdMerged, d.RdAwait, d.RdSize)
		print(op, d.Writes, d.WrKBps, d.WrMerges, d.WrMerged, d.WrAwait, d.WrSize)
		print(op, d.Discards, d.DcKBps, d.DcMerges, d.DcMerged, d.DcAwait, d.DcSize)
		print(" %7.2f %7.2f %7.2f %6.2f\n", d.Flushes, d.FlAwait, d.Queue, d.Util)
	}
	print("\n")
	return err
}

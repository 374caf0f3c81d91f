package main

import (
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/elevisor/elevisor/blk"
	"github.com/spf13/pflag"
)

// maxBlock is the largest request of a load, in bytes: far above every disk's limits.
const maxBlock = 16 << 20

// blockSize judges --bs; what the disk's sectors have to do with it, bench does.
func blockSize(bytes int64) (int, error) {
	if bytes < 1 || bytes > maxBlock {
		return 0, fmt.Errorf("--bs=%d is out of range 512 to %d", bytes, maxBlock)
	}
	return int(bytes), nil
}

// byteCount is a flag's number of bytes.
type byteCount struct{ to *int64 }

func bytesVar(fl *pflag.FlagSet, to *int64, name, value, usage string) {
	v := byteCount{to}
	_ = v.Set(value) // ours
	fl.Var(v, name, usage)
}

func (v byteCount) String() string {
	if v.to == nil { // a zero value, which pflag compares with
		return ""
	}
	return strconv.FormatInt(*v.to, 10)
}
func (v byteCount) Type() string { return "bytes" }
func (v byteCount) Set(s string) (err error) {
	*v.to, err = blk.ParseBytes(s)
	return err
}

// span is a flag's time; a bare number counts units.
type span struct {
	to   *time.Duration
	unit time.Duration
}

func timeVar(fl *pflag.FlagSet, to *time.Duration, unit time.Duration, name, usage string) {
	fl.Var(span{to, unit}, name, usage)
}

func (v span) String() string {
	if v.to == nil {
		return ""
	}
	if *v.to == 0 {
		return "0" // which pflag does not print as a default
	}
	return v.to.String()
}
func (v span) Type() string { return "time" }

// spanMost is the longest time: a week.
const spanMost = 7 * 24 * time.Hour

func (v span) Set(s string) error {
	d, err := time.ParseDuration(s)
	if n, bare := strconv.ParseFloat(s, 64); bare == nil && !math.IsNaN(n) {
		d, err = time.Duration(min(max(n*float64(v.unit), -1), float64(spanMost+1))), nil
	}
	if err != nil || d < 0 || d > spanMost {
		return fmt.Errorf("not a time from 0 to %v (such as 10, 10s, 500ms, 20us)", spanMost)
	}
	*v.to = d
	return nil
}

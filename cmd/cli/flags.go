package cli

import (
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/elevisor/elevisor/blk"
	"github.com/spf13/pflag"
)

// byteCount is a flag's number of bytes.
type byteCount struct{ to *int64 }

// BytesVar defines a flag that takes a number of bytes: 4k, 1M, 2GiB. Its default is value.
func BytesVar(fl *pflag.FlagSet, to *int64, name, value, usage string) {
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

// TimeVar defines a flag that takes a time; a bare number counts units. Its default is *to.
func TimeVar(fl *pflag.FlagSet, to *time.Duration, unit time.Duration, name, usage string) {
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

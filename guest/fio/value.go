package fio

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// Sizes are fio's with kb_base=1024: 4k, 4kb and 4096 are the same. fio's 4ki, which is
// 4000 then, is refused rather than misread.
const sizeForm = "want digits and one of the suffixes b, k, m, g, t, p (powers of 1024)"

func parseSize(s string) (int64, error) {
	digits, unit := splitUnit(s)
	if len(unit) == 2 && unit[1] == 'b' {
		unit = unit[:1]
	}
	shift := 0
	if unit != "" {
		at := strings.Index("bkmgtp", unit)
		if at < 0 || len(unit) != 1 {
			return 0, fmt.Errorf("%q is not a size: %s", s, sizeForm)
		}
		shift = 10 * at
	}
	n, err := strconv.ParseUint(digits, 10, 63)
	if err != nil || n > math.MaxInt64>>shift {
		return 0, fmt.Errorf("%q is not a size: %s, below 2^63 bytes", s, sizeForm)
	}
	return int64(n << shift), nil
}

// parseBlock reads the size of a request.
func parseBlock(s string) (int, error) {
	n, err := parseSize(s)
	if err != nil {
		return 0, err
	}
	if n < blockUnit || n > BlockMax || n%blockUnit != 0 {
		return 0, fmt.Errorf("%q is not a size of requests: want a multiple of %d from %d to %d bytes", s, blockUnit, blockUnit, BlockMax)
	}
	return int(n), nil
}

// timeUnits are fio's suffixes of times.
var timeUnits = map[string]time.Duration{
	"d": 24 * time.Hour, "h": time.Hour, "m": time.Minute, "s": time.Second,
	"ms": time.Millisecond, "msec": time.Millisecond, "us": time.Microsecond, "usec": time.Microsecond,
}

// parseTime reads a time; a bare number counts units.
func parseTime(s string, unit time.Duration) (time.Duration, error) {
	digits, suffix := splitUnit(s)
	if suffix != "" {
		unit = timeUnits[suffix]
	}
	n, err := strconv.ParseUint(digits, 10, 63)
	if err != nil || unit == 0 || n > uint64(TimeMax/unit) {
		return 0, fmt.Errorf("%q is not a time: want digits and one of the suffixes d, h, m, s, ms, us, up to %v", s, TimeMax)
	}
	return time.Duration(n) * unit, nil
}

// splitUnit takes the letters behind a number off, as small ones.
func splitUnit(s string) (digits, unit string) {
	at := strings.LastIndexAny(s, "0123456789") + 1
	return s[:at], strings.ToLower(s[at:])
}

// setSplit reads bssplit: sizes with their shares in per cent. What is missing to a
// hundred is shared by those without a number, as in fio.
func setSplit(j *Job, v string) error {
	if strings.Contains(v, ",") {
		return fmt.Errorf("a list for each direction is not supported; want one for both")
	}
	var all []Split
	left, open := 100, 0
	for part := range strings.SplitSeq(v, ":") {
		text, percent, given := strings.Cut(part, "/")
		bs, err := parseBlock(text)
		if err != nil {
			return err
		}
		s := Split{BS: bs, Percent: -1}
		if given && percent != "" {
			if s.Percent, err = strconv.Atoi(percent); err != nil || s.Percent < 1 || s.Percent > 100 {
				return fmt.Errorf("%q: want per cent from 1 to 100", part)
			}
			left -= s.Percent
		} else {
			open++
		}
		all = append(all, s)
	}
	if len(all) > splitsMax || left < 0 || open == 0 && left != 0 || open > left {
		return fmt.Errorf("%d sizes, %d per cent are left for %d of them: want up to %d sizes, 100 per cent in all, and at least 1 for each",
			len(all), left, open, splitsMax)
	}
	for i := range all {
		if all[i].Percent < 0 {
			all[i].Percent = left / open
			left -= all[i].Percent
			open--
		}
	}
	j.BSSplit = all
	return nil
}

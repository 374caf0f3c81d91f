package blk

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// ParseBytes reads a number of bytes, with QEMU's suffixes b, k, m, g, t, p and e for
// powers of 1024, in upper or lower case.
func ParseBytes(s string) (int64, error) {
	digits, shift := s, 0
	if n := len(s); n > 0 {
		if i := strings.IndexByte("bkmgtpe", s[n-1]|0x20); i >= 0 {
			digits, shift = s[:n-1], 10*i
		}
	}
	n, err := strconv.ParseUint(digits, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("size %q is not a number of bytes; valid: digits and one of the suffixes k, m, g, t, p, e (powers of 1024)", s)
	}
	if n > math.MaxInt64>>shift {
		return 0, fmt.Errorf("size %q is out of range; valid: up to %d bytes", s, int64(math.MaxInt64))
	}
	return int64(n << shift), nil
}

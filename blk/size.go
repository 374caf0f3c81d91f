package blk

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// ParseBytes reads a number of bytes with a binary suffix, as QEMU does: 4096, 4k,
// 10M, 1G, 2T.
func ParseBytes(s string) (int64, error) {
	digits, shift := s, 0
	if n := len(s); n > 0 {
		if i := strings.IndexByte("bkmgtpe", s[n-1]|0x20); i >= 0 {
			digits, shift = s[:n-1], 10*i
		}
	}
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil || n < 0 || n > math.MaxInt64>>shift {
		return 0, fmt.Errorf("%q is not a number of bytes (such as 4096, 512k, 10M, 1G)", s)
	}
	return n << shift, nil
}

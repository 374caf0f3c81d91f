package blk

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestParseBytes(t *testing.T) {
	for s, want := range map[string]int64{"0": 0, "512": 512, "4k": 4096, "4K": 4096, "10M": 10 << 20, "1G": 1 << 30, "2T": 2 << 40, "7e": 7 << 60, "9b": 9} {
		n, err := ParseBytes(s)
		require.NoError(t, err)
		require.Equal(t, want, n, s)
	}
	for _, s := range []string{"", "k", "-1", "1x", "1.5G", "1kk", " 1"} {
		_, err := ParseBytes(s)
		require.ErrorContains(t, err, "not a number of bytes", s)
	}
	_, err := ParseBytes("8e")
	require.ErrorContains(t, err, `size "8e" is out of range`)
}

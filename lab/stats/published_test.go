package stats

import (
	"fmt"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestPublishedRows recomputes the paired tests of the virtio_blk default-scheduler
// thread of 2023, none against mq-deadline, whose results are known. Three have also
// been quoted as 1.27, 0.69 and 2.11, which is rounded twice: 1.2648, 0.6846, 2.1048.
func TestPublishedRows(t *testing.T) {
	all := readTable(t, "virtio-none-vs-mqdeadline.csv", 32)
	for _, row := range []struct {
		where                     []string
		rows                      int
		rawT, df, rawP, effect, t string
		p                         string
		times                     bool // effect is printed as a factor, not in per cent
	}{
		{[]string{"iodepth", "1"}, 16, "0.07", "15", "0.94", "+1.7", "1.21", "0.25", false},
		{[]string{"iodepth", "128", "bs", "4k"}, 8, "2.59", "7", "0.036", "1.47", "2.07", "0.077", true},
		{[]string{"iodepth", "128", "bs", "256k"}, 8, "1.26", "7", "0.25", "+4.1", "1.27", "0.24", false},
		{[]string{"iodepth", "128", "bs", "4k", "numjobs", "2"}, 4, "0.93", "3", "0.42", "+7.7", "0.68", "0.54", false},
		{nil, 32, "2.10", "31", "0.044", "1.12", "2.15", "0.039", true},
	} {
		rows := all.where(row.where...)
		require.Len(t, rows, row.rows)
		c, err := Paired(rows.column(t, "mqdeadline_iops"), rows.column(t, "none_iops"), DefaultLevel)
		require.NoError(t, err)
		effect := fmt.Sprintf("%+.1f", 100*(c.Ratio-1))
		if row.times {
			effect = fmt.Sprintf("%.2f", c.Ratio)
		}
		got := []string{as(row.rawT, c.Raw.T), as(row.df, c.Raw.DF), as(row.rawP, c.Raw.P), effect, as(row.t, c.Test.T), as(row.df, c.Test.DF), as(row.p, c.Test.P)}
		require.Equal(t, []string{row.rawT, row.df, row.rawP, row.effect, row.t, row.df, row.p}, got, "rows where %v", row.where)
	}
}

// as prints x with as many decimals as the printed text has.
func as(printed string, x float64) string {
	decimals := 0
	for i := range printed {
		if printed[i] == '.' {
			decimals = len(printed) - i - 1
		}
	}
	return strconv.FormatFloat(x, 'f', decimals, 64)
}

func TestStudent_tableValues(t *testing.T) {
	for df, want := range map[float64]string{9: "2.262", 15: "2.131", 31: "2.040"} {
		require.Equal(t, want, as(want, student(df).Quantile(0.975)), "t(0.975; %g)", df)
	}
	require.Equal(t, "0.0359", as("0.0359", tTest(2.591, 1, 7).P))
	require.Equal(t, "0.0359", as("0.0359", tTest(-2.591, 1, 7).P))
}

// welch compares two configurations of a published row, assuming n runs of each.
func welch(t *testing.T, row map[string]string, a, b string, n int) TTest {
	t.Helper()
	w, err := Welch(number(t, row, a+"_mean"), number(t, row, a+"_sd"), n, number(t, row, b+"_mean"), number(t, row, b+"_sd"), n)
	require.NoError(t, err)
	return w
}

// The time-slice RFC of 2016 does not say how many runs its means are based on; 10 are
// assumed here.
func TestWelch_timeSliceTables(t *testing.T) {
	for _, name := range []string{"rfc-read.csv", "rfc-write.csv"} {
		for _, row := range readTable(t, name, 8) {
			w := welch(t, row, "blkmq_ts0", "blkmq_ts250", 10)
			require.Less(t, w.P, 1e-4, "%s, %s jobs", name, row["numjobs"])
			require.Equal(t, row["numjobs"] == "1", w.T < 0, "%s, %s jobs: only a single job is slower", name, row["numjobs"])
		}
	}
	var significant []string
	for _, row := range readTable(t, "rfc-rw-read.csv", 8) {
		if welch(t, row, "blkmq_ts0", "blkmq_ts250", 10).P < 0.05 {
			significant = append(significant, row["numjobs"])
		}
	}
	require.Equal(t, []string{"1", "2", "4", "8"}, significant, "mixed reads")
}

func TestWelch_twoFileCopy(t *testing.T) {
	rows := readTable(t, "rfc-two-file-copy.csv", 4)
	copies := func(a, b string, n int) TTest {
		ra, rb := rows.where("config", a)[0], rows.where("config", b)[0]
		w, err := Welch(number(t, ra, "mean_s"), number(t, ra, "sd_s"), n, number(t, rb, "mean_s"), number(t, rb, "sd_s"), n)
		require.NoError(t, err)
		return w
	}
	const none, slice, cfq = "blk-mq time_slice_usec=0", "blk-mq time_slice_usec=250", "cfq slice_idle=8"
	require.Equal(t, "0.33", as("0.33", copies(none, slice, 10).P))
	require.Equal(t, "0.16", as("0.16", copies(none, slice, 20).P))
	require.Equal(t, "0.0004", as("0.0004", copies(none, cfq, 10).P))
	require.Negative(t, copies(none, cfq, 10).T, "CFQ takes less time")
}

func TestPairsNeeded_publishedTable(t *testing.T) {
	cvs := []float64{0.005, 0.01, 0.02, 0.05}
	for effect, want := range map[float64][]int{
		0.02: {3, 6, 18, 100},
		0.05: {3, 3, 5, 18},
		0.01: {6, 18, 65, 394},
	} {
		var got []int
		for _, cv := range cvs {
			n, err := PairsNeeded(effect, cv)
			require.NoError(t, err)
			got = append(got, n)
		}
		require.Equal(t, want, got, "to see %g", effect)
	}
}

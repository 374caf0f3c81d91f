package plan

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// made is an outcome with these figures.
func made(iops, p99 float64) *Outcome {
	return &Outcome{
		Seconds: 2, Read: Direction{IOs: 7, Bytes: 64 << 20, IOPS: iops, P50: p99 / 2, P99: p99, Max: 3 * p99},
		Write: Direction{P50: 1e9, P99: 1e9, Max: 1e9}, // of no writes
		Jobs:  []Share{{IOPS: 1}, {IOPS: 3}},
		Guest: Merging{Known: true, Merged: 25, Issued: 75}, Host: Merging{Merged: 1, Issued: 1},
		Disk: Disk{
			Requests: 1000, Sectors: 1 << 20, Seeks: 10, SeekSum: 20480,
			LostSameQueue: 3, LostCrossQueue: 2, LostCrossVM: 1, LostLate: 4,
		},
	}
}

// small is a plan of none, cfq and bfq in the host, and its runs with these outcomes by
// cell and block.
func small(t *testing.T, figures [3][]*Outcome) (*Plan, []Run) {
	p, err := NewPlan(Matrix{
		World: "fake", Disk: "x", Guests: names("none"), Hosts: names("none", "cfq", "bfq"), Loads: []Load{{Workload: workload("a")}},
		Repeats: len(figures[0]), Seed: 1,
	})
	require.NoError(t, err)
	runs, err := p.Order()
	require.NoError(t, err)
	for i := range runs {
		runs[i].Outcome = figures[runs[i].Cell][runs[i].Block]
	}
	return p, runs
}

// Three blocks, by hand: cfq's d are 0, 1 and 2 times ln 2, so that its mean and its
// deviation are ln 2 and t is √3, with 2 degrees of freedom p = 1-t/√(2+t²).
func TestSummarize(t *testing.T) {
	p, runs := small(t, [3][]*Outcome{
		{made(100, 10), made(100, 10), made(100, 10)},
		{made(100, 5), made(200, 5), made(400, 5)},
		{made(100, 10), made(100, 10), made(100, 10)},
	})
	s, err := Summarize(p, runs)
	require.NoError(t, err)
	require.Len(t, s.Comparisons, 4)

	c := s.Comparisons[0]
	assert.Equal(t, []any{1, 0, "iops", 3}, []any{c.Cell, c.Base, c.Metric, c.Pairs})
	half := 4.302652729911275 * math.Ln2 / math.Sqrt(3)
	assert.InDelta(t, 2, c.Ratio, 1e-12)
	assert.InDelta(t, 2*math.Exp(-half), c.Low, 1e-9)
	assert.InDelta(t, 2*math.Exp(half), c.High, 1e-9)
	assert.InDelta(t, math.Sqrt(3), c.T, 1e-12)
	assert.InDelta(t, 1-math.Sqrt(3.0/5), c.P, 1e-12)
	assert.InDelta(t, 0.5, c.PFlip, 1e-12, "of the signs of 1 and 2, the equal ones")
	assert.InDelta(t, 2*c.P, c.PHolm, 1e-12, "of two")
	assert.Empty(t, c.Mark)
	assert.Equal(t, "no difference shown [-64.3, +1019.0]", c.Verdict)

	assert.Equal(t, Comparison{
		Cell: 2, Base: 0, Metric: "iops", Pairs: 3, Ratio: 1, Low: 1, High: 1, P: 1, PFlip: 1, PHolm: 1,
		Verdict: "equivalent within 2 % [+0.00, +0.00]",
	}, s.Comparisons[1])

	c = s.Comparisons[2]
	assert.Equal(t, []any{1, "clat_p99_us", "**", "lower by 50.0 % [50.0, 50.0]"}, []any{c.Cell, c.Metric, c.Mark, c.Verdict})
	assert.True(t, math.IsInf(c.T, -1))

	assert.Equal(t, "IOPS against guest none / host none, at p < 0.05 after correction for multiple comparisons (2): no difference shown with host cfq, host bfq.", s.Headline)
	assert.Equal(t, []string{
		"The ratio to the baseline drifted over the blocks in 1 of 4 comparisons (by chance, in 1 of 20); if it is not chance, the confidence intervals are unreliable: a: none / cfq (iops).",
		"In 2 of 4 comparisons both cells gave identical figures in every block: they behaved the same on these workloads, and more repeats will not change that.",
		"In 1 of 4 comparisons all pairs gave the same ratio: the runs repeat one another and count as a single pair: a: none / cfq (clat_p99_us).",
	}, s.Warnings)
}

func TestSummarize_cells(t *testing.T) {
	var all [3][]*Outcome
	for i := range all {
		all[i] = []*Outcome{made(100, 10), made(104, 14)}
	}
	p, runs := small(t, all)
	s, err := Summarize(p, runs)
	require.NoError(t, err)
	c := s.Cells[1]
	same := func(x float64) Sample { return Sample{N: 2, Mean: x, Min: x, Median: x, Max: x} }
	want := CellStats{
		Cell: 1, Runs: 2,
		IOPS: Sample{N: 2, Mean: 102, SD: math.Sqrt(8), Min: 100, Median: 102, Max: 104}, BW: same(32),
		P50:  Sample{N: 2, Mean: 6, SD: math.Sqrt(2), Min: 5, Median: 6, Max: 7},
		P99:  Sample{N: 2, Mean: 12, SD: math.Sqrt(8), Min: 10, Median: 12, Max: 14},
		Max:  Sample{N: 2, Mean: 36, SD: math.Sqrt(72), Min: 30, Median: 36, Max: 42},
		Jain: same(0.8), GuestMergePct: same(25),
		CrossQueuePct: same(0), CrossVMPct: same(0),
		RequestsPerGiB: same(2000), MeanKiB: same(524.288), SeeksPerGiB: same(20), MeanSeekMiB: same(1), LostPerGiB: same(12), MissedPerGiB: same(4),
	}
	round := func(c CellStats) string { return fmt.Sprintf("%.9f", []any{c}) }
	assert.Equal(t, round(want), round(c))
	assert.Equal(t, "No verdict: every comparison has fewer than 3 pairs of runs.", s.Headline)
	assert.Contains(t, s.Warnings, "With 2 repeats there is no verdict: at least 3 are needed.")
}

// spread returns n outcomes around iops, which differ a little.
func spread(n int, iops float64) (all []*Outcome) {
	for i := range n {
		all = append(all, made(iops*(1+0.001*float64(i*i%5)), 10+float64(i%3)))
	}
	return all
}

// The headline counts what is significant after correction, and names the extremes.
func TestHeadline(t *testing.T) {
	p, runs := small(t, [3][]*Outcome{spread(8, 100), spread(8, 250.5), spread(8, 50.1)})
	for i := range runs { // no pair of the same two
		runs[i].Outcome.Read.IOPS *= 1 + 0.0007*float64(runs[i].Order%7)
	}
	s, err := Summarize(p, runs)
	require.NoError(t, err)
	assert.Regexp(t, `^IOPS against guest none / host none, at p < 0.05 after correction for multiple comparisons \(2\): `+
		`host cfq faster in 1 of 1 cells; host bfq slower in 1 of 1 cells; `+
		`the largest gain is x2.5\d? \[2.5\d?, 2.51\] \(a: none / cfq\); the largest loss is x0.5\d* \[0.\d+, 0.50\d\] \(a: none / bfq\)\.$`, s.Headline)
}

// A run that is missing, or that completed nothing, is reported, and left out with its pair.
func TestSummarize_gaps(t *testing.T) {
	p, runs := small(t, [3][]*Outcome{spread(4, 100), spread(4, 110), spread(4, 90)})
	for i := range runs {
		switch r := &runs[i]; {
		case r.Cell == 1 && r.Block == 2:
			r.Outcome = nil
		case r.Cell == 2 && r.Block == 0:
			r.Outcome = &Outcome{Seconds: 1, Warnings: []string{"The guest slept."}}
		}
	}
	s, err := Summarize(p, runs)
	require.NoError(t, err)
	assert.Equal(t, 3, s.Comparisons[0].Pairs)
	require.Len(t, s.Comparisons, 3, "cfq's two, and bfq's p99 of the blocks that have one")
	assert.Equal(t, []any{2, "clat_p99_us", 3}, []any{s.Comparisons[2].Cell, s.Comparisons[2].Metric, s.Comparisons[2].Pairs})
	text := strings.Join(s.Warnings, "\n")
	assert.Contains(t, text, "1 of 12 runs are missing")
	assert.Contains(t, text, "a: none / bfq is not compared by iops: compare pairs: run 0 of B gave 0, not a positive number")
	assert.Contains(t, text, "The guest slept. (In 1 of 11 runs.)")
}

func TestSummarize_nothing(t *testing.T) {
	p, err := NewPlan(matrix())
	require.NoError(t, err)
	s, err := Summarize(p, nil)
	require.NoError(t, err)
	assert.Equal(t, "Nothing was compared.", s.Headline)
	assert.Len(t, s.Cells, len(p.Cells))
	assert.Contains(t, s.Warnings[0], "72 of 72 runs are missing")
}

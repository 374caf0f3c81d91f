package plan

import (
	"encoding/json"
	"fmt"
	"math"
)

// Run is one run's place in the plan, and its outcome.
type Run struct {
	Cell    int      `json:"cell"` // index of Plan.Cells
	Block   int      `json:"block"`
	Order   int      `json:"order"` // among all runs
	Seed    uint64   `json:"seed"`
	Outcome *Outcome `json:"outcome"` // nil: it has not run
}

// Results are those of a whole experiment. results.json holds them without the parts of
// an outcome that only runs.jsonl has.
type Results struct {
	Version     string            `json:"elevisor_version"`
	Command     []string          `json:"command"`
	Environment map[string]string `json:"environment"`
	Notes       []string          `json:"notes"`
	Plan        Plan              `json:"plan"`
	Summary     *Summary          `json:"summary,omitempty"`
	Runs        []Run             `json:"runs"`
}

// Summary is what the runs show.
type Summary struct {
	Headline    string       `json:"headline"` // one sentence
	Warnings    []string     `json:"warnings"` // drift, correlation, too few runs
	Cells       []CellStats  `json:"cells"`    // in the order of Plan.Cells
	Comparisons []Comparison `json:"comparisons"`
}

// CellStats summarize the runs of a cell. Each run contributes one number to a sample; a
// sample is empty if no run has that number.
type CellStats struct {
	Cell           int    `json:"cell"`
	Runs           int    `json:"runs"`
	IOPS           Sample `json:"iops,omitzero"`
	BW             Sample `json:"mib_per_s,omitzero"`
	P50            Sample `json:"clat_p50_us,omitzero"` // of the slower direction, as P99 and Max
	P99            Sample `json:"clat_p99_us,omitzero"`
	Max            Sample `json:"clat_max_us,omitzero"`
	Jain           Sample `json:"jain_index,omitzero"`       // of the jobs' IOPS
	GuestMergePct  Sample `json:"guest_merged_pct,omitzero"` // 100 * merged / (merged + issued)
	HostMergePct   Sample `json:"host_merged_pct,omitzero"`
	CrossQueuePct  Sample `json:"host_merged_cross_queue_pct,omitzero"` // of the host's merges
	CrossVMPct     Sample `json:"host_merged_cross_vm_pct,omitzero"`
	RequestsPerGiB Sample `json:"disk_requests_per_gib,omitzero"`
	MeanKiB        Sample `json:"disk_request_kib,omitzero"`
	SeeksPerGiB    Sample `json:"disk_seeks_per_gib,omitzero"`
	MeanSeekMiB    Sample `json:"disk_seek_mib,omitzero"`
	LostPerGiB     Sample `json:"disk_lost_merges_per_gib,omitzero"`
	MissedPerGiB   Sample `json:"disk_avoidable_lost_merges_per_gib,omitzero"` // without those that arrived late
}

// Sample describes one quantity over runs, in the quantity's unit.
type Sample struct {
	N      int     `json:"n"`
	Mean   float64 `json:"mean"`
	SD     float64 `json:"stddev"` // with n-1; 0 for one run
	Min    float64 `json:"min"`
	Median float64 `json:"median"`
	Max    float64 `json:"max"`
}

// Comparison is one cell compared with its baseline.
type Comparison struct {
	Cell   int     `json:"cell"`
	Base   int     `json:"baseline_cell"`
	Metric string  `json:"metric"`    // MetricIOPS or MetricP99
	Pairs  int     `json:"pairs"`     // blocks in which both ran
	Ratio  float64 `json:"ratio"`     // cell to baseline, geometric mean of the pairs
	Low    float64 `json:"ratio_low"` // 95 % confidence interval of Ratio
	High   float64 `json:"ratio_high"`
	// T is infinite if all pairs gave the same ratio, and that is not 1. JSON has no such
	// number: it is null there.
	T       float64 `json:"t"`
	P       float64 `json:"p"`           // paired t-test
	PFlip   float64 `json:"p_sign_flip"` // sign-flip test
	PHolm   float64 `json:"p_holm"`      // P, corrected for all comparisons of the metric
	Mark    string  `json:"mark"`        // "**": significant after correction; "*": only before
	Verdict string  `json:"verdict"`
}

// plainComparison has the fields of Comparison and not its methods.
type plainComparison Comparison

// comparisonJSON is a comparison with a t that may be null: the outer field wins.
type comparisonJSON struct {
	plainComparison
	T *float64 `json:"t"`
}

// MarshalJSON implements json.Marshaler.
func (c Comparison) MarshalJSON() ([]byte, error) {
	out := comparisonJSON{plainComparison: plainComparison(c)}
	if !math.IsInf(c.T, 0) {
		out.T = &c.T
	}
	return json.Marshal(out)
}

// UnmarshalJSON implements json.Unmarshaler. An infinite t has the sign of the ratio's
// logarithm.
func (c *Comparison) UnmarshalJSON(text []byte) error {
	in := comparisonJSON{}
	if err := json.Unmarshal(text, &in); err != nil {
		return fmt.Errorf("comparison: %w", err)
	}
	*c = Comparison(in.plainComparison)
	switch {
	case in.T != nil:
		c.T = *in.T
	case c.Ratio < 1:
		c.T = math.Inf(-1)
	default:
		c.T = math.Inf(1)
	}
	return nil
}

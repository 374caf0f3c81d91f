package plan

import (
	"encoding/json"
	"fmt"
	"slices"

	"github.com/elevisor/elevisor/sched"
)

// Outcome is what one run measured. Counts leave the ramp out.
type Outcome struct {
	Read    Direction `json:"read"`
	Write   Direction `json:"write"`
	Seconds float64   `json:"duration_s"` // measured; in virtual time, virtual seconds
	Jobs    []Share   `json:"per_job"`

	Guest Merging `json:"guest_requests"`
	Host  Merging `json:"host_requests"`
	Disk  Disk    `json:"disk"`

	// Warnings are what a reader of this run's figures must know, one sentence each.
	Warnings []string `json:"warnings,omitempty"`

	// What is below is in runs.jsonl only, and so are the directions' quantiles.

	Trace []Access        `json:"trace,omitempty"`
	Fio   json.RawMessage `json:"fio,omitempty"` // fio's JSON output, or ours in its form
}

// IOPS is that of both directions.
func (o *Outcome) IOPS() float64 { return o.Read.IOPS + o.Write.IOPS }

// Figures is o without what is in runs.jsonl only.
func (o *Outcome) Figures() *Outcome {
	if o == nil {
		return nil
	}
	short := *o
	short.Read.CDF, short.Write.CDF, short.Trace, short.Fio = nil, nil, nil, nil
	return &short
}

// Direction is what all jobs together did in one direction. Latencies are what fio calls
// clat, from submission in the guest to completion there, of this run alone: runs are
// never pooled.
type Direction struct {
	IOs   uint64  `json:"total_ios"`
	Bytes uint64  `json:"io_bytes"`
	IOPS  float64 `json:"iops"`
	Mean  float64 `json:"clat_mean_us"`
	P50   float64 `json:"clat_p50_us"`
	P99   float64 `json:"clat_p99_us"`
	Max   float64 `json:"clat_max_us"`
	// CDF is the distribution for a plot: quantiles from 0 to 1 with their latencies.
	CDF []Quantile `json:"clat_quantiles,omitempty"`
}

// Quantile is one point of a distribution.
type Quantile struct {
	Q  float64 `json:"quantile"`
	US float64 `json:"clat_us"`
}

// Share is what one job got.
type Share struct {
	VM   int     `json:"vm"`
	Job  int     `json:"job"`
	IOPS float64 `json:"iops"`
}

// Merging counts the requests in one place: the guest's block layer or the host's
// scheduler.
type Merging struct {
	Known     bool   `json:"known"` // false: the guest could not be asked
	Submitted uint64 `json:"submitted"`
	Merged    uint64 `json:"merged"`
	Issued    uint64 `json:"issued"`
	// Merged, by whose requests were merged; in the host only.
	SameQueue  uint64 `json:"merged_same_queue"`
	CrossQueue uint64 `json:"merged_cross_queue"`
	CrossVM    uint64 `json:"merged_cross_vm"`
	// Refused are requests whose neighbour was found, and could not be merged with.
	Refused Refusals `json:"refused"`
}

// Refusals are counts by [sched.Reason]; in JSON, by the reason's name.
type Refusals [sched.ReasonCount]uint64

// MarshalJSON implements json.Marshaler.
func (r Refusals) MarshalJSON() ([]byte, error) {
	text := []byte{'{'}
	for why, n := range r {
		if why > 0 {
			text = append(text, ',')
		}
		text = fmt.Appendf(text, "%q:%d", sched.ReasonNames[why], n)
	}
	return append(text, '}'), nil
}

// UnmarshalJSON implements json.Unmarshaler.
func (r *Refusals) UnmarshalJSON(text []byte) error {
	var counts map[string]uint64
	if err := json.Unmarshal(text, &counts); err != nil {
		return fmt.Errorf("refused: %w", err)
	}
	for name, n := range counts {
		why := slices.Index(sched.ReasonNames[:], name)
		if why < 0 {
			return fmt.Errorf("refused: there is no reason %q", name)
		}
		r[why] = n
	}
	return nil
}

// Disk counts what reached the disk, in the order in which it was issued.
type Disk struct {
	Requests uint64 `json:"requests"`
	Sectors  uint64 `json:"sectors"`
	Seeks    uint64 `json:"seeks"`        // requests that do not start where the last one of the same image ended
	SeekSum  uint64 `json:"seek_sectors"` // the distances of all seeks, added up
	// A lost merge is a request that adjoins one of the last LostWindow issued, in the same
	// direction, and was issued by itself. They are counted by whose the two requests are.
	LostSameQueue  uint64 `json:"lost_merges_same_queue"`
	LostCrossQueue uint64 `json:"lost_merges_cross_queue"`
	LostCrossVM    uint64 `json:"lost_merges_cross_vm"`
	// LostLate are those of them that arrived after their neighbour had been issued: no
	// scheduler could have merged the two without delaying the first.
	LostLate uint64 `json:"lost_merges_late"`
	// HeadMoves and HeadSeconds are a simulated drive's own count; 0 on other disks.
	HeadMoves   uint64  `json:"head_moves"`
	HeadSeconds float64 `json:"head_time_s"`
}

// Access is one request on its way to the disk, for the plot of positions over time.
type Access struct {
	Seconds float64 `json:"time_s"` // since the end of the ramp
	Sector  uint64  `json:"sector"`
	Sectors uint32  `json:"sectors"`
	VM      uint16  `json:"vm"`
	Queue   uint16  `json:"queue"`
	Write   bool    `json:"write"`
}

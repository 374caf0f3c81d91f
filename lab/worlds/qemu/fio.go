package qemu

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/elevisor/elevisor/guest/fio"
	"github.com/elevisor/elevisor/lab/plan"
)

// fioOutput is what is used of fio's --output-format=json+.
type fioOutput struct {
	Version string   `json:"fio version"`
	Jobs    []fioJob `json:"jobs"`
}

// fioJob is one job; each of numjobs has its own.
type fioJob struct {
	Name  string `json:"jobname"`
	Error int    `json:"error"`
	Read  fioDirection
	Write fioDirection
	Sync  struct {
		IOs uint64 `json:"total_ios"`
	}
}

// fioDirection is one direction of a job.
type fioDirection struct {
	Bytes   uint64  `json:"io_bytes"`
	IOs     uint64  `json:"total_ios"`
	IOPS    float64 `json:"iops"`
	Runtime uint64  `json:"runtime"` // ms
	Clat    struct {
		Min  uint64            `json:"min"` // ns, as all below
		Max  uint64            `json:"max"`
		Mean float64           `json:"mean"`
		N    uint64            `json:"N"`
		Bins map[string]uint64 `json:"bins"` // how many took as long
	} `json:"clat_ns"`
}

// parseFio reads fio's output; what it says before the JSON is skipped.
func parseFio(out []byte) (*fioOutput, error) {
	start := bytes.IndexByte(out, '{')
	if start < 0 {
		return nil, fmt.Errorf("fio's output has no JSON: %.200q", out)
	}
	f := new(fioOutput)
	if err := json.Unmarshal(out[start:], f); err != nil {
		return nil, fmt.Errorf("fio's output: %w", err)
	}
	if len(f.Jobs) == 0 {
		return nil, fmt.Errorf("fio's output has no jobs: %.200q", out)
	}
	for _, j := range f.Jobs {
		if j.Error != 0 {
			return nil, fmt.Errorf("fio's job %s: error %d", j.Name, j.Error)
		}
	}
	return f, nil
}

// submitted is how many requests all jobs have had completed.
func (f *fioOutput) submitted() (n uint64) {
	for _, j := range f.Jobs {
		n += j.Read.IOs + j.Write.IOs
	}
	return n
}

// syncs is how often all jobs have flushed the disk's cache.
func (f *fioOutput) syncs() (n uint64) {
	for _, j := range f.Jobs {
		n += j.Sync.IOs
	}
	return n
}

// seconds is the longest time of a job.
func seconds(all []*fioOutput) float64 {
	var most uint64
	for _, f := range all {
		for _, j := range f.Jobs {
			most = max(most, j.Read.Runtime, j.Write.Runtime)
		}
	}
	return float64(most) / 1000
}

// shares are what each job of each VM got.
func shares(all []*fioOutput) (list []plan.Share) {
	for n, f := range all {
		for i, j := range f.Jobs {
			list = append(list, plan.Share{VM: n, Job: i, IOPS: j.Read.IOPS + j.Write.IOPS})
		}
	}
	return list
}

// total is what all jobs of all VMs did in one direction. Quantiles are taken over all
// requests of the run, from fio's own bins, which are a hundredth wide or less.
func total(all []*fioOutput, of func(*fioJob) *fioDirection, seconds float64) (d plan.Direction, err error) {
	bins := map[float64]uint64{}
	var sum, low float64
	var n uint64
	for _, f := range all {
		for i := range f.Jobs {
			j := of(&f.Jobs[i])
			d.IOs += j.IOs
			d.Bytes += j.Bytes
			if j.Clat.N == 0 {
				continue
			}
			if us := micro(j.Clat.Min); n == 0 || us < low {
				low = us
			}
			n += j.Clat.N
			sum += j.Clat.Mean * float64(j.Clat.N)
			d.Max = max(d.Max, micro(j.Clat.Max))
			for text, count := range j.Clat.Bins {
				ns, err := strconv.ParseUint(text, 10, 64)
				if err != nil {
					return d, fmt.Errorf("fio's latency bin %q: %w", text, err)
				}
				bins[micro(ns)] += count
			}
		}
	}
	if seconds > 0 {
		d.IOPS = float64(d.IOs) / seconds
	}
	if n == 0 {
		return d, nil
	}
	d.Mean = sum / float64(n) / 1000
	h := newHistogram(bins)
	d.P50, d.P99 = min(h.at(0.5), d.Max), min(h.at(0.99), d.Max)
	d.CDF = append(d.CDF, plan.Quantile{Q: 0, US: low})
	for _, p := range fio.Percentiles {
		d.CDF = append(d.CDF, plan.Quantile{Q: p / 100, US: min(max(h.at(p/100), low), d.Max)})
	}
	d.CDF = append(d.CDF, plan.Quantile{Q: 1, US: d.Max})
	return d, nil
}

// micro is ns in microseconds.
func micro(ns uint64) float64 { return float64(ns) / 1000 }

// histogram is how many requests took how long.
type histogram struct {
	us   []float64 // rising
	upTo []uint64  // how many took as long or shorter
}

func newHistogram(bins map[float64]uint64) *histogram {
	h := &histogram{us: slices.Sorted(maps.Keys(bins))}
	var sum uint64
	for _, us := range h.us {
		sum += bins[us]
		h.upTo = append(h.upTo, sum)
	}
	return h
}

// at is a quantile, as fio has it (calc_clat_percentiles in stat.c): the first bin up to
// which lie at least as many.
func (h *histogram) at(q float64) float64 {
	if len(h.us) == 0 {
		return 0
	}
	want := q * float64(h.upTo[len(h.upTo)-1])
	i, _ := slices.BinarySearchFunc(h.upTo, want, func(n uint64, want float64) int {
		if float64(n) < want {
			return -1
		}
		return 1
	})
	return h.us[min(i, len(h.us)-1)]
}

// stored is fio's output as it is kept: without the bins, which are most of it.
func stored(outputs [][]byte) (json.RawMessage, error) {
	var all []any
	for _, out := range outputs {
		dec := json.NewDecoder(bytes.NewReader(out[bytes.IndexByte(out, '{'):]))
		dec.UseNumber()
		var v any
		if err := dec.Decode(&v); err != nil {
			return nil, fmt.Errorf("fio's output: %w", err)
		}
		dropBins(v)
		all = append(all, v)
	}
	if len(all) == 1 {
		return json.Marshal(all[0])
	}
	return json.Marshal(all)
}

func dropBins(v any) {
	switch v := v.(type) {
	case map[string]any:
		delete(v, "bins")
		for _, inner := range v {
			dropBins(inner)
		}
	case []any:
		for _, inner := range v {
			dropBins(inner)
		}
	}
}

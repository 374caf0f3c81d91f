package load

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"strconv"
	"strings"
	"time"
)

// Origin says in the JSON output who measured, and when.
type Origin struct {
	Version string // of the program: "elevisor-1.0"; stands where fio has its own
	Time    time.Time
}

// The field names and units are those of fio 3's --output-format=json, of the
// fields that are measured here; what fio samples or takes from the kernel is
// left out, not filled with zeros. The object "verify" is ours.
type jsonReport struct {
	Version   string    `json:"fio version"`
	Timestamp int64     `json:"timestamp"`
	Millis    int64     `json:"timestamp_ms"`
	Time      string    `json:"time"`
	Jobs      []jsonJob `json:"jobs"`
}

type jsonJob struct {
	Name    string            `json:"jobname"`
	Group   int               `json:"groupid"`
	Error   int               `json:"error"`
	Elapsed int64             `json:"elapsed"` // s, rounded up
	Options map[string]string `json:"job options"`
	Read    jsonDirection     `json:"read"`
	Write   jsonDirection     `json:"write"`
	Trim    jsonDirection     `json:"trim"`
	Runtime int64             `json:"job_runtime"` // ms
	Errors  uint64            `json:"total_err"`
	First   int               `json:"first_error"`
	Verify  *jsonVerify       `json:"verify,omitempty"`
}

type jsonDirection struct {
	IOBytes  uint64      `json:"io_bytes"`
	IOKBytes uint64      `json:"io_kbytes"`
	BWBytes  uint64      `json:"bw_bytes"` // a second
	BW       uint64      `json:"bw"`       // KiB a second
	IOPS     float64     `json:"iops"`
	Runtime  int64       `json:"runtime"` // ms
	TotalIOs uint64      `json:"total_ios"`
	ShortIOs uint64      `json:"short_ios"`
	DropIOs  uint64      `json:"drop_ios"`
	Slat     jsonLatency `json:"slat_ns"`
	Clat     jsonLatency `json:"clat_ns"`
	Lat      jsonLatency `json:"lat_ns"`
}

type jsonLatency struct {
	Min        int64           `json:"min"`
	Max        int64           `json:"max"`
	Mean       float64         `json:"mean"`
	StdDev     float64         `json:"stddev"`
	N          uint64          `json:"N"`
	Percentile jsonPercentiles `json:"percentile,omitempty"`
}

type jsonVerify struct {
	Blocks   uint64   `json:"blocks"`
	Errors   uint64   `json:"errors"`
	Failures []string `json:"failures,omitempty"`
}

// jsonPercentiles are the values at percentiles, in that order.
type jsonPercentiles []int64

// MarshalJSON keeps the order, which a map would not.
func (p jsonPercentiles) MarshalJSON() ([]byte, error) {
	var b bytes.Buffer
	for i, v := range p {
		b.WriteByte("{,"[min(i, 1)])
		fmt.Fprintf(&b, "%q:%d", strconv.FormatFloat(percentiles[i], 'f', 6, 64), v)
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}

// WriteJSON prints r as fio would.
func (r *Result) WriteJSON(w io.Writer, from Origin) error {
	options := make([]Options, len(r.Jobs))
	for i := range options {
		options[i] = r.Options
	}
	return WriteReports(w, from, r.Jobs, options)
}

// WriteReports prints results of jobs with these options, one of each for each job, as fio
// would.
func WriteReports(w io.Writer, from Origin, jobs []JobResult, options []Options) error {
	rep := jsonReport{
		Version: from.Version, Timestamp: from.Time.Unix(), Millis: from.Time.UnixMilli(),
		Time: from.Time.Format(time.ANSIC),
	}
	for i := range jobs {
		rep.Jobs = append(rep.Jobs, jobs[i].report(&options[i]))
	}
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(rep)
}

// Report is what stands for a job with these options, and with more words that are not
// of them, in the JSON output: for encoding/json.
func (j *JobResult) Report(o *Options, more map[string]string) any {
	r := j.report(o)
	maps.Copy(r.Options, more)
	return r
}

func (j *JobResult) report(o *Options) jsonJob {
	out := jsonJob{
		Name: o.Name, Error: int(j.Errno), First: int(j.Errno), Options: o.words(),
		Elapsed: int64((j.Runtime + time.Second - 1) / time.Second), Runtime: j.Runtime.Milliseconds(),
		Read: direct(&j.Stats[Reading], j.Runtime), Write: direct(&j.Stats[Writing], j.Runtime),
		Errors: j.Stats[Reading].Errors + j.Stats[Writing].Errors + j.Mismatches,
	}
	if o.Verify {
		out.Verify = &jsonVerify{Blocks: j.Verified, Errors: j.Mismatches}
		for _, f := range j.Failures {
			out.Verify.Failures = append(out.Verify.Failures, f.Error())
		}
	}
	return out
}

func direct(s *Stats, run time.Duration) jsonDirection {
	d := jsonDirection{
		IOBytes: s.Bytes, IOKBytes: s.Bytes >> 10, TotalIOs: s.IOs,
		Slat: latency(&s.Slat), Clat: latency(&s.Clat), Lat: latency(&s.Lat),
	}
	if s.IOs == 0 {
		return d
	}
	d.Runtime = run.Milliseconds()
	d.IOPS = rate(s.IOs, run)
	d.BWBytes = uint64(rate(s.Bytes, run))
	d.BW = d.BWBytes >> 10
	for _, p := range percentiles {
		d.Clat.Percentile = append(d.Clat.Percentile, s.Percentile(p))
	}
	return d
}

func latency(l *Latency) jsonLatency {
	return jsonLatency{Min: l.Min, Max: l.Max, Mean: l.Mean(), StdDev: l.StdDev(), N: l.N}
}

// words are the options as fio would have been given them.
func (o *Options) words() map[string]string {
	m := map[string]string{
		"name": o.Name, "rw": o.RW.String(), "bs": strconv.Itoa(o.BlockSize),
		"iodepth": strconv.Itoa(o.Depth), "numjobs": strconv.Itoa(o.Jobs), "size": strconv.FormatInt(o.Size, 10),
		"randseed": strconv.FormatUint(o.Seed, 10),
	}
	set := func(key, value string, given bool) {
		if given {
			m[key] = value
		}
	}
	set("rwmixread", strconv.Itoa(o.MixRead), o.RW.mixed())
	set("runtime", o.Runtime.String(), o.Runtime != 0)
	set("time_based", "1", o.TimeBased)
	set("offset", strconv.FormatInt(o.Offset, 10), o.Offset != 0)
	set("io_size", strconv.FormatInt(o.IOSize, 10), o.IOSize != 0)
	set("ramp_time", o.RampTime.String(), o.RampTime != 0)
	set("thinktime", strconv.FormatInt(o.ThinkTime.Microseconds(), 10), o.ThinkTime != 0)
	set("rate_iops", strconv.Itoa(o.RateIOPS), o.RateIOPS != 0)
	set("fsync", strconv.Itoa(o.Fsync), o.Fsync != 0)
	set("iodepth_batch", strconv.Itoa(o.Batch), o.Batch != 0)
	if len(o.Split) > 0 {
		var sizes []string
		for _, s := range o.Split {
			sizes = append(sizes, fmt.Sprintf("%d/%d", s.BlockSize, s.Percent))
		}
		m["bssplit"] = strings.Join(sizes, ":")
	}
	if o.Stride != 0 {
		m["rw"] = fmt.Sprintf("%v:%d", o.RW, o.Stride-int64(o.BlockSize))
	}
	set("offset_increment", strconv.FormatInt(o.Increment, 10), o.Increment != 0)
	set("norandommap", "1", o.NoRandMap)
	set("verify", "pattern", o.Verify)
	set("continue_on_error", "all", o.ContinueOnError)
	return m
}

package fio

import (
	"encoding/json"
	"fmt"
	"math"
	"time"
)

// plainJob has the fields of Job and not its methods.
type plainJob Job

// jobJSON is a job in JSON: its times are in microseconds.
type jobJSON struct {
	plainJob
	Runtime   float64 `json:"runtime_us"`
	Ramp      float64 `json:"ramp_time_us"`
	ThinkTime float64 `json:"thinktime_us"`
}

// MarshalJSON implements json.Marshaler.
func (j Job) MarshalJSON() ([]byte, error) {
	us := func(d time.Duration) float64 { return float64(d) / 1e3 }
	return json.Marshal(jobJSON{plainJob(j), us(j.Runtime), us(j.Ramp), us(j.ThinkTime)})
}

// UnmarshalJSON implements json.Unmarshaler. Times up to TimeMax come back to the
// nanosecond.
func (j *Job) UnmarshalJSON(text []byte) error {
	in := jobJSON{plainJob: plainJob(*j)}
	if err := json.Unmarshal(text, &in); err != nil {
		return fmt.Errorf("job: %w", err)
	}
	*j = Job(in.plainJob)
	for _, t := range []struct {
		to   *time.Duration
		us   float64
		name string
	}{{&j.Runtime, in.Runtime, "runtime_us"}, {&j.Ramp, in.Ramp, "ramp_time_us"}, {&j.ThinkTime, in.ThinkTime, "thinktime_us"}} {
		if !(t.us >= 0 && t.us <= float64(TimeMax)/1e3) {
			return fmt.Errorf("job: %s=%g is out of range 0 to %g", t.name, t.us, float64(TimeMax)/1e3)
		}
		*t.to = time.Duration(math.Round(t.us * 1e3))
	}
	return nil
}

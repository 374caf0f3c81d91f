package load

import (
	"bufio"
	"fmt"
	"io"
	"strings"
	"time"
)

// percentiles are fio's default list.
var percentiles = []float64{1, 5, 10, 20, 30, 40, 50, 60, 70, 80, 90, 95, 99, 99.5, 99.9, 99.95, 99.99}

// WriteText prints r for people, in the shape of fio's normal output.
func (r *Result) WriteText(w io.Writer) error {
	out := bufio.NewWriter(w)
	for i := range r.Jobs {
		r.Jobs[i].WriteText(out, &r.Options, len(r.Jobs))
	}
	WriteTotal(out, r.Jobs)
	return out.Flush()
}

// WriteTotal prints what all jobs together have done, as fio does of a group.
func WriteTotal(w io.Writer, jobs []JobResult) {
	fmt.Fprintf(w, "\nRun status group 0 (all jobs):\n")
	t := Total(jobs)
	for d, name := range directionNames {
		s := &t.Stats[d]
		if s.IOs+s.Errors == 0 {
			continue
		}
		fmt.Fprintf(w, "%8s: bw=%s, iops=%s, io=%s, run=%d-%dmsec\n", strings.ToUpper(name),
			bandwidth(s.Bytes, t.Runtime), short(rate(s.IOs, t.Runtime)), binaryBytes(float64(s.Bytes)),
			shortest(jobs).Milliseconds(), t.Runtime.Milliseconds())
	}
}

var directionNames = [directions]string{"read", "write"}

func shortest(jobs []JobResult) time.Duration {
	d := jobs[0].Runtime
	for _, j := range jobs {
		d = min(d, j.Runtime)
	}
	return d
}

// WriteText prints a job with these options, one of so many, for people.
func (j *JobResult) WriteText(w io.Writer, o *Options, of int) {
	fmt.Fprintf(w, "%s: (groupid=0, job=%d of %d): err=%2d: rw=%v, bs=%d, iodepth=%d\n",
		o.Name, j.Index+1, of, j.Errno, o.RW, o.BlockSize, o.Depth)
	for d, name := range directionNames {
		if s := &j.Stats[d]; s.IOs+s.Errors > 0 {
			writeDirection(w, name, s, j.Runtime)
		}
	}
	if o.Verify {
		fmt.Fprintf(w, "  verify: %d blocks compared, %d wrong\n", j.Verified, j.Mismatches)
	}
	for _, f := range j.Failures {
		fmt.Fprintf(w, "  failed: %v\n", f)
	}
}

func writeDirection(w io.Writer, name string, s *Stats, run time.Duration) {
	fmt.Fprintf(w, "  %s: IOPS=%s, BW=%s (%s/%dmsec); %d errors\n", name,
		short(rate(s.IOs, run)), bandwidth(s.Bytes, run), binaryBytes(float64(s.Bytes)), run.Milliseconds(), s.Errors)
	for _, l := range []struct {
		name string
		lat  *Latency
	}{{"slat", &s.Slat}, {"clat", &s.Clat}, {"lat", &s.Lat}} {
		unit, div := timeUnit(l.lat.Mean())
		fmt.Fprintf(w, "    %4s (%s): min=%.0f, max=%.0f, avg=%.2f, stdev=%.2f\n", l.name, unit,
			float64(l.lat.Min)/div, float64(l.lat.Max)/div, l.lat.Mean()/div, l.lat.StdDev()/div)
	}
	if s.IOs == 0 {
		return
	}
	unit, div := timeUnit(s.Clat.Mean())
	fmt.Fprintf(w, "    clat percentiles (%s):\n", unit)
	for i := 0; i < len(percentiles); i += 4 {
		var cells []string
		for _, p := range percentiles[i:min(i+4, len(percentiles))] {
			cells = append(cells, fmt.Sprintf("%5.2fth=[%5.0f]", p, float64(s.Percentile(p))/div))
		}
		fmt.Fprintf(w, "     | %s\n", strings.Join(cells, ", "))
	}
}

// timeUnit is the unit in which ns reads best, as fio chooses it.
func timeUnit(ns float64) (string, float64) {
	switch {
	case ns >= 1e7:
		return "msec", 1e6
	case ns >= 1e4:
		return "usec", 1e3
	}
	return "nsec", 1
}

func rate(n uint64, d time.Duration) float64 {
	if d <= 0 {
		return 0
	}
	return float64(n) / d.Seconds()
}

func bandwidth(bytes uint64, d time.Duration) string {
	v := rate(bytes, d)
	return fmt.Sprintf("%s/s (%.1fMB/s)", binaryBytes(v), v/1e6)
}

func binaryBytes(v float64) string {
	for _, u := range []string{"B", "KiB", "MiB", "GiB"} {
		if v < 1024 {
			return fmt.Sprintf("%.4g%s", v, u)
		}
		v /= 1024
	}
	return fmt.Sprintf("%.4gTiB", v)
}

func short(v float64) string {
	switch {
	case v >= 1e6:
		return fmt.Sprintf("%.4gM", v/1e6)
	case v >= 1e4:
		return fmt.Sprintf("%.4gk", v/1e3)
	}
	return fmt.Sprintf("%.0f", v)
}

package report

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"io"
	"math"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/elevisor/elevisor/lab/plan"
	"github.com/elevisor/elevisor/lab/report/reporttest"
	"github.com/elevisor/elevisor/sched"
)

func render(t *testing.T, r *plan.Results) string {
	t.Helper()
	var b strings.Builder
	require.NoError(t, HTML(&b, r))
	wellFormed(t, b.String())
	return b.String()
}

var (
	doctype = "<!DOCTYPE html>\n"
	voids   = regexp.MustCompile(`<(meta [^>]*)>`)
	loads   = regexp.MustCompile(`(?i)javascript:|@import|url\(|://`)
)

// elements returns the elements of a name, which must not be nested.
func elements(page, name string) (all []string) {
	from, to := "<"+name, "</"+strings.TrimRight(name, " >")+">"
	for {
		at := strings.Index(page, from)
		if at < 0 {
			return all
		}
		end := at + strings.Index(page[at:], to) + len(to)
		all = append(all, page[at:end])
		page = page[end:]
	}
}

// wellFormed requires that elements are nested properly, that nothing loads or runs, that
// ids are unique, that each figure and table has a caption, and each picture a title and a
// description.
func wellFormed(t *testing.T, page string) {
	t.Helper()
	text, found := strings.CutPrefix(page, doctype)
	require.True(t, found)
	head := strings.Index(text, "</head>")
	d := xml.NewDecoder(strings.NewReader(voids.ReplaceAllString(text[:head], "<$1/>") + text[head:]))
	d.Entity = xml.HTMLEntity
	ids := map[string]bool{}
	for {
		token, err := d.Token()
		if err == io.EOF {
			break
		}
		require.NoError(t, err)
		if e, is := token.(xml.StartElement); is {
			require.NotContains(t, []string{"script", "link", "img", "image", "iframe", "object", "embed", "base"}, strings.ToLower(e.Name.Local))
			for _, a := range e.Attr {
				harmless(t, a, ids)
			}
		}
	}
	require.Len(t, elements(page, "style"), 1)
	require.Empty(t, loads.FindAllString(elements(page, "style")[0], -1))
	for _, f := range elements(page, "figure>") {
		require.Contains(t, f, "<figcaption>")
		require.Contains(t, f, "<svg ")
	}
	for _, s := range elements(page, "svg ") {
		head, _, _ := strings.Cut(s, "</desc>")
		require.Regexp(t, `^<svg role="img" aria-labelledby="[^" ]+ [^" ]+"[^>]*>\s*<title id="[^"]+">[^<]+</title><desc id="[^"]+">[^<]+$`, head)
		require.NotContains(t, s, "NaN")
		require.NotContains(t, s, "Inf")
	}
	for _, table := range elements(page, "table") {
		require.Contains(t, table, "<caption>")
		require.Contains(t, table, `<th scope="col"`)
	}
}

// harmless requires that an attribute loads and runs nothing, and that an id is new.
func harmless(t *testing.T, a xml.Attr, ids map[string]bool) {
	t.Helper()
	name := strings.ToLower(a.Name.Local)
	require.False(t, name == "src" || strings.HasPrefix(name, "on"), name)
	require.False(t, loads.MatchString(a.Value), a.Value)
	if name == "id" {
		require.False(t, ids[a.Value], "id %s twice", a.Value)
		ids[a.Value] = true
	}
}

func TestHTML(t *testing.T) {
	t.Parallel()
	r := reporttest.Results(reporttest.Full())
	page := render(t, r)
	require.NotContains(t, page, "://")
	require.Len(t, elements(page, "figure>"), 4+1+5+1, "bars, heat maps, merges, latencies of 1 and 2 directions, positions")
	require.Len(t, elements(page, "svg "), 4+1+5+1+2, "a heat map is for IOPS and p99")
	require.Len(t, elements(page, "table"), 2*4)
	require.Less(t, strings.Index(page, "<h1>"+r.Summary.Headline), strings.Index(page, "<main>"))
	for _, want := range append(append(r.Notes, r.Summary.Warnings...), "sim:generic7200", "6.18.0", "--preset linear4k", "rw=randrw bssplit=4096/60:65536/40") {
		require.Contains(t, page, strings.ReplaceAll(want, "'", "&#39;"))
	}
	for _, c := range r.Summary.Comparisons {
		require.Contains(t, page, interval(c.Ratio, c.Low, c.High))
	}
	require.Less(t, len(page), 4<<20)
}

// TestHostileNames has markup, quotes and control characters in every string from outside.
func TestHostileNames(t *testing.T) {
	t.Parallel()
	evil := "\"'><script>alert(1)</script><img src=x onerror=alert(2)>&amp;\x00\x1b[2J\r\u202e\u0301" + strings.Repeat("x", 300)
	s := reporttest.Full()
	s.Guests, s.Hosts = []string{evil, evil + "2", "none"}, []string{evil, "none"}
	s.Repeats, s.Trace = 3, 10
	s.Workloads[0].Name, s.Workloads[1].Name = evil, evil
	s.Workloads[0].Jobs[0].Name, s.Workloads[0].Jobs[0].RW = evil, evil
	r := reporttest.Results(s)
	r.Version, r.Command, r.Notes = evil, []string{evil, evil}, []string{evil}
	r.Environment = map[string]string{evil: evil}
	r.Plan.World, r.Plan.Disk, r.Plan.BaseGuest = evil, evil, evil
	r.Summary.Headline, r.Summary.Warnings = evil, []string{evil}
	for i := range r.Plan.Cells {
		r.Plan.Cells[i].Guest.Knobs = []sched.Knob{{Key: evil, Value: evil}}
	}
	for i := range r.Summary.Comparisons {
		r.Summary.Comparisons[i].Verdict, r.Summary.Comparisons[i].Mark = evil, evil
	}
	page := render(t, r)
	require.NotContains(t, page, "<script")
	require.NotContains(t, page, "<img")
	for _, write := range []func(io.Writer) error{
		func(w io.Writer) error { return Text(w, r) },
		func(w io.Writer) error { return Against(w, r, r) },
	} {
		var b strings.Builder
		require.NoError(t, write(&b))
		require.NotRegexp(t, `[\x00-\x09\x0b-\x1f\x7f]|\p{Cf}`, b.String())
		for _, l := range strings.Split(b.String(), "\n") {
			require.LessOrEqual(t, len([]rune(l)), Width, l)
		}
	}
}

// TestGaps removes parts of results or makes them absurd: the rest must still be shown.
func TestGaps(t *testing.T) {
	t.Parallel()
	small := func() *plan.Results {
		s := reporttest.Full()
		s.Repeats, s.Trace, s.Guests, s.Hosts = 3, 5, s.Guests[:2], s.Hosts[:2]
		return reporttest.Results(s)
	}
	outcomes := func(change func(*plan.Outcome)) func(*plan.Results) {
		return func(r *plan.Results) {
			for i := range r.Runs {
				change(r.Runs[i].Outcome)
			}
		}
	}
	for name, change := range map[string]func(*plan.Results){
		"nothing":       func(r *plan.Results) { *r = plan.Results{} },
		"no runs":       func(r *plan.Results) { r.Runs = nil },
		"no summary":    func(r *plan.Results) { r.Summary = nil },
		"empty summary": func(r *plan.Results) { r.Summary = &plan.Summary{} },
		"no outcome":    func(r *plan.Results) { r.Runs[0].Outcome = nil },
		"no baseline":   func(r *plan.Results) { r.Plan.BaseGuest, r.Summary.Comparisons = "", nil },
		"one cell":      func(r *plan.Results) { r.Plan.Cells, r.Runs, r.Summary = r.Plan.Cells[:1], nil, nil },
		"same cell twice": func(r *plan.Results) {
			r.Plan.Cells[1] = r.Plan.Cells[0]
		},
		"no distribution": outcomes(func(o *plan.Outcome) { o.Read.CDF, o.Write.CDF = nil, nil }),
		"one quantile":    outcomes(func(o *plan.Outcome) { o.Read.CDF = o.Read.CDF[:1] }),
		"no trace":        outcomes(func(o *plan.Outcome) { o.Trace = nil }),
		"one request":     outcomes(func(o *plan.Outcome) { o.Trace = []plan.Access{{}} }),
		"far away": outcomes(func(o *plan.Outcome) {
			o.Trace = append(o.Trace, plan.Access{Seconds: -1e300, Sector: math.MaxUint64, VM: 65535})
		}),
		"unknown guest": outcomes(func(o *plan.Outcome) { o.Guest = plan.Merging{} }),
		"idle":          outcomes(func(o *plan.Outcome) { *o = plan.Outcome{} }),
		"too much":      outcomes(func(o *plan.Outcome) { o.Guest.Merged, o.Read.P99, o.Read.CDF[1].US = math.MaxUint64, 1e308, 1e308 }),
		"equal latencies": outcomes(func(o *plan.Outcome) {
			for i := range o.Read.CDF {
				o.Read.CDF[i].US = 250
			}
		}),
		"absurd summary": func(r *plan.Results) {
			for i := range r.Summary.Cells {
				c := &r.Summary.Cells[i]
				c.IOPS, c.P99, c.SeeksPerGiB = plan.Sample{N: 2, Mean: 1e308, SD: 1e308}, plan.Sample{N: -1, Mean: -5, SD: -1}, plan.Sample{N: 3}
			}
			for i := range r.Summary.Comparisons {
				c := &r.Summary.Comparisons[i]
				c.Ratio, c.Low, c.High, c.P = -1e300, math.NaN(), math.Inf(1), 1e300
			}
		},
		"many VMs": func(r *plan.Results) {
			for i := range r.Runs {
				r.Runs[i].Outcome.Trace = nil
				for vm := range 20 {
					r.Runs[i].Outcome.Trace = append(r.Runs[i].Outcome.Trace, plan.Access{VM: uint16(vm), Sector: uint64(vm) * 100, Seconds: float64(vm)})
				}
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := small()
			change(r)
			page := render(t, r)
			for _, write := range []func(io.Writer, *plan.Results) error{Text, CSV} {
				require.NoError(t, write(io.Discard, r))
			}
			require.NoError(t, Against(io.Discard, r, small()))
			require.NoError(t, Against(io.Discard, small(), r))
			if name == "many VMs" {
				require.Contains(t, page, "all others")
			}
		})
	}
	require.Error(t, HTML(io.Discard, nil))
	require.Error(t, Text(io.Discard, &plan.Results{Runs: []plan.Run{{}}}))
}

// TestLargeMatrix has more schedulers than there are colours and patterns.
func TestLargeMatrix(t *testing.T) {
	t.Parallel()
	s := reporttest.Full()
	s.Guests, s.Hosts, s.Repeats, s.Trace = nil, nil, 2, 4
	for i := range 9 {
		s.Guests, s.Hosts = append(s.Guests, fmt.Sprintf("guest-%d", i)), append(s.Hosts, fmt.Sprintf("host-%d", i))
	}
	r := reporttest.Results(s)
	page := render(t, r)
	for _, svg := range elements(page, "svg ") {
		var w, h float64
		_, err := fmt.Sscanf(regexp.MustCompile(`width="[0-9.]+" height="[0-9.]+"`).FindString(svg), `width="%f" height="%f"`, &w, &h)
		require.NoError(t, err)
		require.LessOrEqual(t, w, figureWidth)
		require.Positive(t, h)
	}
}

// TestKnobs has one scheduler with two sets of knobs: they must stay separate.
func TestKnobs(t *testing.T) {
	t.Parallel()
	s := reporttest.Full()
	s.Guests, s.Hosts, s.Workloads, s.Repeats, s.Trace = []string{"none"}, []string{"none", "deadline", "bfq"}, s.Workloads[:1], 3, 0
	r := reporttest.Results(s)
	r.Plan.Cells[2].Host = plan.Scheduler{Name: "deadline", Knobs: []sched.Knob{{Key: "fifo_batch", Value: "1"}}}
	var b strings.Builder
	require.NoError(t, Text(&b, r))
	require.Contains(t, b.String(), "none        deadline#2 ")
	require.Contains(t, b.String(), "deadline#2: deadline fifo_batch=1")
	require.Contains(t, render(t, r), "deadline#2: deadline fifo_batch=1")
	var other bytes.Buffer
	require.NoError(t, JSON(&other, r))
	again, err := decode(other.Bytes())
	require.NoError(t, err)
	again.Plan.Cells[2].Host.Knobs[0].Value = "2"
	d, err := Compare(r, again)
	require.NoError(t, err)
	require.Equal(t, []int{2}, d.OnlyA)
	require.Equal(t, []int{2}, d.OnlyB)
}

func TestCompare(t *testing.T) {
	t.Parallel()
	results := func(iops ...float64) *plan.Results {
		r := &plan.Results{Plan: plan.Plan{Cells: []plan.Cell{{}}}}
		for _, x := range iops {
			r.Runs = append(r.Runs, plan.Run{Outcome: &plan.Outcome{Read: plan.Direction{IOPS: x, P99: 1e6 / x}}})
		}
		return r
	}
	first := func(a, b *plan.Results) Pair {
		d, err := Compare(a, b)
		require.NoError(t, err)
		require.Len(t, d.Pairs, 2)
		require.Empty(t, d.OnlyA)
		require.Empty(t, d.OnlyB)
		return d.Pairs[0]
	}
	// The interval was computed independently, by integrating the density of t.
	p := first(results(100, 102, 104), results(200, 210, 205))
	require.InDelta(t, math.Pow(200*210*205/(100.*102*104), 1./3), p.Ratio, 1e-12)
	require.InDelta(t, 1.90955, p.Low, 2e-5)
	require.InDelta(t, 2.11503, p.High, 2e-5)
	require.Equal(t, "**", p.Mark)
	require.Regexp(t, `^B faster by 101 % \[9\d\.\d, 11\d\]$`, p.Verdict)
	back := first(results(200, 210, 205), results(100, 102, 104))
	require.InDelta(t, 1, p.Ratio*back.Ratio, 1e-12)
	require.InDelta(t, 1, p.Low*back.High, 1e-12, "exchanging the two exchanges the interval")
	require.Regexp(t, `^B slower by 50\.\d % `, back.Verdict)

	require.Contains(t, first(results(100, 100.1, 100.2), results(100.1, 100, 100.3)).Verdict, "equivalent within 2 %")
	require.Contains(t, first(results(100, 120, 140), results(110, 130, 150)).Verdict, "no difference shown")
	require.Contains(t, first(results(1, 2), results(1, 2, 3)).Verdict, "too few runs (2 and 3)")
	require.Contains(t, first(results(5, 5, 5), results(6, 6, 6)).Verdict, "the runs of neither vary")
	require.Contains(t, first(results(5, 0, 5), results(6, 6, 7)).Verdict, "a run has no figure")
	require.Contains(t, first(results(), results(6, 6, 7)).Verdict, "a run has no figure")
}

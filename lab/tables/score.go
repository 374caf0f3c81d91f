package tables

import (
	"math"

	"gonum.org/v1/gonum/stat"
)

// Result is a cell with what the simulation has for it.
type Result struct {
	Cell
	SimMean  float64 // over seeds
	SimSD    float64
	Residual float64 // per cent of the published mean
	Seeds    int
	Virtual  float64 // seconds, of one run
}

// result sums up the runs of one cell.
func result(c Cell, runs []float64, virtual float64) Result {
	r := Result{Cell: c, Seeds: len(runs), Virtual: virtual}
	r.SimMean = stat.Mean(runs, nil)
	if len(runs) > 1 {
		r.SimSD = stat.StdDev(runs, nil)
	}
	r.Residual = 100 * (r.SimMean/c.Mean - 1)
	return r
}

// Group sums up the cells of one publication.
type Group struct {
	Name       string
	Results    []Result
	RMS        float64  // per cent, over all cells
	Fitted     *float64 // over the odd job counts, which sim fit looks at
	HeldOut    *float64 // over the even ones, which it does not
	OrdersOK   int      // clearly different pairs that come out in the published order
	OrderTotal int
	Worst      Result
}

// groupOf says which group a cell belongs to. What low_latency=1 does with 2 to 7 jobs
// stands apart: the published figures have a dent there.
func groupOf(c Cell) string {
	switch c.Table {
	case "rfc-two-file-copy":
		return "two-file-copy"
	case "random-access":
		return c.Table
	case "bfq-vs-cfq-seqread", "bfq-vs-cfq-seqwrite":
		if c.Config == "bfq_ll1" && c.NumJobs >= 2 && c.NumJobs <= 7 {
			return "bfq-2017-dent"
		}
		return "bfq-2017"
	}
	return "rfc-2016"
}

// Score sorts results into groups, in the order in which these first appear.
func Score(results []Result) []Group {
	var groups []Group
	at := map[string]int{}
	for _, r := range results {
		name := groupOf(r.Cell)
		if _, ok := at[name]; !ok {
			at[name] = len(groups)
			groups = append(groups, Group{Name: name})
		}
		g := &groups[at[name]]
		g.Results = append(g.Results, r)
	}
	for i := range groups {
		groups[i].score()
	}
	return groups
}

func (g *Group) score() {
	all := func(Result) bool { return true }
	g.RMS = *rms(g.Results, all)
	if g.Name == "rfc-2016" || g.Name == "bfq-2017" || g.Name == "bfq-2017-dent" {
		g.Fitted = rms(g.Results, func(r Result) bool { return fitted(r.Cell) })
		g.HeldOut = rms(g.Results, func(r Result) bool { return !fitted(r.Cell) })
	}
	for i, a := range g.Results {
		if math.Abs(a.Residual) > math.Abs(g.Worst.Residual) || i == 0 {
			g.Worst = a
		}
		for _, b := range g.Results[i+1:] {
			if a.Table != b.Table || a.NumJobs != b.NumJobs || !clear(a.Cell, b.Cell) {
				continue
			}
			g.OrderTotal++
			if (a.Mean > b.Mean) == (a.SimMean > b.SimMean) && a.SimMean != b.SimMean {
				g.OrdersOK++
			}
		}
	}
}

// fitted says whether sim fit looks at a cell.
func fitted(c Cell) bool { return c.NumJobs%2 == 1 }

// clear says whether two published means differ by more than two pooled standard
// deviations.
func clear(a, b Cell) bool {
	return math.Abs(a.Mean-b.Mean) > 2*math.Sqrt((a.SD*a.SD+b.SD*b.SD)/2)
}

// rms is the root mean square of the residuals of some results; nil of none.
func rms(of []Result, some func(Result) bool) *float64 {
	sum, n := 0.0, 0
	for _, r := range of {
		if some(r) {
			sum += r.Residual * r.Residual
			n++
		}
	}
	if n == 0 {
		return nil
	}
	v := math.Sqrt(sum / float64(n))
	return &v
}

package reporttest

import "github.com/elevisor/elevisor/lab/plan"

// summary computes the real statistics of the runs; the sentences are made up, and stay
// the same whatever the figures are.
func summary(r *plan.Results) *plan.Summary {
	s, err := plan.Summarize(&r.Plan, r.Runs)
	if err != nil { // all figures are positive
		panic(err)
	}
	s.Headline = "On the made-up disk, host timeslice is fastest: 70 % more IOPS than no scheduler at all [69, 71]; a guest scheduler adds 18 % to that."
	s.Warnings = []string{"randrw-70, none / cfq: the ratio drifted by 0.3 % a block (p = 0.03); the confidence intervals may be unreliable."}
	return s
}

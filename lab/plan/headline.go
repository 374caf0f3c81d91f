package plan

import (
	"fmt"
	"slices"
	"strings"

	"github.com/elevisor/elevisor/lab/stats"
)

// headline is one sentence about IOPS: in how many cells each scheduler was faster or
// slower, the largest gain and the largest loss. It generalizes nothing.
func (s *summing) headline() string {
	var all []int
	for i := range s.Comparisons {
		if s.Comparisons[i].Metric == MetricIOPS {
			all = append(all, i)
		}
	}
	switch {
	case len(all) == 0:
		return "Nothing was compared."
	case !slices.ContainsFunc(all, func(i int) bool { return s.shown[i] != stats.TooFewPairs }):
		return fmt.Sprintf("No verdict: every comparison has fewer than %d pairs of runs.", stats.MinPairs)
	}
	parts, none := []string{}, []string{}
	for _, t := range s.tallies(all) {
		if t.faster+t.slower == 0 {
			none = append(none, t.who)
		} else {
			parts = append(parts, t.String())
		}
	}
	if len(none) > 0 {
		parts = append(parts, "no difference shown with "+strings.Join(none, ", "))
	}
	text := fmt.Sprintf("IOPS against guest %s / host %s, at p < 0.05 after correction for multiple comparisons (%d): %s",
		s.plan.BaseGuest, s.plan.BaseHost, len(all), strings.Join(parts, "; "))
	best, least := s.extremes(all)
	if best >= 0 {
		text += "; the largest gain is " + s.effect(best)
	}
	if least >= 0 {
		text += "; the largest loss is " + s.effect(least)
	}
	return text + "."
}

// tally counts how often one scheduler, in the guest or in the host, was better or worse.
type tally struct {
	who                string
	faster, slower, of int
}

func (t *tally) String() string {
	var ways []string
	if t.faster > 0 {
		ways = append(ways, fmt.Sprintf("faster in %d", t.faster))
	}
	if t.slower > 0 {
		ways = append(ways, fmt.Sprintf("slower in %d", t.slower))
	}
	return fmt.Sprintf("%s %s of %d cells", t.who, strings.Join(ways, " and "), t.of)
}

// tallies counts by host scheduler where the guest's is the baseline's, and by guest
// scheduler where the host's is. Where both differ from the baseline, either may be the
// cause, so these are counted separately.
func (s *summing) tallies(of []int) (all []*tally) {
	for _, i := range of {
		c := &s.plan.Cells[s.Comparisons[i].Cell]
		who := "guest and host together"
		switch {
		case based(c.Host, s.plan.BaseHost, c.MaxSectorsKB):
			who = "guest " + c.Guest.String()
		case based(c.Guest, s.plan.BaseGuest, c.MaxSectorsKB):
			who = "host " + c.Host.String()
		}
		at := slices.IndexFunc(all, func(t *tally) bool { return t.who == who })
		if at < 0 {
			at = len(all)
			all = append(all, &tally{who: who})
		}
		t := all[at]
		t.of++
		switch {
		case !s.certain(i):
		case s.shown[i] == stats.Faster:
			t.faster++
		case s.shown[i] == stats.Slower:
			t.slower++
		}
	}
	return all
}

// certain reports whether a difference is significant after correction.
func (s *summing) certain(i int) bool { return s.Comparisons[i].PHolm < alpha }

// extremes returns the largest gain and the largest loss that are certain; -1: none.
func (s *summing) extremes(of []int) (best, least int) {
	best, least = -1, -1
	for _, i := range of {
		x := s.Comparisons[i].Ratio
		switch {
		case !s.certain(i):
		case s.shown[i] == stats.Faster && (best < 0 || x > s.Comparisons[best].Ratio):
			best = i
		case s.shown[i] == stats.Slower && (least < 0 || x < s.Comparisons[least].Ratio):
			least = i
		}
	}
	return best, least
}

func (s *summing) effect(i int) string {
	x := &s.Comparisons[i]
	return fmt.Sprintf("x%.3g [%.3g, %.3g] (%s)", x.Ratio, x.Low, x.High, &s.plan.Cells[x.Cell])
}

package stats

import (
	"fmt"
	"math"
	"slices"
)

// Holm adjusts the p-values of a whole table, so that the probability of one or more
// false positives among them stays below the level that they are compared with:
// adjusted(i) = max over j ≤ i of min(1, (m-j)·p(j)), j counted from 0 in ascending
// order (S. Holm, Scandinavian Journal of Statistics 6, 1979). The result has
// the order of p. Values outside 0 to 1 are refused.
func Holm(p []float64) ([]float64, error) {
	order := make([]int, len(p))
	for i, x := range p {
		if !(x >= 0 && x <= 1) {
			return nil, fmt.Errorf("adjust p-values: number %d is %v, not from 0 to 1", i, x)
		}
		order[i] = i
	}
	slices.SortStableFunc(order, func(i, j int) int {
		switch {
		case p[i] < p[j]:
			return -1
		case p[i] > p[j]:
			return 1
		}
		return 0
	})
	adjusted, floor := make([]float64, len(p)), 0.0
	for j, i := range order {
		floor = math.Max(floor, math.Min(1, float64(len(p)-j)*p[i]))
		adjusted[i] = floor
	}
	return adjusted, nil
}

// Mark is "**" for what is significant after correction, "*" for what is significant only
// before it, and "" for the rest. alpha is the level, usually 0.05.
func Mark(p, adjusted, alpha float64) string {
	switch {
	case adjusted < alpha:
		return "**"
	case p < alpha:
		return "*"
	}
	return ""
}

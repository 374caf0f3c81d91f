package stats

import (
	"fmt"
	"slices"
)

// Jain is the fairness index (Σx)²/(n·Σx²) of shares in any unit: 1 if all are equal,
// k/n if k of n share evenly and the others get nothing (R. Jain, D. Chiu and W. Hawe,
// DEC-TR-301, 1984). Shares must not be negative, and at least one must be positive.
func Jain(shares []float64) (float64, error) {
	if _, err := mostOf(shares); err != nil {
		return 0, err
	}
	sum, squares := 0.0, 0.0
	for _, x := range shares {
		sum += x
		squares += x * x
	}
	return min(sum*sum/(float64(len(shares))*squares), 1), nil
}

// MinMax is the smallest share divided by the largest: 1 if all are equal, 0 if one got
// nothing. It takes the same shares as Jain.
func MinMax(shares []float64) (float64, error) {
	most, err := mostOf(shares)
	if err != nil {
		return 0, err
	}
	return slices.Min(shares) / most, nil
}

func mostOf(shares []float64) (float64, error) {
	most := 0.0
	for i, x := range shares {
		if !(x >= 0 && x <= largest) {
			return 0, fmt.Errorf("measure fairness: share %d is %v, not from 0 to %g", i, x, largest)
		}
		most = max(most, x)
	}
	if most < smallest {
		return 0, fmt.Errorf("measure fairness: none of %d shares is at least %g", len(shares), smallest)
	}
	return most, nil
}

package stats

import (
	"fmt"
	"math"

	"gonum.org/v1/gonum/stat/distuv"
)

// TTest is the result of a two-sided t-test.
type TTest struct {
	T  float64 // of B against A: positive where B is larger; ±Inf if nothing varies but the two differ
	DF float64 // degrees of freedom
	P  float64 // from 0 to 1; 1 if there was nothing to test
}

// student is Student's distribution; df > 0.
func student(df float64) distuv.StudentsT { return distuv.StudentsT{Mu: 0, Sigma: 1, Nu: df} }

// tTest asks whether an estimate with this standard error is 0.
func tTest(estimate, se, df float64) TTest {
	switch {
	case df <= 0 || (estimate == 0 && se == 0):
		return TTest{DF: math.Max(df, 0), P: 1}
	case se == 0:
		return TTest{T: math.Inf(1) * estimate, DF: df, P: 0}
	}
	t := estimate / se
	return TTest{T: t, DF: df, P: 2 * student(df).CDF(-math.Abs(t))}
}

// Welch is the t-test of two independent groups, given by their mean, standard deviation
// (with n-1) and number of runs, with the degrees of freedom of Welch and Satterthwaite
// (B. L. Welch, Biometrika 34, 1947).
//
// It refuses groups of fewer than 2, deviations that are negative or both 0, and
// values that are not finite.
func Welch(meanA, sdA float64, nA int, meanB, sdB float64, nB int) (TTest, error) {
	for _, g := range []struct {
		name     string
		mean, sd float64
		n        int
	}{{"A", meanA, sdA, nA}, {"B", meanB, sdB, nB}} {
		switch {
		case g.n < 2:
			return TTest{}, fmt.Errorf("compare means: group %s has %d runs, at least 2 are needed", g.name, g.n)
		case !(math.Abs(g.mean) <= largest):
			return TTest{}, fmt.Errorf("compare means: the mean of group %s is %v, not within ±%g", g.name, g.mean, largest)
		case !(g.sd >= 0 && g.sd <= largest) || (g.sd > 0 && g.sd < smallest):
			return TTest{}, fmt.Errorf("compare means: the standard deviation of group %s is %v, not 0 and not from %g to %g", g.name, g.sd, smallest, largest)
		}
	}
	if sdA == 0 && sdB == 0 {
		return TTest{}, fmt.Errorf("compare means: both standard deviations are 0, at least one must be positive")
	}
	// Dividing by se first keeps the fourth powers of deviations in the range of a float64.
	se := math.Hypot(sdA/math.Sqrt(float64(nA)), sdB/math.Sqrt(float64(nB)))
	a := math.Pow(sdA/se, 2) / float64(nA)
	b := math.Pow(sdB/se, 2) / float64(nB)
	return tTest(meanB-meanA, se, 1/(a*a/float64(nA-1)+b*b/float64(nB-1))), nil
}

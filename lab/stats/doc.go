// Package stats says what repeated measurements of storage show, and what they do
// not. It computes; it runs nothing, reads no clock and draws no number that its
// arguments do not fix, so that stored runs give the same report again.
//
// # The unit is a run
//
// One run of one configuration gives one number: its IOPS, or its p99 latency. The
// requests of a run are not independent (they share a queue, a cache and the place
// of a head), so they are never pooled: a million requests in one run are one
// observation. Compare p50, p99 and the maximum of each run, one at a time.
//
// Runs come in blocks. A block holds every configuration once, back to back and with
// the same seed, in an order that Blocks draws; whatever changes slowly (temperature,
// wear, a neighbour) then hits all of a block alike and cancels in the comparison.
// The first part of each run, while caches fill, is dropped before it comes here.
//
// # What the numbers mean
//
//   - Ratio (Paired): B divided by A. Each block gives d = ln(B/A); Ratio is exp of
//     the mean d, a geometric mean. Logarithms make 2x and 0.5x equally far from 1, and
//     keep the fastest rows of a table from drowning the others, as they do in a mean
//     of differences in IOPS.
//   - Low and High: the confidence interval of Ratio. Were the whole experiment done
//     again and again, 95 % of such intervals would hold the true ratio. A wide one
//     says that more blocks, or quieter runs, are needed (PairsNeeded).
//   - P: how often two equal configurations would give a difference at least this
//     large by chance. It is not the probability that they are equal, and a large P
//     shows nothing: it may stand for equality or for too few runs.
//   - SignFlip.P: the same question without supposing that the noise is normal. If A
//     and B are equal, each d might as well have had the other sign; P is the share of
//     all 2^n choices of signs that give a mean as far from 0. It can be no smaller
//     than 2/2^n: with 5 pairs, 0.0625. If it disagrees with P, look at the runs.
//   - SD: standard deviation of d: about the relative noise of one pair. 0 means that
//     all pairs gave the same ratio; where noise is expected, the runs then repeat one
//     another (one seed for all blocks?) and n pairs are worth one.
//   - CV (Describe): standard deviation over mean: the noise of one configuration's
//     runs. Storage at rest stays below 2 %.
//   - Verdict: "faster" or "slower" only if the interval leaves out 1 and the effect
//     is worth mentioning; "equivalent" only if the whole interval lies inside the
//     margin; everything else is "no difference shown", which is no proof of equality.
//   - Holm: of 20 comparisons of equal things, one has P < 0.05 by chance. Holm's
//     adjusted p-values hold for the whole table: believe two asterisks, not one.
//   - Drift and Lag1: whether d moved steadily during the experiment, and whether one
//     block resembles the one before. Either breaks the independence that P and the
//     interval suppose; the numbers then look better than they are.
//   - Jain and MinMax: how evenly a drive was shared. 1 is even; Jain's 1/n is one
//     taker of everything, a MinMax of 0 somebody starved.
//   - Welch: for tables that others published as mean, deviation and number of runs.
//     Without the number of runs there is no p-value.
//
// Outliers are never removed: Describe prints the minimum, median and maximum.
package stats

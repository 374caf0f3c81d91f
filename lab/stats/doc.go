// Package stats computes what repeated measurements of storage show, and what they do
// not. It runs nothing, reads no clock, and draws only random numbers that its arguments
// determine, so that stored runs give the same report again.
//
// # The unit is a run
//
// One run of one configuration gives one number: its IOPS, or its p99 latency. The
// requests of a run are not independent (they share a queue, a cache and the position of
// a head), so they are never pooled: a million requests in one run are one observation.
// Compare the p50, p99 or maximum of whole runs.
//
// Runs come in blocks. A block has every configuration once, back to back and with the
// same seed, in an order that Blocks draws. Whatever changes slowly (temperature, wear, a
// noisy neighbour) then affects all runs of a block alike and cancels in the comparison.
// The first part of each run, while caches fill, must have been dropped.
//
// # What the numbers mean
//
//   - Ratio (Paired): B divided by A. Each block gives d = ln(B/A); Ratio is exp of
//     the mean d, a geometric mean. With logarithms, 2x and 0.5x are equally far from 1,
//     and the fastest rows of a table do not dominate the others as they do in a mean of
//     differences in IOPS.
//   - Low and High: the confidence interval of Ratio. If the whole experiment were
//     repeated many times, 95 % of such intervals would contain the true ratio. A wide
//     one means that more blocks or quieter runs are needed (PairsNeeded).
//   - P: how often two equal configurations would differ at least this much by chance.
//     It is not the probability that they are equal. A large P shows nothing: they may be
//     equal, or there may be too few runs.
//   - SignFlip.P: the same without the assumption that the noise is normal. If A and B
//     are equal, each d might as well have had the other sign; P is the share of all 2^n
//     choices of signs whose mean is at least as far from 0. It cannot be smaller than
//     2/2^n: with 5 pairs, 0.0625. If it disagrees with P, look at the runs.
//   - SD: the standard deviation of d, roughly the relative noise of one pair. 0 means
//     that all pairs gave the same ratio. If noise is expected, the runs then repeat one
//     another (one seed for all blocks?), and n pairs count as one.
//   - CV (Describe): standard deviation divided by mean, the noise of one configuration's
//     runs. On an undisturbed machine it stays below 2 %.
//   - Verdict: "faster" or "slower" only if the interval excludes 1 and the effect is
//     large enough to matter; "equivalent" only if the whole interval lies inside the
//     margin; otherwise "no difference shown", which does not prove equality.
//   - Holm: of 20 comparisons of equal things, one has P < 0.05 by chance. Holm's
//     adjusted p-values are valid for the whole table: trust two asterisks, not one.
//   - Drift and Lag1: whether d drifted during the experiment, and whether successive
//     blocks are correlated. Both violate the independence that P and the interval
//     assume, and make them unreliable.
//   - Jain and MinMax: how evenly a drive was shared. 1 is even. Jain's index is 1/n if
//     one of n got everything; MinMax is 0 if one got nothing.
//   - Welch: for two independent groups, such as published tables with mean, deviation
//     and number of runs. Without the number of runs there is no p-value.
//
// Outliers are never removed: Describe gives the minimum, median and maximum.
package stats

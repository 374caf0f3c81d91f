package plan

import "github.com/elevisor/elevisor/lab/stats"

// quantity is one number of a run; ok is false if the run has none.
type quantity struct {
	to *Sample
	of func(o *Outcome) (x float64, ok bool)
}

// quantities returns those of CellStats.
func quantities(c *CellStats) []quantity {
	return []quantity{
		{&c.IOPS, func(o *Outcome) (float64, bool) { return o.IOPS(), true }},
		{&c.BW, func(o *Outcome) (float64, bool) {
			return ratio(float64(o.Read.Bytes+o.Write.Bytes)/(1<<20), o.Seconds)
		}},
		{&c.P50, worst(func(d *Direction) float64 { return d.P50 })},
		{&c.P99, worst(func(d *Direction) float64 { return d.P99 })},
		{&c.Max, worst(func(d *Direction) float64 { return d.Max })},
		{&c.Jain, jain},
		{&c.GuestMergePct, func(o *Outcome) (float64, bool) { return mergePct(&o.Guest) }},
		{&c.HostMergePct, func(o *Outcome) (float64, bool) { return mergePct(&o.Host) }},
		{&c.CrossQueuePct, func(o *Outcome) (float64, bool) { return hostPct(o, o.Host.CrossQueue) }},
		{&c.CrossVMPct, func(o *Outcome) (float64, bool) { return hostPct(o, o.Host.CrossVM) }},
		{&c.RequestsPerGiB, func(o *Outcome) (float64, bool) { return perGiB(o, o.Disk.Requests) }},
		{&c.MeanKiB, func(o *Outcome) (float64, bool) { return ratio(float64(o.Disk.Sectors)/2, float64(o.Disk.Requests)) }},
		{&c.SeeksPerGiB, func(o *Outcome) (float64, bool) { return perGiB(o, o.Disk.Seeks) }},
		{&c.MeanSeekMiB, func(o *Outcome) (float64, bool) { return ratio(float64(o.Disk.SeekSum)/2048, float64(o.Disk.Seeks)) }},
		{&c.LostPerGiB, func(o *Outcome) (float64, bool) { return perGiB(o, o.Disk.lost()) }},
		{&c.MissedPerGiB, func(o *Outcome) (float64, bool) { return perGiB(o, o.Disk.lost()-o.Disk.LostLate) }},
	}
}

// ratio is a/b; there is none if b is 0.
func ratio(a, b float64) (float64, bool) {
	if b == 0 {
		return 0, false
	}
	return a / b, true
}

// worst takes the larger latency of the directions that have any requests.
func worst(of func(*Direction) float64) func(*Outcome) (float64, bool) {
	return func(o *Outcome) (x float64, ok bool) {
		for _, d := range []*Direction{&o.Read, &o.Write} {
			if d.IOs > 0 {
				x, ok = max(x, of(d)), true
			}
		}
		return x, ok
	}
}

// jain is the index of the jobs' IOPS; there is none if no job got anything.
func jain(o *Outcome) (float64, bool) {
	shares := make([]float64, len(o.Jobs))
	for i, j := range o.Jobs {
		shares[i] = j.IOPS
	}
	x, err := stats.Jain(shares)
	return x, err == nil
}

func mergePct(m *Merging) (float64, bool) {
	if !m.Known {
		return 0, false
	}
	return ratio(100*float64(m.Merged), float64(m.Merged+m.Issued))
}

func hostPct(o *Outcome, n uint64) (float64, bool) {
	return ratio(100*float64(n), float64(o.Host.Merged))
}

func perGiB(o *Outcome, n uint64) (float64, bool) {
	return ratio(float64(n), float64(o.Disk.Sectors)/(1<<21))
}

func (d *Disk) lost() uint64 { return d.LostSameQueue + d.LostCrossQueue + d.LostCrossVM }

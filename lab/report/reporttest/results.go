// Package reporttest makes up results for tests of reports. They look like those of an
// experiment, but nothing was measured.
package reporttest

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"github.com/elevisor/elevisor/guest/fio"
	"github.com/elevisor/elevisor/lab/plan"
)

// Shape is the size of the results.
type Shape struct {
	Guests, Hosts []string
	Workloads     []fio.Workload
	Repeats       int
	VMs           int
	Trace         int // requests kept for each cell
	Factor        float64
	Seed          uint64
}

// Full is a matrix of 3 guest and 5 host schedulers, 2 workloads, 10 repeats and two VMs.
func Full() Shape {
	return Shape{
		Guests:    []string{"none", "mq-deadline", "bfq"},
		Hosts:     []string{"none", "deadline", "timeslice", "cfq", "bfq"},
		Workloads: []fio.Workload{linear(), mixed()},
		Repeats:   10, VMs: 2, Trace: 2000, Factor: 1, Seed: 7,
	}
}

func linear() fio.Workload {
	return fio.Workload{Name: "linear4k-read-8", Jobs: []fio.Job{{
		Name: "linear", RW: "read", BS: 4096, IODepth: 1, NumJobs: 8, Size: 5 << 30, OffsetIncrement: 5 << 30,
		Runtime: 4 * time.Second, Ramp: time.Second, TimeBased: true, Direct: true,
	}}}
}

func mixed() fio.Workload {
	return fio.Workload{Name: "randrw-70", Jobs: []fio.Job{{
		Name: "mixed", RW: "randrw", BSSplit: []fio.Split{{BS: 4096, Percent: 60}, {BS: 65536, Percent: 40}}, IODepth: 16, Batch: 8,
		NumJobs: 2, Size: 10 << 30, MixRead: 70, Runtime: 4 * time.Second, TimeBased: true, Direct: true,
	}}}
}

// gain is how much faster a scheduler makes a workload. The numbers are made up.
var gain = map[string]float64{"none": 1, "deadline": 1.32, "mq-deadline": 1.18, "timeslice": 2.9, "cfq": 2.35, "bfq": 1.004}

func gainOf(s plan.Scheduler) float64 {
	if g, ok := gain[s.Name]; ok {
		return g
	}
	return 1.1
}

// Results makes up results of this shape. The same shape gives the same results.
func Results(s Shape) *plan.Results {
	r := &plan.Results{
		Version: "0.4.0-synthetic",
		Command: []string{"elevisor-lab", "compare", "--world", "virtual", "--guest", "none,mq-deadline,bfq", "--host", "none,deadline,timeslice,cfq,bfq",
			"--preset", "linear4k", "--repeats", fmt.Sprint(s.Repeats)},
		Environment: map[string]string{"cpu": "2 x synthetic", "kernel": "6.18.0", "governor": "unknown", "go": "go1.26"},
		Notes: []string{"These figures are made up and show nothing.",
			"The guest's scheduler is the host's code in the guest's place; time is virtual and processors cost nothing."},
		Plan: plan.Plan{World: "virtual", Disk: "sim:generic7200", Repeats: s.Repeats, Seed: s.Seed, Trace: s.Trace, BaseGuest: "none", BaseHost: "none"},
	}
	for _, w := range s.Workloads {
		for _, g := range s.Guests {
			for _, h := range s.Hosts {
				r.Plan.Cells = append(r.Plan.Cells, plan.Cell{Guest: plan.Scheduler{Name: g}, Host: plan.Scheduler{Name: h},
					Workload: w, VMs: s.VMs, Queues: 2, QSize: 128})
			}
		}
	}
	rng := rand.New(rand.NewPCG(s.Seed, 1))
	for block := range s.Repeats {
		common := math.Exp(0.03 * rng.NormFloat64())
		for _, i := range rng.Perm(len(r.Plan.Cells)) {
			trace := 0
			if block == 0 {
				trace = s.Trace
			}
			o := outcome(rng, &r.Plan.Cells[i], s.Factor*common*math.Exp(0.01*rng.NormFloat64()), trace)
			r.Runs = append(r.Runs, plan.Run{Cell: i, Block: block, Order: len(r.Runs), Seed: s.Seed + uint64(block), Outcome: o})
		}
	}
	r.Summary = summary(r)
	return r
}

// outcome makes up one run.
func outcome(rng *rand.Rand, c *plan.Cell, factor float64, trace int) *plan.Outcome {
	speed := gainOf(c.Guest) * math.Sqrt(gainOf(c.Host)) * factor
	job := c.Workload.Jobs[0]
	iops, writes := 420*speed, 0.0
	if job.RW == "randrw" {
		iops, writes = 260*math.Sqrt(speed), 0.3
	}
	o := &plan.Outcome{Seconds: 4}
	o.Read = direction(rng, iops*(1-writes), 1e6*float64(job.NumJobs*c.VMs*job.IODepth)/iops)
	if writes > 0 {
		o.Write = direction(rng, iops*writes, 1.7e6*float64(job.NumJobs*c.VMs*job.IODepth)/iops)
	}
	for vm := range c.VMs {
		for j := range job.NumJobs {
			o.Jobs = append(o.Jobs, plan.Share{VM: vm, Job: j, IOPS: iops / float64(c.VMs*job.NumJobs) * (1 + 0.1*rng.Float64())})
		}
	}
	merging(rng, o, c, uint64(iops*4))
	o.Trace = accesses(rng, c, trace, iops, writes)
	o.Fio = json.RawMessage(fmt.Sprintf(`{"fio version":"fio-3.33","jobs":[{"jobname":%q,"read":{"iops":%.2f}}]}`, job.Name, o.Read.IOPS))
	return o
}

func direction(rng *rand.Rand, iops, us float64) plan.Direction {
	d := plan.Direction{IOs: uint64(iops * 4), Bytes: uint64(iops * 4 * 4096), IOPS: iops, Mean: us}
	tail := 1 + 0.3*rng.Float64()
	for _, q := range []float64{0, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.995, 0.999, 0.9999, 1} {
		x := us * (0.2 + math.Pow(-math.Log10(1-math.Min(q, 0.99999)), 1.5)*tail)
		d.CDF = append(d.CDF, plan.Quantile{Q: q, US: x})
	}
	d.P50, d.P99, d.Max = d.CDF[3].US, d.CDF[7].US, d.CDF[11].US
	return d
}

func merging(rng *rand.Rand, o *plan.Outcome, c *plan.Cell, ios uint64) {
	share := func(of uint64, most float64) uint64 { return uint64(float64(of) * most * (0.9 + 0.1*rng.Float64())) }
	o.Guest = plan.Merging{Known: true, Submitted: ios}
	if c.Guest.Name != "none" {
		o.Guest.Merged = share(ios, 0.3)
	}
	o.Guest.Issued = ios - o.Guest.Merged
	o.Host = plan.Merging{Known: true, Submitted: o.Guest.Issued}
	if c.Host.Name != "none" {
		o.Host.SameQueue, o.Host.CrossQueue = share(o.Host.Submitted, 0.2), share(o.Host.Submitted, 0.12)
		if c.VMs > 1 {
			o.Host.CrossVM = share(o.Host.Submitted, 0.06)
		}
		o.Host.Refused[0], o.Host.Refused[2] = share(ios, 0.01), share(ios, 0.02)
	}
	o.Host.Merged = o.Host.SameQueue + o.Host.CrossQueue + o.Host.CrossVM
	o.Host.Issued = o.Host.Submitted - o.Host.Merged
	o.Disk = plan.Disk{Requests: o.Host.Issued, Sectors: ios * 8, Seeks: share(o.Host.Issued, 1/gainOf(c.Host)), HeadSeconds: 3}
	o.Disk.SeekSum = o.Disk.Seeks * 40_000
	o.Disk.HeadMoves = o.Disk.Seeks
	o.Disk.LostSameQueue, o.Disk.LostCrossQueue = share(ios, 0.03), share(ios, 0.02)
}

// accesses ascend in each job's region; a host scheduler stays with one job for longer.
func accesses(rng *rand.Rand, c *plan.Cell, n int, iops, writes float64) []plan.Access {
	var all []plan.Access
	job := c.Workload.Jobs[0]
	at := make([]uint64, c.VMs*job.NumJobs)
	stay, left, who := int(20*gainOf(c.Host)*gainOf(c.Host)), 0, 0
	for i := range n {
		if left == 0 {
			left, who = stay, (who+1)%len(at)
		}
		left--
		a := plan.Access{Seconds: float64(i) / iops, Sectors: 8, VM: uint16(who / job.NumJobs), Queue: uint16(who % 2), Write: rng.Float64() < writes}
		a.Sector = uint64(who)*(5<<21) + at[who]
		if job.RW == "randrw" {
			a.Sector = uint64(a.VM)*(10<<21) + rng.Uint64N(10<<21)
		}
		at[who] += 2000
		all = append(all, a)
	}
	return all
}

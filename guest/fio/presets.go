package fio

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Preset is a set of loads with a name, and what makes visible there what it asks for.
type Preset struct {
	Name, Doc string
	Loads     []Load
	// Disks are what the loads are for, by world: virtual, loopback, qemu.
	Disks map[string]Disk
}

// Load is a workload with its set-up.
type Load struct {
	Workload
	Setup
}

// Setup is what a load needs around it. Lists are axes of the matrix: every one of their
// values is to be tried, unless the user has chosen.
type Setup struct {
	VMs        int   // 0: 1
	Queues     []int // virtqueues of a VM; nil: 1
	QueueSizes []int // entries of each; nil: 128
	Depths     []int // requests on the disk at a time; nil: the scheduler's default
	// MaxSectorsKB, if not 0, is how large a request may grow, in the guest and in the
	// host: the knob max_sectors_kb.
	MaxSectorsKB int
}

// Disk is what a load's VMs are windows of.
type Disk struct {
	Path string // backend.Open's words
	IOPS uint64 // what it is slowed down to (backend.NewRate); 0: not
}

// Presets are all of them. The caller may change what it gets.
func Presets() []Preset {
	return []Preset{linear4k(), rfc2016(), virtioNone(), merge(), twoVMs()}
}

// Find is the preset of that name.
func Find(name string) (Preset, error) {
	all := Presets()
	if i := slices.IndexFunc(all, func(p Preset) bool { return p.Name == name }); i >= 0 {
		return all[i], nil
	}
	var names []string
	for _, p := range all {
		names = append(names, p.Name)
	}
	return Preset{}, fmt.Errorf("preset %q is not known; valid: %s", name, strings.Join(names, ", "))
}

// Workloads are p's, without their set-ups.
func (p Preset) Workloads() []Workload {
	var all []Workload
	for _, l := range p.Loads {
		all = append(all, l.Workload)
	}
	return all
}

// everywhere is one disk for all worlds.
func everywhere(d Disk) map[string]Disk {
	return map[string]Disk{"virtual": d, "loopback": d, "qemu": d}
}

// What drives and regions of some presets are. Nothing is kept of what is written to the
// drives: contents take no memory.
const (
	region   = 5 << 30 // size=5g
	hardDisk = "sim:hdd?preset=hd155ui&file=null:size=48g"
	fastDisk = "null:size=16g"
)

// timed is a job that runs for so long after a ramp of 0.3 s.
func timed(rw string, numJobs int, runtime time.Duration) Job {
	j := Default()
	j.Name, j.RW, j.NumJobs = rw, rw, numJobs
	j.TimeBased, j.Runtime, j.Ramp = true, runtime, 300*time.Millisecond
	return j
}

// alone is a workload of one job.
func alone(name string, j Job) Workload { return Workload{Name: name, Jobs: []Job{j}} }

func linear4k() Preset {
	p := Preset{
		Name: "linear4k", Disks: everywhere(Disk{Path: hardDisk}),
		Doc: "sequential 4 KiB requests at iodepth 1 on a simulated hard disk; 1 to 8 jobs, each with its own region of 5 GiB and its own queue, as on as many CPUs: a scheduler can only choose whose request is next",
	}
	for _, rw := range []string{"read", "write"} {
		for _, n := range []int{1, 2, 4, 8} {
			p.Loads = append(p.Loads, Load{
				Workload: alone(fmt.Sprintf("%s-%d", rw, n), linear(rw, n)),
				Setup:    Setup{Queues: []int{n}},
			})
		}
	}
	return p
}

// linear is a job whose clones go through regions of their own.
func linear(rw string, numJobs int) Job {
	j := timed(rw, numJobs, 4*time.Second)
	j.Size, j.OffsetIncrement = region, region
	return j
}

func rfc2016() Preset {
	p := Preset{
		Name: "rfc-2016", Disks: everywhere(Disk{Path: hardDisk}),
		Doc: "the tables of the time-slice RFC of 2016: sequential 4 KiB reads, writes and both, 1 to 8 jobs with a queue each, on a model of the disk that was used",
	}
	for _, rw := range []string{"read", "write", "rw"} {
		for n := 1; n <= 8; n++ {
			p.Loads = append(p.Loads, Load{
				Workload: alone(fmt.Sprintf("%s-%d", rw, n), linear(rw, n)),
				Setup:    Setup{Queues: []int{n}},
			})
		}
	}
	return p
}

func virtioNone() Preset {
	p := Preset{
		Name: "virtio-none-2023", Disks: everywhere(Disk{Path: fastDisk}),
		Doc: "the 32 rows of the benchmark that made none the default of virtio_blk in 2023: 4 and 256 KiB, iodepth 1 and 128, 1 and 2 jobs, one queue, on a disk that takes no time (in virtual time, a simulated SSD)",
	}
	p.Disks["virtual"] = Disk{Path: "sim:ssd?preset=sata-ssd&file=null:size=16g"}
	for _, numJobs := range []int{1, 2} {
		for _, rw := range []string{"randread", "randwrite", "read", "write"} {
			for _, depth := range []int{1, 128} {
				for _, bs := range []int{4 << 10, 256 << 10} {
					j := timed(rw, numJobs, 2*time.Second)
					j.BS, j.IODepth = bs, depth
					name := fmt.Sprintf("%dk-%s-q%d-j%d", bs>>10, rw, depth, numJobs)
					p.Loads = append(p.Loads, Load{Workload: alone(name, j)})
				}
			}
		}
	}
	return p
}

func twoVMs() Preset {
	reader, writer := timed("read", 1, 4*time.Second), timed("randwrite", 1, 4*time.Second)
	reader.IODepth, writer.IODepth = 4, 16
	setup := Setup{VMs: 2}
	return Preset{
		Name: "two-vms", Disks: everywhere(Disk{Path: hardDisk}),
		Doc: "two VMs on one simulated hard disk: a sequential reader with a random writer, and with another reader; shows which of them the host's scheduler delays",
		Loads: []Load{
			{Workload{Name: "reader-writer", PerVM: true, Jobs: []Job{reader, writer}}, setup},
			{Workload{Name: "reader-reader", PerVM: true, Jobs: []Job{reader, reader}}, setup},
		},
	}
}

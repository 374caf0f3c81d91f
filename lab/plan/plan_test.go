package plan

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/elevisor/elevisor/guest/fio"
)

// names parses schedulers.
func names(texts ...string) (all []Scheduler) {
	for _, t := range texts {
		s, err := ParseScheduler(t)
		if err != nil {
			panic(err)
		}
		all = append(all, s)
	}
	return all
}

func workload(name string) fio.Workload {
	return fio.Workload{Name: name, Jobs: []fio.Job{fio.Default()}}
}

func matrix() Matrix {
	return Matrix{
		World: "fake", Disk: "null:size=1g", Guests: names("none", "deadline"), Hosts: names("none", "cfq", "bfq"),
		Loads: []Load{{Workload: workload("a")}, {Workload: workload("b"), VMs: []int{1, 2}}}, Repeats: 4, Seed: 7,
	}
}

func TestParseScheduler(t *testing.T) {
	for text, want := range map[string]string{
		"none": "none", "mq-deadline": "deadline", "noop": "none",
		"timeslice:slice-by=queue+time_slice_us=500": "timeslice:slice_by=queue+time_slice_us=500",
	} {
		s, err := ParseScheduler(text)
		require.NoError(t, err)
		assert.Equal(t, want, s.String())
	}
	for text, want := range map[string]string{
		"elevator":        `scheduler "elevator" is unknown`,
		"cfq:":            `"" is not KNOB=VALUE`,
		"cfq:x":           `"x" is not KNOB=VALUE`,
		"cfq:=1":          `"=1" is not KNOB=VALUE`,
		"cfq:a=1+a=2":     "knob a is given twice",
		"cfq:a-b=1+a_b=2": "knob a_b is given twice",
	} {
		_, err := ParseScheduler(text)
		assert.ErrorContains(t, err, want)
	}
}

func TestCheckKnobs(t *testing.T) {
	for text, want := range map[string]string{
		"none": "", "deadline:read_expire=100": "", "none:max_sectors_kb=64": "", "timeslice:slice_by=queue": "",
		"deadline:read_expire=x":         "read_expire",
		"none:read_expire=1":             `there is no knob "read_expire"; there are max_sectors_kb`,
		"cfq:max_sectors_kb=3":           `max_sectors_kb="3" is not a number from 4 to 1048576`,
		"cfq:queue_depth=3":              "queue_depth is a parameter of its own, --depth",
		"cfq:nomerges=2":                 "nomerges is a parameter of its own, --nomerges",
		"timeslice:slice_by=planet":      "slice_by",
		"timeslice:time_slice_us=banana": "time_slice_us",
	} {
		err := CheckHost(names(text)[0])
		if want == "" {
			assert.NoError(t, err, text)
		} else {
			assert.ErrorContains(t, err, want, text)
		}
	}
	require.ErrorContains(t, CheckHost(names("none:nr_requests=64")[0]), "there is no knob")
	require.NoError(t, CheckGuest(names("deadline:nr_requests=64")[0]))
	require.ErrorContains(t, CheckGuest(names("deadline:nr_requests=0")[0]), "1 to 65536")
}

func TestNewPlan(t *testing.T) {
	p, err := NewPlan(matrix())
	require.NoError(t, err)
	var cells []string
	for i := range p.Cells {
		cells = append(cells, p.Cells[i].String())
	}
	assert.Equal(t, []string{
		"a: none / none", "a: none / cfq", "a: none / bfq", "a: deadline / none", "a: deadline / cfq", "a: deadline / bfq",
		"b: none / none", "b: none / cfq", "b: none / bfq", "b: deadline / none", "b: deadline / cfq", "b: deadline / bfq",
		"b: none / none, vms=2", "b: none / cfq, vms=2", "b: none / bfq, vms=2",
		"b: deadline / none, vms=2", "b: deadline / cfq, vms=2", "b: deadline / bfq, vms=2",
	}, cells)
	assert.Equal(t, "none none", p.BaseGuest+" "+p.BaseHost)
	assert.Equal(t, []Group{
		{Cells: []int{0, 1, 2, 3, 4, 5}, Base: 0}, {Cells: []int{6, 7, 8, 9, 10, 11}, Base: 6}, {Cells: []int{12, 13, 14, 15, 16, 17}, Base: 12},
	}, p.Groups())
}

func TestNewPlan_base(t *testing.T) {
	m := matrix()
	m.Hosts = names("cfq", "cfq:slice_idle=0")
	m.Loads = []Load{{Workload: workload("a"), MaxSectorsKB: 64}}
	p, err := NewPlan(m)
	require.NoError(t, err)
	assert.Equal(t, "none / cfq", p.BaseGuest+" / "+p.BaseHost, "none is in the guest only")
	assert.Equal(t, "deadline:max_sectors_kb=64 / cfq:slice_idle=0+max_sectors_kb=64", p.Cells[3].Name())
	assert.Equal(t, []Group{{Cells: []int{0, 1, 2, 3}, Base: 0}}, p.Groups())

	m.BaseGuest, m.BaseHost = "mq-deadline", "cfq:slice-idle=0"
	p, err = NewPlan(m)
	require.NoError(t, err)
	assert.Equal(t, 3, p.Groups()[0].Base)
}

// A cell whose scheduler was given max_sectors_kb itself is not the baseline without it.
func TestGroups_baselineAndItsLimitedTwin(t *testing.T) {
	m := matrix()
	m.Guests, m.Hosts = names("none:max_sectors_kb=32", "none"), names("none:max_sectors_kb=32", "none", "cfq")
	m.Loads[1].MaxSectorsKB = 64
	p, err := NewPlan(m)
	require.NoError(t, err)
	for i, want := range []string{"none / none", "none:max_sectors_kb=64 / none:max_sectors_kb=64", "none:max_sectors_kb=64 / none:max_sectors_kb=64"} {
		assert.Equal(t, want, p.Cells[p.Groups()[i].Base].Name())
	}

	m.Loads[1].MaxSectorsKB = 32 // which makes the two one and the same
	_, err = NewPlan(m)
	assert.ErrorContains(t, err, "workload b: guest scheduler none:max_sectors_kb=32 is given twice")
}

func TestNewPlan_refuses(t *testing.T) {
	for want, spoil := range map[string]func(m *Matrix){
		"repeats=0 is out of range 1 to 1000":                 func(m *Matrix) { m.Repeats = 0 },
		"repeats=1001 is out of range":                        func(m *Matrix) { m.Repeats = 1001 },
		"trace=-1 is out of range 0 to 1048576":               func(m *Matrix) { m.Trace = -1 },
		"want at least one guest and one host scheduler":      func(m *Matrix) { m.Hosts = nil },
		"want at least one workload":                          func(m *Matrix) { m.Loads = nil },
		"guest scheduler deadline is given twice":             func(m *Matrix) { m.Guests = names("deadline", "mq-deadline") },
		"host: scheduler bfq:x=1: there is no knob":           func(m *Matrix) { m.Hosts = names("bfq:x=1") },
		"workload a: it has no jobs":                          func(m *Matrix) { m.Loads[0].Jobs = nil },
		"workload a: another workload has that name":          func(m *Matrix) { m.Loads[1].Name = "a" },
		"workload b: vms=0 is out of range 1 to 256":          func(m *Matrix) { m.Loads[1].VMs = []int{0} },
		"workload a: queues=257 is out of range":              func(m *Matrix) { m.Loads[0].Queues = []int{257} },
		"workload a: queue-size=100 is not a power of 2":      func(m *Matrix) { m.Loads[0].QSizes = []int{100} },
		"workload a: depth=-1 is out of range 0 to 1024":      func(m *Matrix) { m.Loads[0].Depths = []int{-1} },
		"workload a: nomerges=3 is out of range 0 to 2":       func(m *Matrix) { m.Loads[0].NoMerges = []int{3} },
		"workload a: depth=4 is given twice":                  func(m *Matrix) { m.Loads[0].Depths = []int{4, 4} },
		`workload a: max_sectors_kb="1" is not a number from`: func(m *Matrix) { m.Loads[0].MaxSectorsKB = 1 },
		"a guest and a host scheduler: want both":             func(m *Matrix) { m.BaseGuest = "none" },
		`baseline: scheduler "x" is unknown`:                  func(m *Matrix) { m.BaseGuest, m.BaseHost = "x", "none" },
		"baseline: kyber is not one of the host schedulers":   func(m *Matrix) { m.BaseGuest, m.BaseHost = "none", "kyber" },
		"more than 100000 cells or 1000000 runs": func(m *Matrix) {
			m.Repeats = 1000
			for i := 2; i <= 256; i++ {
				m.Loads[0].Queues = append(m.Loads[0].Queues, i)
			}
		},
	} {
		m := matrix()
		spoil(&m)
		_, err := NewPlan(m)
		assert.ErrorContains(t, err, want)
	}
}

// Every block has each cell of a group once, in succession and with a seed that no other
// block has. The plan's seed determines the order.
func TestOrder(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		m := matrix()
		m.Repeats = rapid.IntRange(1, 8).Draw(rt, "repeats")
		m.Seed = rapid.Uint64().Draw(rt, "seed")
		m.Loads[0].Depths = []int{1, 4, 16}[:rapid.IntRange(1, 3).Draw(rt, "depths")]
		p, err := NewPlan(m)
		require.NoError(rt, err)
		runs, err := p.Order()
		require.NoError(rt, err)
		again, err := p.Order()
		require.NoError(rt, err)
		require.Equal(rt, runs, again)
		require.Len(rt, runs, len(p.Cells)*m.Repeats)

		groupOf := map[int]int{}
		for i, g := range p.Groups() {
			for _, c := range g.Cells {
				groupOf[c] = i
			}
		}
		seeds, seen := map[uint64]string{}, map[string]bool{}
		last := ""
		for i, r := range runs {
			require.Equal(rt, i, r.Order)
			block := fmt.Sprint(groupOf[r.Cell], "/", r.Block)
			if block != last {
				require.False(rt, seen[block], "a block is in one piece")
				seen[block], last = true, block
			}
			if at, known := seeds[r.Seed]; known {
				require.Equal(rt, at, block)
			}
			seeds[r.Seed] = block
			once := fmt.Sprint(r.Cell, " in ", r.Block)
			require.False(rt, seen[once])
			seen[once] = true
		}
		require.Len(rt, seeds, len(p.Groups())*m.Repeats)
	})
}

func TestDifference(t *testing.T) {
	base, err := NewPlan(matrix())
	require.NoError(t, err)
	text, err := json.Marshal(base)
	require.NoError(t, err)
	var same Plan
	require.NoError(t, json.Unmarshal(text, &same))
	require.Empty(t, base.Difference(&same), "what was stored is the same")
	for want, spoil := range map[string]func(m *Matrix){
		"seed is 7, not 8":                                      func(m *Matrix) { m.Seed = 8 },
		"repeats is 4, not 5":                                   func(m *Matrix) { m.Repeats = 5 },
		"disk is null:size=1g, not x":                           func(m *Matrix) { m.Disk = "x" },
		"iops is 0, not 9":                                      func(m *Matrix) { m.IOPS = 9 },
		"baseline is none/none, not none/cfq":                   func(m *Matrix) { m.BaseGuest, m.BaseHost = "none", "cfq" },
		"number of cells is 18, not 12":                         func(m *Matrix) { m.Hosts = m.Hosts[:2] },
		"cell 1 is a: none / cfq, not a: none / kyber":          func(m *Matrix) { m.Hosts = names("none", "kyber", "bfq") },
		"the jobs of workload a are":                            func(m *Matrix) { m.Loads[0].Jobs = append(m.Loads[0].Jobs, fio.Default()) },
		`cost-read is "", not "20µs"`:                           func(m *Matrix) { m.Options = map[string]string{"cost-read": "20µs"} },
		"cell 0 is a: none / none, not a: none / none, depth=4": func(m *Matrix) { m.Loads[0].Depths = []int{4} },
	} {
		m := matrix()
		spoil(&m)
		other, err := NewPlan(m)
		require.NoError(t, err)
		assert.Contains(t, base.Difference(other), want)
	}
}

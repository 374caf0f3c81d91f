package plan

import (
	"fmt"
	"slices"

	"github.com/elevisor/elevisor/device"
	"github.com/elevisor/elevisor/virtqueue"
)

// axis is one of the lists of a load, with its bounds and its default.
type axis struct {
	name   string
	values []int
	lo, hi int
	def    int
	powers bool // only powers of 2
}

func (a *axis) check() error {
	if len(a.values) == 0 {
		a.values = []int{a.def}
	}
	for i, v := range a.values {
		if v < a.lo || v > a.hi {
			return fmt.Errorf("%s=%d is out of range %d to %d", a.name, v, a.lo, a.hi)
		}
		if slices.Contains(a.values[:i], v) {
			return fmt.Errorf("%s=%d is given twice", a.name, v)
		}
		if a.powers && v&(v-1) != 0 {
			return fmt.Errorf("%s=%d is not a power of 2", a.name, v)
		}
	}
	return nil
}

// axesOf returns the lists with their bounds, in the order in which combine takes them.
func axesOf(vms, queues, sizes, depths, noMerges []int) []axis {
	return []axis{
		{"vms", vms, 1, VMsMax, 1, false}, {"queues", queues, 1, device.MaxQueues, 1, false},
		{"queue-size", sizes, 2, virtqueue.MaxSize, 128, true},
		{"depth", depths, 0, device.DepthMax, 0, false}, {"nomerges", noMerges, 0, 2, 0, false},
	}
}

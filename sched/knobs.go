package sched

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/elevisor/elevisor/blk"
)

// maxInt is the kernel's INT_MAX, up to where its knobs go.
const maxInt = 1<<31 - 1

// millisecond is an Instant's worth of the unit of most knobs.
const millisecond blk.Instant = 1e6

// knob is one number that people may change while the scheduler runs.
type knob struct {
	name, unit       string
	low, high, value int64
}

// knobs are a scheduler's, in the order in which they are listed.
type knobs []knob

// set changes the knob called key. Where the kernel would clamp a number to the
// valid range, it is refused here, so that nobody measures what they did not set.
func (ks knobs) set(scheduler, key, value string) error {
	name := strings.ReplaceAll(key, "-", "_")
	for i := range ks {
		k := &ks[i]
		if k.name != name {
			continue
		}
		v, err := strconv.ParseInt(value, 0, 64) // base by prefix, as the kernel's kstrtoint
		if err != nil || v < k.low || v > k.high || strings.Contains(value, "_") {
			unit := k.unit
			if unit != "" {
				unit = " " + unit
			}
			return fmt.Errorf("%s: %s %q is not a whole number from %s%s", scheduler, k.name, value, k.valid(), unit)
		}
		k.value = v
		return nil
	}
	names := make([]string, len(ks))
	for i := range ks {
		names[i] = ks[i].name
	}
	return fmt.Errorf("%s has no knob %q; there are %s", scheduler, key, strings.Join(names, ", "))
}

// infos lists the knobs.
func (ks knobs) infos() []Info {
	out := make([]Info, len(ks))
	for i, k := range ks {
		out[i] = Info{Name: k.name, Value: strconv.FormatInt(k.value, 10), Valid: k.valid(), Unit: k.unit}
	}
	return out
}

func (k *knob) valid() string { return fmt.Sprintf("%d to %d", k.low, k.high) }

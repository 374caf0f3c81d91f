package sched

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/elevisor/elevisor/blk"
)

// maxInt is the kernel's INT_MAX, up to where its knobs go.
const maxInt = 1<<31 - 1

// The units of knobs.
const (
	microsecond blk.Instant = 1e3
	millisecond blk.Instant = 1e6
)

// Knob is one setting: of a scheduler, or of the domain that it serves.
type Knob struct {
	Key   string `json:"key"`   // the kernel's name
	Value string `json:"value"` // as Set takes it
}

// knob is a number or one of several words that can be changed while the scheduler runs.
type knob struct {
	name, unit string
	base       int // of the digits; 0: by their prefix, as with the kernel's kstrtoint
	low, high  int64
	unsigned   bool     // value holds a uint64, and all of them are valid
	words      []string // to choose from; value is an index of these
	value      int64
}

// knobs are a scheduler's, in the order of Tunables.
type knobs []knob

// set changes the knob called key and returns its index. The kernel would clamp a number
// that is out of range; here it is refused, so that nobody measures what they did not
// set.
func (ks knobs) set(scheduler, key, value string) (place int, err error) {
	name := strings.ReplaceAll(key, "-", "_")
	place = slices.IndexFunc(ks, func(k knob) bool { return k.name == name })
	if place < 0 {
		return 0, fmt.Errorf("%s has no knob %q; there are %s", scheduler, key, strings.Join(ks.names(), ", "))
	}
	k := &ks[place]
	v, ok := k.parse(value)
	if !ok {
		what := k.valid()
		if k.words == nil {
			what = strings.TrimRight("a whole number from "+what+" "+k.unit, " ")
		}
		return 0, fmt.Errorf("%s: %s %q is not %s", scheduler, k.name, value, what)
	}
	k.value = v
	return place, nil
}

// parse reads a value; false if it is not valid.
func (k *knob) parse(value string) (v int64, ok bool) {
	if k.words != nil {
		v = int64(slices.Index(k.words, value))
		return v, v >= 0
	}
	if k.unsigned {
		u, err := strconv.ParseUint(value, k.base, 64)
		return int64(u), err == nil && !strings.Contains(value, "_")
	}
	v, err := strconv.ParseInt(value, k.base, 64)
	return v, err == nil && v >= k.low && v <= k.high && !strings.Contains(value, "_")
}

// text is the value as set takes it.
func (k *knob) text() string {
	if k.words != nil {
		return k.words[k.value]
	}
	if k.unsigned {
		return strconv.FormatUint(uint64(k.value), 10)
	}
	return strconv.FormatInt(k.value, 10)
}

func (k *knob) valid() string {
	if k.words != nil {
		return strings.Join(k.words, " or ")
	}
	if k.unsigned {
		return fmt.Sprintf("0 to %d", uint64(math.MaxUint64))
	}
	return fmt.Sprintf("%d to %d", k.low, k.high)
}

func (ks knobs) names() []string {
	out := make([]string, len(ks))
	for i, k := range ks {
		out[i] = k.name
	}
	return out
}

// infos implements Tunable.Tunables.
func (ks knobs) infos() []Info {
	out := make([]Info, len(ks))
	for i, k := range ks {
		out[i] = Info{Name: k.name, Value: k.text(), Valid: k.valid(), Unit: k.unit}
	}
	return out
}

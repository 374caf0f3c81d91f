package plan

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/elevisor/elevisor/sched"
)

// String is s as [ParseScheduler] reads it.
func (s Scheduler) String() string {
	if len(s.Knobs) == 0 {
		return s.Name
	}
	words := make([]string, len(s.Knobs))
	for i, k := range s.Knobs {
		words[i] = k.Key + "=" + k.Value
	}
	return s.Name + ":" + strings.Join(words, "+")
}

// ParseScheduler reads NAME or NAME:KNOB=VALUE+KNOB=VALUE, such as
// timeslice:slice_by=queue+time_slice_us=500. The name becomes one of sched.Names; in a
// knob's name, hyphens and underscores are the same. Whether there is such a knob, the
// place where the scheduler runs decides: [CheckHost], [CheckGuest].
func ParseScheduler(text string) (s Scheduler, err error) {
	name, rest, some := strings.Cut(text, ":")
	if s.Name, err = sched.Resolve(name); err != nil {
		return s, err
	}
	if !some {
		return s, nil
	}
	for word := range strings.SplitSeq(rest, "+") {
		key, value, ok := strings.Cut(word, "=")
		if !ok || key == "" || value == "" {
			return s, fmt.Errorf("scheduler %q: %q is not KNOB=VALUE; want NAME:KNOB=VALUE+KNOB=VALUE", text, word)
		}
		key = strings.ReplaceAll(key, "-", "_")
		if slices.ContainsFunc(s.Knobs, func(k sched.Knob) bool { return k.Key == key }) {
			return s, fmt.Errorf("scheduler %q: knob %s is given twice", text, key)
		}
		s.Knobs = append(s.Knobs, sched.Knob{Key: key, Value: value})
	}
	return s, nil
}

// Knobs that are not the scheduler's own, with their ranges: those of a block layer's
// queue. The host has no number of requests, its guests' rings have.
var (
	maxSectorsKB  = knobRange{"max_sectors_kb", 4, 1 << 20}
	nrRequests    = knobRange{"nr_requests", 1, 1 << 16}
	ownParameters = map[string]string{"queue_depth": "--depth", "nomerges": "--nomerges"}
)

type knobRange struct {
	key    string
	lo, hi int
}

func (r knobRange) check(value string) error {
	if n, err := strconv.Atoi(value); err != nil || n < r.lo || n > r.hi {
		return fmt.Errorf("%s=%q is not a number from %d to %d", r.key, value, r.lo, r.hi)
	}
	return nil
}

// CheckHost says whether the host's schedulers take s.
func CheckHost(s Scheduler) error { return checkKnobs(s, maxSectorsKB) }

// CheckGuest says whether the block layer of the built-in guest takes s. A real guest's
// kernel may know other knobs.
func CheckGuest(s Scheduler) error { return checkKnobs(s, maxSectorsKB, nrRequests) }

func checkKnobs(s Scheduler, queue ...knobRange) error {
	made, err := sched.New(s.Name, &sched.Config{})
	if err != nil {
		return err
	}
	var names []string
	for _, r := range queue {
		names = append(names, r.key)
	}
	for _, i := range sched.Tunables(made) {
		names = append(names, i.Name)
	}
	for _, k := range s.Knobs {
		at := slices.IndexFunc(queue, func(r knobRange) bool { return r.key == k.Key })
		flag, other := ownParameters[k.Key]
		switch {
		case other:
			err = fmt.Errorf("%s is a parameter of its own, %s", k.Key, flag)
		case !slices.Contains(names, k.Key):
			err = fmt.Errorf("there is no knob %q; there are %s", k.Key, strings.Join(names, ", "))
		case at >= 0:
			err = queue[at].check(k.Value)
		default:
			err = sched.Set(made, k.Key, k.Value)
		}
		if err != nil {
			return fmt.Errorf("scheduler %s: %w", s, err)
		}
	}
	return nil
}

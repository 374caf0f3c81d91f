package daemon

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/elevisor/elevisor/daemon/ctl"
	"github.com/elevisor/elevisor/device"
	"github.com/elevisor/elevisor/sched"
)

// handSet are the knobs that the operator has set, with --domain or later. Those of a
// scheduler are kept while another one runs: a switch back finds them as they were left.
type handSet struct {
	domain    []sched.Knob            // the domain's own, which no switch changes
	scheduler map[string][]sched.Knob // by the scheduler's name
}

// keep notes that key was set on l, whose scheduler is of that kind. It runs on l's
// goroutine.
func (h *handSet) keep(l *device.Loop, kind sched.Kind, key string) {
	k := sched.Knob{Key: knobName(key)}
	for _, i := range l.Tunables() {
		if i.Name == k.Key {
			k.Value = i.Value
		}
	}
	if !slices.ContainsFunc(sched.Tunables(l.Scheduler()), func(i sched.Info) bool { return i.Name == k.Key }) {
		h.domain = replaceKnob(h.domain, k)
		return
	}
	if h.scheduler == nil {
		h.scheduler = map[string][]sched.Knob{}
	}
	h.scheduler[kind.Name] = replaceKnob(h.scheduler[kind.Name], k)
}

// replaceKnob makes k the last of list: setting one knob may change another one's value,
// so their order matters.
func replaceKnob(list []sched.Knob, k sched.Knob) []sched.Knob {
	list = slices.DeleteFunc(list, func(o sched.Knob) bool { return o.Key == k.Key })
	return append(list, k)
}

// knobName is key as Tunables spells it.
func knobName(key string) string { return strings.ReplaceAll(key, "-", "_") }

// schedulerFor makes a scheduler of that kind for l, with what the operator has set on
// the last one of its kind.
func (d *domain) schedulerFor(l *device.Loop, kind sched.Kind) (sched.Scheduler, error) {
	s := kind.New(l.Config())
	for _, k := range d.hand.scheduler[kind.Name] {
		if err := sched.Set(s, k.Key, k.Value); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// set changes a knob, in every loop or, with an error, in none: the first refuses.
func (d *domain) set(key, value string) error {
	for _, l := range d.loops {
		var err error
		ended := l.Do(func() {
			if err = l.Set(key, value); err == nil {
				d.hand.keep(l, d.kind, key)
				d.keepDepth(l, key)
			}
		})
		if ended != nil || err != nil {
			return errors.Join(ended, err)
		}
	}
	return nil
}

// keepDepth has a switch leave the depth as the operator has set it.
func (d *domain) keepDepth(l *device.Loop, key string) {
	if knobName(key) == queueDepth {
		d.spec.QueueDepth = l.Depth()
	}
}

// queueDepth is the one knob of the domain whose default is the scheduler's.
const queueDepth = "queue_depth"

// tunables lists what set takes, and what was set.
func (d *domain) tunables() (list []ctl.Tunable, err error) {
	l := d.loops[0] // all loops of a domain are set alike
	var infos []sched.Info
	if err := l.Do(func() { infos = l.Tunables() }); err != nil {
		return nil, err
	}
	set := slices.Concat(d.hand.domain, d.hand.scheduler[d.kind.Name])
	for _, i := range infos {
		list = append(list, ctl.Tunable{
			Name: i.Name, Value: i.Value, Valid: i.Valid, Unit: i.Unit,
			ByHand: slices.ContainsFunc(set, func(k sched.Knob) bool { return k.Key == i.Name }),
		})
	}
	return list, nil
}

// describe says what was set, also of schedulers that do not run now.
func (h *handSet) describe(now sched.Kind) string {
	var b strings.Builder
	line := func(what string, knobs []sched.Knob) {
		if len(knobs) == 0 {
			return
		}
		b.WriteString(what + ":")
		for _, k := range knobs {
			fmt.Fprintf(&b, " %s=%s", k.Key, k.Value)
		}
		b.WriteString("\n")
	}
	line("set by hand", slices.Concat(h.domain, h.scheduler[now.Name]))
	for _, name := range sched.Names {
		if name != now.Name {
			line("kept for "+name, h.scheduler[name])
		}
	}
	return b.String()
}

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

// handSet are the knobs that the operator has set, with --domain or later, by the name of
// the scheduler that they are of; under "" are the domain's own. A switch back to a
// scheduler sets them again.
type handSet map[string][]sched.Knob

// setOn changes a knob on l and keeps it. It runs on l's goroutine.
func (d *domain) setOn(l *device.Loop, key, value string) error {
	before := l.Tunables()
	if err := l.Set(key, value); err != nil {
		return err
	}
	key, present, whose := knobName(key), l.Tunables(), ""
	if hasKnob(sched.Tunables(l.Scheduler()), key) {
		whose = d.kind.Name
	}
	if d.hand == nil {
		d.hand = handSet{}
	}
	d.hand.keep(whose, key, !slices.Equal(before, present))
	d.hand.refresh("", present)
	d.hand.refresh(d.kind.Name, present)
	if key == queueDepth {
		d.spec.QueueDepth = l.Depth() // so that a switch leaves it
	}
	return nil
}

// queueDepth is the one knob of the domain whose default is the scheduler's.
const queueDepth = "queue_depth"

// keep makes key the last one that was set, if that has changed anything: where one knob
// changes another one's value, their order matters.
func (h handSet) keep(whose, key string, changed bool) {
	is := func(k sched.Knob) bool { return k.Key == key }
	if !changed && slices.ContainsFunc(h[whose], is) {
		return
	}
	h[whose] = append(slices.DeleteFunc(h[whose], is), sched.Knob{Key: key})
}

// refresh takes over the values that the knobs have at present.
func (h handSet) refresh(whose string, present []sched.Info) {
	for n := range h[whose] {
		k := &h[whose][n]
		if at := slices.IndexFunc(present, func(i sched.Info) bool { return i.Name == k.Key }); at >= 0 {
			k.Value = present[at].Value
		}
	}
}

func hasKnob(list []sched.Info, key string) bool {
	return slices.ContainsFunc(list, func(i sched.Info) bool { return i.Name == key })
}

// knobName is key as Tunables spells it.
func knobName(key string) string { return strings.ReplaceAll(key, "-", "_") }

// schedulerFor makes a scheduler of that kind for l, with what the operator has set on
// the last one of its kind.
func (d *domain) schedulerFor(l *device.Loop, kind sched.Kind) (sched.Scheduler, error) {
	s := kind.New(l.Config())
	for _, k := range d.hand[kind.Name] {
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
		ended := l.Do(func() { err = d.setOn(l, key, value) })
		if ended != nil || err != nil {
			return errors.Join(ended, err)
		}
	}
	return nil
}

// tunables lists what set takes, and what was set.
func (d *domain) tunables() (list []ctl.Tunable, err error) {
	l := d.loops[0] // all loops of a domain are set alike
	var infos []sched.Info
	if err := l.Do(func() { infos = l.Tunables() }); err != nil {
		return nil, err
	}
	set := slices.Concat(d.hand[""], d.hand[d.kind.Name])
	for _, i := range infos {
		list = append(list, ctl.Tunable{
			Name: i.Name, Value: i.Value, Valid: i.Valid, Unit: i.Unit,
			ByHand: slices.ContainsFunc(set, func(k sched.Knob) bool { return k.Key == i.Name }),
		})
	}
	return list, nil
}

// describe says what was set, also of schedulers that do not run now.
func (h handSet) describe(now sched.Kind) string {
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
	line("set by hand", slices.Concat(h[""], h[now.Name]))
	for _, name := range sched.Names {
		if name != now.Name {
			line("kept for "+name, h[name])
		}
	}
	return b.String()
}

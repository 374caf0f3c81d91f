package daemon

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/elevisor/elevisor/backend"
	"github.com/elevisor/elevisor/blk"
	"github.com/elevisor/elevisor/device"
	"github.com/elevisor/elevisor/sched"
	"github.com/elevisor/elevisor/sys/clock"
	"go.uber.org/zap"
)

// Domain describes a scheduling domain, as the operator wants it: disks that are on one
// physical disk, and the scheduler in which their requests meet.
type Domain struct {
	ID         string
	Scheduler  string       // default: auto
	Workers    int          // loops; more than 1 only with a scheduler in which queues do not meet (sched.Kind.Meets)
	QueueDepth int          // requests on the disks at a time, of each loop; default: sched.Kind.Depth
	Rotational string       // on, off; default: ask the system
	Knobs      []sched.Knob // in the order given
}

// Private is the domain of a disk that gets one of its own.
const Private = "private"

// Auto is the scheduler of a domain that gets one by its disks.
const Auto = "auto"

// workersMax is the most loops of one domain.
const workersMax = 64

var domainKeys = []key[Domain]{
	{"id", "NAME", text(func(d *Domain) *string { return &d.ID })},
	{"scheduler", "auto|" + strings.Join(sched.Names, "|"), text(func(d *Domain) *string { return &d.Scheduler })},
	{"workers", "N", number(1, workersMax, func(d *Domain) *int { return &d.Workers })},
	{"queue-depth", "N", number(1, device.DepthMax, func(d *Domain) *int { return &d.QueueDepth })},
	{"rotational", "on|off|auto", rotational},
	{"KNOB", "VALUE (nomerges, max-sectors-kb, or one of the scheduler's, by the kernel's name)", nil},
}

func rotational(d *Domain, v string) error {
	switch v {
	case "on", "off", "auto":
		d.Rotational = v
		return nil
	}
	return errors.New("want on, off or auto")
}

// DomainKeys lists the keys of --domain for a help text, one a line, and the schedulers.
func DomainKeys() string { return help(domainKeys) + "\nSchedulers:\n\n" + sched.Help() }

// ParseDomain reads KEY=VALUE,KEY=VALUE,... as ParseDisk does. Any other key is taken for a
// knob; whether there is one is checked when the domain starts.
func ParseDomain(s string) (Domain, error) {
	var d Domain
	err := parse("--domain", domainKeys, &d, s, func(name, v string) error {
		d.Knobs = append(d.Knobs, sched.Knob{Key: name, Value: v})
		return nil
	})
	if err == nil && (d.ID == "" || d.ID == Private) {
		err = fmt.Errorf("--domain %q needs an id, other than %q", s, Private)
	}
	return d, err
}

// domain is a running scheduling domain. The daemon's lock guards it.
type domain struct {
	id     string
	spec   Domain
	loops  []*device.Loop
	idle   []*device.Loop // their queues were gathered on loops[0]
	images []*image
	log    *zap.Logger

	shared  bool // made for a physical disk: others on it join
	devices []*device.Device

	kind   sched.Kind // of the present scheduler
	reason string
	hand   handSet
}

// choose returns the kind of scheduler for that name, and why it is that one.
func (d *domain) choose(name string) (sched.Kind, string, error) {
	if name != "" && name != Auto {
		kind, err := sched.Find(name)
		return kind, "the operator's choice", err
	}
	switch d.spec.Rotational {
	case "on":
		return sched.Auto(true), "rotational=on", nil
	case "off":
		return sched.Auto(false), "rotational=off", nil
	}
	reasons := []string{}
	for _, i := range d.images {
		info := i.Info()
		if info.Rotational && info.Physical.Believed {
			return sched.Auto(true), info.Physical.Reason, nil
		}
		if !slices.Contains(reasons, info.Physical.Reason) {
			reasons = append(reasons, info.Physical.Reason)
		}
	}
	return sched.Auto(false), strings.Join(reasons, "; "), nil
}

// rotational reports whether the domain's disks have a head to move: as the operator says,
// or as one of the images says that can be believed.
func (d *domain) rotational() bool {
	if d.spec.Rotational == "on" || d.spec.Rotational == "off" {
		return d.spec.Rotational == "on"
	}
	return slices.ContainsFunc(d.images, func(i *image) bool {
		info := i.Info()
		return info.Rotational && info.Physical.Believed
	})
}

// start makes the scheduler and the loops, and attaches the images to each.
func (d *domain) start(engine device.Engine) (err error) {
	if d.kind, d.reason, err = d.choose(d.spec.Scheduler); err != nil {
		return err
	}
	workers, depth := max(d.spec.Workers, 1), d.depthFor(d.kind)
	if workers > 1 && d.kind.Meets {
		return fmt.Errorf("workers=%d with scheduler %s: only %s can run on several loops, as requests of different queues do not meet in it",
			workers, d.kind.Name, strings.Join(apart(), ", "))
	}
	for range workers {
		c := device.DefaultConfig(d.rotational())
		l := device.NewLoop(d.kind.New(c), c, depth)
		if err := d.setFirst(l); err != nil {
			return err
		}
		if err := l.Start(engine, clock.Start().Now, d.log, func(h backend.Host) error { return d.attach(l, h) }); err != nil {
			return err
		}
		d.loops = append(d.loops, l)
	}
	d.log.Info("scheduler", zap.String("domain", d.id), zap.String("name", d.kind.Name), zap.String("because", d.reason),
		zap.Int("workers", workers), zap.Int("queue-depth", depth))
	return nil
}

// setFirst sets the knobs of --domain on a loop that does not run yet.
func (d *domain) setFirst(l *device.Loop) error {
	knobs := d.spec.Knobs
	if depth := d.spec.QueueDepth; depth != 0 {
		knobs = append([]sched.Knob{{Key: queueDepth, Value: fmt.Sprint(depth)}}, knobs...)
	}
	for _, k := range knobs {
		if err := d.setOn(l, k.Key, k.Value); err != nil {
			return err
		}
	}
	return nil
}

// apart lists the schedulers in which requests of different queues do not meet.
func apart() (names []string) {
	for _, k := range sched.Kinds() {
		if !k.Meets {
			names = append(names, k.Name)
		}
	}
	return names
}

// depthFor is the queue depth with that kind of scheduler.
func (d *domain) depthFor(k sched.Kind) int { return cmp.Or(d.spec.QueueDepth, k.Depth) }

// attach attaches all images to loop l. Each has the same index in all loops.
func (d *domain) attach(l *device.Loop, h backend.Host) error {
	for _, i := range d.images {
		index, err := l.Attach(i.Image, h)
		if err != nil {
			return err
		}
		i.disk.Index = index
	}
	return nil
}

// Switched says what was there when a scheduler was replaced.
type Switched struct {
	Queued int // requests that moved from the old scheduler to the new one
	OnDisk int // requests that complete at the old one
}

// switchTo replaces the scheduler; on an error the old one goes on.
func (d *domain) switchTo(name string) (met Switched, err error) {
	if name == "" { // only at the start that means auto
		_, err := sched.Resolve(name)
		return met, err
	}
	chosen, reason, err := d.choose(name)
	if err != nil {
		return met, err
	}
	if chosen.Meets && len(d.loops) > 1 {
		for _, x := range d.devices {
			if err := x.Gather(gatherTimer()); err != nil {
				return met, err
			}
		}
		d.loops, d.idle = d.loops[:1], d.loops[1:] // the domain has one loop from now on
	}
	next := make([]sched.Scheduler, len(d.loops))
	for i, l := range d.loops {
		if next[i], err = d.schedulerFor(l, chosen); err != nil {
			return met, err
		}
	}
	for i, l := range d.loops {
		var deep error
		ended := l.Do(func() {
			queued, onDisk := l.Switch(next[i])
			met.Queued, met.OnDisk = met.Queued+queued, met.OnDisk+onDisk
			deep = l.SetDepth(d.depthFor(chosen))
		})
		if ended != nil || deep != nil {
			return met, errors.Join(ended, deep)
		}
	}
	d.kind, d.reason = chosen, reason
	d.log.Info("scheduler", zap.String("domain", d.id), zap.String("name", chosen.Name), zap.String("because", reason),
		zap.Int("queued", met.Queued), zap.Int("in flight", met.OnDisk))
	return met, nil
}

// gatherWait is how long a device's requests in flight may take when its queues are
// gathered, and gatherLook how often that is checked.
const (
	gatherWait = 5 * time.Second
	gatherLook = time.Millisecond
)

// gatherTimer returns what device.Gather waits with.
func gatherTimer() func() bool {
	started := clock.Start()
	return func() bool {
		clock.Sleep(gatherLook)
		return started.Now() < blk.Instant(gatherWait)
	}
}

// stats adds up the loops' statistics.
func (d *domain) stats() (sum device.DomainStats) {
	for i, l := range slices.Concat(d.loops, d.idle) {
		var s device.DomainStats
		_ = l.Do(func() { s = l.Stats() }) // an ended loop has nothing to add
		if i == 0 {
			sum = s
		} else {
			sum.AddLoop(&s)
		}
	}
	sum.Scheduler = d.kind.Name
	return sum
}

func (d *domain) stop() {
	for _, l := range slices.Concat(d.loops, d.idle) {
		l.Stop()
	}
}

package guest

import (
	"cmp"
	"fmt"

	"github.com/elevisor/elevisor/blk"
	"github.com/elevisor/elevisor/device"
	"github.com/elevisor/elevisor/sys/shm"
	"github.com/elevisor/elevisor/virtqueue"
)

// Clock is the time that a block layer goes by.
type Clock interface{ Now() blk.Instant }

// Wires are what an attached guest has in place of a clock and of eventfds.
type Wires struct {
	Clock Clock
	// Kicked says that the loop has something to look at in a queue.
	Kicked func(queue int)
	// Called says, in the midst of a step, that the device has returned requests on a
	// queue whose driver asked for that ([Queue.EnableCalls]). Whoever is called does
	// not reap there and then.
	Called func(queue int)
}

// Attach makes a guest of d without a connection: memory, rings and features are the
// real ones, and kicks and calls are function calls. d's loop is stepped by hand, on
// the goroutine that owns the guest and all its queues.
//
// Nothing waits: Wait is not for an attached guest, nor is what needs a connection.
// Requests are no longer in flight when Close is called.
func Attach(d *device.Device, o Options, w Wires) (_ *Guest, err error) {
	o.normalize()
	o.Queues = cmp.Or(o.Queues, d.Count())
	if o.Queues > d.Count() {
		return nil, fmt.Errorf("%d queues wanted, the device has %d", o.Queues, d.Count())
	}
	g := &Guest{
		opt: o, features: d.Features() & o.Features, config: blk.DecodeConfig(d.Config()), record: -1,
		device: d, wires: w,
	}
	defer func() {
		if err != nil {
			g.Close()
		}
	}()
	if err = g.build(); err != nil {
		return nil, err
	}
	if err = d.SetFeatures(g.features); err != nil {
		return nil, err
	}
	if err = g.lend(); err != nil {
		return nil, err
	}
	for i, q := range g.queues {
		if err = g.startAttached(i, q); err != nil {
			return nil, err
		}
	}
	return g, nil
}

// lend gives the device the guest's memory, in mappings of its own.
func (g *Guest) lend() error {
	regions, fds := g.mem.Table()
	maps := make([]*shm.Mapping, 0, len(regions))
	defer func() {
		for _, m := range maps {
			m.Release()
		}
	}()
	for i, r := range regions {
		m, err := shm.Map(fds[i], r)
		if err != nil {
			return err
		}
		maps = append(maps, m)
	}
	table, err := shm.NewMemory(maps)
	if err != nil {
		return err
	}
	defer table.Release()
	return g.device.SetMemory(table)
}

func (g *Guest) startAttached(i int, q *Queue) error {
	started := false // the call that SetCall itself makes comes before: nobody here waits for it
	g.device.SetCall(i, bell(func() {
		if started {
			q.stats.Calls++
			g.wires.Called(i)
		}
	}))
	g.device.SetErr(i, bell(func() { q.gone = true }))
	err := g.device.Start(i, virtqueue.Params{
		Size: q.ring.Size, Desc: g.mem.UVA(q.ring.Desc.Addr), Avail: g.mem.UVA(q.ring.Avail.Addr), Used: g.mem.UVA(q.ring.Used.Addr),
	})
	started = true
	if err == nil {
		g.device.Enable(i, true)
	}
	return err
}

// attach is the rest of newQueue for an attached guest.
func (q *Queue) attach(g *Guest) {
	q.clock = g.wires.Clock
	q.device = bell(func() {
		g.device.Kick(q.index)
		g.wires.Kicked(q.index)
	})
}

// detach ends what Attach began.
func (g *Guest) detach() {
	if g.device == nil {
		return
	}
	for i := range g.queues {
		g.device.Stop(i, func(uint32) {})
		g.device.SetCall(i, nil)
		g.device.SetErr(i, nil)
	}
	_ = g.device.SetMemory(nil) // to withdraw it cannot fail
	g.device = nil
}

// bell is a Notifier that is a call.
type bell func()

// Notify implements virtqueue.Notifier.
func (b bell) Notify() { b() }

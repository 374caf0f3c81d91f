package device

import (
	"testing"
	"time"

	"github.com/elevisor/elevisor/backend"
	"github.com/elevisor/elevisor/backend/drive"
	"github.com/elevisor/elevisor/blk"
	"github.com/elevisor/elevisor/sched"
	"github.com/elevisor/elevisor/sys/clock"
	"github.com/elevisor/elevisor/sys/eventfd"
	"github.com/stretchr/testify/require"
)

// oneByOne is a drive on which each command takes as long, one after the other.
type oneByOne struct {
	cost blk.Instant
	tags []int
	due  []blk.Instant
}

func (d *oneByOne) Queue(now blk.Instant, c drive.Command) bool {
	if n := len(d.due); n > 0 {
		now = max(now, d.due[n-1])
	}
	d.tags, d.due = append(d.tags, c.Tag), append(d.due, now+d.cost)
	return true
}

func (d *oneByOne) Next() blk.Instant {
	if len(d.due) == 0 {
		return blk.Never
	}
	return d.due[0]
}

func (d *oneByOne) Done(now blk.Instant) (int, blk.Instant, bool) {
	if d.Next() > now {
		return 0, 0, false
	}
	tag, at := d.tags[0], d.due[0]
	d.tags, d.due = d.tags[1:], d.due[1:]
	return tag, at, true
}

func (d *oneByOne) Depth() int         { return 1 << 20 }
func (d *oneByOne) Stats() drive.Stats { return drive.Stats{Seeks: 7} }

// simulated puts a drive in front of the rig's fake disk.
func simulated(cost blk.Instant) backend.Image {
	return backend.NewSim(newFakeDisk(2048), &oneByOne{cost: cost}, backend.Physical{}, backend.Options{})
}

// In virtual time a loop that is stepped when it asks to be is exact.
func TestSimulated_virtual(t *testing.T) {
	const cost = 1_000_003
	l := NewLoop(&sched.None{}, &sched.Config{}, 8)
	index, err := l.Attach(simulated(cost), backend.Host{})
	require.NoError(t, err)
	r := &rig{t: t, loop: l, disk: newFakeDisk(2048)}
	r.dev, err = New(Options{ID: "d", Disk: &blk.Disk{Index: index}, Info: r.disk.Info(), Loops: []*Loop{l}})
	require.NoError(t, err)
	r.attachMemory()
	r.layout()
	r.start()
	for range 5 {
		r.request(blk.TypeIn, 1, 1)
	}
	r.driver.Publish()
	r.dev.queues[0].kicked = true
	now := blk.Instant(5)
	for done := 0; ; {
		wake := l.Step(now)
		if wake == now {
			continue
		}
		for {
			_, _, ok, err := r.driver.Reap()
			require.NoError(t, err)
			if !ok {
				break
			}
			done++
		}
		if wake == blk.Never {
			require.Equal(t, 5, done)
			break
		}
		require.EqualValues(t, 5+(done+1)*cost, wake)
		now = wake
	}
	s := l.Simulated(index)
	require.EqualValues(t, 5, s.Deviation.TotalCount())
	require.Zero(t, s.Deviation.Max())
	require.EqualValues(t, 5+5*cost, now)
	require.Nil(t, newRig(t, &sched.None{}, nil).loop.Simulated(0))
}

// What a loop waits for before a drive is done, and before anything else.
func TestNap(t *testing.T) {
	for _, c := range []struct {
		exact, wake blk.Instant
		want        int64
	}{
		{blk.Never, blk.Never, -1},
		{blk.Never, 1000, 0},
		{blk.Never, 1500, 500},
		{1000 + spin + 5, 1000 + spin + 5, 5},
		{1000 + spin, 1000 + spin, 0},
		{1000 + 20, 1000 + 20, 0},
		{1000 + spin + 70, 1030, 30},
	} {
		l := &Loop{exact: c.exact}
		require.Equal(t, c.want, l.nap(1000, c.wake), "%+v", c)
	}
}

// A live loop gives requests back, none too early; and it rests while a drive works.
func TestSimulated_live(t *testing.T) {
	engines(t, func(t *testing.T, e Engine) {
		const cost = 2 * time.Millisecond
		r := liveSimulated(t, e, blk.Instant(cost))
		call, err := eventfd.New()
		require.NoError(t, err)
		defer call.Close()
		r.dev.SetCall(0, call)
		began := time.Now()
		for i := range 20 {
			r.request(blk.TypeIn, 1, 1)
			if r.driver.Publish() {
				r.kickFD.Notify()
			}
			r.answer(call)
			require.GreaterOrEqual(t, time.Since(began), time.Duration(i+1)*cost)
		}
		require.NoError(t, r.loop.Do(func() {
			s := r.loop.Simulated(0)
			require.EqualValues(t, 20, s.Deviation.TotalCount())
			require.EqualValues(t, 7, s.Model.Seeks)
		}))
		r.halt()
	})
	engines(t, func(t *testing.T, e Engine) {
		r := liveSimulated(t, e, blk.Instant(time.Second))
		r.request(blk.TypeIn, 1, 1)
		r.driver.Publish()
		r.kickFD.Notify()
		requireIdle(t, func() { _ = r.loop.Do(func() {}) })
		r.halt()
		requireIdle(t, func() {})
	})
}

// liveSimulated is a live rig with a simulated drive, started.
func liveSimulated(t *testing.T, e Engine, cost blk.Instant) *liveRig {
	r := &liveRig{rig: &rig{t: t, disk: newFakeDisk(2048)}}
	r.loop = NewLoop(&sched.None{}, &sched.Config{}, 8)
	err := r.loop.Start(e, clock.Start().Now, nil, func(h backend.Host) error {
		_, err := r.loop.Attach(simulated(cost), h)
		return err
	})
	if e == EngineURing && err != nil {
		t.Skipf("io_uring: %v", err)
	}
	require.NoError(t, err)
	t.Cleanup(r.loop.Stop)
	r.dev, err = New(Options{ID: "d", Disk: &blk.Disk{}, Info: r.disk.Info(), Loops: []*Loop{r.loop}})
	require.NoError(t, err)
	r.attachMemory()
	r.layout()
	r.params.Kick = r.descriptors(false)
	r.start()
	return r
}

// answer waits for one request's end.
func (r *liveRig) answer(call *eventfd.FD) {
	for {
		_, _, ok, err := r.driver.Reap()
		require.NoError(r.t, err)
		if ok {
			return
		}
		if !r.driver.EnableCalls() {
			require.True(r.t, call.Wait(10*time.Second), "no call")
			call.Take()
		}
	}
}

// halt stops the queue, whatever the drive still does.
func (r *liveRig) halt() {
	stopped := make(chan uint32, 1)
	r.dev.Stop(0, func(base uint32) { stopped <- base })
	<-stopped
	_ = r.dev.SetMemory(nil)
}

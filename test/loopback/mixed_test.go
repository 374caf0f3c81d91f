package loopback

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"github.com/elevisor/elevisor/backend"
	"github.com/elevisor/elevisor/blk"
	"github.com/elevisor/elevisor/daemon"
	"github.com/elevisor/elevisor/guest"
	"github.com/elevisor/elevisor/sched"
	"github.com/stretchr/testify/require"
)

// mix drives a queue over its own sectors with everything a guest has: neighbouring
// requests of odd sizes, segments that no O_DIRECT takes, discards of several ranges,
// write-zeroes and flushes; and knows what must be read.
type mix struct {
	q     *guest.Queue
	rng   *rand.Rand
	first int
	model []byte
	busy  []bool
	reqs  map[int]*mixed
	free  []int
	gen   byte
	err   error
	n     int
}

type mixed struct {
	op     blk.Op
	ranges []blk.Range
	want   []byte
	bufs   []guest.Buf
}

const mixIO = 64 << 10

func newMix(q *guest.Queue, seed uint64, first, sectors int) *mix {
	m := &mix{q: q, rng: rand.New(rand.NewPCG(seed, 3)), first: first, model: make([]byte, sectors*512), busy: make([]bool, sectors), reqs: map[int]*mixed{}}
	for i := range q.Depth() {
		m.free = append(m.free, i)
	}
	return m
}

func (m *mix) pick(most int) (blk.Range, bool) {
	for range 20 {
		at, n := m.rng.IntN(len(m.busy)), 1+m.rng.IntN(most)
		if m.rng.IntN(3) > 0 { // right behind what is in flight
			for at < len(m.busy) && (at == 0 || m.busy[at] || !m.busy[at-1]) {
				at++
			}
		}
		if m.rng.IntN(20) == 0 {
			at = len(m.busy) - n // at the end
		}
		ok := at >= 0 && at+n <= len(m.busy)
		for i := at; ok && i < at+n; i++ {
			ok = !m.busy[i]
		}
		if ok {
			for i := at; i < at+n; i++ {
				m.busy[i] = true
			}
			return blk.Range{Sector: blk.Sector(at), Sectors: blk.Sector(n)}, true
		}
	}
	return blk.Range{}, false
}

func (m *mix) submit() bool {
	slot := m.free[len(m.free)-1]
	r := &mixed{op: []blk.Op{blk.OpRead, blk.OpRead, blk.OpWrite, blk.OpWrite, blk.OpWrite, blk.OpWrite, blk.OpDiscard, blk.OpWriteZeroes, blk.OpFlush}[m.rng.IntN(9)]}
	n := 1
	if r.op == blk.OpDiscard {
		n += m.rng.IntN(3)
	} else if r.op == blk.OpFlush {
		n = 0
	}
	for range n {
		if x, ok := m.pick([]int{2, 8, 90}[m.rng.IntN(3)]); ok {
			r.ranges = append(r.ranges, x)
		}
	}
	if n > 0 && len(r.ranges) == 0 {
		return false
	}
	at := func(x blk.Range) blk.Sector { return x.Sector + blk.Sector(m.first) }
	ok := false
	switch r.op {
	case blk.OpFlush:
		ok = m.q.Submit(slot, r.op, 0, nil)
	case blk.OpDiscard, blk.OpWriteZeroes:
		var ranges []blk.Range
		for _, x := range r.ranges {
			ranges = append(ranges, blk.Range{Sector: at(x), Sectors: x.Sectors})
		}
		ok = m.q.SubmitRanges(slot, r.op, ranges, r.op == blk.OpWriteZeroes && m.rng.IntN(2) == 0)
	default:
		x := r.ranges[0]
		total := int(x.Sectors.Bytes())
		r.want = bytes.Clone(m.model[x.Sector.Bytes():(x.Sector + x.Sectors).Bytes()])
		if r.op == blk.OpWrite {
			m.gen++
			for i := range r.want {
				r.want[i] = m.gen ^ byte(int(x.Sector)+m.first+i/512) ^ byte(i)
			}
		}
		buf, off := m.q.Buffer(slot), m.rng.IntN(2)*m.rng.IntN(600)
		cut := []int{total, total, 4096, 512, 1500}[m.rng.IntN(5)]
		for left := total; left > 0; {
			k := min(left, cut)
			if len(r.bufs) == 60 {
				k = left
			}
			b := buf.Slice(off, off+k)
			if r.op == blk.OpWrite {
				copy(b.Bytes, r.want[total-left:])
			} else {
				clear(b.Bytes)
			}
			r.bufs = append(r.bufs, b)
			off, left = off+k, left-k
			if off+left+1 < len(buf.Bytes) && m.rng.IntN(4) == 0 {
				off++
			}
		}
		ok = m.q.Submit(slot, r.op, at(x), r.bufs)
	}
	if !ok {
		m.release(r)
		return false
	}
	m.free = m.free[:len(m.free)-1]
	m.reqs[slot] = r
	m.n++
	return true
}

func (m *mix) release(r *mixed) {
	for _, x := range r.ranges {
		for i := x.Sector; i < x.Sector+x.Sectors; i++ {
			m.busy[i] = false
		}
	}
}

func (m *mix) done(d guest.Done) {
	r := m.reqs[d.Slot]
	delete(m.reqs, d.Slot)
	m.free = append(m.free, d.Slot)
	m.release(r)
	if d.Status != blk.StatusOK {
		m.fail(fmt.Errorf("%v %v: %v", r.op, r.ranges, d.Status))
		return
	}
	switch r.op {
	case blk.OpRead:
		var got []byte
		for _, b := range r.bufs {
			got = append(got, b.Bytes...)
		}
		if !bytes.Equal(got, r.want) {
			m.fail(fmt.Errorf("read of %v at %d: not what was written", r.ranges, m.first))
		}
	case blk.OpWrite:
		copy(m.model[r.ranges[0].Sector.Bytes():], r.want)
	case blk.OpDiscard, blk.OpWriteZeroes:
		for _, x := range r.ranges {
			clear(m.model[x.Sector.Bytes():(x.Sector + x.Sectors).Bytes()])
		}
	}
}

func (m *mix) fail(err error) {
	if m.err == nil {
		m.err = err
	}
}

func (m *mix) run(stop <-chan struct{}) {
	end := time.Now().Add(patience)
	for stopping := false; ; {
		select {
		case <-stop:
			stopping = true
		default:
		}
		for k := m.rng.IntN(m.q.Depth()); !stopping && m.err == nil && k > 0 && len(m.free) > 0; k-- {
			m.submit()
		}
		if (stopping || m.err != nil) && m.q.InFlight() == 0 {
			return
		}
		m.q.Kick()
		n, err := m.q.Reap(m.done)
		switch {
		case err != nil:
			m.fail(err)
			return
		case n > 0:
			end = time.Now().Add(patience)
		case time.Now().After(end):
			m.fail(fmt.Errorf("%d requests never came back", m.q.InFlight()))
			return
		default:
			_ = m.q.Wait(20 * time.Millisecond)
		}
	}
}

// Every operation, merged as it comes, through every scheduler and every way to a
// file: the bytes are right, and the counts add up.
func TestMixedLoadIsRight(t *testing.T) {
	const window = 1024 // sectors of a queue
	length := 1500 * time.Millisecond
	if testing.Short() {
		length = 300 * time.Millisecond
	}
	for _, c := range []struct {
		name   string
		set    func(d *daemon.Disk)
		domain daemon.Domain
		change bool
	}{
		{"direct, switching", func(d *daemon.Disk) { d.Cache = backend.CacheNone }, daemon.Domain{QueueDepth: 3}, true},
		{"direct of 4096, switching", func(d *daemon.Disk) { d.Cache, d.LogicalBlock = backend.CacheNone, 4096 }, daemon.Domain{QueueDepth: 3}, true},
		{"cached, switching", func(d *daemon.Disk) {}, daemon.Domain{QueueDepth: 3}, true},
		{"threads, switching", func(d *daemon.Disk) { d.AIO, d.Cache = backend.AIOThreads, backend.CacheNone }, daemon.Domain{QueueDepth: 3}, true},
		{"through, deadline", func(d *daemon.Disk) { d.Cache = backend.CacheDirectsync }, daemon.Domain{Scheduler: "deadline", QueueDepth: 4}, false},
		{"direct, three loops", func(d *daemon.Disk) { d.Cache = backend.CacheNone }, daemon.Domain{Scheduler: "none", Workers: 3, QueueDepth: 2}, false},
		{"threads, three loops", func(d *daemon.Disk) { d.AIO = backend.AIOThreads }, daemon.Domain{Scheduler: "none", Workers: 3, QueueDepth: 2}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			base := disk(t, 2*2*window*512+512)
			var disks []daemon.Disk
			for i := range 2 { // two guests, windows adjoin; the second ends with the image
				d := base
				d.ID, d.Domain, d.DiscardSeg, d.Socket = fmt.Sprint("d", i), "x", 3, base.Socket+fmt.Sprint(i)
				c.set(&d)
				if d.LogicalBlock == 4096 && i == 0 {
					require.NoError(t, os.Truncate(d.Path, 2*2*window*512))
				}
				d.Offset, d.Size = int64(i)*2*window*512, 2*window*512
				disks = append(disks, d)
			}
			c.domain.ID = "x"
			d := serveHere(t, disks, c.domain)
			start := time.Now()
			stop := make(chan struct{})
			var all []*mix
			ended := make(chan struct{}, 4)
			for i := range disks {
				g := connect(t, disks[i].Socket, guest.Options{Queues: 2, QueueSize: 256, Depth: 48, Segments: 62, Ranges: 3, MaxIO: mixIO})
				for j, q := range g.Queues() {
					m := newMix(q, uint64(10*i+j), j*window, window)
					all = append(all, m)
					go func() { m.run(stop); ended <- struct{}{} }()
				}
			}
			rng := rand.New(rand.NewPCG(1, 2))
			for n := 0; time.Since(start) < length; n++ {
				time.Sleep(5 * time.Millisecond)
				if c.change {
					_, err := d.Switch("d1", sched.Names[rng.IntN(len(sched.Names))])
					require.NoError(t, err)
					require.NoError(t, d.Set("d0", "nomerges", fmt.Sprint(rng.IntN(2))))
					require.NoError(t, d.Set("d0", "max_sectors_kb", fmt.Sprint(4<<rng.IntN(10))))
					require.NoError(t, d.Set("d0", "queue-depth", fmt.Sprint(1+rng.IntN(6))))
				}
				if n%20 == 0 {
					d.Stat()
					require.NoError(t, d.Describe("d0", &bytes.Buffer{}))
				}
			}
			close(stop)
			for range all {
				<-ended
			}
			sent := 0
			image, err := os.ReadFile(base.Path)
			require.NoError(t, err)
			for i, m := range all {
				require.NoError(t, m.err)
				sent += m.n
				at := (i/2*2*window + m.first) * 512
				require.True(t, bytes.Equal(m.model, image[at:at+len(m.model)]), "image, queue %d", i)
			}
			s, err := d.DomainStats("d0")
			require.NoError(t, err)
			got, merges := uint64(0), uint64(0)
			for op := range s.Op {
				got += s.Op[op].Requests()
				merges += s.Op[op].Merges
			}
			t.Logf("%d requests, %d merged, wall %v, io %v", sent, merges, time.Since(start), time.Duration(s.IOTime))
			require.EqualValues(t, sent, got)
			require.Zero(t, s.InFlight)
			require.Zero(t, s.Held)
			require.LessOrEqual(t, s.IOTime, uint64(time.Since(start)))
		})
	}
}

// A daemon with a scheduler in which requests wait and merge is killed, stopped and
// left in mid-I/O, again and again: nothing is lost or doubled, whatever hung in a
// group of two guests' requests.
func TestKillUnderSchedulers(t *testing.T) {
	const window = 1024
	for _, scheduler := range sched.Names {
		t.Run(scheduler, func(t *testing.T) {
			base := disk(t, 2*2*window*512)
			var disks []daemon.Disk
			for i := range 2 {
				d := base
				d.ID, d.Domain, d.DiscardSeg, d.Socket = fmt.Sprint("d", i), "x", 3, base.Socket+fmt.Sprint(i)
				d.Offset, d.Size, d.Slow = int64(i)*2*window*512, 2*window*512, backend.RateOptions{IOPS: 3000}
				disks = append(disks, d)
			}
			domain := daemon.Domain{ID: "x", Scheduler: scheduler, QueueDepth: 2}
			s := startDomains(t, disks, domain)
			stop := make(chan struct{})
			var all []*mix
			var guests []*guest.Guest
			ended := make(chan struct{}, 4)
			for i := range disks {
				g := connect(t, disks[i].Socket, guest.Options{Queues: 2, QueueSize: 256, Depth: 48, Segments: 62, Ranges: 3, MaxIO: mixIO})
				guests = append(guests, g)
				for j, q := range g.Queues() {
					m := newMix(q, uint64(10*i+j), j*window, window)
					all = append(all, m)
					go func() { m.run(stop); ended <- struct{}{} }()
				}
			}
			rng := rand.New(rand.NewPCG(5, 6))
			owed, longest := 0, time.Duration(0)
			for n := range 12 {
				time.Sleep(time.Duration(20+rng.IntN(60)) * time.Millisecond)
				g := guests[rng.IntN(2)]
				at := time.Now()
				switch n % 3 {
				case 0:
					s.kill()
					owed += inflight(t, guests[0]) + inflight(t, guests[1])
					s = startDomains(t, disks, domain)
					for i, g := range guests {
						eventually(t, func() error { return g.Reconnect(disks[i].Socket) })
					}
				case 1:
					_, err := g.Stop()
					require.NoError(t, err)
					longest = max(longest, time.Since(at))
					require.NoError(t, g.Resume())
				case 2:
					i := 0
					if g == guests[1] {
						i = 1
					}
					g.Disconnect()
					eventually(t, func() error { return g.Reconnect(disks[i].Socket) })
				}
			}
			close(stop)
			for range all {
				<-ended
			}
			sent := 0
			image, err := os.ReadFile(base.Path)
			require.NoError(t, err)
			for i, m := range all {
				require.NoError(t, m.err)
				sent += m.n
				require.EqualValues(t, uint16(m.n), m.q.Ring().UsedIdx())
				at := (i/2*2*window + m.first) * 512
				require.True(t, bytes.Equal(m.model, image[at:at+len(m.model)]), "image, queue %d", i)
			}
			require.NotZero(t, owed)
			t.Logf("%d requests, %d run again, longest stop %v", sent, owed, longest)
		})
	}
}

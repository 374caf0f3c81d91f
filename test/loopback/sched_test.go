package loopback

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/elevisor/elevisor/backend"
	"github.com/elevisor/elevisor/blk"
	"github.com/elevisor/elevisor/daemon"
	"github.com/elevisor/elevisor/guest"
	"github.com/elevisor/elevisor/sched"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
)

// serveHere serves disks in this process until the test ends.
func serveHere(t *testing.T, disks []daemon.Disk, domains ...daemon.Domain) *daemon.Daemon {
	d, err := daemon.Open(disks, domains, zap.NewNop())
	require.NoError(t, err)
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- d.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		require.NoError(t, <-ended)
	})
	return d
}

// slow is a disk in memory as slow as a rotational one at random I/O, in domain "d".
func slow(t *testing.T, size string, iops uint64) daemon.Disk {
	return daemon.Disk{
		ID: "d", Path: "mem:?size=" + size, Socket: filepath.Join(t.TempDir(), "d.sock"), NumQueues: 4,
		Domain: "d", Slow: backend.RateOptions{IOPS: iops},
	}
}

// streams writes, and then reads, n sequential streams of 4 KiB requests through
// one queue, interleaved request by request, each with depth requests in flight,
// and checks what it reads.
type streams struct {
	t     *testing.T
	q     *guest.Queue
	n     int
	each  int // blocks of a stream
	next  []int
	slots []access
}

func (s *streams) pass(op blk.Op) {
	s.next, s.slots = make([]int, s.n), make([]access, s.q.Depth())
	free := make([]int, s.q.Depth())
	for i := range free {
		free[i] = i
	}
	turn := 0
	for left := s.n * s.each; left > 0; {
		for len(free) > 0 && turn < s.n*s.each {
			stream := turn % s.n
			slot := free[len(free)-1]
			free = free[:len(free)-1]
			b := stream*s.each + s.next[stream]
			s.next[stream]++
			turn++
			buf := s.q.Buffer(slot)
			fillBlock(buf.Bytes, b, op == blk.OpWrite)
			require.True(s.t, s.q.Submit(slot, op, blk.Sector(b*sectors), []guest.Buf{buf}))
			s.slots[slot] = access{block: b}
		}
		s.q.Kick()
		n, err := s.q.Reap(func(d guest.Done) {
			require.Equal(s.t, blk.StatusOK, d.Status)
			if op == blk.OpRead {
				want := make([]byte, block)
				fillBlock(want, s.slots[d.Slot].block, true)
				require.Equal(s.t, want, s.q.Buffer(d.Slot).Bytes)
			}
			free = append(free, d.Slot)
		})
		require.NoError(s.t, err)
		if left -= n; n == 0 {
			require.NoError(s.t, s.q.Wait(patience))
		}
	}
}

// fillBlock makes the contents of block b, or clears a buffer for them.
func fillBlock(p []byte, b int, contents bool) {
	for i := range p {
		p[i] = 0
		if contents {
			p[i] = byte(b + i/blk.SectorSize + b>>8)
		}
	}
}

// writeRate is the merge rate of the domain's writes: merged / (merged + dispatched).
func writeRate(t *testing.T, d *daemon.Daemon) float64 {
	s, err := d.DomainStats("d")
	require.NoError(t, err)
	w := s.Op[blk.OpWrite]
	require.NotZero(t, w.Requests())
	return float64(w.Merges) / float64(w.Requests())
}

// On a slow disk requests wait, and a scheduler that looks at all of them merges
// what one that looks at the last few does not find.
func TestMergeRates(t *testing.T) {
	for _, c := range []struct {
		scheduler string
		streams   int
		depth     int
		lo, hi    float64
	}{
		{"deadline", 4, 32, 0.8, 1},
		{"none", 16, 8, 0, 0.1},
	} {
		t.Run(fmt.Sprintf("%s, %d streams", c.scheduler, c.streams), func(t *testing.T) {
			disk := slow(t, "64M", 2000)
			d := serveHere(t, []daemon.Disk{disk}, daemon.Domain{ID: "d", Scheduler: c.scheduler, QueueDepth: 4})
			g := connect(t, disk.Socket, guest.Options{Queues: 1, QueueSize: 256, Depth: c.streams * c.depth})
			s := &streams{t: t, q: g.Queues()[0], n: c.streams, each: 4096 / c.streams}
			s.pass(blk.OpWrite)
			rate := writeRate(t, d)
			t.Logf("merge rate %.3f", rate)
			require.GreaterOrEqual(t, rate, c.lo)
			require.Less(t, rate, c.hi)
			s.pass(blk.OpRead)
		})
	}
}

// Two VMs on windows of one image: requests merge across them only where the
// windows adjoin, and neither gets the other's bytes.
func TestTwoVMsOneImage(t *testing.T) {
	for _, gap := range []int64{0, block} {
		t.Run(fmt.Sprintf("gap of %d bytes", gap), func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, "img")
			const window = 64 * block
			require.NoError(t, os.WriteFile(path, make([]byte, 2*window+gap), 0o600))
			var disks []daemon.Disk
			for i := range int64(2) {
				disks = append(disks, daemon.Disk{
					ID: fmt.Sprint("vm", i), Path: path, Socket: filepath.Join(dir, fmt.Sprint(i)), Domain: "d",
					Offset: i * (window + gap), Size: window, Slow: backend.RateOptions{IOPS: 500},
				})
			}
			d := serveHere(t, disks, daemon.Domain{ID: "d", Scheduler: "deadline", QueueDepth: 1})
			var gs [2]*guest.Guest
			for i := range gs {
				gs[i] = connect(t, disks[i].Socket, guest.Options{Depth: 64})
				require.EqualValues(t, window/blk.SectorSize, gs[i].Config().Capacity)
			}
			across := func() (n uint64) {
				s, err := d.DomainStats("vm0")
				require.NoError(t, err)
				for place := range s.Merges.Merged {
					n += s.Merges.Merged[place][sched.OtherVM]
				}
				return n
			}
			// VM 0 writes upwards to its end, VM 1 from its start: they meet, if both are there
			// before the disk has taken either. On a busy machine that may take some rounds.
			for round := 0; round < 20 || gap == 0 && across() == 0 && round < 2000; round++ {
				for i, g := range gs {
					q := g.Queues()[0]
					for b := range 8 {
						at := b
						if i == 0 {
							at = 64 - 8 + b
						}
						fillByte(q.Buffer(b).Bytes, byte(0x10*(i+1)))
						require.True(t, q.Submit(b, blk.OpWrite, blk.Sector(at*sectors), []guest.Buf{q.Buffer(b)}))
					}
					q.Kick()
				}
				for _, g := range gs {
					finish(t, g.Queues()[0], 8)
				}
			}
			if gap == 0 {
				require.NotZero(t, across(), "adjoining windows never met")
			} else {
				require.Zero(t, across(), "merged over a gap")
			}
			image, err := os.ReadFile(path)
			require.NoError(t, err)
			require.Equal(t, slices.Repeat([]byte{0x10}, 8*block), image[window-8*block:window])
			require.Equal(t, slices.Repeat([]byte{0x20}, 8*block), image[window+gap:window+gap+8*block])
		})
	}
}

// finish waits for n requests of q.
func finish(t *testing.T, q *guest.Queue, n int) {
	for n > 0 {
		got, err := q.Reap(func(d guest.Done) { require.Equal(t, blk.StatusOK, d.Status) })
		require.NoError(t, err)
		if n -= got; got == 0 && n > 0 {
			require.NoError(t, q.Wait(patience))
		}
	}
}

// A thousand switches under verified load, every ordered pair of schedulers at
// least 20 times, each with requests queued and in flight: no error, nothing lost,
// nothing doubled.
func TestLiveSwitches(t *testing.T) {
	const switches, pairMin = 1000, 20
	disk := slow(t, "8M", 20_000)
	d := serveHere(t, []daemon.Disk{disk}, daemon.Domain{ID: "d", Scheduler: "none", QueueDepth: 4})
	m := boot(t, disk.Socket, guest.Options{Depth: 64})
	require.Len(t, m.loads, 4)
	names := sched.Names
	rng := rand.New(rand.NewPCG(1000, 1))
	pairs := map[[2]string]int{}
	now := "none"
	rare := func(from string) (to string, seen int) { // what has followed it least often
		for i, at := range rng.Perm(len(names)) {
			if n := pairs[[2]string{from, names[at]}]; i == 0 || n < seen {
				to, seen = names[at], n
			}
		}
		return to, seen
	}
	enough := func() bool {
		return !slices.ContainsFunc(names, func(from string) bool {
			_, seen := rare(from)
			return seen < pairMin
		})
	}
	for n, idle := 0, 0; n < switches || !enough(); {
		next, _ := rare(now)
		met, err := d.Switch("d", next)
		require.NoError(t, err)
		if met.Queued > 0 && met.OnDisk > 0 {
			pairs[[2]string{now, next}]++
			n++
		} else if idle++; idle > 10*switches {
			t.Fatalf("%d of %d switches met requests both queued and in flight", n, n+idle)
		}
		now = next
		if n%50 == 0 {
			_, err = d.Switch("d", "no-such-scheduler")
			require.ErrorContains(t, err, "no-such-scheduler")
		}
		time.Sleep(time.Duration(rng.IntN(3)) * time.Millisecond)
	}
	m.halt()
	for _, l := range m.loads {
		require.NoError(t, l.err)
		require.Equal(t, l.submitted, l.finished)
	}
}

// A scheduler is switched in the first moment after the start, and while a guest is
// still connecting: the race with which blk-mq's schedulers were born.
func TestSwitchWhileConnecting(t *testing.T) {
	disk := slow(t, "8M", 0)
	d := serveHere(t, []daemon.Disk{disk}, daemon.Domain{ID: "d"})
	stop, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
				if _, err := d.Switch("d", sched.Names[i%len(sched.Names)]); err != nil {
					t.Error(err)
					return
				}
			}
		}
	}()
	for range 20 {
		g := connect(t, disk.Socket, guest.Options{Depth: 8})
		q := g.Queues()[0]
		for s := range 8 {
			require.True(t, q.Submit(s, blk.OpRead, 0, []guest.Buf{q.Buffer(s)}))
		}
		q.Kick()
		finish(t, q, 8)
		g.Close()
	}
	close(stop)
	<-ended
}

// A queue whose requests are merged with another queue's is stopped under a slice of
// 10 s: it does not wait for that.
func TestStopUnderLongSlice(t *testing.T) {
	for range 5 { // until the machine is quick enough to have all queued while the disk is busy
		if stopUnderLongSlice(t) {
			return
		}
	}
	t.Fatal("the disk was done too early, five times")
}

// stopUnderLongSlice reports whether the queue had all its requests queued when it
// was stopped.
func stopUnderLongSlice(t *testing.T) bool {
	disk := slow(t, "8M", 3)
	d := serveHere(t, []daemon.Disk{disk}, daemon.Domain{
		ID: "d", Scheduler: "timeslice", QueueDepth: 1,
		Knobs: []sched.Knob{{Key: "time_slice_us", Value: "10000000"}},
	})
	g := connect(t, disk.Socket, guest.Options{Depth: 16})
	taken := func(n int) { // what is still in the ring when it stops stays there
		eventually(t, func() error {
			s := d.Stat()[0].Total
			r, w := s.Op[blk.OpRead], s.Op[blk.OpWrite]
			if got := s.Held + int(r.Requests()+w.Requests()); got < n {
				return fmt.Errorf("%d of %d requests taken", got, n)
			}
			return nil
		})
	}
	// The disk is busy for 333 ms with a request from elsewhere, while neighbours,
	// which alternate between two queues of one device, queue behind it and merge.
	other := g.Queues()[2]
	require.True(t, other.Submit(0, blk.OpRead, 1000*sectors, []guest.Buf{other.Buffer(0)}))
	other.Kick()
	taken(1)
	for b := range 16 {
		q := g.Queues()[b%2]
		require.True(t, q.Submit(b/2, blk.OpWrite, blk.Sector(b*sectors), []guest.Buf{q.Buffer(b / 2)}))
	}
	g.Queues()[0].Kick()
	g.Queues()[1].Kick()
	taken(17)
	if d.Stat()[0].Queues[0].Held != 8 {
		return false
	}
	start := time.Now()
	_, err := g.Session().StopRing(0)
	require.NoError(t, err)
	took := time.Since(start)
	t.Logf("stopped after %v", took)
	require.Less(t, took, 9*time.Second, "waited for the slice of 10 s") // the disk's own time is 9 requests x 333 ms
	finish(t, g.Queues()[0], 8)
	finish(t, g.Queues()[1], 8)
	finish(t, other, 1)
	return true
}

// A disk whose queues are spread over several loops is given a scheduler in which
// they have to meet: under load the queues are gathered on one loop, and nothing is
// lost, not even a kick. Both ways of waiting.
func TestGatherWorkers(t *testing.T) {
	for name, aio := range map[string]backend.AIO{"io_uring": backend.AIOAuto, "threads": backend.AIOThreads} {
		t.Run(name, func(t *testing.T) {
			for range 5 {
				d := disk(t, diskBlocks*block)
				d.NumQueues, d.Domain, d.AIO = 4, "d", aio
				daemon := serveHere(t, []daemon.Disk{d}, daemon.Domain{ID: "d", Scheduler: "none", Workers: 3})
				m := boot(t, d.Socket, guest.Options{Depth: 32})
				time.Sleep(50 * time.Millisecond)
				_, err := daemon.Switch("d", "deadline")
				require.NoError(t, err)
				before := m.returned()
				_, err = m.Stop()
				require.NoError(t, err)
				require.NoError(t, m.Resume())
				require.Eventually(t, func() bool { return m.returned() > before+1000 }, patience, time.Millisecond)
				s, err := daemon.DomainStats("d")
				require.NoError(t, err)
				require.Equal(t, "deadline", s.Scheduler)
				_, err = daemon.Switch("d", "none")
				require.NoError(t, err)
				m.rest(d.Path)
			}
		})
	}
}

// Several loops of one domain count their merges each by itself, and together what
// the queues have counted.
func TestWorkersMerge(t *testing.T) {
	disk := slow(t, "8M", 20_000)
	d := serveHere(t, []daemon.Disk{disk}, daemon.Domain{ID: "d", Scheduler: "none", Workers: 2, QueueDepth: 1})
	g := connect(t, disk.Socket, guest.Options{Depth: 64})
	for range 20 {
		for b := range 64 {
			for i, q := range g.Queues() {
				require.True(t, q.Submit(b, blk.OpWrite, blk.Sector((64*i+b)*sectors), []guest.Buf{q.Buffer(b)}))
			}
		}
		for _, q := range g.Queues() {
			q.Kick()
		}
		for _, q := range g.Queues() {
			finish(t, q, 64)
		}
	}
	s, err := d.DomainStats("d")
	require.NoError(t, err)
	merged := uint64(0)
	for _, who := range s.Merges.Merged {
		for _, n := range who {
			merged += n
		}
	}
	require.NotZero(t, merged)
	require.Equal(t, s.Op[blk.OpWrite].Merges, merged)
}

package sched

import (
	"cmp"
	"fmt"
	"slices"
	"testing"

	"github.com/elevisor/elevisor/blk"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// chaos drives a Timeslice through whatever a loop and an operator may do, and
// knows where each request has to be.
type chaos struct {
	t      *rapid.T
	s      *Timeslice
	cfg    *Config
	now    blk.Instant
	disks  [2]blk.Disk
	seq    uint64
	queued map[*blk.Request]bool
	retry  []*blk.Request // parts of failed groups, in that order
	issued []*blk.Request // heads
}

func TestTimeslice_losesNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cfg := &Config{MaxSectors: 64, NoMerges: rapid.IntRange(0, 2).Draw(t, "nomerges")}
		c := &chaos{t: t, s: newTimeslice(cfg), cfg: cfg, queued: map[*blk.Request]bool{}}
		c.disks[1].Index = 1
		t.Repeat(map[string]func(*rapid.T){
			"insert":   c.insert,
			"insert2":  c.insert,
			"dispatch": c.dispatch,
			"complete": c.complete,
			"drain":    c.drain,
			"set":      c.set,
			"advance":  func(t *rapid.T) { c.now += blk.Instant(rapid.IntRange(0, 400).Draw(t, "us")) * us },
			"":         c.check,
		})
		require.Len(t, c.s.Drain(blk.AllSources, nil), len(c.queued))
		require.Zero(t, c.s.Len())
		for _, r := range c.issued {
			c.s.Complete(c.now, r)
		}
		for _, d := range c.s.known {
			require.True(t, d == nil || d.inflight == 0)
		}
		require.Nil(t, c.s.Dispatch(c.now))
		require.Equal(t, [1 << bucketBits][2]*blk.Request{}, c.s.merge.buckets)
	})
}

func (c *chaos) insert(t *rapid.T) {
	r := newRequest(t, &c.disks, &c.seq, c.now)
	c.queued[r] = true
	c.s.Insert(c.now, r)
}

// newRequest is small and has neighbours.
func newRequest(t *rapid.T, disks *[2]blk.Disk, seq *uint64, now blk.Instant) *blk.Request {
	*seq++
	src := blk.Source{Device: uint16(rapid.IntRange(0, 2).Draw(t, "device")), Queue: uint16(rapid.IntRange(0, 1).Draw(t, "queue"))}
	return &blk.Request{
		Op: blk.Op(rapid.IntRange(0, 1).Draw(t, "op")), Disk: &disks[rapid.IntRange(0, 1).Draw(t, "disk")],
		Sector: 8 * blk.Sector(rapid.IntRange(0, 12).Draw(t, "sector")), Sectors: 8,
		Source: src, Seq: *seq, Arrive: now, Segs: make([][]byte, 1),
	}
}

func (c *chaos) dispatch(t *rapid.T) {
	r := c.s.Dispatch(c.now)
	if r == nil {
		if c.s.Len() > 0 {
			require.Greater(t, c.s.Wake(), c.now)
			require.Less(t, c.s.Wake(), blk.Never, "stuck")
		}
		return
	}
	c.issued = append(c.issued, r)
	again := len(c.retry) > 0
	if again {
		require.Same(t, c.retry[0], r, "what is retried goes first")
		require.Nil(t, r.Merged)
		c.retry = c.retry[1:]
	}
	for p := r; p != nil; p = p.Merged {
		require.True(t, c.queued[p])
		delete(c.queued, p)
		if !again && c.s.slice > 0 {
			require.Same(t, c.s.owner, c.s.key(c.s.queue(p.Source)), "not the owner's")
		}
		if next := p.Merged; next != nil {
			require.Equal(t, p.End(), next.Sector)
			require.Same(t, p.Disk, next.Disk)
			require.Equal(t, p.Op, next.Op)
		}
	}
}

// take picks an issued head; nil if there is none.
func (c *chaos) take(t *rapid.T) *blk.Request {
	if len(c.issued) == 0 {
		return nil
	}
	i := rapid.IntRange(0, len(c.issued)-1).Draw(t, "which")
	r := c.issued[i]
	c.issued = slices.Delete(c.issued, i, i+1)
	return r
}

// complete ends a head, well or not: then its parts are tried alone, as the loop does.
func (c *chaos) complete(t *rapid.T) {
	r := c.take(t)
	if r == nil {
		return
	}
	c.s.Complete(c.now, r)
	if !rapid.Bool().Draw(t, "fails") || r.Merged == nil {
		return
	}
	for r != nil {
		next := r.Merged
		r.Merged = nil
		c.queued[r] = true
		c.retry = append(c.retry, r)
		c.s.Retry(c.now, r)
		r = next
	}
}

func (c *chaos) drain(t *rapid.T) {
	src := blk.Source{Device: uint16(rapid.IntRange(0, 2).Draw(t, "device")), Queue: blk.AnyQueue}
	if rapid.Bool().Draw(t, "one queue") {
		src.Queue = uint16(rapid.IntRange(0, 1).Draw(t, "queue"))
	}
	var want []*blk.Request
	for r := range c.queued {
		if src.Covers(r.Source) {
			want = append(want, r)
			delete(c.queued, r)
		}
	}
	slices.SortFunc(want, func(a, b *blk.Request) int { return cmp.Compare(a.Seq, b.Seq) })
	c.retry = slices.DeleteFunc(c.retry, func(r *blk.Request) bool { return src.Covers(r.Source) })
	got := c.s.Drain(src, nil)
	require.Equal(t, len(want), len(got))
	for i := range want {
		require.Same(t, want[i], got[i])
		require.Nil(t, got[i].Merged)
	}
}

func (c *chaos) set(t *rapid.T) {
	knob := rapid.SampledFrom([][2]string{
		{"time_slice_us", "0"}, {"time_slice_us", "250"}, {"time_slice_us", "1000"}, {"time_slice_us", "10"},
		{"slice_by", "queue"}, {"slice_by", "device"}, {"empty", "immediate"}, {"empty", "inflight"},
		{"extend", "always"}, {"extend", "never"}, {"extend", "rule-r"}, {"slice_extend_max", "1"}, {"slice_extend_max", "4"},
	}).Draw(t, "knob")
	require.NoError(t, c.s.Set(knob[0], knob[1]))
}

func (c *chaos) check(t *rapid.T) {
	require.Equal(t, len(c.queued), c.s.Len())
	inflight := 0
	for _, d := range c.s.known {
		if d == nil {
			continue
		}
		sum := 0
		for _, q := range d.queues {
			if q != nil {
				require.GreaterOrEqual(t, q.inflight, 0)
				sum += q.inflight
			}
		}
		require.Equal(t, d.inflight, sum)
		inflight += sum
	}
	require.Equal(t, len(c.issued), inflight)
	for i := range c.s.rings {
		waiting := 0
		for _, k := range c.s.rings[i].keys {
			busy := c.s.rings[i].busy[k.place/64]>>(k.place%64)&1 == 1
			require.Equal(t, k.list.Len() > 0, busy)
			if busy {
				waiting++
			}
		}
		require.Equal(t, waiting, c.s.rings[i].waiting)
	}
}

// What a metamorphic pair does with one history: time_slice_us=0 is none, to the
// last merge.
func TestTimeslice_zeroIsNone(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		nomerges := rapid.IntRange(0, 2).Draw(t, "nomerges")
		var cfgs [2]Config
		var ss [2]Scheduler
		for i, name := range []string{"none", "timeslice"} {
			cfgs[i] = Config{MaxSectors: 64, NoMerges: nomerges}
			s, err := New(name, &cfgs[i])
			require.NoError(t, err)
			ss[i] = s
		}
		require.NoError(t, Set(ss[1], "time_slice_us", "0"))
		var disks [2]blk.Disk
		var seq uint64
		var now blk.Instant
		var out [2][]*blk.Request
		both := func(do func(i int) string) {
			require.Equal(t, do(0), do(1))
			require.Equal(t, ss[0].Len(), ss[1].Len())
			require.Equal(t, ss[0].Wake(), ss[1].Wake())
			require.Equal(t, cfgs[0].Merges, cfgs[1].Merges)
		}
		insert := func(t *rapid.T) {
			r := newRequest(t, &disks, &seq, now)
			twin := *r
			both(func(i int) string {
				ss[i].Insert(now, []*blk.Request{r, &twin}[i])
				return ""
			})
		}
		end := func(t *rapid.T, do func(s Scheduler, r *blk.Request)) {
			if len(out[0]) == 0 {
				return
			}
			k := rapid.IntRange(0, len(out[0])-1).Draw(t, "which")
			both(func(i int) string {
				r := out[i][k]
				out[i] = slices.Delete(out[i], k, k+1)
				do(ss[i], r)
				return ""
			})
		}
		t.Repeat(map[string]func(*rapid.T){
			"insert":  insert,
			"insert2": insert,
			"dispatch": func(*rapid.T) {
				both(func(i int) string {
					r := ss[i].Dispatch(now)
					if r != nil {
						out[i] = append(out[i], r)
					}
					return group(r)
				})
			},
			"complete": func(t *rapid.T) { end(t, func(s Scheduler, r *blk.Request) { s.Complete(now, r) }) },
			"retry":    func(t *rapid.T) { end(t, func(s Scheduler, r *blk.Request) { retryParts(s, now, r) }) },
			"drain": func(t *rapid.T) {
				src := blk.Source{Device: uint16(rapid.IntRange(0, 2).Draw(t, "device")), Queue: uint16(rapid.IntRange(0, 1).Draw(t, "queue"))}
				both(func(i int) (all string) {
					for _, r := range ss[i].Drain(src, nil) {
						all += group(r) + ";"
					}
					return all
				})
			},
			"advance": func(t *rapid.T) { now += blk.Instant(rapid.IntRange(0, 400).Draw(t, "us")) * us },
		})
	})
}

// group names the parts of r's group.
func group(r *blk.Request) (s string) {
	for ; r != nil; r = r.Merged {
		s += fmt.Sprint(r.Seq, " ")
	}
	return s
}

// A knob that is refused leaves everything as it was.
func TestTimeslice_refusedChangesNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := newTimeslice(&Config{})
		before := s.Tunables()
		name := rapid.SampledFrom(s.knobs.names()).Draw(t, "knob")
		value := rapid.StringMatching(`-?[0-9]{0,12}[a-z]{0,2}`).Draw(t, "value")
		if err := s.Set(name, value); err != nil {
			require.ErrorContains(t, err, name)
			require.ErrorContains(t, err, value)
			require.Equal(t, before, s.Tunables())
			return
		}
		i := slices.IndexFunc(before, func(i Info) bool { return i.Name == name })
		before[i].Value = s.Tunables()[i].Value
		require.Equal(t, before, s.Tunables())
		require.NoError(t, s.Set(name, s.Tunables()[i].Value))
	})
}

package guest

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/elevisor/elevisor/blk"
	"github.com/elevisor/elevisor/sched"
	"github.com/elevisor/elevisor/sys/shm"
)

// blockScript drives a block layer from a transcript in testdata/block. Its words:
//
//	new [scheduler=S] [tags=N] [requests=N] [max-sectors=N] [nomerges=N] [noplug]
//	    [queues=N] [ring=N] [depth=N] [segments=N] [seg-max=N] [direct-descriptors]
//	read|write ID SECTOR+SECTORS[/SEGMENTS] [queue=N]     flush ID [queue=N]
//	kick
//	device                what the disk has, unserved
//	serve [n=N|all] [bad=SECTOR]      in the order of arrival, by default one
//	reap                  who is done
//	stats
type blockScript struct {
	r    *rig
	ids  map[int]string
	free [][]int // slots by queue
}

func TestBlockTranscripts(t *testing.T) {
	datadriven.Walk(t, "testdata/block", func(t *testing.T, path string) {
		x := &blockScript{}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string { return x.do(t, d) })
		for x.r.InFlight() > 0 { // nothing may be left behind
			x.r.Kick()
			x.r.look(t)
			x.r.serve(0)
			_, err := x.r.Reap(func(Done) {})
			require.NoError(t, err)
		}
		require.Zero(t, x.r.live)
		require.Zero(t, x.r.flying)
	})
}

func (x *blockScript) do(t *testing.T, d *datadriven.TestData) string {
	var out bytes.Buffer
	switch d.Cmd {
	case "new":
		x.start(t, d)
	case "read", "write", "flush":
		x.submit(t, d, &out)
	case "kick":
		x.r.Kick()
	case "device":
		x.r.look(t)
		for _, h := range x.r.held {
			h.describe(&out)
			fmt.Fprintln(&out)
		}
	case "serve":
		x.serve(t, d)
	case "reap":
		x.reap(t, &out)
	case "stats":
		s := x.r.Stats()
		fmt.Fprintf(&out, "submitted %d issued %d sectors %d retried %d merged %d\n", s.Submitted, s.Issued, s.Sectors, s.Retried, s.Merged())
		for place, who := range s.Merges.Merged {
			for w, n := range who {
				if n > 0 {
					fmt.Fprintf(&out, "%s, %s: %d\n", sched.PlaceNames[place], sched.WhoNames[w], n)
				}
			}
		}
		for why, n := range s.Merges.Refused {
			if n > 0 {
				fmt.Fprintf(&out, "refused, %s: %d\n", sched.ReasonNames[why], n)
			}
		}
	default:
		d.Fatalf(t, "unknown word")
	}
	return out.String()
}

func (x *blockScript) start(t *testing.T, d *datadriven.TestData) {
	var o rigOptions
	max := 0
	for key, to := range map[string]*int{
		"tags": &o.Tags, "requests": &o.Requests, "nomerges": &o.NoMerges, "max-sectors": &max,
		"queues": &o.Queues, "ring": &o.QueueSize, "depth": &o.Depth, "segments": &o.Segments, "seg-max": &o.segMax,
	} {
		d.MaybeScanArgs(t, key, to)
	}
	d.MaybeScanArgs(t, "scheduler", &o.Scheduler)
	o.MaxSectors, o.NoPlug, o.MaxIO = blk.Sector(max), d.HasArg("noplug"), 1<<17
	if d.HasArg("direct-descriptors") {
		o.features = DefaultFeatures &^ (1 << 28)
	}
	x.r = newRig(t, o)
	x.ids, x.free = map[int]string{}, nil
	n := 0
	for _, q := range x.r.g.queues {
		var free []int
		for range q.Depth() {
			free = append(free, n)
			n++
		}
		x.free = append(x.free, free)
	}
}

func (x *blockScript) submit(t *testing.T, d *datadriven.TestData, out *bytes.Buffer) {
	op := map[string]blk.Op{"read": blk.OpRead, "write": blk.OpWrite, "flush": blk.OpFlush}[d.Cmd]
	queue, at, n, segs := 0, blk.Sector(0), 0, 1
	d.MaybeScanArgs(t, "queue", &queue)
	slot := x.free[queue][0]
	var data []Buf
	if op != blk.OpFlush {
		got, _ := fmt.Sscanf(d.CmdArgs[1].String(), "%d+%d/%d", &at, &n, &segs)
		require.GreaterOrEqual(t, got, 2, d.Pos)
		for i := range segs {
			part := n * blk.SectorSize / segs
			data = append(data, x.r.Buffer(slot).Slice(i*part, (i+1)*part))
		}
	}
	if !x.r.Submit(slot, op, at, data) {
		fmt.Fprintln(out, "no room")
		return
	}
	x.free[queue] = x.free[queue][1:]
	x.ids[slot] = d.CmdArgs[0].String()
}

func (x *blockScript) serve(t *testing.T, d *datadriven.TestData) {
	n, bad := 1, -1
	d.MaybeScanArgs(t, "n", &n)
	d.MaybeScanArgs(t, "bad", &bad)
	x.r.look(t)
	if d.HasArg("all") {
		n = len(x.r.held)
	}
	for _, toy := range x.r.toys {
		toy.bad = map[blk.Sector]bool{blk.Sector(bad): bad >= 0}
	}
	for range n {
		x.r.serve(0)
	}
}

func (x *blockScript) reap(t *testing.T, out *bytes.Buffer) {
	var done []string
	n, err := x.r.Reap(func(d Done) {
		s := x.ids[d.Slot]
		if d.Status != blk.StatusOK {
			s += "=" + d.Status.String()
		}
		done = append(done, s)
		q := 0
		for d.Slot >= (q+1)*x.r.g.queues[0].Depth() {
			q++
		}
		x.free[q] = append(x.free[q], d.Slot)
	})
	require.NoError(t, err)
	require.Equal(t, n, len(done))
	if len(done) == 0 {
		done = []string{"nobody"}
	}
	fmt.Fprintln(out, strings.Join(done, " "))
}

// sequential keeps depth requests of 4 KiB in the block layer, one submission at a
// time if batch is 1; the disk serves one request at a time. It is what fio does on
// a disk with limited IOPS.
func sequential(t *testing.T, r *rig, depth, batch, total int, sector func(i int) blk.Sector, slotOf func(i int) int) BlockStats {
	t.Helper()
	var free []int
	for i := range depth {
		free = append(free, slotOf(depth-1-i))
	}
	back, sent := 0, 0
	for back < total {
		for (len(free) >= batch || sent > 0 && total-sent < batch) && sent < total {
			n := min(batch, total-sent, len(free))
			for range n {
				slot := free[len(free)-1]
				if !r.Submit(slot, blk.OpRead, sector(sent), []Buf{r.Buffer(slot).Slice(0, 4096)}) {
					n = 0
					break
				}
				free = free[:len(free)-1]
				sent++
			}
			r.Kick()
			if n == 0 {
				break
			}
		}
		r.mustLook(t)
		r.serve(0)
		_, err := r.Reap(func(d Done) {
			assert.Equal(t, Done{Slot: d.Slot, Written: 4097}, d)
			free = append(free, d.Slot)
			back++
		})
		require.NoError(t, err)
	}
	s := r.Stats()
	require.Equal(t, s.Submitted-s.Merged(), s.Issued)
	require.Equal(t, uint64(total*8), s.Sectors)
	return s
}

func contiguous(i int) blk.Sector { return blk.Sector(i * 8) }
func same(i int) int              { return i }

// TestBlockMergesWhereLinuxDoes repeats what was measured with fio in a real guest
// (4 KiB sequential, 32 deep): one request per io_submit merges nowhere while the
// device has tags, batches merge in the plug list with every scheduler, and a small
// queue makes a scheduler merge, but not none.
func TestBlockMergesWhereLinuxDoes(t *testing.T) {
	const total = 1024
	for _, name := range sched.Names {
		run := func(o BlockOptions, batch int) BlockStats {
			o.Scheduler = name
			r := newRig(t, rigOptions{Options: Options{QueueSize: 128, Depth: 32}, BlockOptions: o})
			return sequential(t, r, 32, batch, total, contiguous, same)
		}
		t.Run(name+"/deep ring, one by one", func(t *testing.T) {
			assert.Zero(t, run(BlockOptions{NoPlug: true}, 1).Merged())
		})
		t.Run(name+"/deep ring, batches of 16", func(t *testing.T) {
			s := run(BlockOptions{}, 16)
			assert.Equal(t, uint64(total/16), s.Issued, "64 KiB each")
			assert.Equal(t, uint64(total/16*15), s.Merges.Merged[sched.Batch][sched.SameQueue])
		})
		t.Run(name+"/8 tags, one by one", func(t *testing.T) {
			o := BlockOptions{NoPlug: true, Tags: 8, Requests: 128}
			if name == "none" {
				o.Requests = 8
			}
			s := run(o, 1)
			if name == "none" {
				assert.Zero(t, s.Merged())
			} else {
				assert.Less(t, s.Issued, uint64(total/2), "most are merged")
				assert.Zero(t, s.Merges.Merged[sched.Batch][sched.SameQueue], "there is no plug list")
			}
		})
	}
}

// TestBlockMergesAcrossQueues has two submitters, each on its queue, write the even
// and the odd blocks of one file: that is for a scheduler of the whole disk.
func TestBlockMergesAcrossQueues(t *testing.T) {
	for _, name := range []string{"none", "deadline"} {
		o := BlockOptions{NoPlug: true, Tags: 8, Scheduler: name}
		r := newRig(t, rigOptions{Options: Options{QueueSize: 128, Depth: 32, Queues: 2}, BlockOptions: o})
		s := sequential(t, r, 32, 1, 1024, contiguous, func(i int) int { return i%2*32 + i/2 })
		across := uint64(0)
		for _, who := range s.Merges.Merged {
			across += who[sched.OtherQueue]
		}
		if name == "none" {
			assert.Zero(t, s.Merged())
		} else {
			assert.Greater(t, across, uint64(100))
		}
	}
}

func TestBlockOptionsRefused(t *testing.T) {
	g := newGuest(t, Options{QueueSize: 16, Segments: 4}, DefaultFeatures)
	for text, o := range map[string]BlockOptions{
		`scheduler "fair" is unknown`:                              {Scheduler: "fair"},
		"tags=17 is not from 1 to 16":                              {Tags: 17},
		"tags=-1 is not from 1 to 16":                              {Tags: -1},
		"nr_requests=9 is not from 1, and with none to the 8 tags": {Tags: 8, Requests: 9},
		"nr_requests=-1 is not from 1":                             {Requests: -1},
		"nomerges=3 is not from 0 to 2":                            {NoMerges: 3},
	} {
		_, err := NewBlock(g.queues, o)
		assert.ErrorContains(t, err, text)
	}
	_, err := NewBlock(nil, BlockOptions{})
	assert.ErrorContains(t, err, "without a queue")
	tiny := newGuest(t, Options{QueueSize: 2}, 0)
	_, err = NewBlock(tiny.queues, BlockOptions{})
	assert.ErrorContains(t, err, "no room for a data segment")
	b, err := NewBlock(g.queues, BlockOptions{})
	require.NoError(t, err)
	assert.Panics(t, func() { b.Submit(0, blk.OpDiscard, 0, nil) })
	assert.Panics(t, func() { b.Submit(0, blk.OpRead, 0, make([]Buf, 5)) })
	require.True(t, b.Submit(0, blk.OpFlush, 0, nil))
	assert.Panics(t, func() { b.Submit(0, blk.OpFlush, 0, nil) }, "the slot is taken")
}

// TestBlockIsTheBareQueue: without a scheduler, a deep ring and nothing to merge,
// the device sees what it would see without a block layer.
func TestBlockIsTheBareQueue(t *testing.T) {
	seen := func(r *rig, q driver) string {
		var out bytes.Buffer
		for i := range 500 {
			slot := i % 16
			for slot == 0 && q.InFlight() > 0 {
				r.look(t)
				for len(r.held) > 0 {
					r.held[0].describe(&out)
					fmt.Fprintln(&out)
					r.serve(0)
				}
				_, err := q.Reap(func(Done) {})
				require.NoError(t, err)
			}
			op := blk.Op(i * 7 % 3)
			var data []Buf
			if op != blk.OpFlush {
				data = []Buf{q.Buffer(slot).Slice(0, 512*(1+i%3))}
			}
			require.True(t, q.Submit(slot, op, blk.Sector(i*i*13%4000), data))
			if i%5 == 4 || slot == 15 {
				q.Kick()
			}
		}
		return out.String()
	}
	for _, noPlug := range []bool{false, true} {
		// A flush overtakes what is plugged, so none is among them where there is a plug.
		o := rigOptions{Options: Options{QueueSize: 16}, BlockOptions: BlockOptions{NoPlug: noPlug}}
		r := newRig(t, o)
		bare := newRig(t, o)
		got, want := seen(r, r.Block), seen(bare, bare.g.queues[0])
		if noPlug {
			assert.Equal(t, want, got)
		} else {
			assert.ElementsMatch(t, strings.Split(want, "\n"), strings.Split(got, "\n"))
		}
	}
}

// sleepy is a scheduler that gives nothing up before its time.
type sleepy struct {
	sched.None
	until blk.Instant
}

func (s *sleepy) Wake() blk.Instant {
	if s.Len() == 0 {
		return blk.Never
	}
	return s.until
}

func (s *sleepy) Dispatch(now blk.Instant) *blk.Request {
	if now < s.until {
		return nil
	}
	return s.None.Dispatch(now)
}

// TestBlockWakesByTimeAlone: a scheduler that idles goes on without anybody's doing
// while the submitter waits.
func TestBlockWakesByTimeAlone(t *testing.T) {
	for _, poll := range []bool{false, true} {
		r := newRig(t, rigOptions{Options: Options{QueueSize: 16, Poll: poll}})
		s := &sleepy{until: r.clock.Now() + blk.Instant(20*time.Millisecond)}
		r.Block.sched = s
		r.toys[0].start(t)
		require.True(t, r.Submit(0, blk.OpRead, 0, []Buf{r.Buffer(0).Slice(0, 512)}))
		r.Kick()
		assert.Equal(t, 1, s.Len())
		assert.ErrorIs(t, r.Wait(time.Microsecond), ErrTimeout)
		require.NoError(t, r.Wait(time.Minute))
		assert.GreaterOrEqual(t, r.clock.Now(), s.until)
		n, err := r.Reap(func(Done) {})
		require.NoError(t, err)
		assert.Equal(t, 1, n)
	}
}

// TestBlockWaitFlushesThePlug: who sleeps has submitted what there is.
func TestBlockWaitFlushesThePlug(t *testing.T) {
	r := newRig(t, rigOptions{Options: Options{QueueSize: 16, Queues: 2}})
	for _, d := range r.toys {
		d.start(t)
	}
	for _, slot := range []int{3, 19} { // one on each queue
		require.True(t, r.Submit(slot, blk.OpRead, 0, []Buf{r.Buffer(slot).Slice(0, 512)}))
		require.NoError(t, r.Wait(time.Minute))
		_, err := r.Reap(func(d Done) { assert.Equal(t, slot, d.Slot) })
		require.NoError(t, err)
	}
	assert.ErrorIs(t, r.Wait(time.Millisecond), ErrTimeout)
	r.g.Disconnect()
	assert.ErrorIs(t, r.Wait(time.Minute), ErrGone)
}

// TestBlockDeviceLies has a device return a chain twice.
func TestBlockDeviceLies(t *testing.T) {
	r := newRig(t, rigOptions{Options: Options{QueueSize: 16}})
	require.True(t, r.Submit(0, blk.OpFlush, 0, nil))
	ring := r.g.queues[0].ring
	head := binary.LittleEndian.Uint16(ring.Avail.Bytes[4:])
	for i := range 2 {
		binary.LittleEndian.PutUint32(ring.Used.Bytes[4+8*i:], uint32(head))
		shm.Store16(ring.Used.Bytes, 2, uint16(i+1))
	}
	n, err := r.Reap(func(d Done) { assert.Equal(t, Done{Status: statusPending}, d) })
	assert.Equal(t, 1, n)
	assert.ErrorContains(t, err, "not in flight")
}

// TestBlockSharesWhatWasWritten: a device that claims to have written less than it
// was asked for, claims so of the last parts.
func TestBlockSharesWhatWasWritten(t *testing.T) {
	r := newRig(t, rigOptions{Options: Options{QueueSize: 16}})
	for slot := range 4 {
		require.True(t, r.Submit(slot, blk.OpRead, blk.Sector(slot), []Buf{r.Buffer(slot).Slice(0, 512)}))
	}
	r.Kick()
	r.look(t)
	require.Len(t, r.held, 1)
	c := &r.held[0].chain
	c.Segs[len(c.Segs)-1][0] = byte(blk.StatusOK)
	r.toys[0].ring.Push(c.ID, 512+100+1)
	r.toys[0].ring.Publish()
	written := map[int]uint32{}
	_, err := r.Reap(func(d Done) { written[d.Slot] = d.Written })
	require.NoError(t, err)
	assert.Equal(t, map[int]uint32{0: 513, 1: 101, 2: 1, 3: 1}, written)
}

// TestBlockOddLengths: a request that is not whole sectors long is the device's to
// refuse; in a group it would shift its neighbours' data.
func TestBlockOddLengths(t *testing.T) {
	for _, name := range sched.Names {
		r := newRig(t, rigOptions{Options: Options{QueueSize: 16}, BlockOptions: BlockOptions{Scheduler: name}})
		for slot, n := range []int{512, 700, 512} {
			require.True(t, r.Submit(slot, blk.OpWrite, blk.Sector(slot), []Buf{r.Buffer(slot).Slice(0, n)}))
		}
		r.Kick()
		r.look(t)
		assert.Len(t, r.held, 3)
	}
}

// TestBlockDefaults are the kernel's, of blk_mq_init_sched and of what a ring gives.
func TestBlockDefaults(t *testing.T) {
	for _, c := range []struct {
		name           string
		queues, ring   int
		tags           int
		wantTags, want int
	}{
		{"none", 1, 128, 0, 128, 128},
		{"none", 2, 128, 0, 256, 256},
		{"none", 1, 128, 8, 8, 8},
		{"deadline", 1, 128, 8, 8, 16},
		{"deadline", 1, 128, 0, 128, 256},
		{"deadline", 1, 256, 0, 256, 256},
	} {
		r := newRig(t, rigOptions{
			Options:      Options{Queues: c.queues, QueueSize: c.ring, Depth: 4},
			BlockOptions: BlockOptions{Scheduler: c.name, Tags: c.tags},
		})
		assert.Equal(t, c.wantTags, r.tags, "%+v", c)
		assert.Equal(t, c.want, r.requests, "%+v", c)
		assert.Equal(t, blk.Sector(2560), r.cfg.MaxSectors)
		assert.Equal(t, 64, r.cfg.MaxSegments)
	}
}

package backend

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"github.com/elevisor/elevisor/blk"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// world is a disk in virtual time.
type world struct {
	Backend
	now  blk.Instant
	done []*blk.Request
}

// newWorld attaches img to a loop of that depth.
func newWorld(t testing.TB, img Image, depth int) *world {
	t.Helper()
	b, err := img.Attach(Host{Depth: depth, Wakeup: func() {}})
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, b.Close())
		require.NoError(t, img.Close())
	})
	return &world{Backend: b}
}

// submit offers r, which is free or queued.
func (w *world) submit(r *blk.Request) bool {
	if r.State() == blk.StateFree {
		r.Move(blk.StateFree, blk.StateQueued)
	}
	return w.Submit(w.now, r)
}

// reap returns what is finished, valid until the next call, and frees it.
func (w *world) reap(t testing.TB) []*blk.Request {
	require.NoError(t, w.Commit())
	w.done = w.Reap(w.now, w.done[:0])
	for _, r := range w.done {
		r.Move(blk.StateDone, blk.StateFree)
	}
	return w.done
}

// next goes on to the instant that the disk wants to be woken at; false: none.
func (w *world) next() bool {
	wake := w.Wake()
	if wake == blk.Never {
		return false
	}
	w.now = max(w.now, wake)
	return true
}

func memDisk(t testing.TB, size int) Image {
	t.Helper()
	img, err := Open(fmt.Sprintf("mem:?size=%d", size), Options{Discard: true})
	require.NoError(t, err)
	return img
}

// narrow has room for few requests at a time, as some backends do.
type narrow struct {
	Wrapper
	room, n int
}

func newNarrow(inner Image, room int) Image {
	return &decorated{inner, func(b Backend, _ Host) Backend { return &narrow{Wrapper: Wrapper{b}, room: room} }}
}

func (b *narrow) Submit(now blk.Instant, r *blk.Request) bool {
	if b.n == b.room || !b.Backend.Submit(now, r) {
		return false
	}
	b.n++
	return true
}

func (b *narrow) Reap(now blk.Instant, done []*blk.Request) []*blk.Request {
	n := len(done)
	done = b.Backend.Reap(now, done)
	b.n -= len(done) - n
	return done
}

// transcript drives a stack of decorators from a transcript in testdata. Its words:
//
//	disk [depth=N]             over memory; its lines, from the disk up:
//	    rate [iops=N] [bps=N]
//	    delay [fixed=DURATION] [jitter=DURATION] [seed=N]
//	    fault [op=OP] [range=SECTOR+SECTORS] [nth=N] [once=true] [errno=N]
//	    narrow room=N          takes so many at a time
//	submit ID OP [SECTOR+SECTORS]...   each further extent is merged behind the first
//	advance DURATION           what is finished then
//	run                        what is finished when, until nothing more comes
type transcript struct {
	*world
	ids map[*blk.Request]string
}

func TestDecorators_transcripts(t *testing.T) {
	datadriven.Walk(t, "testdata/decorators", func(t *testing.T, path string) {
		x := &transcript{}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string { return x.do(t, d) })
	})
}

func (x *transcript) do(t *testing.T, d *datadriven.TestData) string {
	switch d.Cmd {
	case "disk":
		depth := 8
		d.MaybeScanArgs(t, "depth", &depth)
		img := memDisk(t, 1<<20)
		for line := range strings.Lines(d.Input) {
			img = wrap(t, img, strings.Fields(line))
		}
		x.world, x.ids = newWorld(t, img, depth), map[*blk.Request]string{}
		return ""
	case "submit":
		r := x.request(t, d)
		if !x.submit(r) {
			return "full"
		}
		return x.wake()
	case "advance":
		by, err := time.ParseDuration(d.CmdArgs[0].String())
		require.NoError(t, err)
		x.now += blk.Instant(by)
		return x.finished(t) + x.wake()
	case "run":
		out := x.finished(t)
		for x.next() {
			out += x.finished(t)
		}
		return out + x.wake()
	}
	d.Fatalf(t, "unknown word")
	return ""
}

func (x *transcript) wake() string {
	if x.Wake() == blk.Never {
		return "wake never"
	}
	return "wake " + time.Duration(x.Wake()).String()
}

func (x *transcript) finished(t *testing.T) string {
	var out strings.Builder
	for _, r := range x.reap(t) {
		outcome := r.Status.String()
		if r.Status != blk.StatusOK {
			outcome = unix.ErrnoName(unix.Errno(r.Errno))
		}
		fmt.Fprintf(&out, "%v %s %s\n", time.Duration(x.now), x.ids[r], outcome)
	}
	return out.String()
}

func (x *transcript) request(t *testing.T, d *datadriven.TestData) (head *blk.Request) {
	head = &blk.Request{Op: opNamed(t, d.CmdArgs[1].String())}
	x.ids[head] = d.CmdArgs[0].String()
	for r, i := head, 2; i < len(d.CmdArgs); i++ {
		if i > 2 {
			r.Merged = &blk.Request{Op: head.Op}
			r = r.Merged
		}
		extent := extentOf(t, d.CmdArgs[i].String())
		r.Sector, r.Sectors = extent.Sector, extent.Sectors
		switch head.Op {
		case blk.OpDiscard, blk.OpWriteZeroes:
			r.Ranges = []blk.Range{extent}
		default:
			r.Segs = [][]byte{make([]byte, r.Bytes())}
		}
	}
	return head
}

func opNamed(t *testing.T, name string) blk.Op {
	for op := range blk.OpCount {
		if op.String() == name {
			return op
		}
	}
	t.Fatalf("unknown operation %q", name)
	return 0
}

func extentOf(t *testing.T, s string) (x blk.Range) {
	_, err := fmt.Sscanf(s, "%d+%d", &x.Sector, &x.Sectors)
	require.NoError(t, err, s)
	return x
}

// wrap puts the decorator that the words describe around img.
func wrap(t *testing.T, img Image, words []string) Image {
	args := map[string]string{}
	for _, w := range words[1:] {
		key, value, _ := strings.Cut(w, "=")
		args[key] = value
	}
	number := func(key string) uint64 {
		n, err := strconv.ParseUint(args[key], 10, 64)
		require.True(t, err == nil || args[key] == "", key)
		return n
	}
	duration := func(key string) time.Duration {
		v, err := time.ParseDuration(args[key])
		require.True(t, err == nil || args[key] == "", key)
		return v
	}
	switch words[0] {
	case "rate":
		return NewRate(img, RateOptions{IOPS: number("iops"), BPS: number("bps")})
	case "delay":
		img, err := NewDelay(img, DelayOptions{Fixed: duration("fixed"), Jitter: duration("jitter"), Seed: number("seed")})
		require.NoError(t, err)
		return img
	case "fault":
		f := Fault{Nth: number("nth"), Once: args["once"] != "", Errno: uint16(number("errno"))}
		if s := args["op"]; s != "" {
			f.Ops = []blk.Op{opNamed(t, s)}
		}
		if s := args["range"]; s != "" {
			f.Range = extentOf(t, s)
		}
		return NewFaults(img, f)
	case "narrow":
		return newNarrow(img, int(number("room")))
	}
	t.Fatalf("unknown decorator %q", words[0])
	return nil
}

func TestDelay_refusesNegative(t *testing.T) {
	img := memDisk(t, 4096)
	defer func() { require.NoError(t, img.Close()) }()
	for _, o := range []DelayOptions{{Fixed: -1}, {Jitter: -1}} {
		_, err := NewDelay(img, o)
		require.ErrorContains(t, err, "neither may be negative")
	}
}

// A delay at the end of all time still ends.
func TestDelay_endsBeforeNever(t *testing.T) {
	img, err := NewDelay(memDisk(t, 4096), DelayOptions{Fixed: 1<<63 - 1, Jitter: 1<<63 - 1})
	require.NoError(t, err)
	w := newWorld(t, img, 1)
	w.now = 7
	r := data(blk.OpWrite, 0, make([]byte, 512))
	require.True(t, w.submit(r))
	require.Empty(t, w.reap(t))
	require.True(t, w.next())
	require.Equal(t, []*blk.Request{r}, w.reap(t))
}

// One seed is one history, and another seed another one; two loops of an image
// do not draw the same numbers.
func TestDelay_seeds(t *testing.T) {
	wakes := func(w *world) (at []blk.Instant) {
		for i := range 8 {
			require.True(t, w.submit(data(blk.OpRead, blk.Sector(i), make([]byte, 512))))
		}
		for w.next() {
			at = append(at, w.now)
			require.NotEmpty(t, w.reap(t))
		}
		return at
	}
	disk := func(seed uint64) Image {
		img, err := NewDelay(memDisk(t, 4096), DelayOptions{Jitter: time.Second, Seed: seed})
		require.NoError(t, err)
		return img
	}
	img := disk(1)
	first := wakes(newWorld(t, img, 8))
	require.Equal(t, first, wakes(newWorld(t, disk(1), 8)))
	require.NotEqual(t, first, wakes(newWorld(t, disk(2), 8)))
	second, err := img.Attach(Host{Depth: 8})
	require.NoError(t, err)
	require.NotEqual(t, first, wakes(&world{Backend: second}))
	require.NoError(t, second.Close())
}

func TestDecorators_withoutWorkAreNone(t *testing.T) {
	img := memDisk(t, 4096)
	defer func() { require.NoError(t, img.Close()) }()
	require.Same(t, img, NewRate(img, RateOptions{}))
	require.Same(t, img, NewFaults(img))
}

// What is attached under a decorator may fail to attach.
func TestDecorators_passAttachErrorsOn(t *testing.T) {
	img, err := Open(sparse(t, 4096), Options{})
	require.NoError(t, err)
	defer func() { require.NoError(t, img.Close()) }()
	_, err = NewRate(img, RateOptions{IOPS: 1}).Attach(Host{})
	require.ErrorContains(t, err, "depth is 0")
}

// Decorators work over disks that wake the loop themselves, too.
func TestDecorators_overFiles(t *testing.T) {
	eachEngine(t, func(t *testing.T, aio AIO) {
		img, err := Open(sparse(t, modelSize), Options{AIO: aio})
		require.NoError(t, err)
		slow, err := NewDelay(newNarrow(img, 3), DelayOptions{Jitter: time.Millisecond})
		require.NoError(t, err)
		g := attach(t, NewRate(slow, RateOptions{IOPS: 1000}), 8)
		defer func() {
			g.close()
			require.NoError(t, img.Close())
		}()
		mem := memory(t, 2*32*4096)
		var writes, reads []*blk.Request
		for i := range 32 {
			writes = append(writes, data(blk.OpWrite, blk.Sector(i*8), fill(mem[i*4096:][:4096], byte(i+1))))
			reads = append(reads, data(blk.OpRead, blk.Sector(i*8), mem[(32+i)*4096:][:4096]))
		}
		g.do(writes...)
		g.do(reads...)
		requireOK(t, slices.Concat(writes, reads)...)
		require.Equal(t, mem[:32*4096], mem[32*4096:])
		require.GreaterOrEqual(t, time.Duration(g.now), 64*time.Millisecond)
	})
}

func TestDecorators_allocateNothing(t *testing.T) {
	slow, err := NewDelay(newNarrow(memDisk(t, modelSize), 3), DelayOptions{Jitter: time.Millisecond})
	require.NoError(t, err)
	img := NewFaults(NewRate(slow, RateOptions{IOPS: 1000, BPS: 1 << 20}),
		Fault{Nth: 3}, Fault{Ops: []blk.Op{blk.OpWrite}, Range: blk.Range{Sector: 8, Sectors: 8}})
	g := attach(t, img, 8)
	defer func() {
		g.close()
		require.NoError(t, img.Close())
	}()
	reqs := slices.Concat(batch(t, blk.OpRead, 16), batch(t, blk.OpWrite, 16))
	reqs = append(reqs, ranges(blk.OpWriteZeroes, 0, blk.Range{Sector: 0, Sectors: 8}), &blk.Request{Op: blk.OpFlush})
	g.done = make([]*blk.Request, 0, 64)
	require.Zero(t, testing.AllocsPerRun(50, func() { g.do(reqs...) }))
}

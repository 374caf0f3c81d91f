package sched

import (
	"bytes"
	"fmt"
	"io"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"github.com/elevisor/elevisor/blk"
	"github.com/stretchr/testify/require"
)

// script drives one scheduler from a transcript in testdata. Its words:
//
//	new NAME [max_sectors=N] [max_segments=N] [nomerges=N] [rotational]
//	insert                    one request a line, or one behind the word:
//	ID read|write|discard|write-zeroes SECTOR+SECTORS [from=DEVICE/QUEUE] [disk=N]
//	   [prio=rt|be|idle] [segs=N] [ranges=N] [flags=fua|unmap] [pos=SECTOR]
//	dispatch [n=N]            what comes out, groups in brackets, and what is left
//	turns N SECTOR+SECTORS [from=DEVICE/QUEUE] [think=DURATION] [step=SECTORS]
//	                          reads of one flow, one at a time, which take 100us each
//	complete ID...            heads
//	retry ID...               heads that failed: complete, and their parts tried alone
//	drain [from=DEVICE/QUEUE]
//	advance DURATION
//	set KEY VALUE
//	nomerges N                the domain's
//	tunables
//	counters                  those that are not zero
//	merges                    likewise
//	describe
type script struct {
	s     Scheduler
	cfg   *Config
	now   blk.Instant
	disks [4]blk.Disk
	reqs  map[string]*blk.Request
	ids   map[*blk.Request]string
	disk  map[*blk.Request]bool // heads
}

func TestTranscripts(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		if filepath.Ext(path) == ".fail" {
			t.Skip("a failure that rapid has kept, no transcript")
		}
		x := &script{reqs: map[string]*blk.Request{}, ids: map[*blk.Request]string{}, disk: map[*blk.Request]bool{}}
		for i := range x.disks {
			x.disks[i].Index = i
		}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			return x.do(t, d)
		})
	})
}

func (x *script) do(t *testing.T, d *datadriven.TestData) string {
	word := func(i int) string { return d.CmdArgs[i].String() }
	switch d.Cmd {
	case "new":
		x.cfg = &Config{Rotational: d.HasArg("rotational")}
		d.MaybeScanArgs(t, "max_sectors", &x.cfg.MaxSectors)
		d.MaybeScanArgs(t, "max_segments", &x.cfg.MaxSegments)
		d.MaybeScanArgs(t, "nomerges", &x.cfg.NoMerges)
		s, err := New(word(0), x.cfg)
		require.NoError(t, err)
		x.s = s
		return ""
	case "insert":
		x.insert(t, d)
		return x.left()
	case "turns":
		x.turns(t, d)
		return x.left()
	case "dispatch":
		n := 1
		d.MaybeScanArgs(t, "n", &n)
		return x.dispatch(n)
	case "retry":
		for i := range d.CmdArgs {
			retryParts(x.s, x.now, x.head(t, d, word(i)))
		}
		return x.left()
	case "complete":
		for i := range d.CmdArgs {
			x.s.Complete(x.now, x.head(t, d, word(i)))
		}
		return x.left()
	case "drain":
		var out bytes.Buffer
		for _, r := range x.s.Drain(x.source(t, d, blk.AllSources), nil) {
			fmt.Fprintf(&out, "%s ", x.ids[r])
		}
		return out.String() + "| " + x.left()
	case "advance":
		by, err := time.ParseDuration(word(0))
		require.NoError(t, err)
		x.now += blk.Instant(by)
		return ""
	}
	return x.ask(t, d)
}

// head takes a head off the disk.
func (x *script) head(t *testing.T, d *datadriven.TestData, id string) *blk.Request {
	r := x.reqs[id]
	if !x.disk[r] {
		d.Fatalf(t, "%s is no head on the disk", id)
	}
	delete(x.disk, r)
	return r
}

// retryParts does with a head whose group failed what the loop does.
func retryParts(s Scheduler, now blk.Instant, head *blk.Request) {
	s.Complete(now, head)
	for r := head; r != nil; {
		next := r.Merged
		r.Merged = nil
		s.Retry(now, r)
		r = next
	}
}

// ask answers the words that look or turn knobs.
func (x *script) ask(t *testing.T, d *datadriven.TestData) string {
	var out bytes.Buffer
	switch d.Cmd {
	case "set":
		if err := Set(x.s, d.CmdArgs[0].String(), d.CmdArgs[1].String()); err != nil {
			return err.Error()
		}
	case "nomerges":
		_, err := fmt.Sscan(d.CmdArgs[0].String(), &x.cfg.NoMerges)
		require.NoError(t, err)
	case "tunables":
		for _, i := range Tunables(x.s) {
			fmt.Fprintf(&out, "%s = %s %s (%s)\n", i.Name, i.Value, i.Unit, i.Valid)
		}
	case "counters":
		var c Counters
		Count(x.s, &c)
		printNonZero(&out, c)
	case "merges":
		x.printMerges(&out)
	case "describe":
		x.s.Describe(&out)
	default:
		d.Fatalf(t, "unknown word")
	}
	return out.String()
}

func printNonZero(out io.Writer, c Counters) {
	v := reflect.ValueOf(c)
	for i := range v.NumField() {
		if f := v.Field(i); !f.IsZero() {
			fmt.Fprintf(out, "%s %v\n", v.Type().Field(i).Name, f.Interface())
		}
	}
}

func (x *script) printMerges(out io.Writer) {
	m := x.cfg.Merges
	for p, row := range m.Merged {
		for w, n := range row {
			if n > 0 {
				fmt.Fprintf(out, "%s, %s: %d\n", PlaceNames[p], WhoNames[w], n)
			}
		}
	}
	for r, n := range m.Refused {
		if n > 0 {
			fmt.Fprintf(out, "refused for %s: %d\n", ReasonNames[r], n)
		}
	}
	fmt.Fprintf(out, "%d sectors\n", m.Sectors)
}

func (x *script) insert(t *testing.T, d *datadriven.TestData) {
	if d.Input == "" {
		x.insertOne(t, d)
		return
	}
	for _, line := range strings.Split(d.Input, "\n") {
		_, args, err := datadriven.ParseLine("insert " + line)
		require.NoError(t, err, d.Pos)
		x.insertOne(t, &datadriven.TestData{Pos: d.Pos, Cmd: d.Cmd, CmdArgs: args})
	}
}

func (x *script) insertOne(t *testing.T, d *datadriven.TestData) {
	r, id := x.request(t, d), d.CmdArgs[0].String()
	x.reqs[id], x.ids[r] = r, id
	x.s.Insert(x.now, r)
}

func (x *script) turns(t *testing.T, d *datadriven.TestData) {
	n, think, step := 0, "0", blk.Sector(0)
	_, err := fmt.Sscan(d.CmdArgs[0].String(), &n)
	require.NoError(t, err)
	d.MaybeScanArgs(t, "think", &think)
	d.MaybeScanArgs(t, "step", &step)
	after, err := time.ParseDuration(think)
	require.NoError(t, err)
	at, size := blk.Sector(0), blk.Sector(0)
	_, err = fmt.Sscanf(d.CmdArgs[1].String(), "%d+%d", &at, &size)
	require.NoError(t, err)
	for range n {
		r := &blk.Request{Op: blk.OpRead, Disk: &x.disks[0], Sector: at, Pos: at, Sectors: size, Source: x.source(t, d, blk.Source{})}
		x.now += blk.Instant(after)
		r.Arrive, r.Seq = x.now, uint64(len(x.ids))
		x.ids[r] = "turn"
		x.s.Insert(x.now, r)
		require.Same(t, r, x.s.Dispatch(x.now), d.Pos)
		x.now += 100 * microsecond
		x.s.Complete(x.now, r)
		at += size + step
	}
}

func (x *script) request(t *testing.T, d *datadriven.TestData) *blk.Request {
	ops := map[string]blk.Op{"read": blk.OpRead, "write": blk.OpWrite, "discard": blk.OpDiscard, "write-zeroes": blk.OpWriteZeroes}
	op, ok := ops[d.CmdArgs[1].String()]
	require.True(t, ok, "%s", d.Pos)
	r := &blk.Request{Op: op, Arrive: x.now, Seq: uint64(len(x.ids)), Source: x.source(t, d, blk.Source{})}
	_, err := fmt.Sscanf(d.CmdArgs[2].String(), "%d+%d", &r.Sector, &r.Sectors)
	require.NoError(t, err)
	disk, segs, ranges, prio, flags := 0, 1, 1, "be", ""
	r.Pos = r.Sector
	d.MaybeScanArgs(t, "disk", &disk)
	d.MaybeScanArgs(t, "segs", &segs)
	d.MaybeScanArgs(t, "ranges", &ranges)
	d.MaybeScanArgs(t, "prio", &prio)
	d.MaybeScanArgs(t, "flags", &flags)
	d.MaybeScanArgs(t, "pos", &r.Pos)
	r.Disk = &x.disks[disk]
	r.Prio = map[string]blk.Prio{"be": blk.PrioBE, "rt": blk.PrioRT, "idle": blk.PrioIdle}[prio]
	r.Flags = map[string]blk.Flags{"": 0, "fua": blk.FlagFUA, "unmap": blk.FlagUnmap}[flags]
	if op == blk.OpRead || op == blk.OpWrite {
		r.Segs = make([][]byte, segs)
	} else {
		r.Ranges = make([]blk.Range, ranges)
	}
	return r
}

func (x *script) source(t *testing.T, d *datadriven.TestData, s blk.Source) blk.Source {
	var from string
	if d.MaybeScanArgs(t, "from", &from); from != "" {
		s.Queue = blk.AnyQueue
		if n, _ := fmt.Sscanf(from, "%d/%d", &s.Device, &s.Queue); n == 0 {
			d.Fatalf(t, "from=%s", from)
		}
	}
	return s
}

func (x *script) dispatch(n int) string {
	var out bytes.Buffer
	for range n {
		r := x.s.Dispatch(x.now)
		if r == nil {
			fmt.Fprint(&out, "nothing ")
			break
		}
		r.Issue, x.disk[r] = x.now, true
		if r.Merged == nil {
			fmt.Fprintf(&out, "%s ", x.ids[r])
			continue
		}
		sep := "["
		for ; r != nil; r = r.Merged {
			fmt.Fprintf(&out, "%s%s", sep, x.ids[r])
			sep = " "
		}
		fmt.Fprint(&out, "] ")
	}
	return out.String() + "| " + x.left()
}

func (x *script) left() string {
	wake := "never"
	if w := x.s.Wake(); w != blk.Never {
		wake = time.Duration(w).String()
	}
	return fmt.Sprintf("%d queued, wake %s", x.s.Len(), wake)
}

func TestNew_unknown(t *testing.T) {
	_, err := New("cfq2", &Config{})
	require.ErrorContains(t, err, `"cfq2" is unknown`)
	require.ErrorContains(t, err, "none")
	s, err := New("noop", &Config{})
	require.NoError(t, err)
	require.IsType(t, &None{}, s)
}

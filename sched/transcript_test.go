package sched

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"github.com/elevisor/elevisor/blk"
	"github.com/stretchr/testify/require"
)

// script drives one scheduler from a transcript in testdata. Its words:
//
//	new NAME
//	insert ID read|write|discard SECTOR+SECTORS [from=DEVICE/QUEUE]
//	dispatch [n=N]            what comes out, and what is left
//	requeue ID
//	complete ID
//	drain [from=DEVICE/QUEUE]
//	advance DURATION
//	describe
type script struct {
	s    Scheduler
	now  blk.Instant
	disk blk.Disk
	reqs map[string]*blk.Request
	ids  map[*blk.Request]string
}

func TestTranscripts(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		x := &script{reqs: map[string]*blk.Request{}, ids: map[*blk.Request]string{}}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			return x.do(t, d)
		})
	})
}

func (x *script) do(t *testing.T, d *datadriven.TestData) string {
	word := func(i int) string { return d.CmdArgs[i].String() }
	switch d.Cmd {
	case "new":
		s, err := New(word(0))
		if err != nil {
			return err.Error()
		}
		x.s = s
		return ""
	case "insert":
		r := x.request(t, d)
		x.reqs[word(0)], x.ids[r] = r, word(0)
		x.s.Insert(x.now, r)
		return x.left()
	case "dispatch":
		n := 1
		d.MaybeScanArgs(t, "n", &n)
		return x.dispatch(n)
	case "requeue":
		r := x.reqs[word(0)]
		r.Move(blk.StateQueued, blk.StateQueued)
		x.s.Requeue(x.now, r)
		return x.left()
	case "complete":
		x.s.Complete(x.now, x.reqs[word(0)])
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
	case "describe":
		var out bytes.Buffer
		x.s.Describe(&out)
		return out.String()
	}
	d.Fatalf(t, "unknown word")
	return ""
}

func (x *script) request(t *testing.T, d *datadriven.TestData) *blk.Request {
	ops := map[string]blk.Op{"read": blk.OpRead, "write": blk.OpWrite, "discard": blk.OpDiscard}
	op, ok := ops[d.CmdArgs[1].String()]
	require.True(t, ok, "%s", d.Pos)
	r := &blk.Request{Op: op, Disk: &x.disk, Arrive: x.now, Source: x.source(t, d, blk.Source{})}
	_, err := fmt.Sscanf(d.CmdArgs[2].String(), "%d+%d", &r.Sector, &r.Sectors)
	require.NoError(t, err)
	r.Pos = r.Sector
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
		for ; r != nil; r = r.Merged {
			fmt.Fprintf(&out, "%s ", x.ids[r])
		}
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
	_, err := New("cfq2")
	require.ErrorContains(t, err, `"cfq2" is unknown`)
	require.ErrorContains(t, err, "none")
	s, err := New("noop")
	require.NoError(t, err)
	require.IsType(t, &None{}, s)
}

func BenchmarkNone(b *testing.B) {
	for _, depth := range []int{1, 32, 256} {
		b.Run(fmt.Sprint(depth), func(b *testing.B) {
			s, reqs := &None{}, make([]blk.Request, depth)
			b.ReportAllocs()
			for b.Loop() {
				for i := range reqs {
					s.Insert(0, &reqs[i])
				}
				for range reqs {
					r := s.Dispatch(0)
					r.Move(blk.StateQueued, blk.StateFree)
					s.Complete(0, r)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(depth*b.N), "ns/request")
		})
	}
}

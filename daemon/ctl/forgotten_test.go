package ctl

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"reflect"
	"testing"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/elevisor/elevisor/backend"
	"github.com/elevisor/elevisor/device"
	"github.com/stretchr/testify/require"
)

// A field of statistics that somebody adds is summed over loops and shown. These tests
// set one field after the other, of nested structs too, and look for it.

// field is one number, text or histogram within a struct; set gives it a value.
type field struct {
	path string
	get  func(root reflect.Value) reflect.Value
}

var histogram = reflect.TypeFor[*hdrhistogram.Histogram]()

// fields lists all of typ.
func fields(t *testing.T, typ reflect.Type) (all []field) {
	self := func(v reflect.Value) reflect.Value { return v }
	switch {
	case typ == histogram, typ.Kind() >= reflect.Bool && typ.Kind() <= reflect.Float64, typ.Kind() == reflect.String:
		return []field{{"", self}}
	case typ.Kind() == reflect.Struct:
		for i := range typ.NumField() {
			for _, f := range fields(t, typ.Field(i).Type) {
				all = append(all, field{"." + typ.Field(i).Name + f.path, func(v reflect.Value) reflect.Value { return f.get(v.Field(i)) }})
			}
		}
	case typ.Kind() == reflect.Array:
		for i := range typ.Len() {
			for _, f := range fields(t, typ.Elem()) {
				all = append(all, field{fmt.Sprintf("[%d]%s", i, f.path), func(v reflect.Value) reflect.Value { return f.get(v.Index(i)) }})
			}
		}
	default:
		t.Fatalf("statistics of type %v: this test does not know what that is", typ)
	}
	return all
}

// with is a T that is zero but for one field.
func with[T any](t *testing.T, f field) *T {
	x := new(T)
	switch v := f.get(reflect.ValueOf(x).Elem()); {
	case v.Type() == histogram:
		h := hdrhistogram.New(1, 1<<40, 2)
		require.NoError(t, h.RecordValue(1<<22))
		v.Set(reflect.ValueOf(h))
	case v.CanUint():
		v.SetUint(1 << 22)
	case v.CanInt():
		v.SetInt(1 << 22)
	case v.Kind() == reflect.String:
		v.SetString("something")
	default:
		t.Fatalf("%s is a %v: this test does not know what that is", f.path, v.Type())
	}
	return x
}

// show is a view of a T: as text of whatever form.
type show[T any] func(x *T) string

// forgotten are the fields that add does not add, and those that make no difference to a
// view.
func forgotten[T any](t *testing.T, add func(sum, x *T), views map[string]show[T]) (lost []string) {
	for _, f := range fields(t, reflect.TypeFor[T]()) {
		x := with[T](t, f)
		if add != nil {
			sum := new(T)
			add(sum, x)
			if got := f.get(reflect.ValueOf(sum).Elem()); got.IsZero() {
				lost = append(lost, f.path+" is not summed")
			}
		}
		for name, view := range views {
			empty := new(T)
			if f.get(reflect.ValueOf(x).Elem()).Type() == histogram {
				f.get(reflect.ValueOf(empty).Elem()).Set(reflect.ValueOf(hdrhistogram.New(1, 1<<40, 2)))
			}
			if view(x) == view(empty) {
				lost = append(lost, f.path+" is not in "+name)
			}
		}
	}
	return lost
}

func text(t *testing.T, write func(w io.Writer) error) string {
	var b bytes.Buffer
	require.NoError(t, write(&b))
	return b.String()
}

func inJSON(t *testing.T, x any) string {
	b, err := json.Marshal(x)
	require.NoError(t, err)
	return string(b)
}

// unless takes the excused ones out, and finds it wrong if one needs no excuse.
func unless(t *testing.T, lost []string, excuses map[string]string) (left []string) {
	used := map[string]bool{}
	for _, l := range lost {
		if excuses[l] == "" {
			left = append(left, l)
		}
		used[l] = true
	}
	for e := range excuses {
		require.True(t, used[e], "%q needs no excuse", e)
	}
	return left
}

const flushSectors = "a flush moves nothing"

func TestForgotten_deviceStats(t *testing.T) {
	lost := forgotten(t, func(sum, x *device.Stats) { sum.Add(x) }, map[string]show[device.Stats]{
		"the disk's JSON":  func(x *device.Stats) string { return inJSON(t, NewStat(0, []DiskStat{{Total: *x}})) },
		"the queue's JSON": func(x *device.Stats) string { return inJSON(t, NewStat(0, []DiskStat{{Queues: []device.Stats{*x}}})) },
	})
	require.Empty(t, unless(t, lost, map[string]string{
		".IOTime is not summed":                     "of queues that were busy at the same time it is no sum; Device.Stats measures it",
		".Op[2].Sectors is not in the disk's JSON":  flushSectors,
		".Op[2].Sectors is not in the queue's JSON": flushSectors,
	}))
}

func TestForgotten_domainStats(t *testing.T) {
	lost := forgotten(t, func(sum, x *device.DomainStats) { sum.AddLoop(x) }, map[string]show[device.DomainStats]{
		"the domain's JSON": func(x *device.DomainStats) string {
			return inJSON(t, NewStat(0, []DiskStat{{DomainStats: *x}}).Domains)
		},
		"describe": func(x *device.DomainStats) string {
			return text(t, NewStat(0, []DiskStat{{DomainStats: *x}}).Domains[0].WriteText)
		},
	})
	require.Empty(t, unless(t, lost, map[string]string{
		".Scheduler is not summed":                         "it is the same in all loops",
		".Stats.Op[2].Sectors is not in the domain's JSON": flushSectors,
		".Stats.Op[2].Sectors is not in describe":          flushSectors,
	}))
}

func TestForgotten_recorderStats(t *testing.T) {
	require.Empty(t, forgotten(t, func(sum, x *backend.RecorderStats) { sum.Add(*x) }, map[string]show[backend.RecorderStats]{
		"the JSON": func(x *backend.RecorderStats) string { return inJSON(t, recorded(x)) },
		"describe": func(x *backend.RecorderStats) string { return text(t, recorded(x).WriteText) },
	}))
}

// A simulated drive has one loop, so there is nothing to sum.
func TestForgotten_simStats(t *testing.T) {
	complete := func(x *backend.SimStats) *Simulated {
		y := *x
		if y.Deviation == nil {
			y.Deviation = hdrhistogram.New(1, 1<<40, 2)
		}
		return NewSimulated(&y)
	}
	require.Empty(t, forgotten(t, nil, map[string]show[backend.SimStats]{
		"the JSON": func(x *backend.SimStats) string { return inJSON(t, complete(x)) },
		"describe": func(x *backend.SimStats) string { return text(t, complete(x).WriteText) },
	}))
}

// planted has a field that its Add forgets, and one that its view forgets.
type planted struct {
	Good   uint64
	Nested [2]struct {
		Unsummed, Unshown int
		Neither           string
	}
}

// The tests above find what they are for.
func TestForgotten_findsPlantedFields(t *testing.T) {
	add := func(sum, x *planted) {
		sum.Good += x.Good
		for i := range sum.Nested {
			sum.Nested[i].Unshown += x.Nested[i].Unshown
		}
		sum.Nested[0].Unsummed += x.Nested[0].Unsummed
	}
	view := func(x *planted) string {
		return fmt.Sprint(x.Good, x.Nested[0].Unsummed, x.Nested[1].Unsummed, x.Nested[1].Unshown)
	}
	require.Equal(t, []string{
		".Nested[0].Unshown is not in the view",
		".Nested[0].Neither is not summed", ".Nested[0].Neither is not in the view",
		".Nested[1].Unsummed is not summed",
		".Nested[1].Neither is not summed", ".Nested[1].Neither is not in the view",
	}, forgotten(t, add, map[string]show[planted]{"the view": view}))
}

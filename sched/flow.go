package sched

import "github.com/elevisor/elevisor/blk"

// flows assigns requests to flows. A fair scheduler in the kernel has a queue for each
// process; a host does not see processes, so a flow takes their place: a virtqueue, a
// whole device, or a sequential stream that was detected within a virtqueue. The knob
// "source" of such a scheduler says which.
//
// Flows are numbered from 0 in the order in which they are first seen. A number keeps its
// meaning when by changes; only a stream's number is reused for another stream. Nothing
// is allocated for a flow that has been seen.
type flows struct {
	by      flowBy
	devices []int             // 1 + number, by blk.Source.Device; 0: not seen
	queues  [][]flowsOfSource // by device and queue
	count   int
}

// flowBy is what a flow is.
type flowBy uint8

const (
	flowQueue flowBy = iota
	flowDevice
	flowStream
	flowByCount
)

var flowByNames = []string{flowQueue: "queue", flowDevice: "device", flowStream: "stream"}

// mergeWithinFlow keeps merges within one flow. Streams differ in blk.Source.Stream.
var mergeWithinFlow = [flowByCount]scope{flowQueue: withinSource, flowDevice: withinDevice, flowStream: withinSource}

// flowsOfSource are those of one virtqueue.
type flowsOfSource struct {
	queue   int // 1 + number
	streams *streams
}

// of returns the flow of r, which is being inserted, and sets r.Source.Stream. fresh says
// that the flow was not seen before, or is a stream that has taken over the number of
// another one.
func (f *flows) of(r *blk.Request) (number int, fresh bool) {
	r.Source.Stream = 0
	d, q := int(r.Source.Device), int(r.Source.Queue)
	for d >= len(f.devices) {
		f.devices, f.queues = append(f.devices, 0), append(f.queues, nil)
	}
	if f.by == flowDevice {
		return f.number(&f.devices[d])
	}
	for q >= len(f.queues[d]) {
		f.queues[d] = append(f.queues[d], flowsOfSource{})
	}
	s := &f.queues[d][q]
	if f.by == flowQueue {
		return f.number(&s.queue)
	}
	if s.streams == nil {
		s.streams = &streams{}
	}
	one, replaced := s.streams.find(r)
	if one == 0 { // what belongs to no stream is one flow for each queue
		return f.number(&s.queue)
	}
	r.Source.Stream = uint32(one)
	number, fresh = f.number(&s.streams.known[one-1].flow)
	return number, fresh || replaced
}

// number returns the number of the flow that is kept at place, a new one if it has none.
func (f *flows) number(place *int) (number int, fresh bool) {
	if *place == 0 {
		f.count++
		*place, fresh = f.count, true
	}
	return *place - 1, fresh
}

const (
	// streamsMax is how many sequential streams of one virtqueue are told apart: about
	// as many as a drive's cache has segments.
	streamsMax = 16
	// streamGap is how far from the end of a stream its next request may start, in
	// sectors: requests of a deep queue come a little out of order.
	streamGap = 256
)

// streams finds the sequential streams of one virtqueue by position. A request that starts
// where one that belonged to no stream ended makes a new stream; requests that start near
// the end of a stream belong to it.
type streams struct {
	known [streamsMax]stream
	ends  [streamsMax]edgeOf // of the latest requests that were of no stream
	at    int                // index of the oldest of ends
	clock uint64
}

// stream is one of them. used orders them by their last use; 0: a free place.
type stream struct {
	edgeOf
	used uint64
	flow int // 1 + number
}

// edgeOf is where a request or a stream ended.
type edgeOf struct {
	disk    *blk.Disk
	changes bool
	next    blk.Sector
}

// find returns 1 + the index of r's stream; 0: it belongs to none. replaced says that the
// stream is new.
func (s *streams) find(r *blk.Request) (one int, replaced bool) {
	s.clock++
	changes := r.Op.Changes()
	oldest := 0
	for i := range s.known {
		k := &s.known[i]
		if k.used == 0 || k.disk != r.Disk || k.changes != changes || r.Sector+streamGap < k.next || r.Sector > k.next+streamGap {
			if k.used < s.known[oldest].used {
				oldest = i
			}
			continue
		}
		k.used, k.next = s.clock, max(k.next, r.End())
		return i + 1, false
	}
	now := edgeOf{disk: r.Disk, changes: changes, next: r.End()}
	for i := range s.ends {
		if e := &s.ends[i]; e.disk == r.Disk && e.changes == changes && e.next == r.Sector {
			*e = edgeOf{}
			k := &s.known[oldest]
			k.edgeOf, k.used = now, s.clock
			return oldest + 1, true
		}
	}
	s.ends[s.at] = now
	s.at = (s.at + 1) % streamsMax
	return 0, false
}

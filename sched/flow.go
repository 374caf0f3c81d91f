package sched

import "github.com/elevisor/elevisor/blk"

// flows tells who asks. A fair scheduler of the kernel has a queue for each process;
// here, where processes cannot be seen, a flow stands for one: a virtqueue, a whole
// device, or a sequential stream that was detected within a virtqueue. Which of
// these, says the knob "source" of such a scheduler.
//
// Flows are numbered from 0 on in the order in which they are first seen. A number
// keeps its meaning, also when by changes; only that of a stream passes on to another
// one, which of says. Nothing is allocated for a flow that has been seen.
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

// mergeWithinFlow keeps merges within one flow: streams have a blk.Source of their own.
var mergeWithinFlow = [flowByCount]scope{flowQueue: withinSource, flowDevice: withinDevice, flowStream: withinSource}

// flowsOfSource are those of one virtqueue.
type flowsOfSource struct {
	queue   int // 1 + number
	streams *streams
}

// of says which flow r, which is being inserted, belongs to, and sets
// r.Source.Stream. fresh says that the flow was not seen before, or is a stream that
// has taken the number of one long unused.
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
	if one == 0 { // what is no stream is a flow as well, one for each queue
		return f.number(&s.queue)
	}
	r.Source.Stream = uint32(one)
	number, fresh = f.number(&s.streams.known[one-1].flow)
	return number, fresh || replaced
}

// number gives the flow at place its number.
func (f *flows) number(place *int) (number int, fresh bool) {
	if *place == 0 {
		f.count++
		*place, fresh = f.count, true
	}
	return *place - 1, fresh
}

const (
	// streamsMax is how many sequential streams of one virtqueue are told apart, as
	// many as a drive's own cache has segments for.
	streamsMax = 16
	// streamGap is how far before or behind the end of its furthest request a stream
	// may go on, in sectors: requests of a deep queue come a little out of order.
	streamGap = 256
)

// streams finds the sequential streams of one virtqueue by address: a request that
// begins where an earlier one ended begins a stream, and those that go on where it
// was are of it.
type streams struct {
	known [streamsMax]stream
	ends  [streamsMax]edgeOf // of the latest requests that were of no stream
	at    int                // the oldest of ends
	clock uint64
}

// stream is one. used orders the streams by their last use; 0: none.
type stream struct {
	edgeOf
	used uint64
	flow int // 1 + number
}

// edgeOf is where something ended.
type edgeOf struct {
	disk    *blk.Disk
	changes bool
	next    blk.Sector
}

// find returns 1 + the place of r's stream, 0 if it is of none. replaced says that
// the stream begins with r.
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

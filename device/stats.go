package device

import (
	"github.com/elevisor/elevisor/blk"
	"github.com/elevisor/elevisor/virtqueue"
)

// OpStats counts the finished requests of one operation.
type OpStats struct {
	Ops    uint64 // with any outcome
	Errors uint64 // of those, with a status other than OK
	Bytes  uint64 // of those that were OK
	Time   uint64 // ns from Pop to finish, summed
}

// QueueStats counts what one queue has seen since its device was made.
type QueueStats struct {
	Op     [blk.OpCount]OpStats
	Faults [virtqueue.FaultCount]uint64 // chains that could not be trusted
	Broken uint64                       // times that the ring made no sense
	Calls  uint64                       // notifications sent to the driver
}

func (s *QueueStats) count(r *blk.Request, now blk.Instant) {
	o := &s.Op[r.Op]
	o.Ops++
	o.Time += uint64(now - r.Arrive)
	if r.Status != blk.StatusOK {
		o.Errors++
		return
	}
	o.Bytes += uint64(r.Bytes())
}

// Add sums b into s.
func (s *QueueStats) Add(b *QueueStats) {
	for i := range s.Op {
		s.Op[i].Ops += b.Op[i].Ops
		s.Op[i].Errors += b.Op[i].Errors
		s.Op[i].Bytes += b.Op[i].Bytes
		s.Op[i].Time += b.Op[i].Time
	}
	for i := range s.Faults {
		s.Faults[i] += b.Faults[i]
	}
	s.Broken += b.Broken
	s.Calls += b.Calls
}

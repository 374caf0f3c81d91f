package vhost

import (
	"fmt"

	"go.uber.org/zap"

	"github.com/elevisor/elevisor/sys/shm"
	"github.com/elevisor/elevisor/virtqueue"
)

// inflightAlign is the alignment of an area and of each queue's part of it: the records
// contain 64-bit counters.
const inflightAlign = 8

// inflightPartMax bounds one queue's part of an area that a front-end sends, for the
// reason given at MaxMemory. It is more than any back-end makes for the largest ring.
const inflightPartMax = 2 << 20

// getInflight makes an area, which the device uses from now on, and sends it. If that
// fails, the reply is an area of length 0 without a descriptor: QEMU takes it for "none"
// and continues.
func (s *Session) getInflight(m Message) Reply {
	want := parseInflight(m.Payload)
	area := Inflight{Queues: want.Queues, QueueSize: want.QueueSize}
	fd, err := s.newInflight(&area)
	if err != nil {
		s.log.Warn("message refused", zap.Stringer("message", m.ID), zap.Error(err))
	}
	reply := answer(m.ID, area.bytes(len(m.Payload)))
	if err == nil {
		reply.FDs = []int{fd}
	}
	return reply
}

// newInflight makes the area for area.Queues and sets its size.
func (s *Session) newInflight(area *Inflight) (int, error) {
	if err := s.checkInflight(*area); err != nil {
		return -1, err
	}
	size := uint64(area.Queues) * uint64(virtqueue.InflightBytes(int(area.QueueSize)))
	fd, m, err := shm.Create("vhost-inflight", size, shm.Region{Size: size})
	if err != nil {
		return -1, err
	}
	if err := s.useInflight(m, int(area.Queues)); err != nil {
		closeAll([]int{fd})
		return -1, err
	}
	area.Size = size
	return fd, nil
}

// setInflight takes an area that a predecessor has made, or this session. The length of
// one queue's part follows from the length of the area: other back-ends make other
// records.
func (s *Session) setInflight(b []byte, in *received) error {
	area := parseInflight(b)
	fd, err := in.one()
	if err != nil {
		return err
	}
	if err := s.checkInflight(area); err != nil {
		return err
	}
	stride := area.Size / uint64(area.Queues)
	if stride == 0 || area.Size%uint64(area.Queues) != 0 || stride%inflightAlign != 0 || area.Offset%inflightAlign != 0 {
		return fmt.Errorf("in-flight area of %d bytes at offset %d for %d queues: parts are not equal, or not aligned to %d",
			area.Size, area.Offset, area.Queues, inflightAlign)
	}
	if stride > inflightPartMax {
		return fmt.Errorf("in-flight area has %d bytes for each queue, want at most %d", stride, inflightPartMax)
	}
	m, err := shm.Map(fd, shm.Region{Size: area.Size, Offset: area.Offset})
	if err != nil {
		return fmt.Errorf("in-flight area: %w", err)
	}
	return s.useInflight(m, int(area.Queues))
}

func (s *Session) checkInflight(area Inflight) error {
	if area.Queues == 0 || int(area.Queues) > len(s.rings) {
		return fmt.Errorf("in-flight area for %d queues, want 1 to %d", area.Queues, len(s.rings))
	}
	if area.QueueSize == 0 || area.QueueSize > virtqueue.MaxSize {
		return fmt.Errorf("in-flight area for queues of %d, want 1 to %d", area.QueueSize, virtqueue.MaxSize)
	}
	return nil
}

// useInflight takes over m, also with an error.
func (s *Session) useInflight(m *shm.Mapping, queues int) error {
	if err := s.dev.SetInflight(m, queues); err != nil {
		m.Release()
		return fmt.Errorf("use in-flight area: %w", err)
	}
	if s.inflight != nil {
		s.inflight.Release()
	}
	s.inflight = m
	return nil
}

func (s *Session) dropInflight() {
	if s.inflight == nil {
		return
	}
	if err := s.dev.SetInflight(nil, 0); err != nil {
		s.log.Error("device keeps the in-flight area of a front-end that has gone", zap.Error(err))
	}
	s.inflight.Release()
	s.inflight = nil
}

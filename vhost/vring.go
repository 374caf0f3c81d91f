package vhost

import (
	"fmt"

	"github.com/elevisor/elevisor/sys/eventfd"
	"github.com/elevisor/elevisor/virtqueue"
)

// ring is what the front-end has set for one ring. Whether it is enabled is known to
// Queues alone.
type ring struct {
	size    uint32    // 0: not set
	addr    VringAddr // without Index and Log
	placed  bool      // addr was set
	base    uint32    // where it starts, or where it stopped
	running bool
	stopped chan uint32 // not nil while it stops: gets the base
	call    *eventfd.FD // nil: nobody
	err     *eventfd.FD
}

func (s *Session) ring(i uint32) (*ring, error) {
	if uint64(i) >= uint64(len(s.rings)) {
		return nil, fmt.Errorf("ring %d does not exist, there are %d", i, len(s.rings))
	}
	return &s.rings[i], nil
}

// same refuses to change a running ring.
func (r *ring) same(i uint32, what string, equal bool) error {
	if r.running && !equal {
		return fmt.Errorf("ring %d is running, its %s cannot be changed", i, what)
	}
	return nil
}

func (s *Session) setVringNum(b []byte, _ *received) error {
	v := parseState(b)
	r, err := s.ring(v.Index)
	if err != nil {
		return err
	}
	if v.Num == 0 || v.Num > virtqueue.MaxSize || v.Num&(v.Num-1) != 0 {
		return fmt.Errorf("ring %d: size %d is not a power of two from 1 to %d", v.Index, v.Num, virtqueue.MaxSize)
	}
	if err := r.same(v.Index, "size", v.Num == r.size); err != nil {
		return err
	}
	r.size = v.Num
	return nil
}

func (s *Session) setVringBase(b []byte, _ *received) error {
	v := parseState(b)
	r, err := s.ring(v.Index)
	if err != nil {
		return err
	}
	if v.Num > 0xffff {
		return fmt.Errorf("ring %d: base %#x exceeds 16 bits", v.Index, v.Num)
	}
	if err := r.same(v.Index, "base", v.Num == r.base); err != nil {
		return err
	}
	r.base = v.Num
	return nil
}

func (s *Session) setVringAddr(b []byte, _ *received) error {
	v := parseAddr(b)
	r, err := s.ring(v.Index)
	if err != nil {
		return err
	}
	if v.Flags != 0 {
		return fmt.Errorf("ring %d: flags %#x, want 0: dirty logging was not offered", v.Index, v.Flags)
	}
	if v.Desc%16 != 0 || v.Avail%2 != 0 || v.Used%4 != 0 {
		return fmt.Errorf("ring %d: descriptor table at %#x, avail ring at %#x, used ring at %#x: not aligned to 16, 2 and 4",
			v.Index, v.Desc, v.Avail, v.Used)
	}
	if s.memory != nil { // before the first table there is nothing to check against; a start checks again
		if err := s.reachable(v.Index, v, r.size); err != nil {
			return err
		}
	}
	v.Index, v.Log = 0, 0
	if err := r.same(v.Index, "addresses", v == r.addr); err != nil {
		return err
	}
	r.addr, r.placed = v, true
	return nil
}

// reachable refuses ring addresses that are in no memory region. This is where it shows
// that a VM's RAM is not shared.
func (s *Session) reachable(i uint32, a VringAddr, size uint32) error {
	nd, na, nu := virtqueue.RingBytes(int(max(size, 1)))
	for _, part := range [...]struct {
		name string
		uva  uint64
		n    int
	}{{"descriptor table", a.Desc, nd}, {"avail ring", a.Avail, na}, {"used ring", a.Used, nu}} {
		ok := s.memory != nil
		if ok {
			_, ok = s.memory.User(part.uva, uint64(part.n))
		}
		if !ok {
			return fmt.Errorf("ring %d: %s at %#x, %d bytes, is in no shared memory region: "+
				"the VM's RAM must be shared (QEMU: memory-backend-memfd,share=on)", i, part.name, part.uva, part.n)
		}
	}
	return nil
}

// setVringKick starts a ring that is stopped. In the document the first kick starts it,
// but that may have come already; see Queues.Start.
func (s *Session) setVringKick(b []byte, in *received) error {
	i, r, none, err := s.ringOfFD(b)
	if err != nil {
		return err
	}
	if none {
		return fmt.Errorf("ring %d: no kick descriptor, and polling is not supported", i)
	}
	kick, err := in.notifier()
	if err != nil {
		return fmt.Errorf("ring %d: kick: %w", i, err)
	}
	if r.running {
		s.q.SetKick(int(i), kick)
		return nil
	}
	if err := s.startable(i, r); err != nil {
		kick.Close()
		return err
	}
	p := virtqueue.Params{
		Size: int(r.size), Desc: r.addr.Desc, Avail: r.addr.Avail, Used: r.addr.Used,
		Base: r.base, Kick: kick,
	}
	if err := s.q.Start(int(i), p); err != nil {
		return fmt.Errorf("ring %d: start: %w", i, err)
	}
	r.running = true
	s.back.ringStarted()
	return nil
}

func (s *Session) startable(i uint32, r *ring) error {
	switch {
	case !s.negotiated:
		return fmt.Errorf("ring %d: kick before SET_FEATURES", i)
	case r.size == 0:
		return fmt.Errorf("ring %d: kick before SET_VRING_NUM", i)
	case !r.placed:
		return fmt.Errorf("ring %d: kick before SET_VRING_ADDR", i)
	}
	return s.reachable(i, r.addr, r.size)
}

// ringOfFD reads the payload of SET_VRING_KICK, _CALL and _ERR; none says that no
// descriptor comes with it.
func (s *Session) ringOfFD(b []byte) (i uint32, r *ring, none bool, err error) {
	v := getU64(b)
	i = uint32(v & vringIndexMask)
	r, err = s.ring(i)
	return i, r, v&vringNoFD != 0, err
}

func (s *Session) setVringCall(b []byte, in *received) error {
	i, r, none, err := s.ringOfFD(b)
	if err != nil {
		return err
	}
	return replaceNotifier(&r.call, i, none, in, s.q.SetCall)
}

func (s *Session) setVringErr(b []byte, in *received) error {
	i, r, none, err := s.ringOfFD(b)
	if err != nil {
		return err
	}
	return replaceNotifier(&r.err, i, none, in, s.q.SetErr)
}

// replaceNotifier puts the descriptor of in, or none, into *at and calls set with it. The
// old one is closed last: until set returns it may be in use.
func replaceNotifier(at **eventfd.FD, i uint32, none bool, in *received, set func(int, virtqueue.Notifier)) error {
	if none {
		set(int(i), nil)
		(*at).Close()
		*at = nil
		return nil
	}
	e, err := in.notifier()
	if err != nil {
		return fmt.Errorf("ring %d: %w", i, err)
	}
	if err := e.NonBlocking(); err != nil {
		e.Close()
		return fmt.Errorf("ring %d: %w", i, err)
	}
	set(int(i), e)
	(*at).Close()
	*at = e
	return nil
}

func (s *Session) setVringEnable(b []byte, _ *received) error {
	v := parseState(b)
	if _, err := s.ring(v.Index); err != nil {
		return err
	}
	if v.Num > 1 {
		return fmt.Errorf("ring %d: enable %d, want 0 or 1", v.Index, v.Num)
	}
	s.q.Enable(int(v.Index), v.Num == 1)
	return nil
}

// getVringBase stops a ring and waits until it has stopped. The reply cannot express a
// refusal, so a ring that does not exist ends the session.
func (s *Session) getVringBase(m Message) (Reply, error) {
	v := parseState(m.Payload)
	r, err := s.ring(v.Index)
	if err != nil {
		return Reply{}, fmt.Errorf("%v: %w: %w", m.ID, err, ErrNoAnswer)
	}
	if r.running {
		s.beginStop(int(v.Index))
		if err := s.awaitStop(int(v.Index), s.quit); err != nil {
			return Reply{}, err
		}
	}
	return answer(m.ID, VringState{v.Index, r.base}.bytes()), nil
}

func (s *Session) beginStop(i int) {
	r := &s.rings[i]
	if r.stopped == nil {
		stopped := make(chan uint32, 1)
		r.stopped = stopped
		s.q.Stop(i, func(base uint32) { stopped <- base })
	}
}

func (s *Session) awaitStop(i int, quit <-chan struct{}) error {
	r := &s.rings[i]
	select {
	case r.base = <-r.stopped: // this one first, where quit is closed too
	default:
		select {
		case r.base = <-r.stopped:
		case <-quit:
			return fmt.Errorf("ring %d did not stop: %w", i, ErrQuit)
		}
	}
	r.running, r.stopped = false, nil
	s.back.ringStopped()
	return nil
}

// stopAll stops all rings at once and then waits for each.
func (s *Session) stopAll(quit <-chan struct{}) error {
	for i := range s.rings {
		if s.rings[i].running {
			s.beginStop(i)
		}
	}
	for i := range s.rings {
		if s.rings[i].running {
			if err := s.awaitStop(i, quit); err != nil {
				return err
			}
		}
	}
	return nil
}

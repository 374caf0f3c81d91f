package backend

import (
	"fmt"

	"github.com/elevisor/elevisor/backend/uring"
	"golang.org/x/sys/unix"
)

// slots are the ops of one backend, made when it is attached and used again and
// again. Their iovecs and bounce buffers lie in one mapping off the Go heap; the
// system gives it memory where it is first used, so that the bounce buffers cost
// nothing as long as guests send aligned requests.
type slots struct {
	ops    []op
	unused *op
	used   int // ops that are not on that list
	mem    []byte
}

func (s *slots) make(d *disk, depth int, async bool) error {
	const vecs = iovMax * uring.IovecSize
	each := vecs
	if d.info.Direct {
		each += bounceSize
	}
	mem, err := unix.Mmap(-1, 0, depth*each, unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		return fmt.Errorf("attach disk %s: map %d bytes for %d requests: %w", d.path, depth*each, depth, err)
	}
	s.mem, s.ops, s.used = mem, make([]op, depth), depth
	bounces := mem[depth*vecs:]
	for i := range s.ops {
		o := &s.ops[i]
		o.d, o.index, o.async = d, uint32(i), async
		o.iov = uring.Iovecs(mem[i*vecs:][:vecs])
		if d.info.Direct {
			o.bounce = bounces[i*bounceSize:][:bounceSize:bounceSize]
		}
		s.put(o)
	}
	return nil
}

// get takes an unused op, nil if there is none.
func (s *slots) get() *op {
	o := s.unused
	if o != nil {
		s.unused, o.link = o.link, nil
		s.used++
	}
	return o
}

func (s *slots) put(o *op) {
	s.unused, o.link = o, s.unused
	s.used--
}

// free gives the memory back. Nothing is in flight.
func (s *slots) free() error {
	mem := s.mem
	*s = slots{}
	return unix.Munmap(mem)
}

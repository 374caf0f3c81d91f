package backend

import (
	"sync"

	"github.com/elevisor/elevisor/blk"
	"golang.org/x/sys/unix"
)

// workersMax bounds the threads of one backend; QEMU's pool has as many.
const workersMax = 64

// threadsBackend carries requests out by blocking system calls in worker
// goroutines, each of which holds a thread while it is in one: what io_uring does
// inside the kernel, for systems that do not let us have it.
type threadsBackend struct {
	info  Info
	slots slots
	done  []*blk.Request // finished without any operation
	fresh queue          // submitted since the last Commit
	pool  pool
}

func newThreadsBackend(d *disk, h Host) (Backend, error) {
	b := &threadsBackend{info: d.info, done: make([]*blk.Request, 0, h.Depth)}
	b.info.Engine = "threads"
	if err := b.slots.make(d, h.Depth, false); err != nil {
		return nil, err
	}
	b.pool.init(min(h.Depth, workersMax), h.Wakeup)
	return b, nil
}

// Info implements Backend.
func (b *threadsBackend) Info() Info { return b.info }

// Submit implements Backend.
func (b *threadsBackend) Submit(_ blk.Instant, r *blk.Request) bool {
	o := b.slots.get()
	if o == nil {
		return false
	}
	r.Move(blk.StateQueued, blk.StateIssued)
	o.start(r)
	if o.plan() {
		b.fresh.push(o)
	} else {
		b.finish(o)
	}
	return true
}

func (b *threadsBackend) finish(o *op) {
	b.done = append(b.done, o.finish())
	b.slots.put(o)
}

// Commit implements Backend.
func (b *threadsBackend) Commit() error {
	if b.fresh.n > 0 {
		b.pool.giveAll(&b.fresh)
	}
	return nil
}

// Reap implements Backend.
func (b *threadsBackend) Reap(_ blk.Instant, done []*blk.Request) []*blk.Request {
	for o := b.pool.take(); o != nil; {
		next := o.link
		b.finish(o)
		o = next
	}
	for _, r := range b.done {
		r.Move(blk.StateIssued, blk.StateDone)
	}
	done = append(done, b.done...)
	b.done = b.done[:0]
	return done
}

// Wake implements Backend.
func (b *threadsBackend) Wake() blk.Instant { return blk.Never }

// Close implements Backend.
func (b *threadsBackend) Close() error {
	b.pool.close()
	return b.slots.free()
}

// queue is a list of ops in order, linked through their link.
type queue struct {
	head, tail *op
	n          int
}

func (q *queue) push(o *op) {
	o.link = nil
	if q.tail == nil {
		q.head = o
	} else {
		q.tail.link = o
	}
	q.tail = o
	q.n++
}

func (q *queue) pop() *op {
	o := q.head
	if o == nil {
		return nil
	}
	if q.head, o.link = o.link, nil; q.head == nil {
		q.tail = nil
	}
	q.n--
	return o
}

// pool runs ops to their end on up to max goroutines, which it starts as they are
// needed.
type pool struct {
	max    int
	wakeup func()

	mu      sync.Mutex
	work    sync.Cond
	todo    queue
	done    queue
	workers int
	idle    int
	closed  bool
	ended   sync.WaitGroup
}

func (p *pool) init(max int, wakeup func()) {
	p.max, p.wakeup, p.work.L = max, wakeup, &p.mu
}

// give hands o over, planned; it comes back by take.
func (p *pool) give(o *op) {
	var q queue
	q.push(o)
	p.giveAll(&q)
}

// giveAll hands over and empties q.
func (p *pool) giveAll(q *queue) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for o := q.pop(); o != nil; o = q.pop() {
		p.todo.push(o)
		switch {
		case p.idle >= p.todo.n:
			p.work.Signal()
		case p.workers < p.max:
			p.workers++
			p.ended.Go(p.run)
		}
	}
}

// take returns the finished ops, linked, or nil.
func (p *pool) take() *op {
	p.mu.Lock()
	defer p.mu.Unlock()
	o := p.done.head
	p.done = queue{}
	return o
}

// run is a worker.
func (p *pool) run() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		o := p.todo.pop()
		if o == nil {
			if p.closed {
				return
			}
			p.idle++
			p.work.Wait()
			p.idle--
			continue
		}
		p.mu.Unlock()
		for more := true; more; more = o.plan() {
			o.settle(o.perform())
		}
		p.mu.Lock()
		p.done.push(o)
		if p.done.n == 1 { // otherwise the loop was woken and has not come yet
			p.mu.Unlock()
			p.wakeup()
			p.mu.Lock()
		}
	}
}

// close ends the workers, after what they have.
func (p *pool) close() {
	p.mu.Lock()
	p.closed = true
	p.work.Broadcast()
	p.mu.Unlock()
	p.ended.Wait()
}

// perform carries out o.step by a system call that may block.
func (o *op) perform() int64 {
	s := &o.step
	fd := o.d.fds[s.file]
	var n int64
	var err error
	switch s.kind {
	case stepRead:
		n, err = sysVectored(unix.SYS_PREADV2, fd, s.iov, s.off, s.flags)
	case stepWrite:
		n, err = sysVectored(unix.SYS_PWRITEV2, fd, s.iov, s.off, s.flags)
	case stepSync:
		err = unix.Fdatasync(fd)
	case stepFallocate:
		err = unix.Fallocate(fd, s.flags, s.off, s.n)
	case stepCommand, stepTrim:
		err = sysDiscard(fd, s.off, s.n)
	}
	if errno, ok := err.(unix.Errno); ok {
		return -int64(errno)
	}
	return n
}

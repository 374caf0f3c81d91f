// Package guest is a complete fake guest: it connects to any vhost-user-blk
// server as a virtual machine monitor does, and drives the queues as a driver in
// the machine does. `elevisor-lab bench`, `demo` and the tests are made of it.
//
// Three layers, each usable without the next: [Memory] and [Ring] are bytes, in
// which a hostile test writes what it likes; [Session] is a connection; [Guest]
// owns all of it and offers a [Queue] per virtqueue, on which one goroutine
// submits and reaps requests without allocating. A [Block] may stand in front of
// the queues: Linux' block layer with a scheduler of its own.
//
// A guest outlives its server: after [Guest.Disconnect], or when the server has
// died, [Guest.Reconnect] goes on with the same memory, the same rings and the
// in-flight record, as QEMU does, and every request that was submitted comes back
// once. A driver that is returned a chain which is not in flight says so (see
// [Queue.Reap]); that makes "exactly once" checkable.
//
// A guest that is attached ([Attach]) has neither server nor connection: the device
// is stepped in the same goroutine, in virtual time.
package guest

import (
	"cmp"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/elevisor/elevisor/blk"
	"github.com/elevisor/elevisor/device"
	"github.com/elevisor/elevisor/sys/eventfd"
	"github.com/elevisor/elevisor/sys/shm"
	"github.com/elevisor/elevisor/vhost"
	"github.com/elevisor/elevisor/virtqueue"
)

// Options of a guest. Zero values stand for the defaults.
type Options struct {
	Queues    int           // default: all that the server has
	QueueSize int           // ring entries, a power of two; default 128
	Depth     int           // slots per queue, the most requests in flight; default QueueSize
	Segments  int           // the most data segments of a request, a Block's merged one too; default 1
	Ranges    int           // the most ranges of a discard or write-zeroes; default 1
	MaxIO     int           // bytes of each slot's data buffer; default 4096
	Poll      bool          // watch the used ring instead of waiting for calls
	Features  uint64        // wanted, if offered; default DefaultFeatures
	Protocol  uint64        // wanted protocol features, if offered; default DefaultProtocol
	Timeout   time.Duration // for connecting and for each answer; default 30 s
}

func (o *Options) normalize() {
	o.QueueSize = cmp.Or(o.QueueSize, 128)
	o.Depth = cmp.Or(o.Depth, o.QueueSize)
	o.Segments, o.Ranges = cmp.Or(o.Segments, 1), cmp.Or(o.Ranges, 1)
	o.MaxIO = cmp.Or(o.MaxIO, 4096)
	o.Features, o.Protocol = cmp.Or(o.Features, DefaultFeatures), cmp.Or(o.Protocol, DefaultProtocol)
	o.Timeout = cmp.Or(o.Timeout, 30*time.Second)
}

// The guest's one memory region. Its file offset is guardSize, so that all three
// addresses of a byte differ and mixing them up shows at once.
const (
	regionGPA = 0x1_0000_0000
	regionUVA = 0x7e00_0000_0000
)

// Guest is a virtual machine with one disk. Its methods may be called from any
// goroutine; each Queue belongs to one.
type Guest struct {
	opt      Options
	features uint64
	config   blk.Config
	mem      *Memory
	queues   []*Queue

	device *device.Device // of an attached guest; else nil
	wires  Wires          // likewise

	session atomic.Pointer[Session] // nil: not connected

	mu       sync.Mutex // one conversation at a time
	inflight vhost.Inflight
	record   int // descriptor of the in-flight region; -1: none
	bases    []uint32
	shared   bool // this session has been told the memory
}

// Start connects to the server at path and starts the queues.
func Start(path string, o Options) (_ *Guest, err error) {
	o.normalize()
	s, err := Connect(path, o.Features, o.Protocol, o.Timeout)
	if err != nil {
		return nil, err
	}
	g := &Guest{opt: o, features: s.Features, config: s.Config, record: -1}
	g.session.Store(s)
	defer func() {
		if err != nil {
			g.Close()
		}
	}()
	g.opt.Queues = cmp.Or(o.Queues, s.Queues)
	if o.Queues > s.Queues {
		return nil, fmt.Errorf("%d queues wanted, the server has %d", o.Queues, s.Queues)
	}
	if err = g.build(); err != nil {
		return nil, err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return g, g.start(s)
}

// build makes the memory and the queues.
func (g *Guest) build() (err error) {
	size := (uint64(g.opt.Queues)*queueBytes(&g.opt) + 0xfffff) &^ 0xfffff
	if g.mem, err = NewMemory(Place{GPA: regionGPA, UVA: regionUVA, Size: size}); err != nil {
		return err
	}
	a := &arena{m: g.mem, next: regionGPA}
	g.bases = make([]uint32, g.opt.Queues)
	for i := range g.opt.Queues {
		q, err := newQueue(g, i, a)
		if err != nil {
			return fmt.Errorf("queue %d: %w", i, err)
		}
		g.queues = append(g.queues, q)
	}
	return nil
}

// start brings the device up, as QEMU does at DRIVER_OK.
func (g *Guest) start(s *Session) error {
	if err := s.SetFeatures(g.features); err != nil {
		return err
	}
	if err := g.setInflight(s); err != nil {
		return err
	}
	if !g.shared {
		if err := s.ShareMemory(g.mem); err != nil {
			return err
		}
		g.shared = true
	}
	for i, q := range g.queues {
		err := s.StartRing(i, RingSetup{
			Ring: q.ring, Memory: g.mem, Base: g.bases[i],
			Kick: q.kick.Raw(), Call: q.call.Raw(), Err: q.err.Raw(),
		})
		if err != nil {
			return err
		}
		q.kick.Notify() // what was submitted while there was no server
	}
	return nil
}

// setInflight asks for the record of requests in flight once, and hands it back
// at each start.
func (g *Guest) setInflight(s *Session) (err error) {
	if s.Protocol&vhost.ProtocolInflightShmFD == 0 {
		return nil
	}
	if g.record < 0 {
		g.inflight, g.record, err = s.GetInflight(uint16(len(g.queues)), uint16(g.opt.QueueSize))
		if err != nil {
			return err
		}
	}
	if g.inflight.Size == 0 {
		return nil
	}
	return s.SetInflight(g.inflight, g.record)
}

// Features that were negotiated, the protocol's bit 30 included.
func (g *Guest) Features() uint64 { return g.features }

// Config is the configuration space as it was read when the guest started.
func (g *Guest) Config() blk.Config { return g.config }

// Memory of the guest.
func (g *Guest) Memory() *Memory { return g.mem }

// Queues of the guest, by index.
func (g *Guest) Queues() []*Queue { return g.queues }

// Session is the connection, nil while there is none. What is said over it behind
// the guest's back is the caller's business.
func (g *Guest) Session() *Session { return g.session.Load() }

// Connected says whether there is a connection that neither side has closed.
func (g *Guest) Connected() bool {
	s := g.session.Load()
	return s != nil && s.Alive()
}

func (g *Guest) indirect() bool { return g.features&virtqueue.FeatureIndirect != 0 }

// errNoServer is a conversation without a partner.
var errNoServer = errors.New("not connected to a server")

// Stop stops all queues: the server finishes what it took, and the answers are
// where it stopped. Resume goes on.
func (g *Guest) Stop() ([]uint32, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	s := g.session.Load()
	if s == nil {
		return nil, errNoServer
	}
	for i := range g.queues {
		base, err := s.StopRing(i)
		if err != nil {
			return nil, err
		}
		g.bases[i] = base
	}
	return append([]uint32(nil), g.bases...), nil
}

// Resume starts the queues again after a Stop, on the same connection.
func (g *Guest) Resume() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	s := g.session.Load()
	if s == nil {
		return errNoServer
	}
	return g.start(s)
}

// Disconnect closes the connection, at any moment, whatever is in flight.
func (g *Guest) Disconnect() {
	if s := g.session.Swap(nil); s != nil {
		s.Close()
	}
}

// Reconnect connects to a server of the same disk after the connection was lost
// and goes on where the rings stand: with the in-flight region that the first
// server gave, and with the used index as the base, since nobody but the lost
// server knew more (QEMU does the same). The owners of the queues need not stop.
func (g *Guest) Reconnect(path string) error {
	g.Disconnect()
	g.mu.Lock()
	defer g.mu.Unlock()
	s, err := Connect(path, g.opt.Features, g.opt.Protocol, g.opt.Timeout)
	if err != nil {
		return err
	}
	if err := g.adopt(s); err != nil {
		s.Close()
		return fmt.Errorf("reconnect to %s: %w", path, err)
	}
	return nil
}

func (g *Guest) adopt(s *Session) error {
	if missing := g.features &^ s.Offered; missing != 0 {
		return fmt.Errorf("features %#x of the old connection are not offered", missing)
	}
	if s.Queues < len(g.queues) {
		return fmt.Errorf("%d queues, the guest uses %d", s.Queues, len(g.queues))
	}
	for i, q := range g.queues {
		g.bases[i] = uint32(q.ring.UsedIdx())
	}
	g.shared = false
	g.session.Store(s)
	if err := g.start(s); err != nil {
		g.session.CompareAndSwap(s, nil)
		return err
	}
	return nil
}

// SetWriteback sets the disk's cache mode, where CONFIG_WCE was negotiated.
func (g *Guest) SetWriteback(on bool) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	s := g.session.Load()
	if s == nil {
		return errNoServer
	}
	mode := byte(0)
	if on {
		mode = 1
	}
	return s.SetConfig(blk.ConfigWriteback, []byte{mode})
}

// InflightRecord maps the server's record of requests in flight, for tests; nil
// where it keeps none. The caller releases it.
func (g *Guest) InflightRecord() (*shm.Mapping, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.record < 0 || g.inflight.Size == 0 {
		return nil, nil
	}
	return shm.Map(g.record, shm.Region{Size: g.inflight.Size, Offset: g.inflight.Offset})
}

// Close disconnects and gives everything up. The queues must not be in use.
func (g *Guest) Close() {
	g.Disconnect()
	g.mu.Lock()
	defer g.mu.Unlock()
	g.detach()
	for _, q := range g.queues {
		q.close()
	}
	g.queues = nil
	if g.record >= 0 {
		_ = unix.Close(g.record)
		g.record = -1
	}
	if g.mem != nil {
		_ = g.mem.Close()
		g.mem = nil
	}
}

// newFDs makes a queue's three descriptors.
func newFDs() (kick, call, err *eventfd.FD, _ error) {
	fds := [3]*eventfd.FD{}
	for i := range fds {
		fd, e := eventfd.New()
		if e != nil {
			for _, made := range fds[:i] {
				made.Close()
			}
			return nil, nil, nil, e
		}
		fds[i] = fd
	}
	return fds[0], fds[1], fds[2], nil
}

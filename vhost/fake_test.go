package vhost

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/elevisor/elevisor/sys/eventfd"
	"github.com/elevisor/elevisor/sys/shm"
	"github.com/elevisor/elevisor/virtqueue"
)

// fakeFeatures are those of a disk with everything that a front-end knows.
const fakeFeatures = 1<<2 | 1<<6 | 1<<9 | 1<<10 | 1<<11 | 1<<12 | 1<<13 | 1<<14 | 1<<28 | 1<<29 | 1<<32

const (
	fakeConfigSize = 60
	fakeWriteback  = 32
)

// fake is a device with queues that writes down what it is asked. It keeps what
// the contracts let it keep, so that a missing release shows as a leak.
type fake struct {
	mu   sync.Mutex
	said strings.Builder

	config   [fakeConfigSize]byte
	memory   *shm.Memory
	inflight *shm.Mapping
	rings    []fakeRing

	failMemory, failInflight, failStart bool
	hold                                bool // until release, Stop does not answer
	held                                []func()
	stopping                            chan int // gets each ring that Stop was called for, if there is room
}

type fakeRing struct {
	kick *eventfd.FD
	base uint32
	call virtqueue.Notifier
}

func newFake(queues int) *fake {
	f := &fake{rings: make([]fakeRing, queues), stopping: make(chan int, 64)}
	for i := range f.config {
		f.config[i] = byte(i)
	}
	return f
}

func (f *fake) note(format string, args ...any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	fmt.Fprintf(&f.said, "    "+format+"\n", args...)
}

// take is what was written down since the last take.
func (f *fake) take() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := f.said.String()
	f.said.Reset()
	return s
}

func (f *fake) Features() uint64 { return fakeFeatures }

func (f *fake) SetFeatures(bits uint64) error {
	if odd := bits &^ fakeFeatures; odd != 0 {
		return fmt.Errorf("features %#x were not offered", odd)
	}
	f.note("features %#x", bits)
	return nil
}

func (f *fake) Config() []byte { return f.config[:] }

func (f *fake) SetConfig(off uint32, data []byte) error {
	if off != fakeWriteback || len(data) != 1 {
		return fmt.Errorf("bytes %d to %d are read-only", off, int(off)+len(data))
	}
	f.config[off] = data[0]
	f.note("config [%d] = % x", off, data)
	return nil
}

func (f *fake) SetMemory(m *shm.Memory) error {
	if f.failMemory {
		return errors.New("no use for that memory")
	}
	m.Retain()
	if f.memory != nil {
		f.memory.Release()
	}
	f.memory = m
	var s strings.Builder
	for _, r := range m.Mappings() {
		fmt.Fprintf(&s, " %#x+%#x@%#x", r.GPA, r.Size, r.UVA)
	}
	f.note("memory%s", s.String())
	return nil
}

func (f *fake) SetInflight(m *shm.Mapping, queues int) error {
	if f.failInflight {
		return errors.New("no use for that area")
	}
	if m != nil {
		m.Retain()
		f.note("in-flight %d bytes for %d queues, starts with % x", m.Size, queues, m.Bytes()[:4])
	} else {
		f.note("in-flight forgotten")
	}
	if f.inflight != nil {
		f.inflight.Release()
	}
	f.inflight = m
	return nil
}

func (f *fake) Reset() { f.note("reset") }

func (f *fake) Count() int { return len(f.rings) }

func (f *fake) Start(i int, p virtqueue.Params) error {
	if f.failStart {
		p.Kick.Close()
		return errors.New("no ring there")
	}
	r := &f.rings[i]
	if r.kick != nil {
		panic("start of a running ring")
	}
	r.kick, r.base = p.Kick, p.Base
	f.note("start %d: size %d, desc %#x, avail %#x, used %#x, base %d", i, p.Size, p.Desc, p.Avail, p.Used, p.Base)
	return nil
}

func (f *fake) Enable(i int, on bool) { f.note("enable %d: %v", i, on) }

func (f *fake) SetKick(i int, k *eventfd.FD) {
	f.rings[i].kick.Close()
	f.rings[i].kick = k
	f.note("kick %d", i)
}

func (f *fake) SetCall(i int, c virtqueue.Notifier) {
	f.rings[i].call = c
	if c != nil {
		c.Notify()
	}
	f.note("call %d: %v", i, c != nil)
}

func (f *fake) SetErr(i int, c virtqueue.Notifier) { f.note("err %d: %v", i, c != nil) }

// Stop says that five requests were taken since the start.
func (f *fake) Stop(i int, done func(base uint32)) {
	f.note("stop %d", i)
	r := &f.rings[i]
	if r.kick == nil {
		panic("stop of a stopped ring")
	}
	finish := func() {
		r.kick.Close()
		r.kick = nil
		done(uint32(uint16(r.base + 5)))
	}
	f.mu.Lock()
	hold := f.hold
	if hold {
		f.held = append(f.held, finish)
	}
	f.mu.Unlock()
	select {
	case f.stopping <- i:
	default:
	}
	if !hold {
		finish()
	}
}

// holdStops keeps rings from stopping until release.
func (f *fake) holdStops() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.hold = true
}

// release lets the rings stop that hold kept from it, and all later ones.
func (f *fake) release() {
	f.mu.Lock()
	held := f.held
	f.held, f.hold = nil, false
	f.mu.Unlock()
	for _, finish := range held {
		finish()
	}
}

// close gives up what a device outlives its front-ends with.
func (f *fake) close() {
	if f.memory != nil {
		f.memory.Release()
		f.memory = nil
	}
}

// holdings are how many descriptors and how many mapped files this process has.
func holdings(t testing.TB) (fds, maps int) {
	entries, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	b, err := os.ReadFile("/proc/self/maps")
	require.NoError(t, err)
	return len(entries), strings.Count(string(b), "/memfd:")
}

// leakCheck fails the test if what is left at the end is more than there is now.
// Other cleanups that were registered later run before it looks.
func leakCheck(t testing.TB) {
	fds, maps := holdings(t)
	t.Cleanup(func() {
		fdsNow, mapsNow := holdings(t)
		require.Equal(t, fds, fdsNow, "file descriptors")
		require.Equal(t, maps, mapsNow, "mapped memory files")
	})
}

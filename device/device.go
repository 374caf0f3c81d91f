package device

import (
	"cmp"
	"fmt"
	"sync/atomic"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/elevisor/elevisor/backend"
	"github.com/elevisor/elevisor/blk"
	"github.com/elevisor/elevisor/sys/eventfd"
	"github.com/elevisor/elevisor/sys/shm"
	"github.com/elevisor/elevisor/virtqueue"
	"go.uber.org/zap"
)

// MaxQueues is the most virtqueues of a device: queue numbers have 8 bits in vhost-user.
const MaxQueues = 256

// queuesMax is the most queues of one loop; each has a kick to watch.
const queuesMax = watchesMax - 1

// Options describe one guest's disk. Zero values take the default.
type Options struct {
	ID         string // for logs and statistics
	Serial     string // at most 20 bytes; default: the first 20 of ID
	Index      uint16 // number of the device in its domain, for blk.Source
	Disk       *blk.Disk
	Info       backend.Info // of that image
	Loops      []*Loop      // queue i runs on Loops[i % len]
	NumQueues  int          // default 1
	QueueSize  int          // entries; default 128. The driver decides; it only sets SegMax's default
	SegMax     int          // data segments announced; default QueueSize - 2
	SizeMax    int          // bytes in a segment; default 0: not announced
	Offset     blk.Sector   // of the guest's window in the image
	Size       blk.Sector   // of that window; default: the rest
	ReadOnly   bool
	WriteCache bool // the guest starts with its write cache on
	Prio       blk.Prio

	MaxDiscardSeg     int        // ranges in one discard; default 1
	MaxWriteZeroesSeg int        // ranges in one write-zeroes; default 1
	MaxDiscard        blk.Sector // in one range; default as many as fit
	MaxWriteZeroes    blk.Sector
	DiscardAlignment  blk.Sector // default as the image says
	Log               *zap.Logger
}

// Device is one guest's disk. It implements vhost.Device and vhost.Queues; a session calls
// one method at a time.
type Device struct {
	o        Options
	config   blk.Config
	limits   blk.Limits
	offered  uint64
	features uint64 // acknowledged
	queues   []*queue
	lanes    []meter // by loop: when that had requests of this device

	reading atomic.Bool  // by Stats, which owns what follows
	latency []Histograms // by queue: the sum of what the loops have given up
	spare   []Histograms // by queue: empty, for the next swap

	memory   *shm.Memory
	inflight *shm.Mapping
	records  int // queues that inflight has records for
}

// New makes a device and adds its queues to their loops. The loops run already,
// or are stepped by hand.
func New(o Options) (*Device, error) {
	d := &Device{o: o}
	if err := d.defaults(); err != nil {
		return nil, err
	}
	d.announce()
	d.lanes = make([]meter, len(d.o.Loops))
	for i := range d.o.NumQueues {
		at := i % len(d.lanes)
		q := &queue{
			lane:    &d.lanes[at],
			latency: NewHistograms(),
			source:  blk.Source{Device: d.o.Index, Queue: uint16(i)},
			disk:    d.o.Disk,
			prio:    d.o.Prio,
			name:    fmt.Sprintf("disk %s queue %d", d.o.ID, i),
			log:     d.warn,
		}
		if err := d.o.Loops[at].add(q); err != nil {
			return nil, err
		}
		d.queues = append(d.queues, q)
		d.latency, d.spare = append(d.latency, NewHistograms()), append(d.spare, NewHistograms())
	}
	return d, nil
}

// warn logs from a loop's goroutine without waiting for the log. A queue logs at most once
// between its start and its stop.
func (d *Device) warn(msg string, err error) {
	go log(d.o.Log).Warn(msg, zap.Error(err))
}

// defaults fills in default values and refuses invalid options.
func (d *Device) defaults() error {
	o := &d.o
	o.Serial = cmp.Or(o.Serial, o.ID[:min(len(o.ID), blk.IDSize)])
	o.NumQueues = cmp.Or(o.NumQueues, 1)
	o.QueueSize = cmp.Or(o.QueueSize, 128)
	o.SegMax = cmp.Or(o.SegMax, max(o.QueueSize-2, 1))
	o.MaxDiscardSeg = cmp.Or(o.MaxDiscardSeg, 1)
	o.MaxWriteZeroesSeg = cmp.Or(o.MaxWriteZeroesSeg, 1)
	o.DiscardAlignment = cmp.Or(o.DiscardAlignment, blk.Sector(max(o.Info.DiscardAlign/blk.SectorSize, 1)))
	longest := blk.Sector(1<<32-1) / o.DiscardAlignment * o.DiscardAlignment
	o.MaxDiscard = cmp.Or(o.MaxDiscard, longest)
	o.MaxWriteZeroes = cmp.Or(o.MaxWriteZeroes, longest)
	for _, c := range []struct {
		key         string
		v, min, max int
	}{
		{"num-queues", o.NumQueues, 1, MaxQueues},
		{"queue-size", o.QueueSize, 1, virtqueue.MaxSize},
		{"seg-max", o.SegMax, 1, virtqueue.MaxChain - 2},
		{"size-max", o.SizeMax, 0, 1<<31 - 1},
		{"max-discard-seg", o.MaxDiscardSeg, 1, 1024},
	} {
		if c.v < c.min || c.v > c.max {
			return fmt.Errorf("%s=%d is out of range %d to %d", c.key, c.v, c.min, c.max)
		}
	}
	if len(o.Serial) > blk.IDSize {
		return fmt.Errorf("serial=%s has %d bytes, at most %d", o.Serial, len(o.Serial), blk.IDSize)
	}
	if o.QueueSize&(o.QueueSize-1) != 0 {
		return fmt.Errorf("queue-size=%d is not a power of two", o.QueueSize)
	}
	if o.SizeMax*o.SegMax >= 1<<31 { // libblkio multiplies them as 32-bit signed
		return fmt.Errorf("size-max=%d times seg-max=%d is not below 2^31", o.SizeMax, o.SegMax)
	}
	if o.Offset >= o.Info.Sectors || o.Size > o.Info.Sectors-o.Offset {
		return fmt.Errorf("offset %d plus size %d bytes lies outside the image of %d bytes", o.Offset.Bytes(), o.Size.Bytes(), o.Info.Sectors.Bytes())
	}
	o.Size = cmp.Or(o.Size, o.Info.Sectors-o.Offset)
	o.ReadOnly = o.ReadOnly || o.Info.ReadOnly
	return nil
}

// announce computes the feature bits, the configuration space and the limits of requests.
func (d *Device) announce() {
	o := &d.o
	d.offered = virtqueue.FeatureVersion1 | virtqueue.FeatureIndirect | virtqueue.FeatureEventIdx |
		blk.FeatureSegMax | blk.FeatureBlkSize | blk.FeatureTopology | blk.FeatureFlush | blk.FeatureConfigWCE | blk.FeatureMQ
	if o.SizeMax > 0 {
		d.offered |= blk.FeatureSizeMax
	}
	if o.ReadOnly {
		d.offered |= blk.FeatureRO
	} else {
		if o.Info.Discard {
			d.offered |= blk.FeatureDiscard
		}
		if o.Info.WriteZeroes {
			d.offered |= blk.FeatureWriteZeroes
		}
	}
	block := max(o.Info.LogicalBlock, blk.SectorSize)
	exp := uint8(0)
	for p := o.Info.PhysicalBlock; p > block && exp < 16; p /= 2 {
		exp++
	}
	d.config = blk.Config{
		Capacity:               o.Size,
		SizeMax:                uint32(o.SizeMax),
		SegMax:                 uint32(o.SegMax),
		BlkSize:                block,
		PhysicalBlockExp:       exp,
		MinIOSize:              1,
		Writeback:              o.WriteCache,
		NumQueues:              uint16(o.NumQueues),
		MaxDiscardSectors:      uint32(o.MaxDiscard),
		MaxDiscardSeg:          uint32(o.MaxDiscardSeg),
		DiscardSectorAlignment: uint32(o.DiscardAlignment),
		MaxWriteZeroesSectors:  uint32(o.MaxWriteZeroes),
		MaxWriteZeroesSeg:      uint32(o.MaxWriteZeroesSeg),
		WriteZeroesMayUnmap:    o.Info.ZeroesUnmap,
	}
	d.limits = blk.Limits{
		Capacity:       o.Size,
		Offset:         o.Offset,
		ReadOnly:       o.ReadOnly,
		Flush:          true,
		Discard:        d.offered&blk.FeatureDiscard != 0,
		WriteZeroes:    d.offered&blk.FeatureWriteZeroes != 0,
		MaxDiscard:     o.MaxDiscard,
		MaxDiscardSeg:  o.MaxDiscardSeg,
		MaxWriteZeroes: o.MaxWriteZeroes,
		MaxZeroesSeg:   o.MaxWriteZeroesSeg,
	}
	copy(d.limits.ID[:], o.Serial)
}

// Features implements vhost.Device.
func (d *Device) Features() uint64 { return d.offered }

// SetFeatures implements vhost.Device.
func (d *Device) SetFeatures(bits uint64) error {
	if more := bits &^ d.offered; more != 0 {
		return fmt.Errorf("features %#x were not offered (%#x were)", more, d.offered)
	}
	d.features = bits
	return d.setThrough()
}

// writeThrough reports whether a write must be durable before it is acknowledged. That is
// so for a driver that cannot flush (virtio 1.3, 5.2.5.2).
func (d *Device) writeThrough() bool {
	return !d.config.Writeback || d.features&blk.FeatureFlush == 0
}

func (d *Device) setThrough() error {
	through := d.writeThrough()
	return d.each(func(q *queue) { q.through = through })
}

// Config implements vhost.Device.
func (d *Device) Config() []byte {
	b := d.config.Encode()
	return b[:]
}

// SetConfig implements vhost.Device: only the cache mode can be written.
func (d *Device) SetConfig(off uint32, data []byte) error {
	if off != blk.ConfigWriteback || len(data) != 1 || data[0] > 1 {
		return fmt.Errorf("%d bytes at %d of the configuration cannot be written; only byte %d, to 0 or 1", len(data), off, blk.ConfigWriteback)
	}
	d.config.Writeback = data[0] == 1
	return d.setThrough()
}

// SetMemory implements vhost.Device; nil withdraws the memory.
func (d *Device) SetMemory(m *shm.Memory) error {
	if err := d.each(func(q *queue) { q.setMemory(m) }); err != nil {
		return err
	}
	if m != nil {
		m.Retain()
	}
	if d.memory != nil {
		d.memory.Release()
	}
	d.memory = m
	return nil
}

// SetInflight implements vhost.Device.
func (d *Device) SetInflight(m *shm.Mapping, queues int) error {
	if m != nil {
		if queues < 1 {
			return fmt.Errorf("in-flight region for %d queues, want at least 1", queues)
		}
		m.Retain()
	}
	if d.inflight != nil {
		d.inflight.Release()
	}
	d.inflight, d.records = m, queues
	return nil
}

// Reset implements vhost.Device.
func (d *Device) Reset() {
	d.features = 0
	d.config.Writeback = d.o.WriteCache
}

// Capacity is the length of the guest's disk.
func (d *Device) Capacity() blk.Sector { return d.o.Size }

// ReadOnly reports whether the guest cannot write.
func (d *Device) ReadOnly() bool { return d.o.ReadOnly }

// Count implements vhost.Queues.
func (d *Device) Count() int { return len(d.queues) }

// Start implements vhost.Queues.
func (d *Device) Start(i int, p virtqueue.Params) error {
	q := d.queues[i]
	if d.memory == nil {
		p.Kick.Close()
		return fmt.Errorf("start %s: no guest memory was shared; the VM needs a memory backend with share=on", q.name)
	}
	p.Features, p.Memory, p.Inflight = d.features, d.memory, d.record(i)
	record := d.inflight
	if p.Inflight == nil {
		record = nil
	}
	through := d.writeThrough()
	var err error
	if ended := d.do(i, func(q *queue) { err = q.start(p, record, d.limits, through) }); ended != nil {
		p.Kick.Close()
		return ended
	}
	return err
}

// record returns queue i's part of the in-flight region, nil without one.
func (d *Device) record(i int) []byte {
	if d.inflight == nil || i >= d.records {
		return nil
	}
	b := d.inflight.Bytes()
	stride := len(b) / d.records
	return b[i*stride : (i+1)*stride]
}

// Kick says that the driver has made something available in queue i, where there is no kick
// descriptor: the loop looks at the queue in its next step. On the loop's goroutine only.
func (d *Device) Kick(i int) { d.queues[i].kicked = true }

// Enable implements vhost.Queues.
func (d *Device) Enable(i int, on bool) {
	_ = d.do(i, func(q *queue) { q.enabled, q.hot = on, true })
}

// SetKick implements vhost.Queues.
func (d *Device) SetKick(i int, k *eventfd.FD) {
	if d.do(i, func(q *queue) { q.setKick(k) }) != nil {
		k.Close()
	}
}

// SetCall implements vhost.Queues.
func (d *Device) SetCall(i int, c virtqueue.Notifier) {
	_ = d.do(i, func(q *queue) {
		q.on().flush()
		q.call = c
		q.on().notify(c) // also where the ring is stopped: see vhost.Queues
	})
}

// SetErr implements vhost.Queues.
func (d *Device) SetErr(i int, c virtqueue.Notifier) {
	_ = d.do(i, func(q *queue) {
		q.on().flush()
		q.errs = c
	})
}

// Stop implements vhost.Queues.
func (d *Device) Stop(i int, done func(base uint32)) {
	if d.do(i, func(q *queue) { q.on().stop(q, done) }) != nil {
		done(0) // the loop has ended, and with it everything that was in flight
	}
}

// Stats copies the statistics of the device and of each of its queues. A device whose
// queues are spread over several loops was busy for at least as long as each of them:
// IOTime is the longest. Any goroutine may call it, but only one at a time, which its
// caller sees to. The loops only swap their histograms for empty ones; they are summed
// here.
func (d *Device) Stats() (sum Stats, queues []Stats) {
	if !d.reading.CompareAndSwap(false, true) {
		panic("device: two goroutines read statistics at once")
	}
	defer d.reading.Store(false)
	queues = make([]Stats, len(d.queues))
	_ = d.each(func(q *queue) { // an ended loop has nothing to add
		i, now := q.source.Queue, q.on().now
		queues[i] = q.snapshot(now)
		d.spare[i] = q.swapLatencies(d.spare[i])
		sum.IOTime = max(sum.IOTime, uint64(q.lane.total(now)))
	})
	for i := range queues {
		for stage, h := range d.spare[i] {
			d.latency[i][stage].Merge(h)
			h.Reset()
			queues[i].Latency[stage] = hdrhistogram.Import(d.latency[i][stage].Export())
		}
		sum.Add(&queues[i])
	}
	return sum, queues
}

// do runs fn for queue i on its loop. A loop that has ended has no queues left.
func (d *Device) do(i int, fn func(q *queue)) error {
	q := d.queues[i]
	for ran := false; !ran; { // again if q has moved to another loop meanwhile
		l := q.loop.Load()
		err := l.Do(func() {
			if ran = q.loop.Load() == l; ran {
				fn(q)
			}
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// each runs fn for every queue, on its loop.
func (d *Device) each(fn func(q *queue)) error {
	for i := range d.queues {
		if err := d.do(i, fn); err != nil {
			return err
		}
	}
	return nil
}

package vhost

import (
	"fmt"
	"sync"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"
)

// getConfig answers with as many bytes as were asked for, and zeros after the device's
// own: some front-ends always ask for all 256. An empty reply reports an error, as the
// document says.
func (s *Session) getConfig(m Message) (Reply, error) {
	c, err := parseConfig(m.Payload)
	if err != nil {
		return Reply{}, err
	}
	if err := c.inRange(); err != nil {
		return answer(m.ID, nil), err
	}
	data := make([]byte, len(c.data))
	if have := s.dev.Config(); int(c.offset) < len(have) {
		copy(data, have[c.offset:])
	}
	c.data = data
	return answer(m.ID, c.bytes()), nil
}

// Flags of SET_CONFIG.
const configMigration = 1

// setConfig leaves it to the device which bytes may be written. The flag for migration
// changes nothing about that, though the document would allow other bytes then: the size
// of a disk follows from its image.
func (s *Session) setConfig(b []byte, _ *received) error {
	c, err := parseConfig(b)
	if err != nil {
		return err
	}
	if c.flags&^configMigration != 0 {
		return fmt.Errorf("flags %#x, want 0 or %d", c.flags, configMigration)
	}
	if err := c.inRange(); err != nil {
		return err
	}
	return s.dev.SetConfig(c.offset, c.data)
}

func (c configSpace) inRange() error {
	if uint64(c.offset)+uint64(len(c.data)) > MaxConfig {
		return fmt.Errorf("%d bytes at offset %d of a configuration space of %d", len(c.data), c.offset, MaxConfig)
	}
	return nil
}

// ConfigChanged tells the front-end to read the configuration space again. Any goroutine
// may call it. While all rings are stopped nothing may be sent, so the message waits until
// one starts, and until there is a channel and CONFIG was negotiated.
func (s *Session) ConfigChanged() { s.back.configChanged() }

func (s *Session) setBackendReqFD(_ []byte, in *received) error {
	fd, err := in.socket()
	if err != nil {
		return err
	}
	s.back.open(fd)
	return nil
}

// backChannel is the socket for requests of the back-end. Any goroutine may use it.
type backChannel struct {
	log *zap.Logger

	mu      sync.Mutex
	fd      int  // -1: none
	config  bool // the CONFIG feature was negotiated
	running int  // rings
	changed bool // CONFIG_CHANGE_MSG is due
}

func (b *backChannel) open(fd int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.fd >= 0 {
		_ = unix.Close(b.fd)
	}
	b.fd = fd
}

func (b *backChannel) close() {
	b.open(-1)
}

func (b *backChannel) allow(config bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.config = config
}

func (b *backChannel) ringStarted() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.running++
	b.flush()
}

func (b *backChannel) ringStopped() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.running--
}

func (b *backChannel) configChanged() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.changed = true
	b.flush()
}

// flush sends the message if it is due and may be sent.
func (b *backChannel) flush() {
	if !b.changed || !b.config || b.fd < 0 || b.running == 0 {
		return
	}
	b.changed = false
	m := Message{ID: MsgConfigChange, Flags: Version}
	if err := sendBounded(b.fd, m.AppendTo(nil)); err != nil {
		b.log.Warn("configuration change not announced", zap.Error(err))
	}
}

// sendPatience is how long a full channel is waited for, in milliseconds. A front-end
// that reads its channel never lets it fill up: messages are rare.
const sendPatience = 100

// sendBounded sends b. It does not make the socket non-blocking, since the peer would
// share that mode.
func sendBounded(fd int, b []byte) error {
	for try := 0; ; try++ {
		err := unix.Sendto(fd, b, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, nil)
		if err == nil {
			return nil
		}
		if err != unix.EAGAIN || try > 0 {
			return fmt.Errorf("send on back-end channel: %w", err)
		}
		_, _ = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}, sendPatience)
	}
}

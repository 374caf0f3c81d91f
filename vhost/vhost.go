// Package vhost speaks the vhost-user protocol, both ends: the server's session
// as a state machine over a [Device], and a front-end client. It moves messages
// and descriptors; rings and disks are behind the two interfaces below. The example
// serves a disk (package device has both) to a front-end.
//
// Source: docs/interop/vhost-user.rst of QEMU 11, called "the document" here.
package vhost

import (
	"github.com/elevisor/elevisor/sys/eventfd"
	"github.com/elevisor/elevisor/sys/shm"
	"github.com/elevisor/elevisor/virtqueue"
)

// Device is what the protocol may ask of a disk. The session's goroutine calls it, one
// call at a time. A method may block briefly, but never for I/O.
type Device interface {
	// Features are the virtio feature bits that the device offers, without
	// FeatureProtocolFeatures, which the session adds.
	Features() uint64
	// SetFeatures is the front-end's choice; bits that were not offered are an
	// error. It does not stop, start, enable or disable a ring.
	SetFeatures(bits uint64) error
	// Config is the whole configuration space.
	Config() []byte
	// SetConfig writes data at byte off, all of it or, with an error, nothing.
	SetConfig(off uint32, data []byte) error
	// SetMemory replaces the memory table, also while rings run; after a front-end has
	// gone, the new one has no regions. The device retains m and releases the table
	// before it; the caller keeps its own reference. With an error the old table stays.
	SetMemory(m *shm.Memory) error
	// SetInflight sets the in-flight region, with one record for each of queues queues,
	// evenly spaced; nil removes it. It applies to rings that are started later. The
	// device retains it.
	SetInflight(m *shm.Mapping, queues int) error
	// Reset puts the device into its initial state: features and cache mode as
	// offered. Rings are stopped already.
	Reset()
}

// Queues is what the protocol may ask of a device's rings. i is below Count.
type Queues interface {
	// Count is how many queues there are.
	Count() int
	// Start starts ring i with the parameters p. It takes over p.Kick, also with an error.
	// If the ring is enabled, it is checked once without a kick: one may have come
	// early, and requests may be waiting. The device fills in Features, Memory and
	// Inflight of p.
	Start(i int, p virtqueue.Params) error
	// Enable lets ring i run, or pauses it; a stopped ring keeps the state for its start.
	Enable(i int, on bool)
	// SetKick replaces a running ring's kick descriptor, and takes over k.
	SetKick(i int, k *eventfd.FD)
	// SetCall sets whom to notify of completions, nil for nobody (a driver that
	// polls), on a running ring or a stopped one. It notifies a new one once, and
	// Start does not do so again: a completion may have been published before it
	// came, and there are front-ends that wait for this first call, because
	// libvhost-user makes it for every SET_VRING_CALL. The one before it is no longer
	// used when SetCall returns: its descriptor is closed then.
	SetCall(i int, c virtqueue.Notifier)
	// SetErr sets whom to notify of a broken ring, nil for nobody, on a running ring
	// or a stopped one; a new one is not notified. The one before it is no longer used
	// when SetErr returns.
	SetErr(i int, c virtqueue.Notifier)
	// Stop stops ring i: nothing more is taken, what was taken is carried out, and
	// then done is called, on any goroutine, with the answer to GET_VRING_BASE. For a
	// ring that is stopped it is called at once.
	Stop(i int, done func(base uint32))
}

// Package ctl controls a running server over a UNIX socket: JSON-RPC 2.0
// (jsonrpc.org/specification), one message a line.
//
//	list                             every disk
//	stat                             what disks, queues and domains have counted
//	scheduler {disk[, name]}         a disk's scheduler; with a name, switched to it first
//	set       {disk, key, value}     change a knob of the disk's domain or its scheduler
//	tunables  {disk}                 the knobs, and which of them were set by hand
//	describe  {disk}                 the scheduler's state for people
//
// Parameters go by name. What the server refuses to do is error -32000 with the
// reason; then nothing has changed.
package ctl

import (
	"io"

	"github.com/elevisor/elevisor/backend"
	"github.com/elevisor/elevisor/device"
)

// Control is what is controlled. Calls come from any goroutine, one at a time; they
// may come until Serve has returned. A disk's name that is given is one that List
// names. An error's text goes to the operator: it names the word that is wrong and
// the valid ones, and nothing has changed.
type Control interface {
	// List names the disks in the order of the command line.
	List() []Disk
	// Stat copies the statistics of all disks, in the same order.
	Stat() []DiskStat
	// Scheduler is the scheduler of the disk's domain.
	Scheduler(disk string) (Scheduler, error)
	// SetScheduler switches the disk's whole domain, and returns when that is done.
	SetScheduler(disk, name string) error
	// Set changes a knob of the disk's domain, or of its scheduler.
	Set(disk, key, value string) error
	// Tunables lists what Set takes, with present values.
	Tunables(disk string) ([]Tunable, error)
	// Describe prints the state of the disk's scheduler, and what was set by hand.
	Describe(disk string, w io.Writer) error
}

// Disk is one served disk.
type Disk struct {
	ID        string `json:"id"`
	Path      string `json:"path"`
	Socket    string `json:"socket"` // empty: it came as a file descriptor
	Bytes     int64  `json:"bytes"`
	ReadOnly  bool   `json:"read_only"`
	NumQueues int    `json:"num_queues"`
	Engine    string `json:"engine"`
	Domain    string `json:"domain"`
	Scheduler string `json:"scheduler"`
	Reason    string `json:"reason"` // why that scheduler
	Connected bool   `json:"connected"`
}

// DiskStat are one disk's statistics.
type DiskStat struct {
	ID, Domain  string
	Total       device.Stats // of all queues
	Queues      []device.Stats
	DomainStats device.DomainStats     // the same for every disk of a domain
	Simulated   *backend.SimStats      // of its drive; nil if that is real
	Recorded    *backend.RecorderStats // of its image; nil without record=on
}

// Scheduler says which scheduler a domain has, and for whom.
type Scheduler struct {
	Domain    string   `json:"domain"`
	Active    string   `json:"active"`
	Available []string `json:"available"`
	Disks     []string `json:"disks"`  // all of the domain
	Reason    string   `json:"reason"` // why that one
}

// Tunable is a knob on the wire.
type Tunable struct {
	Name  string `json:"name"`
	Value string `json:"value"`
	Valid string `json:"valid"`
	Unit  string `json:"unit"`
	// ByHand says that the operator has set it, with --domain or set: it has this value
	// again whenever its scheduler comes back.
	ByHand bool `json:"by_hand"`
}

// Description is the answer to describe.
type Description struct {
	Disk string `json:"disk"`
	Text string `json:"text"`
}

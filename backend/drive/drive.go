// Package sim models disks: when each command would be done. It holds no data, reads
// no clock and starts no goroutine; the same model serves virtual and real time.
//
// A model is deterministic: one seed and one history of calls give one history of
// answers.
package drive

import "github.com/elevisor/elevisor/blk"

// Drive is one disk that commands are queued to. Calls come in the order of their
// now; nothing is allocated per command.
type Drive interface {
	// Queue takes a command into the drive's own queue (SATA's NCQ); false: that is
	// full, and nothing has changed.
	Queue(now blk.Instant, c Command) bool
	// Next is when the next command is done; blk.Never if the drive has none. A later
	// Queue may change it.
	Next() blk.Instant
	// Done takes out a command that is done at now or before, the earliest first, and
	// says when it was.
	Done(now blk.Instant) (tag int, at blk.Instant, ok bool)
	// Depth is how many commands the drive's queue holds.
	Depth() int
	// Stats are the drive's counts so far.
	Stats() Stats
}

// Command is what a drive is asked for.
type Command struct {
	Tag     int // the caller's, given back by Done
	Op      blk.Op
	FUA     bool       // a write that may not stay in the drive's cache
	Sector  blk.Sector // on the disk
	Sectors blk.Sector
}

// Stats are a drive's counts: what a real one does not tell. A model leaves at zero
// what it does not have.
type Stats struct {
	Commands [blk.OpCount]uint64
	Sectors  [blk.OpCount]uint64
	Hits     uint64      // reads served from the cache
	Streamed uint64      // reads that caught up with the medium, without a head move
	Seeks    uint64      // head moves
	SeekSum  blk.Sector  // their distances
	HeadTime blk.Instant // spent moving and waiting for the platter
	Switches uint64      // commands of another stream than the one before
	Destaged uint64      // sectors written from the cache to the medium
	Stalls   uint64      // commands that waited for the write cache, or for a program or an erase
}

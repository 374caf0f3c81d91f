package sim

import "github.com/elevisor/elevisor/blk"

// ssdTable is the [ssd] table of a parameter file.
type ssdTable struct {
	Sectors blk.Sector `toml:"sectors"` // capacity
	ssdParameters
}

// ssdParameters are an SSD's by their names in a file: the same fields, or it could not
// be converted into one.
type ssdParameters struct {
	Channels   int `toml:"channels"`
	Dies       int `toml:"dies"`
	QueueDepth int `toml:"queue_depth"`

	PageSectors blk.Sector `toml:"page_sectors"`
	BlockPages  int        `toml:"block_pages"`
	BufferPages int        `toml:"buffer_pages"`

	Read    blk.Instant `toml:"read_ns"`
	Program blk.Instant `toml:"program_ns"`
	Erase   blk.Instant `toml:"erase_ns"`
	Suspend blk.Instant `toml:"suspend_ns"`
	Channel blk.Instant `toml:"channel_ns"`
	Link    blk.Instant `toml:"link_ns"`
	Command blk.Instant `toml:"command_ns"`

	ReadSetup  blk.Instant `toml:"read_setup_ns"`
	WriteSetup blk.Instant `toml:"write_setup_ns"`
	Discard    blk.Instant `toml:"discard_ns"`

	Valid     float64 `toml:"valid"`
	Jitter    float64 `toml:"jitter"`
	Protected bool    `toml:"protected"`
}

// sectorsMax bounds a capacity: beyond it its bytes are no number.
const sectorsMax = blk.Sector(blk.Never / blk.SectorSize)

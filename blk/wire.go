package blk

import "encoding/binary"

// Feature bits of virtio-blk (virtio 1.3, 5.2.3).
const (
	FeatureSizeMax     = 1 << 1
	FeatureSegMax      = 1 << 2
	FeatureRO          = 1 << 5
	FeatureBlkSize     = 1 << 6
	FeatureFlush       = 1 << 9
	FeatureTopology    = 1 << 10
	FeatureConfigWCE   = 1 << 11
	FeatureMQ          = 1 << 12
	FeatureDiscard     = 1 << 13
	FeatureWriteZeroes = 1 << 14
)

// Request types on the wire (virtio 1.3, 5.2.6).
const (
	TypeIn          = 0
	TypeOut         = 1
	TypeFlush       = 4
	TypeGetID       = 8
	TypeDiscard     = 11
	TypeWriteZeroes = 13
	TypeSecureErase = 14
)

// HeaderSize is the length of struct virtio_blk_req up to its data: le32 type, le32
// reserved, le64 sector.
const HeaderSize = 16

// RangeSize is the length of struct virtio_blk_discard_write_zeroes: le64 sector,
// le32 num_sectors, le32 flags.
const RangeSize = 16

// IDSize is the length of the answer to GET_ID: text, padded with NULs.
const IDSize = 20

// rangeFlagUnmap is bit 0 of a range's flags; all others are reserved.
const rangeFlagUnmap = 1

// Header is the start of every request.
type Header struct {
	Type   uint32
	Sector Sector
}

// ParseHeader decodes a private copy of the 16 header bytes. The second word is
// reserved (ioprio in legacy devices) and ignored.
func ParseHeader(b *[HeaderSize]byte) Header {
	return Header{
		Type:   binary.LittleEndian.Uint32(b[0:]),
		Sector: Sector(binary.LittleEndian.Uint64(b[8:])),
	}
}

// ConfigSize is the length of struct virtio_blk_config up to and including the
// write-zeroes fields. What follows it (secure erase, zoned) is not offered.
const ConfigSize = 60

// ConfigWriteback is the offset of the one byte a driver may write: the cache
// mode, 1 for write-back, 0 for write-through.
const ConfigWriteback = 32

// Config is struct virtio_blk_config (virtio 1.3, 5.2.4). A field has a meaning only if
// its feature bit was offered.
type Config struct {
	Capacity               Sector
	SizeMax                uint32 // bytes in one segment
	SegMax                 uint32 // data segments in one request
	BlkSize                uint32 // logical block, bytes
	PhysicalBlockExp       uint8  // log2(physical block / logical block)
	AlignmentOffset        uint8  // logical blocks
	MinIOSize              uint16 // logical blocks
	OptIOSize              uint32 // logical blocks
	Writeback              bool
	NumQueues              uint16
	MaxDiscardSectors      uint32
	MaxDiscardSeg          uint32
	DiscardSectorAlignment uint32 // sectors
	MaxWriteZeroesSectors  uint32
	MaxWriteZeroesSeg      uint32
	WriteZeroesMayUnmap    bool
}

// Encode writes the little-endian wire form.
func (c *Config) Encode() (b [ConfigSize]byte) {
	le := binary.LittleEndian
	le.PutUint64(b[0:], uint64(c.Capacity))
	le.PutUint32(b[8:], c.SizeMax)
	le.PutUint32(b[12:], c.SegMax)
	// 16..19: geometry, not offered
	le.PutUint32(b[20:], c.BlkSize)
	b[24], b[25] = c.PhysicalBlockExp, c.AlignmentOffset
	le.PutUint16(b[26:], c.MinIOSize)
	le.PutUint32(b[28:], c.OptIOSize)
	b[ConfigWriteback] = b2u(c.Writeback)
	le.PutUint16(b[34:], c.NumQueues)
	le.PutUint32(b[36:], c.MaxDiscardSectors)
	le.PutUint32(b[40:], c.MaxDiscardSeg)
	le.PutUint32(b[44:], c.DiscardSectorAlignment)
	le.PutUint32(b[48:], c.MaxWriteZeroesSectors)
	le.PutUint32(b[52:], c.MaxWriteZeroesSeg)
	b[56] = b2u(c.WriteZeroesMayUnmap)
	return b
}

// DecodeConfig reads a device's answer to GET_CONFIG. Missing bytes at the end read as
// zero.
func DecodeConfig(p []byte) Config {
	var b [ConfigSize]byte
	copy(b[:], p)
	le := binary.LittleEndian
	return Config{
		Capacity:               Sector(le.Uint64(b[0:])),
		SizeMax:                le.Uint32(b[8:]),
		SegMax:                 le.Uint32(b[12:]),
		BlkSize:                le.Uint32(b[20:]),
		PhysicalBlockExp:       b[24],
		AlignmentOffset:        b[25],
		MinIOSize:              le.Uint16(b[26:]),
		OptIOSize:              le.Uint32(b[28:]),
		Writeback:              b[ConfigWriteback] != 0,
		NumQueues:              le.Uint16(b[34:]),
		MaxDiscardSectors:      le.Uint32(b[36:]),
		MaxDiscardSeg:          le.Uint32(b[40:]),
		DiscardSectorAlignment: le.Uint32(b[44:]),
		MaxWriteZeroesSectors:  le.Uint32(b[48:]),
		MaxWriteZeroesSeg:      le.Uint32(b[52:]),
		WriteZeroesMayUnmap:    b[56] != 0,
	}
}

func b2u(v bool) uint8 {
	if v {
		return 1
	}
	return 0
}

package load

import (
	"encoding/binary"
	"fmt"

	"github.com/elevisor/elevisor/blk"
)

// A sector that a verifying run writes says what it is: the run's seed, its own
// number on the disk, and its generation (how often this run had written the
// block, this time included). The rest follows from these three, so that data of
// another sector, another time, or only half of a sector are told apart.
const words = blk.SectorSize / 8

// generation counts writes of one block; the two values at its ends are special.
type generation uint32

const (
	unwritten generation = 0
	unknown   generation = 1<<32 - 1 // a write failed: old, new or mixed
)

// fillSectors writes the contents of generation g of the sectors from first on
// into b.
func fillSectors(b []byte, seed uint64, first blk.Sector, g generation) {
	for s := first; len(b) >= blk.SectorSize; s++ {
		state := sectorState(seed, s, g)
		binary.LittleEndian.PutUint64(b[0:], seed)
		binary.LittleEndian.PutUint64(b[8:], uint64(s))
		binary.LittleEndian.PutUint64(b[16:], uint64(g))
		for w := 3; w < words; w++ {
			binary.LittleEndian.PutUint64(b[8*w:], word(state, w))
		}
		b = b[blk.SectorSize:]
	}
}

// checkSectors compares b with what fillSectors wrote, and describes the first
// difference.
func checkSectors(b []byte, seed uint64, first blk.Sector, g generation) error {
	for s := first; len(b) >= blk.SectorSize; s++ {
		if !sectorIs(b, seed, s, g) {
			return describe(b, seed, s, g)
		}
		b = b[blk.SectorSize:]
	}
	return nil
}

func sectorIs(b []byte, seed uint64, s blk.Sector, g generation) bool {
	state := sectorState(seed, s, g)
	diff := binary.LittleEndian.Uint64(b[0:]) ^ seed
	diff |= binary.LittleEndian.Uint64(b[8:]) ^ uint64(s)
	diff |= binary.LittleEndian.Uint64(b[16:]) ^ uint64(g)
	for w := 3; w < words; w++ {
		diff |= binary.LittleEndian.Uint64(b[8*w:]) ^ word(state, w)
	}
	return diff == 0
}

func describe(b []byte, seed uint64, s blk.Sector, g generation) error {
	gotSeed := binary.LittleEndian.Uint64(b[0:])
	got, gotGen := binary.LittleEndian.Uint64(b[8:]), binary.LittleEndian.Uint64(b[16:])
	want := fmt.Sprintf("sector %d: want generation %d of seed %#x", s, g, seed)
	if gotSeed != seed {
		return fmt.Errorf("%s, got bytes % x", want, b[:24])
	}
	if got != uint64(s) || gotGen != uint64(g) {
		return fmt.Errorf("%s, got sector %d, generation %d", want, got, gotGen)
	}
	state := sectorState(seed, s, g)
	for w := 3; w < words; w++ {
		if v := binary.LittleEndian.Uint64(b[8*w:]); v != word(state, w) {
			return fmt.Errorf("%s, got %#016x instead of %#016x at byte %d", want, v, word(state, w), 8*w)
		}
	}
	return fmt.Errorf("%s, got it late: the data changed after the request had come back", want)
}

func sectorState(seed uint64, s blk.Sector, g generation) uint64 {
	return mix(mix(seed^uint64(s)) + uint64(g))
}

// word is one multiply and shift per word: cheap, and no two words of a sector
// agree, since each step can be undone.
func word(state uint64, w int) uint64 {
	v := (state + uint64(w)) * 0x9e3779b97f4a7c15
	return v ^ v>>29
}

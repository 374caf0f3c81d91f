package bench

import (
	"math/bits"
	"math/rand/v2"
)

// Direction is an index into all that is kept for reads and writes apart.
type Direction int

// The directions.
const (
	Reading Direction = iota
	Writing
	directions
)

// Picker chooses what comes next: the direction and the block. It follows from
// the seed alone, not from the disk's answers.
type Picker struct {
	rw      RW
	mixRead int
	blocks  uint64
	repeat  bool // random blocks may repeat (norandommap)
	rng     *rand.Rand
	pos     [directions]uint64 // of a sequential workload: each direction has its own, as fio's
	order   shuffle
	taken   uint64 // of a random workload: blocks picked in this pass
}

// NewPicker is the picker of one job, whose region has so many blocks. Two jobs of a
// run have different numbers.
func NewPicker(o *Options, job int, blocks uint64) Picker {
	rng := rand.New(rand.NewPCG(o.Seed, uint64(job)))
	return Picker{
		rw: o.RW, mixRead: o.MixRead, blocks: blocks, repeat: o.NoRandMap,
		rng: rng, order: newShuffle(blocks, rng.Uint64()),
	}
}

// Next is what comes next. A block counts from the front of the job's region.
func (p *Picker) Next() (Direction, uint64) {
	dir := Reading
	switch {
	case p.rw.mixed():
		if p.rng.IntN(100) >= p.mixRead {
			dir = Writing
		}
	case p.rw.Writes():
		dir = Writing
	}
	if p.rw.random() {
		return dir, p.nextRandom()
	}
	block := p.pos[dir]
	p.pos[dir] = (block + 1) % p.blocks
	return dir, block
}

// nextRandom touches every block once before it touches one twice, as fio's
// random map does, but keeps no map.
func (p *Picker) nextRandom() uint64 {
	if p.repeat {
		return p.rng.Uint64N(p.blocks)
	}
	if p.taken == p.blocks {
		p.taken, p.order = 0, newShuffle(p.blocks, p.rng.Uint64())
	}
	p.taken++
	return p.order.at(p.taken - 1)
}

// shuffle is a permutation of [0, n) that takes no memory: a Feistel network over
// the next power of two, walked until it lands inside.
type shuffle struct {
	n           uint64
	low, high   uint // bits of the two halves
	lmask, hmsk uint64
	key         uint64
}

func newShuffle(n, key uint64) shuffle {
	width := uint(bits.Len64(n - 1))
	low := width / 2
	high := width - low
	return shuffle{n: n, low: low, high: high, lmask: 1<<low - 1, hmsk: 1<<high - 1, key: key}
}

// rounds is even, so that the halves of odd widths are back in their places.
const rounds = 6

func (s *shuffle) at(i uint64) uint64 {
	for {
		if i = s.once(i); i < s.n {
			return i
		}
	}
}

func (s *shuffle) once(v uint64) uint64 {
	a, b := v>>s.low, v&s.lmask // high bits, low bits
	for r := uint64(0); r < rounds; r += 2 {
		a ^= mix(b+s.key+r) & s.hmsk
		b ^= mix(a+s.key+r+1) & s.lmask
	}
	return a<<s.low | b
}

// mix is the finalizer of splitmix64: every bit of v reaches every bit of the
// result.
func mix(v uint64) uint64 {
	v += 0x9e3779b97f4a7c15
	v = (v ^ v>>30) * 0xbf58476d1ce4e5b9
	v = (v ^ v>>27) * 0x94d049bb133111eb
	return v ^ v>>31
}

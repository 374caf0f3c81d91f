package load

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

// Picker chooses what comes next: the direction, the place and the size. It follows
// from the seed alone, not from the disk's answers.
type Picker struct {
	rw      RW
	mixRead int
	blocks  uint64
	size    int64 // of the region, in whole blocks
	unit    int   // of a block
	split   []Split
	stride  int64
	repeat  bool // random blocks may repeat (norandommap)
	rng     *rand.Rand
	pos     [directions]int64 // of a sequential workload: each direction has its own, as fio's
	order   shuffle
	taken   uint64 // of a random workload: blocks picked in this pass
}

// Pick is what a Picker chose.
type Pick struct {
	Dir    Direction
	Offset int64 // bytes from the front of the job's region
	Length int   // bytes
}

// NewPicker is the picker of one job with checked options, whose region has so many
// blocks. Two jobs of a run have different numbers.
func NewPicker(o *Options, job int, blocks uint64) Picker {
	rng := rand.New(rand.NewPCG(o.Seed, uint64(job)))
	p := Picker{
		rw: o.RW, mixRead: o.MixRead, blocks: blocks, size: int64(blocks) * int64(o.BlockSize), unit: o.BlockSize,
		split: o.Split, stride: o.Stride, repeat: o.NoRandMap, rng: rng, order: newShuffle(blocks, rng.Uint64()),
	}
	for d := range p.pos {
		p.pos[d] = p.front()
	}
	return p
}

// Next is what comes next.
func (p *Picker) Next() Pick {
	n := Pick{Length: p.unit}
	switch {
	case p.rw.mixed():
		if p.rng.IntN(100) >= p.mixRead {
			n.Dir = Writing
		}
	case p.rw.Writes():
		n.Dir = Writing
	}
	if p.rw.random() {
		n.Offset = int64(p.nextRandom()) * int64(p.unit)
	} else {
		n.Offset = p.pos[n.Dir]
	}
	if len(p.split) > 0 {
		n.Length = p.length(p.size - n.Offset)
	}
	if !p.rw.random() {
		p.pos[n.Dir] = p.behind(n)
	}
	return n
}

// length draws the size of a request for which there is so much room.
func (p *Picker) length(room int64) int {
	at := p.rng.IntN(100)
	for _, s := range p.split {
		if at -= s.Percent; at < 0 {
			if int64(s.BlockSize) <= room {
				return s.BlockSize
			}
			break
		}
	}
	return p.unit
}

// front is where a sequential job begins.
func (p *Picker) front() int64 {
	if p.stride < 0 {
		return p.size - int64(p.unit)
	}
	return 0
}

// behind is where a sequential job goes on after n.
func (p *Picker) behind(n Pick) int64 {
	next := n.Offset + int64(n.Length)
	if p.stride != 0 {
		next = n.Offset + p.stride
	}
	if next < 0 || next+int64(p.unit) > p.size {
		return p.front()
	}
	return next
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

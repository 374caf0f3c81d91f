package drive

import (
	"testing"

	"github.com/elevisor/elevisor/blk"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// plain is a drive whose times are easily added up: 6000 turns a minute, 10 us a block.
func plain() HDD {
	return HDD{
		RPM: 6000, Blocks: 1 << 20, Media: 10, InnerRatio: 1, SeekBase: 1000, SeekStroke: 0, SeekMax: 1000, NearBlocks: 100, Settle: 0,
		Read: 20, Write: 30, Bus: 5, StreamSwitch: 100, DirectionSwitch: 7, Segments: 4, Segment: 64, ReadCache: 256,
		ReadAheadMin: 16, ReadAheadSmall: 16, QueueLimit: 31, WriteCache: 128, Destage: 64, NCQ: 32, MaxWait: 1e6,
	}
}

// bench is a drive with a clock.
type bench struct {
	t require.TestingT
	Drive
	now blk.Instant
}

func newBench(t require.TestingT, p HDD) *bench {
	d, err := NewHDD(p, blk.Sector(p.Blocks)*blockSectors, 1)
	require.NoError(t, err)
	return &bench{t: t, Drive: d}
}

// do has one command served and returns how long that took, in microseconds.
func (b *bench) do(op blk.Op, block, blocks blk.Sector) float64 {
	return b.command(Command{Op: op, Sector: block * blockSectors, Sectors: blocks * blockSectors})
}

func (b *bench) command(c Command) float64 {
	start := b.now
	require.True(b.t, b.Queue(b.now, c))
	b.now = b.Next()
	_, at, ok := b.Done(b.now)
	require.True(b.t, ok)
	require.Equal(b.t, b.now, at)
	return float64(b.now-start) / 1000
}

func (b *bench) wait(us float64) { b.now += blk.Instant(us * 1000) }

// A sequential read costs a head move once, then what the medium takes, then what the
// controller takes, once the drive has read ahead.
func TestHDD_reads(t *testing.T) {
	b := newBench(t, plain())
	require.GreaterOrEqual(t, b.do(blk.OpRead, 1000, 1), 1000., "a seek")
	require.Equal(t, 20., b.do(blk.OpRead, 1001, 1), "the medium is faster than the controller")
	require.Equal(t, 50., b.do(blk.OpRead, 1002, 5), "it is not, for what has just passed under the head")
	b.wait(1000)
	require.Equal(t, 20., b.do(blk.OpRead, 1007, 1), "from the cache")
	s := b.Stats()
	require.EqualValues(t, 1, s.Seeks)
	require.EqualValues(t, 1, s.Hits)
	require.EqualValues(t, 2, s.Streamed)
	b.wait(1e6)
	for i := range blk.Sector(64) { // all that one stream has of the cache
		require.LessOrEqual(t, b.do(blk.OpRead, 1008+i, 1), 20.)
	}
	require.EqualValues(t, 1, b.Stats().Seeks)
}

// A command of another stream costs more, one of the other direction a little more still.
func TestHDD_switches(t *testing.T) {
	b := newBench(t, plain())
	b.do(blk.OpWrite, 1000, 1)
	require.Equal(t, 30., b.do(blk.OpWrite, 1001, 1))
	require.Equal(t, 130., b.do(blk.OpWrite, 5000, 1))
	require.Equal(t, 30., b.do(blk.OpWrite, 5001, 1))
	require.Equal(t, 130., b.do(blk.OpWrite, 1002, 1))
	require.EqualValues(t, 2, b.Stats().Switches)
	require.GreaterOrEqual(t, b.do(blk.OpRead, 9000, 1), 1000.)
	require.Equal(t, 137., b.do(blk.OpWrite, 1003, 1), "and the direction")
}

// A stream that has been left keeps what was read ahead of it, at least the committed
// part.
func TestHDD_committedReadAhead(t *testing.T) {
	b := newBench(t, plain())
	b.do(blk.OpRead, 1000, 1)
	b.do(blk.OpRead, 1001, 1)
	b.do(blk.OpRead, 200_000, 1) // the head leaves, but not before 16 blocks
	for i := range blk.Sector(14) {
		require.LessOrEqual(t, b.do(blk.OpRead, 1002+i, 1), 120.)
	}
	seeks := b.Stats().Seeks
	b.do(blk.OpRead, 1016+64, 1)
	require.Equal(t, seeks+1, b.Stats().Seeks)
}

// The write cache takes writes at once until it is full, and writes back meanwhile; a
// flush waits for all of it.
func TestHDD_writeCache(t *testing.T) {
	b := newBench(t, plain())
	for i := range blk.Sector(63) {
		require.Equal(t, 30., b.do(blk.OpWrite, 1000+i, 1))
	}
	require.Zero(t, b.Stats().Destaged)
	require.Zero(t, b.Stats().Seeks)
	b.do(blk.OpWrite, 1063, 1) // enough to write back
	b.wait(30_000)
	b.do(blk.OpWrite, 9000, 1)
	require.EqualValues(t, 64*blockSectors, b.Stats().Destaged)
	require.GreaterOrEqual(t, b.do(blk.OpFlush, 0, 0), 1000.)
	require.EqualValues(t, 65*blockSectors, b.Stats().Destaged)
	require.Equal(t, 30., b.do(blk.OpFlush, 0, 0), "nothing is dirty any more")
}

func TestHDD_fullWriteCacheStalls(t *testing.T) {
	b := newBench(t, plain())
	slow := 0
	for i := range blk.Sector(400) { // nothing adjoins: each block costs a head move
		if b.do(blk.OpWrite, 2000*i, 1) > 1000 {
			slow++
		}
	}
	require.Positive(t, slow)
	require.EqualValues(t, slow, b.Stats().Stalls)
}

// What must be durable at once is on the medium when it is done.
func TestHDD_fua(t *testing.T) {
	b := newBench(t, plain())
	require.GreaterOrEqual(t, b.command(Command{Op: blk.OpWrite, FUA: true, Sector: 80_000, Sectors: 8}), 1000.)
	require.Equal(t, 30., b.do(blk.OpFlush, 0, 0))
}

// Half a kilobyte is an eighth of a block on the medium and in the cache.
func TestHDD_sectors(t *testing.T) {
	b := newBench(t, plain())
	for i := range blk.Sector(80) {
		b.command(Command{Op: blk.OpWrite, Sector: i, Sectors: 1})
	}
	b.do(blk.OpFlush, 0, 0)
	require.EqualValues(t, 80, b.Stats().Destaged)
}

// Reordering serves random reads sooner; a drive that does not reorder serves them as
// they come.
func TestHDD_reorder(t *testing.T) {
	var took [2]blk.Instant
	for i, reorder := range []bool{false, true} {
		p := plain()
		p.SeekStroke, p.SeekMax, p.Reorder = 14_000, 20_000, reorder
		b := newBench(t, p)
		at, order := uint64(1), []int{}
		for tag := range 31 {
			at = at * 6364136223846793005 % (1 << 20)
			require.True(t, b.Queue(0, Command{Tag: tag, Op: blk.OpRead, Sector: blk.Sector(at) * 8, Sectors: 8}))
		}
		for b.Next() != blk.Never {
			took[i] = b.Next()
			tag, _, ok := b.Done(took[i])
			require.True(t, ok)
			order = append(order, tag)
		}
		require.Len(t, order, 31)
		require.Equal(t, reorder, !sorted(order))
	}
	require.Less(t, took[1], took[0]*2/3)
}

func sorted(v []int) bool {
	for i := 1; i < len(v); i++ {
		if v[i] < v[i-1] {
			return false
		}
	}
	return true
}

// Whatever is asked for, each command is done once, in time, and the same seed and the
// same commands give the same instants.
func TestHDD_eachOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := plain()
		p.Segments = float64(rapid.IntRange(1, 8).Draw(t, "segments"))
		p.NCQ = float64(rapid.IntRange(1, 32).Draw(t, "ncq"))
		p.Reorder = rapid.Bool().Draw(t, "reorder")
		p.WriteCache = float64(rapid.SampledFrom([]int{0, 1, 16, 128}).Draw(t, "cache"))
		p.MaxWait = float64(rapid.SampledFrom([]int{0, 1000, 1e6}).Draw(t, "wait"))
		a, b := newBench(t, p), newBench(t, p)
		now, open := blk.Instant(0), map[int]bool{}
		reap := func() {
			require.NotEqual(t, blk.Never, a.Next())
			require.Equal(t, a.Next(), b.Next())
			now = max(now, a.Next())
			tag, at, ok := a.Done(now)
			_, _, same := b.Done(now)
			require.True(t, ok && same && open[tag] && at <= now)
			delete(open, tag)
		}
		for tag := range rapid.IntRange(1, 200).Draw(t, "commands") {
			c := Command{
				Tag: tag, Op: blk.Op(rapid.IntRange(0, int(blk.OpCount)-1).Draw(t, "op")), FUA: rapid.Bool().Draw(t, "fua"),
				Sector: blk.Sector(rapid.IntRange(0, 4000).Draw(t, "at")), Sectors: blk.Sector(rapid.IntRange(1, 300).Draw(t, "n")),
			}
			for !a.Queue(now, c) {
				require.NotEmpty(t, open, "full with nothing in it")
				require.False(t, b.Queue(now, c))
				reap()
			}
			require.True(t, b.Queue(now, c))
			open[tag] = true
			require.LessOrEqual(t, len(open), a.Depth())
			now += blk.Instant(rapid.SampledFrom([]int{0, 1000, 1e7}).Draw(t, "pause"))
		}
		for len(open) > 0 {
			reap()
		}
		require.Equal(t, blk.Never, a.Next())
		require.Equal(t, a.Stats(), b.Stats())
	})
}

func TestHDD_allocatesNothing(t *testing.T) {
	p := plain()
	p.Reorder = true
	b := newBench(t, p)
	at := uint64(1)
	require.Zero(t, testing.AllocsPerRun(2000, func() {
		at = at * 6364136223846793005 % (1 << 20)
		b.Queue(b.now, Command{Op: blk.Op(at % 3), Sector: blk.Sector(at) * blockSectors, Sectors: blockSectors})
		b.now = b.Next()
		b.Done(b.now)
	}))
	require.NotZero(t, b.Stats().Seeks)
}

func TestHDD_refused(t *testing.T) {
	p := plain()
	p.Settle = -1
	_, err := NewHDD(p, 8, 1)
	require.EqualError(t, err, "settle_us = -1 is out of range 0 to 1e+07")
	p = plain()
	p.NCQ = 1.5
	_, err = NewHDD(p, 8, 1)
	require.EqualError(t, err, "ncq = 1.5 is not a whole number")
	_, err = NewHDD(plain(), 1<<40, 1)
	require.ErrorContains(t, err, "out of range 1 to 8388608")
}

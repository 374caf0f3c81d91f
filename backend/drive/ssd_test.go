package drive

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/elevisor/elevisor/blk"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

const ssdSectors = 1 << 30

func newSSD(t require.TestingT, p SSD) Drive {
	d, err := NewSSD(p, ssdSectors, 1)
	require.NoError(t, err)
	return d
}

// sata is the preset.
func sata(t require.TestingT) SSD {
	p, err := Load("sata-ssd")
	require.NoError(t, err)
	return p.SSD
}

// exact is it without chance.
func exact(t require.TestingT) SSD {
	p := sata(t)
	p.Jitter = 0
	return p
}

// load keeps depth commands going until n are done, and returns how long each took, in
// the order in which they were done, and how long all did.
func load(t require.TestingT, d Drive, depth, n int, next func(i int) Command) (took []blk.Instant, all blk.Instant) {
	now, queued := blk.Instant(0), make([]blk.Instant, n)
	for sent := 0; len(took) < n; {
		for sent < n && sent-len(took) < depth {
			c := next(sent)
			c.Tag = sent
			queued[sent] = now
			require.True(t, d.Queue(now, c))
			sent++
		}
		now = d.Next()
		tag, at, ok := d.Done(now)
		require.True(t, ok)
		took = append(took, at-queued[tag])
	}
	return took, now
}

// random makes 4 KiB commands all over the disk.
func random(op blk.Op) func(int) Command {
	rng := rand.New(rand.NewPCG(7, 7))
	return func(int) Command {
		return Command{Op: op, Sector: 8 * blk.Sector(rng.Int64N(ssdSectors/8)), Sectors: 8}
	}
}

// sequential makes commands of n sectors one behind the other.
func sequential(op blk.Op, n blk.Sector) func(int) Command {
	return func(i int) Command { return Command{Op: op, Sector: n * blk.Sector(i), Sectors: n} }
}

func mean(took []blk.Instant) float64 {
	sum := 0.0
	for _, l := range took {
		sum += float64(l)
	}
	return sum / float64(len(took))
}

// The numbers that the preset is made after.
func TestSSD_dataSheet(t *testing.T) {
	iops := func(depth int, n int, next func(int) Command) float64 {
		_, all := load(t, newSSD(t, sata(t)), depth, n, next)
		return float64(n) / (float64(all) / 1e9)
	}
	require.InEpsilon(t, 72_000, iops(32, 20_000, random(blk.OpRead)), 0.03)
	require.InEpsilon(t, 33_000, iops(32, 200_000, random(blk.OpWrite)), 0.05)
	// 128 KiB at a time.
	require.InEpsilon(t, 500e6, iops(32, 20_000, sequential(blk.OpRead, 256))*131072, 0.05)
	took, _ := load(t, newSSD(t, sata(t)), 1, 5_000, random(blk.OpRead))
	require.InEpsilon(t, 110_000, mean(took), 0.02)
	took, _ = load(t, newSSD(t, sata(t)), 1, 200, random(blk.OpWrite))
	require.InEpsilon(t, 52_000, mean(took), 0.02)

	// Sequential writes are as fast once they have gone over what random ones left.
	d := newSSD(t, sata(t))
	const each = 20_000
	load(t, d, 32, each, sequential(blk.OpWrite, 256))
	start := d.(*ssdDrive).link
	now := start
	for i, queued := 0, 0; i < each; i++ {
		for ; queued < i+32; queued++ {
			require.True(t, d.Queue(now, Command{Op: blk.OpWrite, Sector: blk.Sector(256 * (each + queued)), Sectors: 256}))
		}
		now = d.Next()
		_, _, ok := d.Done(now)
		require.True(t, ok)
	}
	require.InEpsilon(t, 490e6, each*131072/(float64(now-start)/1e9), 0.03)
}

func TestSSD_oneRead(t *testing.T) {
	p := exact(t)
	took, _ := load(t, newSSD(t, p), 1, 1, random(blk.OpRead))
	require.Equal(t, p.ReadSetup+p.Read+p.Channel+p.Command+p.Link, took[0])
	// Two pages, on two dies: the second only has to pass the link as well.
	took, _ = load(t, newSSD(t, p), 1, 1, sequential(blk.OpRead, 64))
	require.Equal(t, p.ReadSetup+p.Read+4*p.Channel+p.Command+8*p.Link, took[0])
	// The rest of a page is in its die's register.
	d := newSSD(t, p)
	took, _ = load(t, d, 1, 5, sequential(blk.OpRead, 8))
	require.Equal(t, took[0], took[4])
	for _, l := range took[1:4] {
		require.Equal(t, took[0]-p.Read, l)
	}
	require.EqualValues(t, 3, d.Stats().Hits)
}

// Reads of different dies sense at the same time, those of one wait for each other.
func TestSSD_dies(t *testing.T) {
	p := exact(t)
	p.Link, p.Command, p.Channel = 0, 0, 0
	one := p.ReadSetup + p.Read
	at := func(step blk.Sector) func(int) Command {
		return func(i int) Command {
			return Command{Op: blk.OpRead, Sector: step * p.PageSectors * blk.Sector(i), Sectors: 8}
		}
	}
	_, all := load(t, newSSD(t, p), 32, 32, at(1))
	require.Equal(t, one, all)
	_, all = load(t, newSSD(t, p), 32, 32, at(32))
	require.Equal(t, one+31*p.Read, all)
}

// A channel carries for one of its dies at a time, whatever these do.
func TestSSD_channels(t *testing.T) {
	p := exact(t)
	p.Link, p.Command, p.Read, p.Channel = 0, 0, 0, 1e6
	for n, want := range map[int]blk.Instant{8: 1, 16: 2, 32: 4} {
		_, all := load(t, newSSD(t, p), n, n, func(i int) Command {
			return Command{Op: blk.OpRead, Sector: p.PageSectors * blk.Sector(i), Sectors: 8}
		})
		require.Equal(t, p.ReadSetup+want*1e6, all, "%d reads, 8 channels", n)
	}
}

// What is ready sooner passes the link sooner, whatever came first.
func TestSSD_linkOrder(t *testing.T) {
	p := exact(t)
	d := newSSD(t, p)
	require.True(t, d.Queue(0, Command{Tag: 1, Op: blk.OpRead, Sectors: 8}))
	require.True(t, d.Queue(1, Command{Tag: 2, Op: blk.OpWrite, Sector: 8, Sectors: 8}))
	require.Equal(t, 1+p.WriteSetup+p.Command+p.Link, d.Next())
	for _, want := range []int{2, 1} {
		_, _, ok := d.Done(d.Next() - 1)
		require.False(t, ok)
		tag, _, ok := d.Done(d.Next())
		require.True(t, ok)
		require.Equal(t, want, tag)
	}
	require.Equal(t, blk.Never, d.Next())
	_, _, ok := d.Done(blk.Never)
	require.False(t, ok)
}

// The buffer takes a burst at the link's pace; then writes wait for programs, for the
// moves that random ones cause, and at times for an erase.
func TestSSD_sustainedWrites(t *testing.T) {
	p := exact(t)
	p.Dies, p.Channels, p.BufferPages, p.BlockPages = 1, 1, 4, 16
	d := newSSD(t, p)
	took, _ := load(t, d, 1, 4000, random(blk.OpWrite))
	fast := p.WriteSetup + p.Command + p.Link
	for _, l := range took[:16] {
		require.Equal(t, fast, l)
	}
	require.Greater(t, slices.Max(took), p.Erase)
	late := took[100:]
	share := p.Valid / (1 - p.Valid)
	page := float64(p.Program+4*p.Channel) + share*float64(p.Program+p.Read) + float64(p.Erase)/(16*(1-p.Valid))
	require.InEpsilon(t, page/4, mean(late), 0.02)
	s := d.Stats()
	require.EqualValues(t, 4000*8, s.Destaged)
	require.Greater(t, s.Stalls, uint64(900), "every page's last")

	p.Valid, p.Erase = 0, 0
	took, _ = load(t, newSSD(t, p), 1, 4000, random(blk.OpWrite))
	require.InEpsilon(t, float64(p.Program+4*p.Channel)/4, mean(took[100:]), 0.02)
}

// A read does not wait for all that a die still has to program, and puts it off.
func TestSSD_suspend(t *testing.T) {
	p := exact(t)
	p.Dies, p.Channels = 1, 1
	read := func(suspend blk.Instant) (took, behind blk.Instant) {
		p.Suspend = suspend
		d := newSSD(t, p)
		load(t, d, 1, 64, random(blk.OpWrite)) // 16 pages
		now := d.(*ssdDrive).link
		was := d.(*ssdDrive).dies[0].behind
		require.Greater(t, was, now+10*p.Program)
		require.True(t, d.Queue(now, Command{Op: blk.OpRead, Sectors: 8}))
		require.EqualValues(t, 1, d.Stats().Stalls)
		return d.Next() - now, d.(*ssdDrive).dies[0].behind - was
	}
	alone := p.ReadSetup + p.Read + p.Channel + p.Command + p.Link
	took, behind := read(100_000)
	require.Equal(t, alone+100_000, took)
	require.Equal(t, p.Read+p.Channel, behind)
	took, _ = read(0)
	require.Equal(t, alone, took)
}

// Flushes and FUA wait for the flash where the buffer does not survive.
func TestSSD_durable(t *testing.T) {
	p := exact(t)
	for _, p.Protected = range []bool{true, false} {
		d := newSSD(t, p)
		write := Command{Op: blk.OpWrite, Sectors: 8}
		took, _ := load(t, d, 1, 1, func(int) Command { return write })
		flush, _ := load(t, newSSD(t, p), 1, 2, func(i int) Command {
			return []Command{write, {Op: blk.OpFlush}}[i]
		})
		write.FUA = true
		fua, _ := load(t, newSSD(t, p), 1, 1, func(int) Command { return write })
		if p.Protected {
			require.Equal(t, took, fua)
			require.Equal(t, p.Command, flush[1])
		} else {
			require.Greater(t, fua[0], took[0]+p.Program)
			require.Greater(t, flush[1], p.Program)
		}
	}
}

func TestSSD_discard(t *testing.T) {
	p := exact(t)
	took, _ := load(t, newSSD(t, p), 1, 1, func(int) Command { return Command{Op: blk.OpDiscard, Sectors: ssdSectors} })
	require.Equal(t, p.Discard+p.Command, took[0])
}

func TestSSD_full(t *testing.T) {
	d := newSSD(t, sata(t))
	require.Equal(t, 32, d.Depth())
	for range 32 {
		require.True(t, d.Queue(0, Command{Op: blk.OpRead, Sectors: 8}))
	}
	before := d.Stats()
	next := d.Next()
	require.False(t, d.Queue(0, Command{Op: blk.OpRead, Sectors: 8}))
	require.Equal(t, before, d.Stats())
	require.Equal(t, next, d.Next())
	_, _, ok := d.Done(next)
	require.True(t, ok)
	require.True(t, d.Queue(next, Command{Op: blk.OpRead, Sectors: 8}))
	require.Panics(t, func() { d.Queue(next, Command{Sector: ssdSectors, Sectors: 1}) })
	require.Panics(t, func() { d.Queue(next, Command{Sector: 1, Sectors: math.MaxUint64}) })
}

func TestSSD_allocatesNothing(t *testing.T) {
	d := newSSD(t, sata(t))
	now, i := blk.Instant(0), 0
	next := []func(int) Command{random(blk.OpRead), random(blk.OpWrite)}
	require.Zero(t, testing.AllocsPerRun(5000, func() {
		i++
		for d.Queue(now, next[i%2](i)) {
		}
		now = d.Next()
		d.Done(now)
	}))
}

func TestNewSSD_refuses(t *testing.T) {
	for want, change := range map[string]func(*SSD){
		"channels 0 is not from 1 to 64":          func(p *SSD) { p.Channels = 0 },
		"dies 65 is not from 1 to 64":             func(p *SSD) { p.Dies = 65 },
		"queue depth 1025 is not from 1 to 1024":  func(p *SSD) { p.QueueDepth = 1025 },
		"page sectors 4 is not from 8 to 512":     func(p *SSD) { p.PageSectors = 4 },
		"block pages 0 is not from 1 to 65536":    func(p *SSD) { p.BlockPages = 0 },
		"buffer pages 0 is not from 1 to 1048576": func(p *SSD) { p.BufferPages = 0 },
		"read -1 is not from 0 to 1000000000":     func(p *SSD) { p.Read = -1 },
		"program 1000000001 is not":               func(p *SSD) { p.Program = 1e9 + 1 },
		"erase -1 is not":                         func(p *SSD) { p.Erase = -1 },
		"suspend -1 is not":                       func(p *SSD) { p.Suspend = -1 },
		"channel -1 is not":                       func(p *SSD) { p.Channel = -1 },
		"link -1 is not":                          func(p *SSD) { p.Link = -1 },
		"command -1 is not":                       func(p *SSD) { p.Command = -1 },
		"read setup -1 is not":                    func(p *SSD) { p.ReadSetup = -1 },
		"write setup -1 is not":                   func(p *SSD) { p.WriteSetup = -1 },
		"discard -1 is not":                       func(p *SSD) { p.Discard = -1 },
		"valid 1 is not from 0 to 0.99":           func(p *SSD) { p.Valid = 1 },
		"valid NaN is not":                        func(p *SSD) { p.Valid = math.NaN() },
		"jitter -0.1 is not from 0 to 0.99":       func(p *SSD) { p.Jitter = -0.1 },
	} {
		p := sata(t)
		change(&p)
		_, err := NewSSD(p, 1, 1)
		require.ErrorContains(t, err, "ssd: "+want)
	}
	_, err := NewSSD(sata(t), 0, 1)
	require.ErrorContains(t, err, "0 sectors")
}

// Whatever is asked of whatever drive: each command is done once, none before it was
// queued, each Next is kept if nothing comes between, time does not run backwards, and
// the same history has the same answers.
func TestSSD_property(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		small := func(name string, low, high int) int { return rapid.IntRange(low, high).Draw(t, name) }
		p := SSD{
			Channels: small("channels", 1, 3), Dies: small("dies", 1, 3), QueueDepth: small("depth", 1, 40),
			PageSectors: blk.Sector(small("page", 8, 40)), BlockPages: small("block", 1, 5), BufferPages: small("buffer", 1, 5),
			Read: blk.Instant(small("read", 0, 100)), Program: blk.Instant(small("program", 0, 500)), Erase: blk.Instant(small("erase", 0, 4000)),
			Suspend: blk.Instant(small("suspend", 0, 300)), Channel: blk.Instant(small("channel", 0, 20)), Link: blk.Instant(small("link", 0, 20)),
			Command: blk.Instant(small("command", 0, 10)), ReadSetup: blk.Instant(small("read setup", 0, 10)), WriteSetup: blk.Instant(small("write setup", 0, 10)),
			Discard: blk.Instant(small("discard", 0, 10)), Valid: float64(small("valid", 0, 9)) / 10, Jitter: float64(small("jitter", 0, 9)) / 10,
			Protected: rapid.Bool().Draw(t, "protected"),
		}
		seed := rapid.Uint64().Draw(t, "seed")
		d, err := NewSSD(p, 10_000, seed)
		require.NoError(t, err)
		twin, err := NewSSD(p, 10_000, seed)
		require.NoError(t, err)
		now, last, sent := blk.Instant(0), blk.Instant(0), 0
		var sectors, commands uint64
		queued := map[int]blk.Instant{}
		take := func() {
			next := d.Next()
			tag, at, ok := d.Done(now)
			again, same, too := twin.Done(now)
			require.Equal(t, []any{tag, at, ok}, []any{again, same, too})
			require.Equal(t, next <= now, ok)
			if ok {
				require.Equal(t, next, at)
				require.Contains(t, queued, tag)
				require.GreaterOrEqual(t, at, queued[tag])
				require.GreaterOrEqual(t, at, last)
				last = at
				delete(queued, tag)
			}
		}
		for range small("steps", 1, 200) {
			switch small("action", 0, 5) {
			default:
				n := blk.Sector(small("sectors", 0, 100))
				c := Command{
					Tag: sent, Op: blk.Op(small("op", 0, int(blk.OpCount)-1)), FUA: rapid.Bool().Draw(t, "fua"),
					Sector: blk.Sector(small("sector", 0, 9900)), Sectors: n,
				}
				full := len(queued) == p.QueueDepth
				require.Equal(t, !full, d.Queue(now, c))
				require.Equal(t, !full, twin.Queue(now, c))
				if !full {
					queued[sent] = now
					sent++
					commands++
					sectors += uint64(n)
				}
			case 3:
				now += blk.Instant(small("time", 0, 2000))
			case 4:
				take()
			case 5:
				if len(queued) > 0 {
					now = max(now, d.Next())
					take()
				}
			}
		}
		for len(queued) > 0 {
			now = max(now, d.Next())
			take()
		}
		require.Equal(t, blk.Never, d.Next())
		s := d.Stats()
		require.Equal(t, s, twin.Stats())
		var doneSectors, done uint64
		for op := range s.Commands {
			done += s.Commands[op]
			doneSectors += s.Sectors[op]
		}
		require.Equal(t, []uint64{commands, sectors}, []uint64{done, doneSectors})
	})
}

// Another seed is another drive.
func TestSSD_seeds(t *testing.T) {
	run := func(seed uint64) []blk.Instant {
		d, err := NewSSD(sata(t), ssdSectors, seed)
		require.NoError(t, err)
		took, _ := load(t, d, 4, 100, random(blk.OpRead))
		return took
	}
	require.Equal(t, run(1), run(1))
	require.NotEqual(t, run(1), run(2))
}

package backend

import (
	"bytes"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"testing"

	"github.com/elevisor/elevisor/backend/drive"
	"github.com/elevisor/elevisor/blk"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

// fakeDrive takes some commands at a time, each for as long as cost says, and notes
// them.
type fakeDrive struct {
	depth int
	cost  func(c drive.Command) blk.Instant
	in    []fakeCommand
	log   []drive.Command
	stats drive.Stats
}

type fakeCommand struct {
	tag int
	due blk.Instant
}

func (d *fakeDrive) Queue(now blk.Instant, c drive.Command) bool {
	if len(d.in) == d.depth {
		return false
	}
	d.in = append(d.in, fakeCommand{c.Tag, now + d.cost(c)})
	d.log = append(d.log, c)
	d.stats.Commands[c.Op]++
	return true
}

func (d *fakeDrive) first() (at int) {
	for i, c := range d.in {
		if c.due < d.in[at].due {
			at = i
		}
	}
	return at
}

func (d *fakeDrive) Next() blk.Instant {
	if len(d.in) == 0 {
		return blk.Never
	}
	return d.in[d.first()].due
}

func (d *fakeDrive) Done(now blk.Instant) (int, blk.Instant, bool) {
	if d.Next() > now {
		return 0, 0, false
	}
	i := d.first()
	c := d.in[i]
	d.in = append(d.in[:i], d.in[i+1:]...)
	return c.tag, c.due, true
}

func (d *fakeDrive) Depth() int         { return d.depth }
func (d *fakeDrive) Stats() drive.Stats { return d.stats }

// bySector makes a command take as many microseconds as its first sector says.
func bySector(c drive.Command) blk.Instant { return blk.Instant(c.Sector) * 1000 }

// Each request is given back at the very instant of the model's, the earliest first,
// and a full drive takes no more.
func TestSim_exactInVirtualTime(t *testing.T) {
	model := &fakeDrive{depth: 3, cost: bySector}
	w := newWorld(t, NewSim(memDisk(t, 1<<20), model, Physical{}, Options{}), 8)
	require.Equal(t, blk.Never, w.Wake())
	w.now = 500
	for _, sector := range []blk.Sector{70, 10, 30} {
		require.True(t, w.submit(data(blk.OpRead, sector, make([]byte, 512))))
	}
	late := data(blk.OpRead, 5, make([]byte, 512))
	require.False(t, w.submit(late), "the drive is full")
	require.Equal(t, blk.StateQueued, late.State())
	require.Empty(t, w.reap(t))
	var order []blk.Sector
	var at []blk.Instant
	for w.next() {
		w.now-- // a moment too early
		require.Empty(t, w.reap(t))
		w.now++
		for _, r := range w.reap(t) {
			requireOK(t, r)
			order, at = append(order, r.Sector), append(at, w.now)
		}
		if late.State() == blk.StateQueued {
			require.True(t, w.submit(late))
		}
	}
	require.Equal(t, []blk.Sector{10, 5, 30, 70}, order)
	require.Equal(t, []blk.Instant{10_500, 15_500, 30_500, 70_500}, at)
	s := simulatedOf(t, w.Backend)
	require.EqualValues(t, 4, s.Deviation.TotalCount())
	require.Zero(t, s.Deviation.Max())
	require.EqualValues(t, 4, s.Model.Commands[blk.OpRead])
}

// A request that is reaped late counts as late.
func TestSim_deviation(t *testing.T) {
	w := newWorld(t, NewSim(memDisk(t, 1<<20), &fakeDrive{depth: 8, cost: bySector}, Physical{}, Options{}), 8)
	for i := range 8 {
		require.True(t, w.submit(data(blk.OpRead, blk.Sector(i), make([]byte, 512))))
	}
	w.now = 57_000
	require.Len(t, w.reap(t), 8)
	s := simulatedOf(t, w.Backend)
	require.EqualValues(t, 8, s.Deviation.TotalCount())
	require.InEpsilon(t, 57_000, s.Deviation.Max(), 0.01)
	require.InEpsilon(t, 50_000, s.Deviation.Min(), 0.01)
}

// A drive that is slowed down, or fails, is still a simulated one.
func TestSim_decorated(t *testing.T) {
	img := NewSim(memDisk(t, 1<<20), &fakeDrive{depth: 8, cost: bySector}, Physical{}, Options{})
	img = NewFaults(NewRate(img, RateOptions{IOPS: 1_000_000}), Fault{Range: blk.Range{Sector: 9, Sectors: 1}})
	w := newWorld(t, img, 8)
	require.True(t, w.submit(data(blk.OpRead, 5, make([]byte, 512))))
	for w.next() {
		w.reap(t)
	}
	s, ok := As[Simulated](w.Backend)
	require.True(t, ok)
	require.EqualValues(t, 1, s.Simulated().Model.Commands[blk.OpRead])
	_, ok = As[Simulated](newWorld(t, NewRate(memDisk(t, 1<<20), RateOptions{IOPS: 5}), 8).Backend)
	require.False(t, ok)

	model := NewSim(memDisk(t, 1<<20), &fakeDrive{depth: 8, cost: bySector}, Physical{}, Options{})
	b := newWorld(t, NewRecorder(NewRate(model, RateOptions{IOPS: 5})), 8).Backend
	require.Zero(t, recorderOf(t, b).Recorded(), "a recorded drive can be asked for both")
	require.Zero(t, simulatedOf(t, b).Deviation.TotalCount())
}

// What the drive is asked for: groups and several ranges at once, within the disk.
func TestSim_commands(t *testing.T) {
	model := &fakeDrive{depth: 32, cost: func(drive.Command) blk.Instant { return 1 }}
	w := newWorld(t, NewSim(memDisk(t, 100*512), model, Physical{}, Options{Discard: true}), 32)
	group := data(blk.OpWrite, 8, make([]byte, 4096))
	group.Merged = data(blk.OpWrite, 16, make([]byte, 512), make([]byte, 512))
	through := data(blk.OpWrite, 99, make([]byte, 512))
	through.Flags = blk.FlagFUA
	for _, r := range []*blk.Request{
		group, through, {Op: blk.OpFlush},
		ranges(blk.OpDiscard, 0, blk.Range{Sector: 60, Sectors: 2}, blk.Range{Sector: 3, Sectors: 5}),
		ranges(blk.OpDiscard, 0, blk.Range{Sector: 90, Sectors: 10}, blk.Range{Sector: 0, Sectors: 90}),
		ranges(blk.OpWriteZeroes, blk.FlagFUA, blk.Range{Sector: 5, Sectors: 1}),
	} {
		require.True(t, w.submit(r))
	}
	for i := range model.log {
		model.log[i].Tag = 0
	}
	require.Equal(t, []drive.Command{
		{Op: blk.OpWrite, Sector: 8, Sectors: 10}, {Op: blk.OpWrite, FUA: true, Sector: 99, Sectors: 1}, {Op: blk.OpFlush},
		{Op: blk.OpDiscard, Sector: 60, Sectors: 7}, {Op: blk.OpDiscard, Sector: 90, Sectors: 10},
		{Op: blk.OpWriteZeroes, FUA: true, Sector: 5, Sectors: 1},
	}, model.log)
	w.now = 1
	require.Len(t, w.reap(t), 6)
}

// With cache=unsafe no flush reaches the drive; with discard=ignore no discard does.
func TestSim_ignored(t *testing.T) {
	model := &fakeDrive{depth: 32, cost: func(drive.Command) blk.Instant { return 1 }}
	img := NewSim(mustOpen(t, "mem:size=1M", Options{}), model, Physical{}, Options{Cache: CacheUnsafe})
	w := newWorld(t, img, 4)
	through := data(blk.OpWrite, 0, make([]byte, 512))
	through.Flags = blk.FlagFUA
	require.True(t, w.submit(&blk.Request{Op: blk.OpFlush}))
	require.True(t, w.submit(ranges(blk.OpDiscard, 0, blk.Range{Sectors: 1})))
	require.True(t, w.submit(through))
	require.LessOrEqual(t, w.Wake(), w.now)
	require.Len(t, w.reap(t), 2)
	require.Equal(t, []drive.Command{{Tag: model.log[0].Tag, Op: blk.OpWrite, Sectors: 1}}, model.log)
	w.now = 1
	require.Len(t, w.reap(t), 1)
}

func mustOpen(t testing.TB, spec string, o Options) Image {
	t.Helper()
	img, err := Open(spec, o)
	require.NoError(t, err)
	return img
}

func TestSim_oneQueue(t *testing.T) {
	img := mustOpen(t, "sim:hdd?size=1M", Options{})
	b, err := img.Attach(Host{Depth: 1})
	require.NoError(t, err)
	_, err = img.Attach(Host{Depth: 1})
	require.ErrorContains(t, err, "a simulated drive has one queue")
	require.NoError(t, b.Close())
	require.NoError(t, img.Close())
}

func TestSim_info(t *testing.T) {
	img := mustOpen(t, "sim:hdd?preset=hd155ui&size=1G", Options{Discard: true})
	i := img.Info()
	require.Equal(t, blk.Sector(1<<21), i.Sectors)
	require.EqualValues(t, 512, i.LogicalBlock)
	require.EqualValues(t, 4096, i.PhysicalBlock)
	require.Equal(t, "sim", i.Engine)
	require.True(t, i.Rotational && i.Physical.Rotational && i.Physical.Believed && i.Discard && i.WriteZeroes)
	require.Equal(t, "simulated drive hd155ui is rotational", i.Physical.Reason)
	require.Empty(t, i.Physical.Devices)
	require.NoError(t, img.Close())
	img = mustOpen(t, "sim:hdd", Options{LogicalBlock: 4096, ReadOnly: true})
	i = img.Info()
	require.Equal(t, blk.Sector(8<<30/512), i.Sectors)
	require.EqualValues(t, 4096, i.LogicalBlock)
	require.True(t, i.ReadOnly)
	require.NoError(t, img.Close())
}

func TestSim_ssd(t *testing.T) {
	img := mustOpen(t, "sim:ssd,size=1G,ncq=5", Options{})
	i := img.Info()
	require.False(t, i.Rotational || i.Physical.Rotational)
	require.True(t, i.Physical.Believed)
	require.Equal(t, "simulated drive sata-ssd is not rotational", i.Physical.Reason)
	require.Equal(t, 5, img.(*simDisk).drive.Depth())
	require.NoError(t, img.Close())
}

func TestSim_specs(t *testing.T) {
	for _, spec := range []string{
		"sim:hdd,preset=hd155ui,size=1M,seed=7,ncq=1", "sim:hdd?preset=hd155ui&size=1M&seed=7&ncq=1", "sim:?hdd&size=1M,ncq=1",
		AddSimKey(AddSimKey("sim:hdd", "size", "1M"), "ncq", "1"), "sim:hdd,size=1M,ncq=1,drive=a",
	} {
		img := mustOpen(t, spec, Options{})
		require.Equal(t, blk.Sector(2048), img.Info().Sectors, spec)
		require.Equal(t, 1, img.(*simDisk).drive.Depth(), spec)
		require.NoError(t, img.Close())
	}
	is, named := IsSim("sim:hdd,drive=x")
	require.True(t, is && named)
	is, named = IsSim("sim:hdd")
	require.True(t, is && !named)
	is, _ = IsSim("./sim:hdd")
	require.False(t, is)
	require.True(t, HasSimKey("sim:hdd,size=4", "size"))
	require.False(t, HasSimKey("sim:hdd", "size"))
}

func TestSim_badSpecs(t *testing.T) {
	params := filepath.Join(t.TempDir(), "none.toml")
	for spec, want := range map[string]string{
		"sim:":                                   `"" is not a kind of simulated drive; valid: hdd, ssd`,
		"sim:tape":                               `"tape" is not a kind of simulated drive; valid: hdd, ssd`,
		"sim:ssd,preset=hd155ui":                 `hd155ui is a drive of the kind sim:hdd, not sim:ssd`,
		"sim:hdd,sead=7":                         `unknown key "sead"; valid: preset, params, size, seed, ncq, file, drive`,
		"sim:hdd?seed":                           `unknown key "seed"`,
		"sim:hdd,size=%zz":                       `size="%zz": invalid URL escape`,
		"sim:hdd,preset=hd1":                     `there is no preset "hd1"; there are generic7200, hd103sj, hd155ui, sata-ssd`,
		"sim:hdd,preset=":                        `preset="": want a value`,
		"sim:hdd,preset=/x":                      `preset="/x" is a path`,
		"sim:hdd,seed=-1":                        `seed="-1": want a whole number from 0`,
		"sim:hdd,ncq=0":                          `ncq="0": want a number from 1 to 1024`,
		"sim:hdd,size=1x":                        `size "1x" is not a number`,
		"sim:hdd,size=511":                       `511 bytes; a disk has at least one sector`,
		"sim:hdd,size=3T,preset=hd155ui":         `hd155ui has 1499136000000`,
		"sim:hdd,preset=hd155ui,params=x":        `preset and params exclude each other`,
		"sim:hdd,params=" + params:               `no such file`,
		"sim:hdd,file=/no/such":                  `backing file: open disk /no/such`,
		"sim:hdd,file=sim:hdd":                   `behind a simulated drive`,
		"sim:hdd,size=2M,file=mem:size%3D1M%2cx": `size "1M,x" is not`,
		"sim:hdd,size=2M,file=mem:size=1M":       `backing file mem:size=1M has 1048576`,
		"sim:hdd,file=%zz":                       `file="%zz": invalid URL escape`,
	} {
		_, err := Open(spec, Options{})
		require.ErrorContains(t, err, want, spec)
		require.ErrorContains(t, err, "open disk "+spec)
	}
}

// What was written is in the backing file, whose name may have any character.
func TestSim_backingFile(t *testing.T) {
	eachEngine(t, func(t *testing.T, aio AIO) {
		path := sparse(t, 1<<20)
		odd := filepath.Join(filepath.Dir(path), "a,b&c%d?e")
		require.NoError(t, unix.Rename(path, odd))
		spec := AddSimKey(AddSimKey("sim:hdd", "file", odd), "seed", "3")
		want := make([]byte, 64<<10)
		for i := range want {
			want[i] = byte(i / 512)
		}
		for _, op := range []blk.Op{blk.OpWrite, blk.OpRead} {
			img := mustOpen(t, spec, Options{AIO: aio, Lock: true})
			require.Equal(t, blk.Sector(2048), img.Info().Sectors)
			_, err := Open(odd, Options{Lock: true})
			require.ErrorIs(t, err, ErrLocked)
			g := attachWith(t, img, 8, aio == AIOURing)
			buf := memory(t, len(want))
			if op == blk.OpWrite {
				copy(buf, want)
			}
			r := data(op, 100, buf)
			g.do(r, &blk.Request{Op: blk.OpFlush})
			requireOK(t, r)
			require.True(t, bytes.Equal(want, buf))
			require.EqualValues(t, 2, simulatedOf(t, g.b).Deviation.TotalCount())
			g.close()
			require.NoError(t, img.Close())
		}
		img := mustOpen(t, AddSimKey(spec, "size", "512K"), Options{AIO: aio})
		require.Equal(t, blk.Sector(1024), img.Info().Sectors)
		require.NoError(t, img.Close())
	})
}

// Through the real models, too, what is read is what was written, with any preset.
func TestSim_modelsKeepData(t *testing.T) {
	for _, preset := range drive.Presets() {
		p, err := drive.Load(preset)
		require.NoError(t, err)
		t.Run(preset, func(t *testing.T) {
			rapid.Check(t, func(rt *rapid.T) {
				base := memDisk(t, stackSize)
				model, err := p.New(stackSize/blk.SectorSize, rapid.Uint64().Draw(rt, "seed"))
				require.NoError(rt, err)
				b, err := NewSim(base, model, Physical{}, Options{}).Attach(Host{Depth: rapid.IntRange(1, 40).Draw(rt, "depth")})
				require.NoError(rt, err)
				s := &stackRun{world: &world{Backend: b}, ended: map[*blk.Request]int{}}
				s.run(t, rt, rapid.IntRange(1, 40).Draw(rt, "requests"))
				require.NoError(rt, b.Close())
				require.NoError(rt, base.Close())
			})
		})
	}
}

func TestSim_allocatesNothing(t *testing.T) {
	w := newWorld(t, mustOpen(t, "sim:hdd?preset=hd155ui&size=1G", Options{}), 8)
	random := rand.New(rand.NewPCG(1, 1))
	r := data(blk.OpRead, 0, make([]byte, 4096))
	done := make([]*blk.Request, 0, 8)
	require.Zero(t, testing.AllocsPerRun(1000, func() {
		r.Sector = blk.Sector(random.IntN(1<<18) * 8)
		require.True(t, w.submit(r))
		w.now = w.Wake()
		if done = w.Reap(w.now, done[:0]); len(done) == 1 {
			r.Move(blk.StateDone, blk.StateFree)
		}
	}))
}

func FuzzSimSpec(f *testing.F) {
	f.Add("hdd,preset=hd155ui,size=8G,seed=7,ncq=1")
	f.Add("hdd?params=a%2Cb&file=x")
	f.Fuzz(func(t *testing.T, spec string) {
		s, err := parseSim(spec)
		if err == nil {
			require.Contains(t, drive.Models, s.model)
			require.True(t, strings.Contains(spec, s.model))
		}
	})
}

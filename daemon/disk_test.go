package daemon

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/elevisor/elevisor/backend"
	"github.com/elevisor/elevisor/sched"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
)

func TestParseDisk(t *testing.T) {
	d, err := ParseDisk("id=vda,path=a,,b.img,socket=/s,read_only=on,serial=x=y,num-queues=4,queue-size=256,seg-max=10,size-max=65536," +
		"logical-block-size=4096,physical-block-size=8192,offset=1M,size=2M,max-discard-seg=3,cache=directsync,aio=threads,discard=ignore,lock=off")
	require.NoError(t, err)
	require.Equal(t, Disk{
		ID: "vda", Path: "a,b.img", Socket: "/s", ReadOnly: true, Serial: "x=y", NumQueues: 4, QueueSize: 256, SegMax: 10, SizeMax: 65536,
		LogicalBlock: 4096, PhysicalBlock: 8192, Offset: 1 << 20, Size: 2 << 20, DiscardSeg: 3,
		Cache: backend.CacheDirectsync, AIO: backend.AIOThreads, NoDiscard: true, NoLock: true,
	}, d)
}

// What --disk says of a simulated drive is put behind its path, in the order given.
func TestParseDisk_simulated(t *testing.T) {
	for said, want := range map[string]struct {
		path string
		size int64
	}{
		"path=sim:hdd,preset=hd155ui,size=8G":              {"sim:hdd?preset=hd155ui&size=8589934592", 0},
		"size=1M,seed=7,ncq=1,path=sim:hdd":                {"sim:hdd?seed=7&ncq=1&size=1048576", 0},
		"path=sim:hdd?size=2G&drive=a,size=1G":             {"sim:hdd?size=2G&drive=a", 1 << 30},
		"path=sim:hdd,model-file=a.toml,drive=x":           {"sim:hdd?params=a.toml&drive=x", 0},
		"path=sim:hdd?seed=1,backing-file=/a,,b&c%d.img":   {"sim:hdd?seed=1&file=/a%2Cb%26c%25d.img", 0},
		"path=sim:hdd,,preset=hd103sj,backing_file=/a.img": {"sim:hdd,preset=hd103sj&file=/a.img", 0},
		"path=mem:?size=1M,size=1K":                        {"mem:?size=1M", 1 << 10},
	} {
		d, err := ParseDisk(said + ",socket=s")
		require.NoError(t, err, said)
		require.Equal(t, Disk{Path: want.path, Size: want.size, Socket: "s"}, d)
	}
	_, err := ParseDisk("path=mem:?size=1M,socket=s,preset=hd155ui")
	require.ErrorContains(t, err, `preset="hd155ui" is for sim: disks, and the path is "mem:?size=1M"`)
	d, err := ParseDisk("path=sim:hdd,socket=s,preset=hd155iu")
	require.NoError(t, err)
	_, err = Open([]Disk{d}, nil, zap.NewNop())
	require.ErrorContains(t, err, `there is no preset "hd155iu"; there are generic7200, hd103sj, hd155ui, sata-ssd`)
}

// The schedulers are told whether the disk has a head.
func TestDomains_rotational(t *testing.T) {
	for _, c := range []struct {
		path, word string
		want       bool
	}{
		{"sim:hdd?size=1M", "", true}, {"sim:hdd?size=1M", "auto", true}, {"sim:hdd?size=1M", "off", false},
		{"mem:?size=1M", "", false}, {"mem:?size=1M", "on", true},
	} {
		disk := Disk{ID: "d", Path: c.path, Socket: t.TempDir() + "/s", Domain: "x"}
		d, err := Open([]Disk{disk}, []Domain{{ID: "x", Scheduler: "deadline", Rotational: c.word}}, zap.NewNop())
		require.NoError(t, err)
		require.Equal(t, c.want, d.domains[0].loops[0].Config().Rotational, "%+v", c)
		d.Close()
	}
}

func TestParseDisk_refuses(t *testing.T) {
	for s, want := range map[string]string{
		"path=a,socket=s,sokcet=t":               `unknown key "sokcet" in --disk; there are: id, path, socket`,
		"path=a,socket=s,read-only":              `"read-only" in --disk is not KEY=VALUE`,
		"path=a,socket=s,num-queues=0":           `num-queues="0": want a number from 1 to 256`,
		"path=a,socket=s,queue-size=x":           `queue-size="x": want a number from 1 to 32768`,
		"path=a,socket=s,cache=fast":             `cache="fast": unknown cache mode "fast"; valid: writeback, none, writethrough, directsync, unsafe`,
		"path=a,socket=s,discard=maybe":          `want unmap or ignore`,
		"path=a,socket=s,lock=maybe":             `want on or off`,
		"path=a,socket=s,offset=1z":              `size "1z" is not a number of bytes`,
		"path=a,socket=s,offset=100":             `must be multiples of 512`,
		"path=a,socket=s,logical-block-size=513": `513 is not a power of two`,
		"socket=s":                               `has no path`,
		"path=a":                                 `neither socket nor fd`,
		"path=a,socket=s,fd=3":                   `both socket=s and fd=3`,
		"path=a,fd=1":                            `fd="1": want a number from 3`,
	} {
		_, err := ParseDisk(s)
		require.ErrorContains(t, err, want, s)
	}
}

// With an error nothing stays open: the image's lock and the socket are free again.
func TestOpen_givesUpAll(t *testing.T) {
	dir := t.TempDir()
	good := Disk{Path: "mem:?size=1M", Socket: dir + "/s"}
	for _, bad := range []Disk{
		{Path: "mem:?size=1M", Socket: dir + "/s2"},             // the id "mem" twice
		{ID: "b", Path: dir + "/none", Socket: dir + "/s2"},     // no such image
		{ID: "b", Path: "mem:?size=1M", Socket: dir + "/no/s2"}, // no such directory
		{ID: "b", Path: "mem:?size=1M", Socket: dir + "/s"},     // the socket twice
		{ID: "b", Path: "mem:?size=1M", Socket: dir + "/s2", SegMax: 9999},
	} {
		_, err := Open([]Disk{good, bad}, nil, zap.NewNop())
		require.Error(t, err)
		require.NoFileExists(t, good.Socket)
	}
	d, err := Open([]Disk{good}, nil, zap.NewNop())
	require.NoError(t, err)
	d.Close()
	require.NoFileExists(t, good.Socket)
}

func TestParseDomain(t *testing.T) {
	d, err := ParseDomain("id=hdd0,scheduler=deadline,workers=2,queue_depth=4,rotational=off,read_expire=100,nomerges=1")
	require.NoError(t, err)
	require.Equal(t, Domain{
		ID: "hdd0", Scheduler: "deadline", Workers: 2, QueueDepth: 4, Rotational: "off",
		Knobs: []sched.Knob{{Key: "read_expire", Value: "100"}, {Key: "nomerges", Value: "1"}},
	}, d)
	for s, want := range map[string]string{
		"scheduler=none":         "needs an id",
		"id=private":             "needs an id",
		"id=x,workers=0":         `workers="0": want a number from 1 to 64`,
		"id=x,queue-depth=1025":  `want a number from 1 to 1024`,
		"id=x,rotational=rarely": "want on, off or auto",
		"id=x,none":              "not KEY=VALUE",
	} {
		_, err := ParseDomain(s)
		require.ErrorContains(t, err, want, s)
	}
}

// Which disks share a domain.
func TestDomains(t *testing.T) {
	dir := t.TempDir()
	n := 0
	disk := func(path, domain string) Disk {
		n++
		return Disk{ID: fmt.Sprint("d", n), Path: path, Domain: domain, Socket: fmt.Sprint(dir, "/s", n)}
	}
	file := func(name string) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, make([]byte, 4096), 0o600))
		return path
	}
	a, b, c := file("a"), file("b"), file("c")
	window := func(d Disk) Disk { d.ReadOnly = true; return d }
	d, err := Open([]Disk{
		disk(a, ""), disk(b, ""), window(disk(a, "")), disk(c, Private), disk("mem:?size=1M", "x"), disk("mem:?size=1M", "x"), disk("null:?size=1M", ""),
	}, []Domain{{ID: "x", Scheduler: "deadline", QueueDepth: 7}}, zap.NewNop())
	require.NoError(t, err)
	defer d.Close()
	of := func(i int) *domain { return d.disks[i].domain }
	require.Same(t, of(0), of(2), "one image, one domain")
	require.Same(t, d.disks[0].image, d.disks[2].image)
	if len(d.disks[0].image.Info().Physical.Devices) > 0 {
		require.Same(t, of(0), of(1), "one physical disk, one domain")
	}
	require.NotSame(t, of(0), of(3))
	require.Equal(t, "private:d4", of(3).id)
	require.Same(t, of(4), of(5))
	require.NotSame(t, d.disks[4].image, d.disks[5].image, "each mem: is its own")
	require.Equal(t, "deadline", of(4).kind.Name)
	require.Equal(t, "d7", of(6).id)
	require.Equal(t, "none", of(6).kind.Name)
	s, err := d.DomainStats("d5")
	require.NoError(t, err)
	require.Equal(t, 7, s.Depth)
	_, err = d.Switch("d7", "timeslice")
	require.NoError(t, err)
	s, err = d.DomainStats("d7")
	require.NoError(t, err)
	require.Equal(t, "timeslice", s.Scheduler)
	require.Equal(t, depthOf(t, "timeslice"), s.Depth)
	require.NoError(t, d.Set("d7", "queue-depth", "3"))
	_, err = d.Switch("d7", "none")
	require.NoError(t, err)
	s, err = d.DomainStats("d7")
	require.NoError(t, err)
	require.Equal(t, 3, s.Depth, "the operator's word")
	_, err = d.DomainStats("d9")
	require.ErrorContains(t, err, `no disk "d9"; there are d1, d2`)
}

func TestDomains_refused(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a")
	require.NoError(t, os.WriteFile(path, make([]byte, 4096), 0o600))
	one := Disk{ID: "1", Path: path, Socket: dir + "/1"}
	for want, c := range map[string]struct {
		second  Disk
		domains []Domain
	}{
		"one image cannot be in two":     {second: Disk{ID: "2", Path: path, Socket: dir + "/2", Domain: Private}},
		"ask for different things":       {second: Disk{ID: "2", Path: path, Socket: dir + "/2", Cache: backend.CacheWritethrough}},
		"may both write bytes 0 to 4095": {second: Disk{ID: "2", Path: path, Socket: dir + "/2"}},
		"the disks are in ":              {domains: []Domain{{ID: "y"}}},
		"domain y has no disk":           {domains: []Domain{{ID: "y"}}},
		`domain id "y" is used twice`:    {domains: []Domain{{ID: "y"}, {ID: "y"}}},
		`"fast" is unknown`:              {second: Disk{ID: "2", Path: "mem:?size=1M", Socket: dir + "/2", Domain: "y"}, domains: []Domain{{ID: "y", Scheduler: "fast"}}},
		"can run on several loops":       {second: Disk{ID: "2", Path: "mem:?size=1M", Socket: dir + "/2", Domain: "y"}, domains: []Domain{{ID: "y", Scheduler: "deadline", Workers: 2}}},
		"no_such_knob":                   {second: Disk{ID: "2", Path: "mem:?size=1M", Socket: dir + "/2", Domain: "y"}, domains: []Domain{{ID: "y", Knobs: []sched.Knob{{Key: "no_such_knob", Value: "1"}}}}},
	} {
		disks := []Disk{one}
		if c.second.ID != "" {
			disks = append(disks, c.second)
		}
		_, err := Open(disks, c.domains, zap.NewNop())
		require.ErrorContains(t, err, want)
	}
}

// What auto chooses, and why; the operator's word wins.
func TestChoose(t *testing.T) {
	for _, c := range []struct {
		name, rotational string
		physical         backend.Physical
		info             bool
		want, because    string
	}{
		{want: "none", because: "on tmpfs", physical: backend.Physical{Reason: "on tmpfs"}},
		{want: "timeslice", because: "sda is rotational", info: true, physical: backend.Physical{Rotational: true, Believed: true, Reason: "sda is rotational"}},
		{want: "none", because: "vda is virtual", info: true, physical: backend.Physical{Rotational: true, Reason: "vda is virtual"}},
		{rotational: "on", want: "timeslice", because: "rotational=on"},
		{rotational: "off", want: "none", because: "rotational=off", info: true, physical: backend.Physical{Rotational: true, Believed: true}},
		{name: "deadline", rotational: "on", want: "deadline", because: "the operator's choice"},
		{name: "mq-deadline", want: "deadline", because: "the operator's choice"},
		{name: "noop", want: "none", because: "the operator's choice"},
		{name: "auto", rotational: "on", want: "timeslice", because: "rotational=on"},
	} {
		d := &domain{spec: Domain{Rotational: c.rotational}, images: []*image{{Image: fakeImage{backend.Info{Rotational: c.info, Physical: c.physical}}}}}
		kind, because, err := d.choose(c.name)
		require.NoError(t, err)
		require.Equal(t, c.want, kind.Name)
		require.Equal(t, c.because, because)
	}
}

type fakeImage struct{ info backend.Info }

func (f fakeImage) Info() backend.Info                           { return f.info }
func (f fakeImage) Attach(backend.Host) (backend.Backend, error) { return nil, nil }
func (f fakeImage) Close() error                                 { return nil }

// The kernel's words for a scheduler are taken, and what is shown is ours: it is one
// of the names that there are.
func TestSwitch_alias(t *testing.T) {
	disk := Disk{ID: "d", Path: "mem:?size=1M", Socket: t.TempDir() + "/s", Domain: "x"}
	d, err := Open([]Disk{disk}, []Domain{{ID: "x", Scheduler: "mq-deadline"}}, zap.NewNop())
	require.NoError(t, err)
	defer d.Close()
	for _, c := range []struct{ set, want string }{{"", "deadline"}, {"noop", "none"}, {"mq-deadline", "deadline"}} {
		if c.set != "" {
			require.NoError(t, d.SetScheduler("d", c.set))
		}
		s, err := d.Scheduler("d")
		require.NoError(t, err)
		require.Equal(t, c.want, s.Active)
		require.Contains(t, s.Available, s.Active)
	}
	workers := Disk{ID: "d", Path: "mem:?size=1M", Socket: t.TempDir() + "/s", Domain: "x"}
	w, err := Open([]Disk{workers}, []Domain{{ID: "x", Scheduler: "noop", Workers: 2}}, zap.NewNop())
	require.NoError(t, err)
	w.Close()
}

// An empty name, as from a script whose variable is not set, is no scheduler.
func TestSwitch_emptyName(t *testing.T) {
	disk := Disk{ID: "d", Path: "mem:?size=1M", Socket: t.TempDir() + "/s", Domain: "x"}
	d, err := Open([]Disk{disk}, []Domain{{ID: "x", Scheduler: "deadline"}}, zap.NewNop())
	require.NoError(t, err)
	defer d.Close()
	require.ErrorContains(t, d.SetScheduler("d", ""), `scheduler "" is unknown`)
	s, err := d.Scheduler("d")
	require.NoError(t, err)
	require.Equal(t, "deadline", s.Active)
}

// A queue depth that the operator sets outlives a switch, also where it is what the
// scheduler of that moment would have had anyway.
func TestSwitch_keepsDepthThatWasDefault(t *testing.T) {
	disk := Disk{ID: "d", Path: "mem:?size=1M", Socket: t.TempDir() + "/s", Domain: "x"}
	d, err := Open([]Disk{disk}, []Domain{{ID: "x", Scheduler: "none"}}, zap.NewNop())
	require.NoError(t, err)
	defer d.Close()
	depth := depthOf(t, "none")
	require.NoError(t, d.Set("d", "queue_depth", fmt.Sprint(depth)))
	require.NoError(t, d.SetScheduler("d", "timeslice"))
	s, err := d.DomainStats("d")
	require.NoError(t, err)
	require.Equal(t, depth, s.Depth)
}

// TestSharedMemory has two windows of one image of memory, which is recorded if one of
// them asks for that.
func TestSharedMemory(t *testing.T) {
	dir := t.TempDir()
	disk := func(id string, offset int64) Disk {
		return Disk{ID: id, Path: "mem:?size=2M", Socket: filepath.Join(dir, id), Offset: offset, Size: 1 << 20, Domain: "d", Shared: true, Record: id == "b"}
	}
	d, err := Open([]Disk{disk("a", 0), disk("b", 1<<20)}, nil, zap.NewNop())
	require.NoError(t, err)
	require.Len(t, d.images, 1)
	for _, s := range d.Stat() {
		require.NotNil(t, s.Recorded)
	}
	d.Close()
	_, err = Open([]Disk{disk("a", 0), disk("b", 4096)}, nil, zap.NewNop())
	require.ErrorContains(t, err, "disks a and b may both write bytes 4096 to 1048575")
}

func depthOf(t *testing.T, scheduler string) int {
	k, err := sched.Find(scheduler)
	require.NoError(t, err)
	return k.Depth
}

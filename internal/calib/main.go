package main

import (
	"encoding/csv"
	"encoding/json"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"

	"github.com/elevisor/elevisor/backend/sim"
	"github.com/elevisor/elevisor/blk"
	"github.com/elevisor/elevisor/sched"
)

var P = map[string]float64{}

func hdd() sim.HDD {
	return sim.HDD{RPM: 60e6 / P["rot"], Blocks: P["total"], Media: P["m"], InnerRatio: P["inner"],
		SeekBase: P["sk_a"], SeekStroke: P["sk_b"], SeekMax: P["sk_max"], NearBlocks: 360, Settle: P["resync"],
		Read: P["d_r"], Write: P["d_w"], Bus: 13.7, StreamSwitch: P["t_sw"], DirectionSwitch: P["t_dir"],
		Segments: 16, Segment: P["seg"], ReadCache: P["rcache"], ReadAheadMin: P["ra_min"], ReadAheadSmall: P["ra_small"],
		QueueLimit: P["qd_lim"], WriteCache: P["wcache"], Destage: P["wm"], NCQ: 32, MaxWait: 1e6}
}

type job struct {
	at    float64
	done  [2]int
	pos   [2]blk.Sector
	req   blk.Request
	bytes int64
}

// pure slice: owner keeps
type slicer struct {
	idle0 bool
}

func run(kind, cfg string, n int, seed uint64, secs, warm float64) (r, w float64) {
	d, err := sim.NewHDD(hdd(), blk.Sector(P["total"])*8, seed)
	if err != nil {
		panic(err)
	}
	rng := rand.New(rand.NewPCG(seed, 1))
	c := &sched.Config{Rotational: true, NoMerges: 2}
	name := "none"
	h := [2]float64{P["h_r"], P["h_w"]}
	o := [2]float64{}
	slice := 0.0
	switch cfg {
	case "blkmq_ts250":
		name = "timeslice"
		o = [2]float64{P["o_sl_r"], P["o_sl_w"]}
	case "cfq_idle0":
		o = [2]float64{P["o_cfq_r"], P["o_cfq_w"]}
	case "cfq_idle8":
		o = [2]float64{P["o_cfq_r"], P["o_cfq_w"]}
		slice = 100e6
		if n > 3 {
			slice = math.Max(16e6, 300e6/float64(n))
		}
	}
	s, err := sched.New(name, c)
	if err != nil {
		panic(err)
	}
	if name == "timeslice" {
		s.Set("slice_by", "queue")
	}
	disk := &blk.Disk{Sectors: blk.Sector(P["total"]) * 8}
	fs := blk.Sector(P["fsize"]) * 8
	jobs := make([]job, n)
	for i := range jobs {
		j := &jobs[i]
		j.at = rng.Float64() * 1e5
		j.pos = [2]blk.Sector{fs * blk.Sector(i), fs * blk.Sector(i)}
		j.req.Disk = disk
		j.req.Source = blk.Source{Queue: uint16(i)}
	}
	owner, ownerEnd := -1, 0.0
	started := false
	end := (secs) * 1e9
	var cnt [2]int
	inflight := 0
	seq := uint64(0)
	pend := make([]bool, n)
	for {
		// next event
		t := float64(blk.Never)
		which := -1
		for i := range jobs {
			if jobs[i].at >= 0 && jobs[i].at < t {
				t, which = jobs[i].at, i
			}
		}
		if x := float64(d.Next()); x < t {
			t, which = x, -2
		}
		if inflight < 32 {
			if x := float64(s.Wake()); x < t {
				t, which = x, -3
			}
		}
		if slice > 0 && owner >= 0 && started && ownerEnd < t && ownerEnd > 0 {
			t, which = ownerEnd, -4
		}
		if t > end {
			break
		}
		now := blk.Instant(math.Ceil(t))
		switch which {
		case -2:
			tag, at, ok := d.Done(now)
			if !ok {
				panic("x")
			}
			j := &jobs[tag]
			inflight--
			s.Complete(now, &j.req)
			dir := 0
			if j.req.Op == blk.OpWrite {
				dir = 1
			}
			if float64(at) > warm*1e9 {
				cnt[dir]++
			}
			j.at = float64(at) + (h[dir]*(1+P["jit"]*(2*rng.Float64()-1))+o[dir])*1000
			if slice > 0 && !started {
				started = true
				ownerEnd = float64(at) + slice
			}
		case -3:
		case -4:
			owner = -1
		default:
			j := &jobs[which]
			j.at = -1
			op := blk.OpRead
			dir := 0
			if kind == "w" || strings.HasPrefix(kind, "rw") && rng.IntN(2) == 1 {
				op, dir = blk.OpWrite, 1
			}
			sl := j.req.Source
			j.req = blk.Request{Disk: disk, Source: sl, Op: op, Sector: j.pos[dir], Sectors: 8, Pos: j.pos[dir], Seq: seq, Arrive: now}
			if kind == "rand" || kind=="rand5" {
				span := uint64(P["total"])
				off := uint64(0)
				if kind == "rand5" { span = uint64(P["fsize"]); off = uint64(which)*span }
				j.req.Sector = blk.Sector(off+rng.Uint64N(span)) * 8
			}
			seq++
			j.pos[dir] += 8
			if j.pos[dir] >= fs*blk.Sector(which+1) {
				j.pos[dir] = fs * blk.Sector(which)
			}
			if slice > 0 {
				pend[which] = true
			} else {
				s.Insert(now, &j.req)
			}
		}
		if slice > 0 {
			if owner < 0 && inflight == 0 {
				for k := 1; k <= n; k++ {
					q := (n + int(seqOwner) + k) % n
					if pend[q] {
						owner, started, ownerEnd = q, false, 0
						seqOwner = q
						break
					}
				}
			}
			if owner >= 0 && pend[owner] {
				pend[owner] = false
				inflight++
				q(d, now, &jobs[owner].req, owner)
			}
			continue
		}
		for inflight < 32 {
			r := s.Dispatch(now)
			if r == nil {
				break
			}
			inflight++
			q(d, now, r, int(r.Source.Queue))
		}
	}
	T := secs - warm
	if len(os.Getenv("STATS")) > 0 { fmt.Printf("%+v\n", d.Stats()) }
	return float64(cnt[0]) / T, float64(cnt[1]) / T
}

var seqOwner int

func q(d sim.Drive, now blk.Instant, r *blk.Request, tag int) {
	if !d.Queue(now, sim.Command{Tag: tag, Op: r.Op, Sector: r.Sector, Sectors: r.Sectors}) {
		panic("full")
	}
}

func load(f string) (rows [][]string) {
	b, _ := os.ReadFile(f)
	var out []string
	for _, l := range strings.Split(string(b), "\n") {
		if !strings.HasPrefix(l, "#") && l != "" {
			out = append(out, l)
		}
	}
	rows, err := csv.NewReader(strings.NewReader(strings.Join(out, "\n"))).ReadAll()
	if err != nil {
		panic(err)
	}
	return rows
}

func main() {
	params := flag.String("p", "/work/shared/reference/models/params_hd155ui.json", "")
	seeds := flag.Int("seeds", 2, "")
	secs := flag.Float64("secs", 2.3, "")
	tabs := flag.String("t", "read,write,rw", "")
	v := flag.Bool("v", false, "")
	one := flag.String("one", "", "kind,cfg,n")
	flag.Parse()
	b, _ := os.ReadFile(*params)
	if err := json.Unmarshal(b, &P); err != nil {
		panic(err)
	}
	P["inner"] = 66. / 144
	for _, a := range flag.Args() {
		k, val, _ := strings.Cut(a, "=")
		f, err := strconv.ParseFloat(val, 64)
		if err != nil {
			panic(err)
		}
		P[k] = f
	}
	if *one != "" {
		x := strings.Split(*one, ",")
		n, _ := strconv.Atoi(x[2])
		for s := range *seeds {
			fmt.Println(run(x[0], x[1], n, uint64(s+1), *secs, .3))
		}
		return
	}
	cfgs := []string{"cfq_idle8", "cfq_idle0", "blkmq_ts0", "blkmq_ts250"}
	all, cells := 0., 0
	ok, tot := 0, 0
	for _, tb := range strings.Split(*tabs, ",") {
		names := []string{tb}
		if tb == "rw" {
			names = []string{"rw-read", "rw-write"}
		}
		var sims [2][9][4]float64
		for n := 1; n <= 8; n++ {
			for ci, c := range cfgs {
				if c == "cfq_idle0" && P["o_cfq_r"]==0 {
					continue
				}
				for s := range *seeds {
					kind := map[string]string{"read": "r", "write": "w", "rw": "rw"}[tb]
					r, w := run(kind, c, n, uint64(s+1), *secs, .3)
					if tb == "write" {
						r = w
					}
					sims[0][n][ci] += r / float64(*seeds)
					sims[1][n][ci] += w / float64(*seeds)
				}
			}
		}
		for k, nm := range names {
			rows := load("/work/shared/seed-tables/rfc-" + nm + ".csv")
			sum, cn := 0., 0
			for n := 1; n <= 8; n++ {
				var m, sd [4]float64
				line := fmt.Sprintf("%-9s %d", nm, n)
				for ci := range cfgs {
					m[ci], _ = strconv.ParseFloat(rows[n][1+2*ci], 64)
					sd[ci], _ = strconv.ParseFloat(rows[n][2+2*ci], 64)
					res := sims[k][n][ci]/m[ci] - 1
					sum += res * res
					cn++
					line += fmt.Sprintf(" | %7.0f %+5.1f%%", sims[k][n][ci], res*100)
				}
				for i := range 4 {
					for j := i + 1; j < 4; j++ {
						if math.Abs(m[i]-m[j]) > 2*math.Sqrt((sd[i]*sd[i]+sd[j]*sd[j])/2) {
							tot++
							if (m[i] > m[j]) == (sims[k][n][i] > sims[k][n][j]) && sims[k][n][i] != sims[k][n][j] {
								ok++
							} else {
								line += fmt.Sprintf(" !%d%d", i, j)
							}
						}
					}
				}
				if *v {
					fmt.Println(line)
				}
			}
			fmt.Printf("%s rms %.2f%%\n", nm, 100*math.Sqrt(sum/float64(cn)))
			all += sum
			cells += cn
		}
	}
	fmt.Printf("all rms %.2f%% of %d, orderings %d of %d\n", 100*math.Sqrt(all/float64(cells)), cells, ok, tot)
}

package backend

import (
	"cmp"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/elevisor/elevisor/backend/drive"
	"github.com/elevisor/elevisor/blk"
)

// simSpec is what is written behind "sim:".
type simSpec struct {
	model  string // one of sim.Models
	preset string
	params string // parameter file
	size   int64  // bytes; 0: not said
	seed   uint64
	ncq    int // 0: the preset's
	file   string
	drive  string // what it is called, so that several disks can be windows of it
}

// simDefaults are each model's presets where none is named.
var simDefaults = map[string]string{"hdd": "generic7200", "ssd": "sata-ssd"}

// simDefaultSize is what a drive in memory has at most, unless its size is given: a
// guest may fill it.
const simDefaultSize = 8 << 30

// SimKeys are the words of a "sim:" disk.
var SimKeys = []string{"preset", "params", "size", "seed", "ncq", "file", "drive"}

// IsSim says whether spec is a simulated drive, and whether it has a name: disks with
// one such spec are then windows of one drive.
func IsSim(spec string) (is, named bool) {
	rest, is := strings.CutPrefix(spec, "sim:")
	if !is {
		return false, false
	}
	s, err := parseSim(rest)
	return true, err == nil && s.drive != ""
}

// AddSimKey writes one more word behind a "sim:" disk's spec.
func AddSimKey(spec, key, value string) string {
	separator := "&"
	if !strings.ContainsAny(spec, "?,&") {
		separator = "?"
	}
	return spec + separator + key + "=" + strings.NewReplacer("%", "%25", "&", "%26", ",", "%2C").Replace(value)
}

// HasSimKey says whether a "sim:" disk's spec says something of key.
func HasSimKey(spec, key string) bool {
	return slices.ContainsFunc(simWords(spec), func(w string) bool { return strings.HasPrefix(w, key+"=") })
}

// simWords splits "hdd?preset=x&seed=7", or the same with commas; after the first word, a
// question mark is nothing special. A comma, an ampersand or a percent sign in a value is
// written as in a URL.
func simWords(spec string) []string {
	spec = strings.TrimPrefix(spec, "?")
	if i := strings.IndexAny(spec, "?,&"); i >= 0 {
		spec = spec[:i] + "&" + spec[i+1:]
	}
	return strings.FieldsFunc(spec, func(c rune) bool { return c == ',' || c == '&' })
}

// parseSim reads what stands behind "sim:".
func parseSim(spec string) (s simSpec, err error) {
	words := simWords(spec)
	if len(words) == 0 || !slices.Contains(drive.Models, words[0]) {
		return s, fmt.Errorf("%q is not a kind of simulated drive; valid: %s", strings.Join(words[:min(1, len(words))], ""), strings.Join(drive.Models, ", "))
	}
	s.model = words[0]
	for _, w := range words[1:] {
		key, value, ok := strings.Cut(w, "=")
		if !slices.Contains(SimKeys, key) || !ok {
			return s, fmt.Errorf("unknown key %q; valid: %s", key, strings.Join(SimKeys, ", "))
		}
		plain, err := url.PathUnescape(value)
		if err == nil {
			value = plain
			err = s.set(key, value)
		}
		if err != nil {
			return s, fmt.Errorf("%s=%q: %w", key, value, err)
		}
	}
	if s.preset != "" && s.params != "" {
		return s, errors.New("preset and params exclude each other")
	}
	return s, nil
}

func (s *simSpec) set(key, v string) (err error) {
	if v == "" {
		return errors.New("want a value")
	}
	switch key {
	case "preset":
		s.preset = v
	case "params":
		s.params = v
	case "file":
		s.file = v
	case "drive":
		s.drive = v
	case "size":
		if s.size, err = blk.ParseBytes(v); err == nil {
			err = checkSize(s.size)
		}
	case "seed":
		if s.seed, err = strconv.ParseUint(v, 10, 64); err != nil {
			err = errors.New("want a whole number from 0 to 2^64-1")
		}
	case "ncq":
		if s.ncq, err = strconv.Atoi(v); err != nil || s.ncq < 1 || s.ncq > 1024 {
			err = errors.New("want a number from 1 to 1024")
		}
	}
	return err
}

// openSim makes a simulated drive: of data in memory, or in another image.
func openSim(spec string, o Options) (_ Image, err error) {
	s, err := parseSim(spec)
	if err != nil {
		return nil, err
	}
	p, err := s.load()
	if err != nil {
		return nil, err
	}
	data, err := s.data(&p, o)
	if err != nil {
		return nil, err
	}
	drive, err := p.New(data.Info().Sectors, s.seed)
	if err != nil {
		return nil, errors.Join(err, data.Close())
	}
	physical := Physical{Rotational: p.Rotational(), Believed: true, Reason: "simulated drive " + p.Name + " is not rotational"}
	if physical.Rotational {
		physical.Reason = "simulated drive " + p.Name + " is rotational"
	}
	return NewSim(data, drive, physical, o), nil
}

// load finds the parameters, with those that the spec changes.
func (s *simSpec) load() (p drive.Preset, err error) {
	if s.params != "" && !strings.Contains(s.params, "/") {
		s.params = "./" + s.params // a file, whatever it is called
	}
	if strings.Contains(s.preset, "/") || strings.HasSuffix(s.preset, ".toml") {
		return p, fmt.Errorf("preset=%q is a path: that is params=", s.preset)
	}
	if p, err = drive.Load(cmp.Or(s.params, s.preset, simDefaults[s.model])); err != nil {
		return p, err
	}
	if p.Model != s.model {
		return p, fmt.Errorf("%s is a drive of the kind sim:%s, not sim:%s", p.Name, p.Model, s.model)
	}
	if s.ncq > 0 {
		p.SetQueue(s.ncq)
	}
	return p, nil
}

// data is where the drive's data is to be: memory, or the first size bytes of a file.
func (s *simSpec) data(p *drive.Preset, o Options) (Image, error) {
	capacity := p.Capacity.Bytes()
	if s.size > capacity {
		return nil, fmt.Errorf("size is %d bytes; %s has %d", s.size, p.Name, capacity)
	}
	if s.file == "" {
		return newMem(cmp.Or(s.size, min(capacity, simDefaultSize)), o)
	}
	if is, _ := IsSim(s.file); is {
		return nil, fmt.Errorf("file=%q: a simulated drive behind a simulated drive", s.file)
	}
	img, err := Open(s.file, o)
	if err != nil {
		return nil, fmt.Errorf("backing file: %w", err)
	}
	has := img.Info().Sectors
	want := blk.Sector(s.size / blk.SectorSize)
	if want == 0 {
		want = min(has, p.Capacity)
	}
	if want > has {
		return nil, errors.Join(fmt.Errorf("size is %d bytes; backing file %s has %d", s.size, s.file, has.Bytes()), img.Close())
	}
	return &outer{img, want}, nil
}

// outer is the first sectors of an image.
type outer struct {
	Image
	sectors blk.Sector
}

// Info implements Image.
func (o *outer) Info() Info {
	i := o.Image.Info()
	i.Sectors = o.sectors
	return i
}

package drive

import (
	"bytes"
	"embed"
	"errors"
	"fmt"
	"maps"
	"os"
	"path"
	"reflect"
	"slices"
	"strings"

	"github.com/elevisor/elevisor/blk"
	"github.com/pelletier/go-toml/v2"
)

// Preset is one drive's parameters with where they are from: what a parameter file
// holds. One of HDD and SSD is set, as Model says.
type Preset struct {
	Name        string
	Model       string // one of Models
	Description string // for people, one line
	Source      string // of the numbers, one line
	Capacity    blk.Sector
	HDD         HDD
	SSD         SSD
}

// Models are the kinds of drive.
var Models = []string{"hdd", "ssd"}

//go:embed presets/*.toml
var presets embed.FS

// presetDir is where they are in the tree.
const presetDir = "presets"

// Presets names the drives that come with the program, sorted.
func Presets() (names []string) {
	files, err := presets.ReadDir(presetDir)
	if err != nil {
		panic(fmt.Sprintf("sim: embedded presets: %v", err))
	}
	for _, f := range files { // sorted by name
		names = append(names, strings.TrimSuffix(f.Name(), ".toml"))
	}
	return names
}

// Load reads a preset by its name, or a parameter file: what has a slash in it or ends
// in .toml is a path.
func Load(name string) (Preset, error) {
	if strings.Contains(name, "/") || strings.HasSuffix(name, ".toml") {
		text, err := os.ReadFile(name)
		if err != nil {
			return Preset{}, fmt.Errorf("parameter file: %w", err)
		}
		return parsed(name, text)
	}
	if !slices.Contains(Presets(), name) {
		return Preset{}, fmt.Errorf("there is no preset %q; there are %s (a path has a slash or ends in .toml)", name, strings.Join(Presets(), ", "))
	}
	text, err := presets.ReadFile(path.Join(presetDir, name+".toml"))
	if err != nil {
		return Preset{}, err
	}
	return parsed("preset "+name, text)
}

func parsed(from string, text []byte) (Preset, error) {
	p, err := Parse(text)
	if err != nil {
		return Preset{}, fmt.Errorf("%s: %w", from, err)
	}
	return p, nil
}

// file is a parameter file in TOML. The table of its model has all parameters.
type file struct {
	Name        string   `toml:"name"`
	Model       string   `toml:"model"`
	Description string   `toml:"description"`
	Source      string   `toml:"source"`
	HDD         HDD      `toml:"hdd"`
	SSD         ssdTable `toml:"ssd"`
}

// ssdTable is the [ssd] table.
type ssdTable struct {
	Sectors blk.Sector `toml:"sectors"` // capacity
	SSD
}

// sectorsMax bounds a capacity: beyond it its bytes are no number.
const sectorsMax = blk.Sector(blk.Never / blk.SectorSize)

// Parse reads a parameter file. Every key must be there, none but these, each in its
// range; an error names the first that is not.
func Parse(text []byte) (Preset, error) {
	var f file
	d := toml.NewDecoder(bytes.NewReader(text)).DisallowUnknownFields()
	if err := d.Decode(&f); err != nil {
		return Preset{}, explained(err)
	}
	if !slices.Contains(Models, f.Model) {
		return Preset{}, fmt.Errorf("model = %q; valid: %s", f.Model, strings.Join(Models, ", "))
	}
	if err := complete(text, f.Model); err != nil {
		return Preset{}, err
	}
	p := Preset{Name: f.Name, Model: f.Model, Description: f.Description, Source: f.Source}
	if p.Name == "" {
		return Preset{}, errors.New("name is empty")
	}
	return p, p.take(&f)
}

// take checks the parameters of f's model and makes them p's.
func (p *Preset) take(f *file) error {
	if f.Model == "ssd" {
		p.SSD, p.Capacity = f.SSD.SSD, f.SSD.Sectors
		if p.Capacity < 1 || p.Capacity > sectorsMax {
			return fmt.Errorf("[ssd]: sectors = %d is out of range 1 to %d", p.Capacity, sectorsMax)
		}
		return p.SSD.check()
	}
	p.HDD, p.Capacity = f.HDD, blk.Sector(f.HDD.Blocks)*blockSectors
	if err := p.HDD.Check(); err != nil {
		return fmt.Errorf("[hdd]: %w", err)
	}
	return nil
}

// New makes the drive that p describes, with sectors of capacity: its outer part, or all
// of it.
func (p *Preset) New(sectors blk.Sector, seed uint64) (Drive, error) {
	if sectors < 1 || sectors > p.Capacity {
		return nil, fmt.Errorf("size of %d sectors is out of range 1 to %d, the drive's capacity", sectors, p.Capacity)
	}
	if p.Model == "ssd" {
		return NewSSD(p.SSD, sectors, seed)
	}
	return NewHDD(p.HDD, sectors, seed)
}

// Rotational says whether the drive has a head to move.
func (p *Preset) Rotational() bool { return p.Model == "hdd" }

// SetQueue changes how many commands the drive takes at a time.
func (p *Preset) SetQueue(n int) { p.HDD.NCQ, p.SSD.QueueDepth = float64(n), n }

// complete finds what is missing, of what a file of that model must have and must not.
func complete(text []byte, model string) error {
	var all map[string]any
	if err := toml.Unmarshal(text, &all); err != nil {
		return explained(err)
	}
	f := reflect.TypeFor[file]()
	for i := range f.NumField() {
		tag := f.Field(i).Tag.Get("toml")
		value, ok := all[tag]
		if f.Field(i).Type.Kind() != reflect.Struct {
			if !ok {
				return fmt.Errorf("%s is missing", tag)
			}
			continue
		}
		if tag != model {
			if ok {
				return fmt.Errorf("[%s] in a file of model %s", tag, model)
			}
			continue
		}
		table, _ := value.(map[string]any)
		if missing := without(f.Field(i).Type, table); len(missing) > 0 {
			return fmt.Errorf("[%s]: missing: %s", tag, strings.Join(missing, ", "))
		}
	}
	return nil
}

// without are the keys of t that table does not have.
func without(t reflect.Type, table map[string]any) (missing []string) {
	have := slices.Collect(maps.Keys(table))
	for _, f := range reflect.VisibleFields(t) {
		if tag := f.Tag.Get("toml"); !f.Anonymous && !slices.Contains(have, tag) {
			missing = append(missing, tag)
		}
	}
	return missing
}

// explained says where in the file, in one line.
func explained(err error) error {
	if strict, ok := errors.AsType[*toml.StrictMissingError](err); ok {
		var keys []string
		for _, e := range strict.Errors {
			keys = append(keys, strings.Join(e.Key(), "."))
		}
		return fmt.Errorf("unknown keys: %s", strings.Join(keys, ", "))
	}
	if wrong, ok := errors.AsType[*toml.DecodeError](err); ok {
		line, _ := wrong.Position()
		return fmt.Errorf("line %d, %s: %w", line, strings.Join(wrong.Key(), "."), err)
	}
	return err
}

// Encode writes p as a parameter file, without the comments that tell where each
// number is from.
func (p *Preset) Encode() ([]byte, error) {
	head, err := toml.Marshal(struct {
		Name        string `toml:"name"`
		Model       string `toml:"model"`
		Description string `toml:"description"`
		Source      string `toml:"source"`
	}{p.Name, p.Model, p.Description, p.Source})
	if err != nil {
		return nil, err
	}
	parameters := any(p.HDD)
	if p.Model == "ssd" {
		parameters = ssdTable{p.Capacity, p.SSD}
	}
	body, err := toml.Marshal(map[string]any{p.Model: parameters})
	return append(head, body...), err
}

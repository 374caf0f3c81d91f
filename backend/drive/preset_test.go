package drive

import (
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/elevisor/elevisor/blk"
	"github.com/stretchr/testify/require"
)

// Every preset is sound, is called as its file is, and every parameter has a comment
// before it.
func TestPresets(t *testing.T) {
	names := Presets()
	for _, want := range []string{"generic7200", "hd103sj", "hd155ui"} {
		require.Contains(t, names, want)
	}
	require.True(t, slices.IsSorted(names))
	for _, name := range names {
		p, err := Load(name)
		require.NoError(t, err)
		require.Equal(t, name, p.Name)
		require.NotEmpty(t, p.Description)
		require.NotEmpty(t, p.Source)
		require.Contains(t, Models, p.Model)
		d, err := p.New(p.Capacity, 1)
		require.NoError(t, err)
		require.Equal(t, blk.Never, d.Next())
		_, err = p.New(p.Capacity+1, 1)
		require.ErrorContains(t, err, "out of range")
		lines := strings.Split(text(t, name), "\n")
		table := slices.Index(lines, "["+p.Model+"]")
		require.Positive(t, table)
		for i := table + 1; i < len(lines); i++ {
			if strings.Contains(lines[i], " = ") && !strings.HasPrefix(lines[i], "#") {
				require.True(t, strings.HasPrefix(lines[i-1], "# "), "%s: %s has no comment", name, lines[i])
			}
		}
	}
}

func text(t *testing.T, name string) string {
	b, err := os.ReadFile("presets/" + name + ".toml")
	require.NoError(t, err)
	return string(b)
}

func TestLoad_path(t *testing.T) {
	path := filepath.Join(t.TempDir(), "mine.toml")
	mine := strings.Replace(text(t, "hd155ui"), "rpm = 5400", "rpm = 10_000", 1)
	require.NoError(t, os.WriteFile(path, []byte(mine), 0o600))
	p, err := Load(path)
	require.NoError(t, err)
	require.Equal(t, 10_000.0, p.HDD.RPM)
	require.Equal(t, blk.Sector(366_000_000*8), p.Capacity)
	_, err = Load(path + "x.toml")
	require.ErrorContains(t, err, "no such file")
	_, err = Load("hd154ui")
	require.ErrorContains(t, err, `no preset "hd154ui"; there are generic7200, hd103sj, hd155ui, sata-ssd`)
}

// Whatever is wrong with a file is named.
func TestParse_refuses(t *testing.T) {
	good := text(t, "hd155ui")
	for want, change := range map[string][2]string{
		"unknown keys: hdd.tracks, hdd.cylinders": {"[hdd]", "[hdd]\ntracks = 5\ncylinders = 4"},
		"[hdd]: missing: rpm, bus_us":             {"", ""},
		"[hdd]: rpm = 5 is out of range 1000 to":  {"rpm = 5400", "rpm = 5"},
		"[hdd]: settle_us = NaN is out of":        {"\nsettle_us = ", "\nsettle_us = nan # "},
		"[hdd]: ncq = 1.5 is not a whole":         {"ncq = 32", "ncq = 1.5"},
		"model = \"tape\"; valid: hdd, ssd":       {`model = "hdd"`, `model = "tape"`},
		"source is missing":                       {"source = ", "# "},
		"name is empty":                           {`"hd155ui"`, `""`},
		"hdd.ncq_reorder":                         {"ncq_reorder = false", `ncq_reorder = "no"`},
		"line 1":                                  {"# Samsung", "Samsung"},
	} {
		bad := strings.Replace(good, change[0], change[1], 1)
		if change[0] == "" {
			bad = strings.Replace(strings.Replace(good, "rpm = 5400", "", 1), "bus_us = 13.7", "", 1)
		}
		require.NotEqual(t, good, bad, want)
		_, err := Parse([]byte(bad))
		require.ErrorContains(t, err, want)
		require.NotContains(t, err.Error(), "\n")
	}
}

func TestPresets_sata(t *testing.T) {
	p, err := Load("sata-ssd")
	require.NoError(t, err)
	require.False(t, p.Rotational())
	good := text(t, "sata-ssd")
	for want, change := range map[string][2]string{
		"[ssd]: missing: sectors, jitter":        {"", ""},
		"unknown keys: ssd.rpm":                  {"[ssd]", "[ssd]\nrpm = 1"},
		"sectors = 0 is out of range 1 to":       {"sectors = 1_875_385_008", "sectors = 0"},
		"channels 65 is not from 1 to 64":        {"channels = 8", "channels = 65"},
		"[hdd] in a file of model ssd":           {"[ssd]", "[hdd]\nrpm = 7200\n[ssd]"},
		"[hdd]: missing: rpm, blocks, media_us,": {`model = "ssd"`, `model = "hdd"`},
	} {
		bad := strings.Replace(good, change[0], change[1], 1)
		if change[0] == "" {
			bad = strings.Replace(strings.Replace(good, "sectors = 1_875_385_008", "", 1), "jitter = 0.1", "", 1)
		}
		require.NotEqual(t, good, bad, want)
		_, err := Parse([]byte(bad))
		require.ErrorContains(t, err, want)
	}
}

// A preset of either model is read again as it was written.
func TestEncode_readsBack(t *testing.T) {
	for _, name := range Presets() {
		p, err := Load(name)
		require.NoError(t, err)
		b, err := p.Encode()
		require.NoError(t, err)
		again, err := Parse(b)
		require.NoError(t, err, name)
		require.Equal(t, p, again)
	}
}

// Every number of a model has a valid range.
func TestBounds_areOfAllParameters(t *testing.T) {
	var p HDD
	var have []string
	for _, b := range p.bounds() {
		have = append(have, b.name)
	}
	h := reflect.TypeFor[HDD]()
	for i := range h.NumField() {
		if h.Field(i).Type.Kind() == reflect.Float64 {
			require.Contains(t, have, h.Field(i).Tag.Get("toml"))
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, name := range Presets() {
		b, err := os.ReadFile("presets/" + name + ".toml")
		require.NoError(f, err)
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if p, err := Parse(b); err == nil {
			_, err = p.New(p.Capacity, 1)
			require.NoError(t, err)
		}
	})
}

// What is written of a preset is read as the same.
func TestPreset_encode(t *testing.T) {
	for _, name := range Presets() {
		p, err := Load(name)
		require.NoError(t, err)
		b, err := p.Encode()
		require.NoError(t, err)
		again, err := Parse(b)
		require.NoError(t, err, string(b))
		require.Equal(t, p, again)
	}
}

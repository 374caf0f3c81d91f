package ctl

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/renameio/v2"
)

// Export writes the 17 numbers of every disk to dir/block/DISK/stat, where
// iostat -f dir looks for them (iostat(1)). Each file is replaced as a whole, so
// that a reader never sees half of one, and synced before that: dir is best on a tmpfs,
// as /run is.
func Export(dir string, s *Stat) error {
	for i := range s.Disks {
		d := &s.Disks[i]
		if d.Disk == "" || d.Disk == "." || d.Disk == ".." {
			return fmt.Errorf("export: the disk id %q cannot name a directory", d.Disk)
		}
		// As in sysfs, a name's slashes become exclamation marks; iostat turns them back.
		at := filepath.Join(dir, "block", strings.ReplaceAll(d.Disk, "/", "!"))
		if err := os.MkdirAll(at, 0o755); err != nil {
			return fmt.Errorf("export: %w", err)
		}
		line := []byte(sysfsLine(d.Stat))
		if err := renameio.WriteFile(filepath.Join(at, "stat"), line, 0o644, renameio.WithTempDir(at), renameio.IgnoreUmask()); err != nil {
			return fmt.Errorf("export: %w", err)
		}
	}
	return nil
}

// sysfsLine is stat in the kernel's format (part_stat_show in block/genhd.c).
func sysfsLine(stat [17]uint64) string {
	var b strings.Builder
	for i, n := range stat {
		if i > 0 {
			b.WriteByte(' ')
		}
		fmt.Fprintf(&b, "%8d", n)
	}
	return b.String() + "\n"
}

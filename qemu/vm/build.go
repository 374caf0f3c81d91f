package vm

import (
	"bytes"
	"context"
	"embed"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// buildEnd is how long what builds a guest may take to end when it shall.
const buildEnd = 10 * time.Second

// scripts make the guest: guest/build.sh says how.
//
//go:embed guest
var scripts embed.FS

// Guest is what a machine boots.
type Guest struct {
	Kernel string // an ELF vmlinux, or a bzImage
	Initrd string // its /init speaks the language of guest/agent
}

// BuildOptions say what to make a guest of. The zero value is the usual one.
type BuildOptions struct {
	CacheDir string // where it is kept; default: the user's cache directory
	Kernel   string // a kernel image and ...
	Modules  string // ... the directory of its modules; default: Debian's cloud kernel
	// Log is told what takes its time; may be nil.
	Log func(line string)
}

// DefaultCacheDir is where guests are kept: all users of this program share them.
func DefaultCacheDir() (string, error) {
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("no place to keep a guest: %w", err)
	}
	return filepath.Join(dir, "elevisor"), nil
}

// Build makes a guest, or finds the one that was made earlier from the same. The first
// takes 10 s and a download of 28 MB.
func Build(ctx context.Context, o BuildOptions) (g Guest, err error) {
	if o.CacheDir == "" {
		if o.CacheDir, err = DefaultCacheDir(); err != nil {
			return g, err
		}
	}
	dir, err := os.MkdirTemp("", "elevisor-guest-")
	if err != nil {
		return g, fmt.Errorf("build the guest: %w", err)
	}
	defer os.RemoveAll(dir)
	if err := os.CopyFS(dir, scripts); err != nil {
		return g, fmt.Errorf("build the guest: %w", err)
	}
	if o.CacheDir, err = filepath.Abs(o.CacheDir); err != nil {
		return g, fmt.Errorf("build the guest: %w", err)
	}
	var out bytes.Buffer
	said := &teller{tell: o.Log}
	cmd := exec.CommandContext(ctx, "bash", filepath.Join(dir, "guest", "build.sh"))
	cmd.Env = append(os.Environ(), "CACHE="+o.CacheDir)
	if o.Kernel != "" {
		cmd.Env = append(cmd.Env, "KERNEL="+o.Kernel, "MODULES="+o.Modules)
	}
	cmd.Stdout, cmd.Stderr = &out, said
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return unix.Kill(-cmd.Process.Pid, unix.SIGTERM) } // it removes what it has begun
	cmd.WaitDelay = buildEnd
	err = cmd.Run()
	if ctx.Err() != nil {
		err = ctx.Err()
	}
	if err != nil {
		return g, fmt.Errorf("build the guest: %w\n%s", err, strings.TrimSpace(said.text.String()))
	}
	return guestIn(strings.TrimSpace(out.String()))
}

// guestIn finds the files of a guest that build.sh has made.
func guestIn(dir string) (Guest, error) {
	g := Guest{Kernel: filepath.Join(dir, "vmlinux"), Initrd: filepath.Join(dir, "base.cpio")}
	if _, err := os.Stat(g.Kernel); err != nil {
		g.Kernel = filepath.Join(dir, "vmlinuz")
	}
	return g, g.Check()
}

// Check says whether the files can be read.
func (g Guest) Check() error {
	for _, name := range []string{g.Kernel, g.Initrd} {
		f, err := os.Open(name)
		if err != nil {
			return fmt.Errorf("guest: %w", err)
		}
		f.Close()
	}
	return nil
}

// teller keeps what a program says and passes it on by lines.
type teller struct {
	tell func(line string)
	text bytes.Buffer
	part []byte
}

// Write implements io.Writer.
func (t *teller) Write(p []byte) (int, error) {
	t.text.Write(p)
	t.part = append(t.part, p...)
	for {
		line, rest, whole := bytes.Cut(t.part, []byte("\n"))
		if !whole {
			return len(p), nil
		}
		if t.tell != nil {
			t.tell(string(line))
		}
		t.part = rest
	}
}

// Package cli is what the commands share: how a program starts, is interrupted and
// ends, its version, its runtime settings, and flags that take a size, a time or one
// of a few words. It knows no disk and no laboratory.
package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"
)

// Main runs root until it returns or SIGINT or SIGTERM ends its context, and ends the
// process: 0 on success, an [ExitCode]'s own status, else 1 with the error on stderr.
func Main(root *cobra.Command) {
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM, os.Interrupt)
	err := root.ExecuteContext(ctx)
	stop()
	if err == nil {
		return
	}
	var code ExitCode
	if !errors.As(err, &code) {
		fmt.Fprintf(os.Stderr, "%s: %v\n", root.Name(), err)
		code = 1
	}
	os.Exit(int(code))
}

// ExitCode is an error that ends the program with this status and prints nothing: what
// there was to say has been printed.
type ExitCode int

func (c ExitCode) Error() string { return fmt.Sprintf("exit status %d", int(c)) }

// Setup makes root's flags and errors those of every elevisor program: underscores and
// hyphens are the same, and Main prints the errors.
func Setup(root *cobra.Command) {
	root.Version = Version()
	root.SilenceUsage, root.SilenceErrors = true, true
	root.SetGlobalNormalizationFunc(func(_ *pflag.FlagSet, name string) pflag.NormalizedName {
		return pflag.NormalizedName(strings.ReplaceAll(name, "_", "-"))
	})
	root.SetVersionTemplate(root.Name() + " {{.Version}}\n")
}

// Release is the version of this tree.
const Release = "0.1.0"

// Version is the release and, where the build recorded it, the commit.
func Version() string {
	v := Release
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" {
				v += "+" + s.Value[:min(12, len(s.Value))]
			}
		}
	}
	return v
}

// TuneRuntime prepares the process for the data path: nothing is allocated per request,
// so garbage collection waits for the memory limit. GOGC and GOMEMLIMIT override it.
func TuneRuntime() {
	signal.Ignore(unix.SIGXFSZ) // a write past RLIMIT_FSIZE is EFBIG for its guest, not our end
	if os.Getenv("GOGC") == "" && os.Getenv("GOMEMLIMIT") == "" {
		debug.SetGCPercent(-1)
		debug.SetMemoryLimit(256 << 20)
	}
}

// OneOf refuses a flag's value that is not one of the valid ones.
func OneOf(flag, value string, valid ...string) error {
	if slices.Contains(valid, value) {
		return nil
	}
	return fmt.Errorf("--%s=%s is neither %s", flag, value, strings.Join(valid, " nor "))
}

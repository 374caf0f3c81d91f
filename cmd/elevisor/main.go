// Elevisor serves virtio-blk disks to virtual machines over vhost-user, with an
// I/O scheduler inside the backend, and measures what that is worth.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM, os.Interrupt)
	defer stop()
	if err := newRoot().ExecuteContext(ctx); err != nil {
		var code exitCode
		if !errors.As(err, &code) {
			fmt.Fprintln(os.Stderr, "elevisor:", err)
			code = 1
		}
		stop()
		os.Exit(int(code))
	}
}

// exitCode ends the program with that status and nothing more to say.
type exitCode int

func (c exitCode) Error() string { return fmt.Sprintf("exit status %d", int(c)) }

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:           "elevisor",
		Short:         "virtio-blk disks over vhost-user, with an I/O scheduler in the backend",
		Version:       version(),
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          cobra.NoArgs,
	}
	// A vhost-user program is started with flags only (the backend program
	// conventions of the vhost-user document), so serve is also the root.
	serve := newServe()
	root.RunE = serve.RunE
	root.Flags().AddFlagSet(serve.Flags())
	root.AddCommand(serve, newBench(), newDemo(), newCompare(), newSim(), newAttach(), newDetach(), newCtl())
	root.SetGlobalNormalizationFunc(func(_ *pflag.FlagSet, name string) pflag.NormalizedName {
		return pflag.NormalizedName(strings.ReplaceAll(name, "_", "-"))
	})
	root.SetVersionTemplate("elevisor {{.Version}}\n")
	return root
}

// release is the version in the making; the build adds the revision it was made of.
const release = "0.1.0"

func version() string {
	v := release
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" {
				v += "+" + s.Value[:min(12, len(s.Value))]
			}
		}
	}
	return v
}

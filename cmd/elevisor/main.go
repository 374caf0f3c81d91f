// Elevisor serves virtio-blk disks to virtual machines over vhost-user, with an I/O
// scheduler inside the backend. This is the daemon and its controls; elevisor-lab
// measures.
package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/elevisor/elevisor/cmd/cli"
)

func main() { cli.Main(newRoot()) }

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "elevisor",
		Short: "virtio-blk disks over vhost-user, with an I/O scheduler in the backend",
		Args:  cobra.NoArgs,
	}
	cli.Setup(root)
	// A vhost-user program is started with flags only (the backend program
	// conventions of the vhost-user document), so serve is also the root.
	serve := newServe()
	root.RunE = serve.RunE
	root.Flags().AddFlagSet(serve.Flags())
	root.AddCommand(serve, newAttach(), newDetach(), newCtl())
	for _, name := range []string{"demo", "bench", "sim", "compare"} {
		root.AddCommand(newMoved(name))
	}
	return root
}

// newMoved is a command of elevisor-lab's that was once here.
func newMoved(name string) *cobra.Command {
	return &cobra.Command{
		Use: name, Hidden: true, DisableFlagParsing: true,
		RunE: func(*cobra.Command, []string) error {
			return fmt.Errorf("%s has moved to its own program: elevisor-lab %s", name, name)
		},
	}
}

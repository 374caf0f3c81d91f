// Elevisor-lab measures what I/O scheduling in the guest or in the host is worth: on
// simulated drives in virtual time, over loopback, in real virtual machines, and on any
// vhost-user-blk server.
package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/elevisor/elevisor/cmd/cli"
)

func main() { cli.Main(newRoot()) }

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "elevisor-lab",
		Short: "measure I/O schedulers in guests and hosts: demo, bench, sim, compare",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return nil
			}
			return fmt.Errorf("unknown command %q; valid: demo, bench, sim, compare (serve, ctl, attach and detach are commands of elevisor)", args[0])
		},
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	cli.Setup(root)
	root.AddCommand(newDemo(), newBench(), newSim(), newCompare())
	return root
}

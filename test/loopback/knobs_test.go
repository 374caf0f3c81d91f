package loopback

import (
	"errors"
	"testing"

	"github.com/elevisor/elevisor/daemon"
	"github.com/elevisor/elevisor/guest"
	"github.com/elevisor/elevisor/sched"
	"github.com/stretchr/testify/require"
)

// Under verified load, a switch there and back finds the knobs that were set by hand,
// also where the queues had to be gathered from several loops for it.
func TestSwitch_keepsKnobsUnderLoad(t *testing.T) {
	for name, workers := range map[string]int{"one worker": 1, "several workers": 3} {
		t.Run(name, func(t *testing.T) {
			disk := slow(t, "8M", 20_000)
			d := serveHere(t, []daemon.Disk{disk}, daemon.Domain{
				ID: "d", Scheduler: "none", Workers: workers, QueueDepth: 4,
				Knobs: []sched.Knob{{Key: "max_sectors_kb", Value: "64"}},
			})
			m := boot(t, disk.Socket, guest.Options{Depth: 64})
			value := func(knob string) string {
				list, err := d.Tunables("d")
				require.NoError(t, err)
				for _, k := range list {
					if k.Name == knob {
						require.True(t, k.ByHand, knob)
						return k.Value
					}
				}
				return ""
			}
			busy := func(to string) {
				eventually(t, func() error {
					met, err := d.Switch("d", to)
					require.NoError(t, err)
					if met.Queued == 0 || met.OnDisk == 0 {
						return errors.New("nothing was queued, or nothing in flight")
					}
					return nil
				})
			}
			busy("deadline")
			require.NoError(t, d.Set("d", "read_expire", "70"))
			for range 20 {
				busy("none")
				require.Empty(t, value("read_expire"))
				busy("cfq")
				require.Error(t, d.Set("d", "read_expire", "1"), "cfq has none")
				busy("mq-deadline")
				require.Equal(t, "70", value("read_expire"))
				require.Equal(t, "64", value("max_sectors_kb"))
				require.Equal(t, "4", value("queue_depth"))
			}
			m.halt()
			for _, l := range m.loads {
				require.NoError(t, l.err)
				require.Equal(t, l.submitted, l.finished)
			}
		})
	}
}

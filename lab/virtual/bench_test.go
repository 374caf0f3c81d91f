package virtual

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/elevisor/elevisor/backend"
	"github.com/elevisor/elevisor/guest"
	"github.com/elevisor/elevisor/guest/load"
)

// delayed is a disk without data on which every request takes d.
func delayed(t testing.TB, spec string, d time.Duration) backend.Image {
	img, err := backend.Open(spec, backend.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, img.Close()) })
	img, err = backend.NewDelay(img, backend.DelayOptions{Fixed: d})
	require.NoError(t, err)
	return img
}

// BenchmarkRequest is a request's whole way, at depth 1: ns/op is for one.
func BenchmarkRequest(b *testing.B) {
	for _, c := range []struct {
		name, host string
		guest      *guest.BlockOptions
		jobs       int
	}{
		{"none", "none", nil, 1}, {"timeslice-2jobs", "timeslice", nil, 2}, {"timeslice-8jobs", "timeslice", nil, 8},
		{"guest-deadline", "none", &guest.BlockOptions{Scheduler: "deadline"}, 1},
	} {
		b.Run(c.name, func(b *testing.B) {
			j := Job{Options: load.Options{RW: load.Read, BlockSize: 4096, Jobs: c.jobs, IOSize: int64(b.N/c.jobs+1) * 4096, Increment: 1 << 28, Size: 1 << 28}}
			b.ReportAllocs()
			_, err := Run(Options{
				Image: delayed(b, "null:size=4g", 80*time.Microsecond), Scheduler: c.host, Seed: 1,
				Costs: Costs{PerRead: 20 * time.Microsecond, Jitter: DefaultJitter},
				VMs:   []VM{{NumQueues: min(c.jobs, 4), Guest: c.guest, Jobs: []Job{j}}},
			})
			require.NoError(b, err)
		})
	}
}

// TestNothingIsAllocatedPerRequest compares a run with one ten times as long.
func TestNothingIsAllocatedPerRequest(t *testing.T) {
	for _, g := range []*guest.BlockOptions{nil, {Scheduler: "deadline", Tags: 2}} {
		allocs := func(ios int64) float64 {
			return testing.AllocsPerRun(2, func() {
				j := Job{Options: load.Options{RW: load.ReadWrite, MixRead: 50, BlockSize: 4096, Depth: 4, Jobs: 2, IOSize: ios * 4096}}
				_, err := Run(Options{
					Image: delayed(t, "null:size=1g", 80*time.Microsecond), Scheduler: "timeslice", Seed: 1,
					Costs: Costs{PerRead: time.Microsecond, PerWrite: time.Microsecond, PerSwitch: time.Microsecond, Jitter: DefaultJitter},
					VMs:   []VM{{NumQueues: 2, Guest: g, Jobs: []Job{j}}},
				})
				require.NoError(t, err)
			})
		}
		require.Less(t, allocs(20_000)-allocs(2_000), 100.0)
	}
}

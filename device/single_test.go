package device

import (
	"testing"

	"github.com/elevisor/elevisor/backend"
	"github.com/elevisor/elevisor/sched"
	"github.com/elevisor/elevisor/sys/clock"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// unattached is an image that no loop can use.
type unattached struct{ backend.Image }

func (unattached) Attach(backend.Host) (backend.Backend, error) { return nil, unix.EIO }

func TestSingle(t *testing.T) {
	img := memImage(t)
	for _, kind := range sched.Kinds() {
		d, err := NewSingle(img, kind, clock.Start().Now, Options{ID: "d", NumQueues: 3})
		require.NoError(t, err)
		require.Equal(t, 3, d.Count())
		require.Equal(t, img.Info().Sectors, d.Capacity())
		require.NoError(t, d.loop.Do(func() { require.Equal(t, kind.Depth, d.loop.Depth()) }))
		d.Close()
	}
}

// Nothing is left running by one that could not be made.
func TestSingle_refuses(t *testing.T) {
	img := memImage(t)
	kind := sched.Kinds()[0]
	_, err := NewSingle(img, kind, clock.Start().Now, Options{ID: "d", QueueSize: 3})
	require.ErrorContains(t, err, "queue-size=3")
	_, err = NewSingle(unattached{img}, kind, clock.Start().Now, Options{ID: "d"})
	require.ErrorIs(t, err, unix.EIO)
}

func memImage(t *testing.T) backend.Image {
	img, err := backend.Open("mem:?size=1M", backend.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, img.Close()) })
	return img
}

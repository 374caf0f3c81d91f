package device

import (
	"testing"
	"time"

	"github.com/elevisor/elevisor/sys/eventfd"
	"github.com/stretchr/testify/require"
)

// QEMU's vhost-user-blk-test waits for the call that libvhost-user makes at every
// SET_VRING_CALL, which comes before the ring starts.
func TestSetCall_notifiesOnce(t *testing.T) {
	var before, again, running bell
	r := newRig(t, none(), nil)
	r.dev.SetCall(0, &before)
	require.EqualValues(t, 1, before, "on a ring that has not started")
	r.start()
	r.step()
	require.EqualValues(t, 1, before, "not again when the ring starts")

	r.dev.SetCall(0, &running)
	require.EqualValues(t, 1, running, "on a running ring")
	r.dev.SetCall(0, nil)
	require.Equal(t, []bell{1, 1}, []bell{before, running}, "nobody to notify")

	r.dev.SetCall(0, &running)
	require.EqualValues(t, 2, running, "the same one, set anew")
	_, stopped := r.stop()
	require.True(t, stopped)
	r.dev.SetCall(0, &again)
	require.EqualValues(t, 1, again, "on a ring that has stopped")
	r.layout()
	r.start()
	r.step()
	require.EqualValues(t, 1, again)
	require.Zero(t, r.stats().Calls, "none of them was for a request")
}

// The same with eventfds on a loop that is live.
func TestLive_setCallNotifiesOnce(t *testing.T) {
	engines(t, func(t *testing.T, e Engine) {
		r := newLiveRig(t, e)
		r.attachMemory()
		var calls []*eventfd.FD
		set := func() {
			call, err := eventfd.New()
			require.NoError(t, err)
			t.Cleanup(call.Close)
			calls = append(calls, call)
			r.dev.SetCall(0, call)
			require.True(t, call.Wait(10*time.Second), "not notified")
		}
		for range 3 {
			set()
			set() // replaced before the ring starts
			r.layout()
			r.params.Kick = r.descriptors(false)
			r.start()
			set()
			stopped := make(chan uint32, 1)
			r.dev.Stop(0, func(base uint32) { stopped <- base })
			<-stopped
		}
		r.dev.SetCall(0, nil) // whatever was still to be written has been written
		for i, call := range calls {
			require.EqualValues(t, 1, call.Take(), "descriptor %d", i)
		}
		_ = r.dev.SetMemory(nil)
	})
}

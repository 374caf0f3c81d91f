package qemu

import (
	"context"
	"math/rand/v2"
	"syscall"
	"testing"
	"time"

	"github.com/elevisor/elevisor/qemu/qmp"
	"github.com/stretchr/testify/require"
)

// TestGuestReboot restarts the guest under the running server: the device is reset
// and started again, and the data is still there.
func TestGuestReboot(t *testing.T) {
	needGuest(t)
	d := newDisk(t, 128*mib)
	s := serve(t, d)
	g := boot(t, d)
	const id = "cat /proc/sys/kernel/random/boot_id"
	first := g.run(id)
	want := g.run("mkfs.ext4 -q -F /dev/vda && mount -t ext4 /dev/vda /mnt && " +
		"dd if=/dev/urandom of=/mnt/data bs=1M count=8 2> /dev/null && sync && md5sum < /mnt/data")
	g.within(g.m.Reboot)
	require.NotEqual(t, first, g.run(id), "it is another boot")
	g.run("mount -t ext4 /dev/vda /mnt") // replays the journal: nobody unmounted it
	require.Equal(t, want, g.run("md5sum < /mnt/data"))
	g.run("umount /mnt && e2fsck -fn /dev/vda")

	// the hard way, with requests in flight
	g.startLoad()
	g.waitForIO()
	g.within(g.m.Reset)
	g.run("dd if=/dev/vda of=/dev/null bs=1M count=64 && echo still there | dd of=/dev/vda conv=fsync")
	g.quit()
	s.stop()
}

// TestGuestUnderLoad lets one guest write, and check what it has written, while its machine
// is paused and its server killed; then its kernel panics.
func TestGuestUnderLoad(t *testing.T) {
	needGuest(t)
	d := newDisk(t, 128*mib)
	s := serve(t, d)
	g := boot(t, d)
	g.startLoad()
	for _, step := range []struct {
		name string
		test func(*testing.T)
	}{
		{"pause", func(*testing.T) { pauses(g) }},
		{"server killed", func(t *testing.T) { s = serverKilled(t, g, s) }},
		{"end of load", func(*testing.T) { g.endLoad() }},
		{"full queues", func(*testing.T) { fullQueues(g) }},
		{"kernel panics", func(t *testing.T) { panics(t, g) }},
	} {
		ok := t.Run(step.name, func(t *testing.T) {
			defer g.reportTo(t)()
			step.test(t)
		})
		if !ok {
			return // what follows would mislead
		}
	}
	g.quit()
	s.stop()
}

// pauses stops and continues the machine in mid-I/O: QEMU then takes the rings back
// (GET_VRING_BASE), which ends when all requests in flight are done, and starts them again
// where they were.
func pauses(g *guest) {
	for range 5 {
		g.waitForIO()
		g.within(g.m.Pause)
		g.within(g.m.Continue)
	}
	g.waitForIO()
}

// serverKilled kills the server in mid-I/O and starts it again. What was in flight is in the
// record that QEMU kept: the new server must carry out exactly that, for the guest waits for
// as long as it takes. The result is the last server.
func serverKilled(t *testing.T, g *guest, s *server) *server {
	if peer {
		t.Skip("qemu-storage-daemon keeps no in-flight record: it survives this by luck only")
	}
	d, outer := s.disk, s.t
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	pause := func(most time.Duration) { time.Sleep(time.Duration(random.Int64N(int64(most)))) }
	// A kill counts if it left many requests in flight; between two passes of fio there are none.
	for kills, tries := 0, 0; kills < 6; tries++ {
		require.Less(t, tries, 30, "kills that left next to nothing in flight")
		g.waitForIO()
		pause(300 * time.Millisecond)
		if tries%4 != 3 {
			s.killUnderPressure(g, pause)
		}
		s.kill()
		waiting := g.inFlight()
		if waiting >= manyInFlight {
			kills++
		}
		t.Logf("killed with %d requests in flight", waiting)
		pause(300 * time.Millisecond)
		s = serve(outer, d)
	}
	g.waitForIO()
	return s
}

// manyInFlight is half of what the load has at most.
const manyInFlight = 16

// killUnderPressure brings the server to a moment that is worth a kill. An emulated guest is
// slow, and mostly waits for itself; a server that was held up finds all that the guest can
// ask for.
func (s *server) killUnderPressure(g *guest, pause func(most time.Duration)) {
	s.signal(syscall.SIGSTOP)
	for end := time.Now().Add(time.Second); g.inFlight() < 2*manyInFlight && time.Now().Before(end); {
	}
	before := s.diskIO()
	s.signal(syscall.SIGCONT)
	for end := time.Now().Add(time.Second); s.diskIO() == before && time.Now().Before(end); {
	}
	pause(time.Millisecond)
}

// fullQueues wants the rings to be sound: both of them, to their full depth.
func fullQueues(g *guest) {
	g.run("fio --name=after --filename=/dev/vda --ioengine=libaio --direct=1 --rw=randwrite --bs=4k --iodepth=128 " +
		"--size=4M --numjobs=2 --offset_increment=16M --cpus_allowed=0,1 --cpus_allowed_policy=split " +
		"--verify=crc32c --verify_fatal=1 --group_reporting")
}

// Case: nothing noticed that a guest's kernel had panicked and restarted, and the command that
// it was to answer was waited for. The wait ends soon, with the kernel's last words.
func panics(t *testing.T, g *guest) {
	ctx, stop := context.WithTimeout(t.Context(), patience)
	defer stop()
	_, _, err := g.m.Ask(ctx, "echo c > /proc/sysrq-trigger")
	stopped := new(qmp.StopError)
	require.ErrorAs(t, err, &stopped)
	require.Equal(t, qmp.EventReset, stopped.Event)
	require.ErrorContains(t, err, "Kernel panic - not syncing: sysrq triggered crash")
}

// load is one pass of fio: on each of two CPUs, and so on each queue, 16 writes deep,
// and beside them a writer that flushes after each block. Small writes overtake large
// ones and flushes, so completions come in another order than the requests did: a
// server that only knows how many there were cannot tell which are left.
const load = "fio --name=global --filename=/dev/vda --ioengine=libaio --direct=1 --rw=randwrite --group_reporting " +
	"--randseed=$n --verify=crc32c --verify_fatal=1 " +
	"--name=deep --bssplit=4k/60:64k/20:480k/20 --iodepth=16 --size=32M --numjobs=2 --offset_increment=48M --cpus_allowed=0,1 --cpus_allowed_policy=split " +
	"--name=flush --bs=4k --fsync=1 --size=2M --offset=96M"

// startLoad starts passes of load in the guest, one after the other until endLoad;
// one that fails is the last.
func (g *guest) startLoad() {
	g.t.Helper()
	g.run("rm -f /tmp/enough; (s=0; n=0; while [ ! -e /tmp/enough ] && [ $s = 0 ]; do n=$((n + 1)); " +
		load + " > /tmp/load.log 2>&1; s=$?; echo $n > /tmp/passes; done; echo $s > /tmp/load.status) > /dev/null 2>&1 &")
}

// endLoad waits for the end of the pass that runs, and wants all to have succeeded.
func (g *guest) endLoad() {
	g.t.Helper()
	g.run("touch /tmp/enough")
	g.run("until [ -e /tmp/load.status ]; do sleep 0.1; done")
	require.Equal(g.t, "0", g.run("cat /tmp/load.status"), "%s", g.run("cat /tmp/load.log"))
	g.t.Logf("passes of fio: %s", g.run("cat /tmp/passes"))
}

// waitForIO returns when requests complete, after a restart again: the counters of
// completed reads and writes move, twice, so that the ring has gone on.
func (g *guest) waitForIO() {
	g.t.Helper()
	const completed = "awk '{print $1 + $5}' /sys/block/vda/stat"
	start := g.number(completed)
	eventually(g.t, "I/O in the guest", func() bool {
		_, status := g.ask("[ ! -e /tmp/load.status ]")
		require.Zero(g.t, status, "fio has ended early")
		return g.number(completed) >= start+32
	})
}

// inFlight is how many requests the guest waits for.
func (g *guest) inFlight() int {
	g.t.Helper()
	return g.number("awk '{print $1 + $2}' /sys/block/vda/inflight")
}

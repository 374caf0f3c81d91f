package vhost_test

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/elevisor/elevisor/backend"
	"github.com/elevisor/elevisor/blk"
	"github.com/elevisor/elevisor/device"
	"github.com/elevisor/elevisor/sched"
	"github.com/elevisor/elevisor/sys/clock"
	"github.com/elevisor/elevisor/sys/eventfd"
	"github.com/elevisor/elevisor/sys/shm"
	"github.com/elevisor/elevisor/vhost"
	"github.com/elevisor/elevisor/virtqueue"
)

// A disk in memory is served on a socket. A front-end connects, shares its memory with a
// ring in it, and writes a sector, as a VMM and the driver in its guest do together.
func Example() {
	dir := must(os.MkdirTemp("", "example"))
	defer os.RemoveAll(dir)
	img := must(backend.Open("mem:?size=1M", backend.Options{}))
	disk := must(device.NewSingle(img, must(sched.Find("deadline")), clock.Start().Now, device.Options{ID: "vda"}))
	server := must(vhost.Listen(dir+"/socket", nil))
	ctx, stop := context.WithCancel(context.Background())
	served := make(chan error)
	go func() { served <- server.Serve(ctx, disk, disk) }()

	// The front-end: features, memory, and a ring of 8 entries at its beginning.
	f := must(vhost.Dial(dir+"/socket", 10*time.Second))
	features := must(f.GetFeatures())
	check(f.SetProtocolFeatures(vhost.ProtocolReplyAck|vhost.ProtocolConfig), f.SetFeatures(features))
	fmt.Println("sectors:", blk.DecodeConfig(must(f.GetConfig(0, blk.ConfigSize))).Capacity)
	fd, memory, err := shm.Create("guest", 1<<16, shm.Region{Size: 1 << 16})
	check(err, f.SetMemTable([]shm.Region{{Size: 1 << 16}}, []int{fd}))
	ring := must(virtqueue.NewDriver(memory.Bytes(), 8, features))
	avail, used, _ := virtqueue.Layout(8)
	check(f.SetVringNum(0, 8), f.SetVringAddr(vhost.VringAddr{Avail: uint64(avail), Used: uint64(used)}))
	kick, call := must(eventfd.New()), must(eventfd.New())
	check(f.SetVringCall(0, call.Raw()), f.SetVringKick(0, kick.Raw()), f.SetVringEnable(0, true))

	// The driver: the header, the data and the status byte of a write to sector 3.
	copy(memory.Bytes()[0x1000:], []byte{0: blk.TypeOut, 8: 3})
	ring.Add([]virtqueue.Elem{{Addr: 0x1000, Len: blk.HeaderSize}, {Addr: 0x1200, Len: blk.SectorSize}, {Addr: 0x1400, Len: 1, Write: true}})
	ring.Publish()
	kick.Notify()
	for !ring.EnableCalls() { // nothing has been returned yet
		call.Wait(time.Second)
		call.Take()
	}
	fmt.Println("status:", blk.Status(memory.Bytes()[0x1400]))

	f.Close()
	stop()
	check(<-served)
	disk.Close()
	check(img.Close())
	// Output:
	// sectors: 2048
	// status: OK
}

func must[T any](v T, err error) T {
	check(err)
	return v
}

// check stops at the first error.
func check(errs ...error) {
	for _, err := range errs {
		if err != nil {
			panic(err)
		}
	}
}

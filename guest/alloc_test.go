//go:build !race

package guest

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/elevisor/elevisor/sched"
)

// TestQueueAllocatesNothing cannot run under the race detector, whose hooks in
// package unix make read's buffer escape.
func TestQueueAllocatesNothing(t *testing.T) {
	g := newGuest(t, Options{QueueSize: 16, Depth: 4, Segments: 2}, DefaultFeatures)
	startToy(t, g)
	q := g.queues[0]
	data := slotData(q)
	churn(t, q, data, 100)
	allocs := testing.AllocsPerRun(5, func() { churn(t, q, data, 2000) })
	assert.Less(t, allocs, 20.0, "2000 requests; the slice and the closure of churn itself are allowed")
}

func TestBlockAllocatesNothing(t *testing.T) {
	for _, name := range sched.Names {
		for _, noPlug := range []bool{false, true} {
			b := ServedBlock(t, Options{QueueSize: 16, Segments: 14}, BlockOptions{Scheduler: name, Tags: 4, NoPlug: noPlug}, 64)
			data := slotData(b)
			churn(t, b, data, 300)
			allocs := testing.AllocsPerRun(5, func() { churn(t, b, data, 1000) })
			assert.Less(t, allocs, 20.0, "1000 requests with %s; the slice and the closure of churn itself are allowed", name)
		}
	}
}

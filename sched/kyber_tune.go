package sched

import (
	"fmt"
	"io"
)

// kyberKnobs are the target latencies, indexed by domain.
func kyberKnobs() knobs {
	return knobs{
		kyberRead:  {name: "read_lat_nsec", unit: "ns", base: 10, unsigned: true, value: int64(2 * millisecond)},
		kyberWrite: {name: "write_lat_nsec", unit: "ns", base: 10, unsigned: true, value: int64(10 * millisecond)},
	}
}

// Set implements Tunable. Latencies measured against the old target still count.
func (k *Kyber) Set(key, value string) error {
	_, err := k.knobs.set("kyber", key, value)
	return err
}

// Tunables implements Tunable.
func (k *Kyber) Tunables() []Info { return k.knobs.infos() }

// Counters implements Tunable. A batch is the turn of a domain.
func (k *Kyber) Counters(c *Counters) {
	c.Batches += k.counts.Batches
	c.LongestWait = max(c.LongestWait, k.counts.LongestWait)
}

// Describe implements Scheduler.
func (k *Kyber) Describe(w io.Writer) {
	fmt.Fprintf(w, "kyber: %d queued, %d of a batch of %s, throttled %d times, depths changed %d times\n",
		k.n, k.batching, kyberNames[k.turn], k.refused, k.resized)
	for i := range k.domains {
		d := &k.domains[i]
		if d.onDisk == 0 && d.depth == kyberDepths[i] && !d.waiting() {
			continue
		}
		fmt.Fprintf(w, " %s: %d of %d tokens\n", kyberNames[i], d.onDisk, d.depth)
		describeList(w, &d.retry)
		describeList(w, &d.list)
		for _, q := range k.queues {
			describeList(w, &q.fifo[i])
		}
	}
}

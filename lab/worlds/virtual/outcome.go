package simworld

import (
	"bytes"
	"encoding/json"
	"fmt"

	"github.com/elevisor/elevisor/backend/sim"
	"github.com/elevisor/elevisor/blk"
	"github.com/elevisor/elevisor/device"
	"github.com/elevisor/elevisor/internal/bench"
	"github.com/elevisor/elevisor/internal/expt"
	"github.com/elevisor/elevisor/internal/expt/measure"
	"github.com/elevisor/elevisor/internal/guest"
	worlds "github.com/elevisor/elevisor/internal/sim"
)

// outcome puts a result, from which the ramp is taken already, into the words of
// experiments.
func (w *world) outcome(res *worlds.Result) (*expt.Outcome, error) {
	o := &expt.Outcome{Host: measure.Host(&device.DomainStats{}, &res.Host)}
	results, options := make([][]bench.JobResult, len(res.VMs)), make([][]bench.Options, len(res.VMs))
	for vm := range res.VMs {
		for _, n := range res.VMs[vm].Jobs {
			results[vm], options[vm] = append(results[vm], res.Results[n]), append(options[vm], res.Jobs[n].Options)
		}
		measure.Guest(&o.Guest, &guest.BlockStats{}, &res.VMs[vm].Guest)
	}
	measure.Jobs(o, results, options)
	var drive *sim.Stats
	if res.Drive != nil {
		drive = &res.Drive.Model
	}
	o.Disk = measure.Disk(res.Record, &sim.Stats{}, drive)
	ramp := blk.Instant(0)
	for i := range res.Jobs {
		ramp = max(ramp, blk.Instant(res.Jobs[i].RampTime))
	}
	o.Trace = measure.Trace(res.Kept, ramp)
	if !w.o.Fio {
		return o, nil
	}
	var text, compact bytes.Buffer
	if err := res.WriteJSON(&text, "elevisor-"+w.o.Version); err != nil {
		return nil, err
	}
	if err := json.Compact(&compact, text.Bytes()); err != nil {
		return nil, fmt.Errorf("fio's form: %w", err)
	}
	o.Fio = compact.Bytes()
	return o, nil
}

package virtual

import (
	"bytes"
	"encoding/json"
	"fmt"

	"github.com/elevisor/elevisor/backend/drive"
	"github.com/elevisor/elevisor/blk"
	"github.com/elevisor/elevisor/device"
	"github.com/elevisor/elevisor/guest"
	"github.com/elevisor/elevisor/guest/load"
	"github.com/elevisor/elevisor/lab/plan"
	"github.com/elevisor/elevisor/lab/virtual"
	"github.com/elevisor/elevisor/lab/worlds/measure"
)

// outcome puts a result, from which the ramp is taken already, into the words of
// experiments.
func (w *world) outcome(res *virtual.Result) (*plan.Outcome, error) {
	o := &plan.Outcome{Host: measure.Host(&device.DomainStats{}, &res.Host)}
	results, options := make([][]load.JobResult, len(res.VMs)), make([][]load.Options, len(res.VMs))
	for vm := range res.VMs {
		for _, n := range res.VMs[vm].Jobs {
			results[vm], options[vm] = append(results[vm], res.Results[n]), append(options[vm], res.Jobs[n].Options)
		}
		measure.Guest(&o.Guest, &guest.BlockStats{}, &res.VMs[vm].Guest)
	}
	measure.Jobs(o, results, options)
	var model *drive.Stats
	if res.Drive != nil {
		model = &res.Drive.Model
	}
	o.Disk = measure.Disk(res.Record, &drive.Stats{}, model)
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

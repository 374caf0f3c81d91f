package plan

import (
	"encoding/json"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/elevisor/elevisor/sched"
)

// An infinite t is null in JSON, and comes back with its sign.
func TestComparison_infiniteT(t *testing.T) {
	for _, c := range []Comparison{
		{Cell: 1, Ratio: 2, T: math.Inf(1)}, {Cell: 1, Ratio: 0.5, T: math.Inf(-1)}, {Cell: 1, Ratio: 2, T: 3.5}, {Cell: 1, Ratio: 1},
	} {
		text, err := json.Marshal(c)
		require.NoError(t, err)
		if math.IsInf(c.T, 0) {
			require.Contains(t, string(text), `"t":null`)
		}
		var again Comparison
		require.NoError(t, json.Unmarshal(text, &again))
		require.Equal(t, c, again)
	}
}

func TestRefusals(t *testing.T) {
	r := Refusals{}
	r[sched.Started] = 7
	text, err := json.Marshal(r)
	require.NoError(t, err)
	require.Equal(t, `{"size":0,"segments":0,"op":0,"started":7}`, string(text))
	var again Refusals
	require.NoError(t, json.Unmarshal(text, &again))
	require.Equal(t, r, again)
	require.ErrorContains(t, json.Unmarshal([]byte(`{"weather":1}`), &again), `refused: there is no reason "weather"`)
	require.ErrorContains(t, json.Unmarshal([]byte(`[1,2]`), &again), "refused: ")
}

// results.json has the figures; quantiles, trace and fio's output stay in runs.jsonl.
func TestFigures(t *testing.T) {
	d := Direction{IOs: 3, P99: 5, CDF: []Quantile{{Q: 1, US: 5}}}
	o := &Outcome{Read: d, Write: d, Seconds: 1, Jobs: []Share{{IOPS: 3}}, Trace: []Access{{}}, Fio: json.RawMessage("{}"), Warnings: []string{"x"}}
	short := o.Figures()
	require.Equal(t, &Outcome{
		Read: Direction{IOs: 3, P99: 5}, Write: Direction{IOs: 3, P99: 5}, Seconds: 1, Jobs: o.Jobs, Warnings: o.Warnings,
	}, short)
	require.Len(t, o.Read.CDF, 1, "the outcome itself stays as it is")
	require.Nil(t, (*Outcome)(nil).Figures())
}

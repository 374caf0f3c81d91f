package ctl

import (
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/elevisor/elevisor/backend"
)

// Recorded is what was issued to an image, in that order; backend.RecorderStats says what the
// counts mean. Disks that are windows of one image have the same one.
type Recorded struct {
	Requests       uint64 `json:"requests"` // reads and writes; a merged group is one
	Sectors        uint64 `json:"sectors"`
	Others         uint64 `json:"others"` // flushes, discards, write-zeroes
	Seeks          uint64 `json:"seeks"`
	SeekSectors    uint64 `json:"seek_sectors"`
	LostSameQueue  uint64 `json:"lost_same_queue"`
	LostOtherQueue uint64 `json:"lost_other_queue"`
	LostOtherVM    uint64 `json:"lost_other_vm"`
	LostLate       uint64 `json:"lost_late"`
}

func recorded(r *backend.RecorderStats) *Recorded {
	if r == nil {
		return nil
	}
	return &Recorded{
		Requests: r.Requests, Sectors: r.Sectors, Others: r.Others, Seeks: r.Seeks, SeekSectors: r.SeekSectors,
		LostSameQueue: r.LostSameQueue, LostOtherQueue: r.LostOtherQueue, LostOtherVM: r.LostOtherVM, LostLate: r.LostLate,
	}
}

// WriteText prints it as a table.
func (r *Recorded) WriteText(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(w, "\nissued\tsectors\tothers\tseeks\tdistance\t\n%d\t%d\t%d\t%d\t%d\t\n", r.Requests, r.Sectors, r.Others, r.Seeks, r.SeekSectors)
	fmt.Fprintf(w, "\nlost merges\tsame queue\tother queue\tother VM\tof them late\t\n\t%d\t%d\t%d\t%d\t\n",
		r.LostSameQueue, r.LostOtherQueue, r.LostOtherVM, r.LostLate)
	return w.Flush()
}

package sched

// Place is where the neighbour for a merge was found, in the order of the search.
type Place uint8

// The places. OneHit is the group that was queued or grown last, the kernel's one-hit
// cache (last_merge); Batch is the same where its last request came in the same step
// and from the same queue, which the kernel's plug would have merged. Back and Front are
// found through the indexes. Join is the merge of two queued groups.
const (
	Batch Place = iota
	OneHit
	Back
	Front
	Join
	PlaceCount
)

// PlaceNames are the names of the places, for text and JSON.
var PlaceNames = [PlaceCount]string{"batch", "one-hit", "back", "front", "join"}

// Who says how the sources of two merged requests are related.
type Who uint8

// The relations.
const (
	SameQueue  Who = iota
	OtherQueue     // of the same device
	OtherVM
	WhoCount
)

// WhoNames are the names of the relations, for text and JSON.
var WhoNames = [WhoCount]string{"same queue", "other queue", "other VM"}

// Reason is why two adjacent requests were not merged.
type Reason uint8

// The reasons.
const (
	TooLong     Reason = iota // Config.MaxSectors
	TooManySegs               // Config.MaxSegments
	OtherOp                   // the operations, flags or priorities differ
	Started                   // the neighbour has been dispatched already
	ReasonCount
)

// ReasonNames are the names of the reasons, for text and JSON.
var ReasonNames = [ReasonCount]string{"size", "segments", "op", "started"}

// MergeStats count merges of guest requests. Each absorbed request counts once, at the
// place where it was absorbed; a join counts one for the pair. What a switch or a drain
// has taken apart counts again if it is merged again.
type MergeStats struct {
	Merged  [PlaceCount][WhoCount]uint64
	Refused [ReasonCount]uint64
	Sectors uint64 // of the requests that were absorbed
}

// Add adds b to s.
func (s *MergeStats) Add(b *MergeStats) {
	for p := range s.Merged {
		for w := range s.Merged[p] {
			s.Merged[p][w] += b.Merged[p][w]
		}
	}
	for r := range s.Refused {
		s.Refused[r] += b.Refused[r]
	}
	s.Sectors += b.Sectors
}

package sched

// Place is where a merge was found, in the order in which places are tried.
type Place uint8

// The places. Batch and OneHit are the kernel's plug and its last_merge: the
// request that was merged into or queued last; Batch when it came in the same step
// and from the same queue, OneHit otherwise. Back and Front are found through the
// indexes. Join is two queued groups that became one.
const (
	Batch Place = iota
	OneHit
	Back
	Front
	Join
	PlaceCount
)

// PlaceNames are for people and for JSON, by Place.
var PlaceNames = [PlaceCount]string{"batch", "one-hit", "back", "front", "join"}

// Who is who met whom in a merge.
type Who uint8

// The relations between the two neighbours of a merge.
const (
	SameQueue  Who = iota
	OtherQueue     // of the same device
	OtherVM
	WhoCount
)

// WhoNames are for people and for JSON, by Who.
var WhoNames = [WhoCount]string{"same queue", "other queue", "other VM"}

// Reason is why two neighbours whose places adjoin were not merged.
type Reason uint8

// The reasons.
const (
	TooLong     Reason = iota // Config.MaxSectors
	TooManySegs               // Config.MaxSegments
	OtherOp                   // another operation, other flags or another priority
	Started                   // the neighbour has been given up already
	ReasonCount
)

// ReasonNames are for people and for JSON, by Reason.
var ReasonNames = [ReasonCount]string{"size", "segments", "op", "started"}

// MergeStats count merges of guest requests: each absorbed request counts once, in
// the place where it was absorbed; a join counts once more for the pair. What a
// switch or a drain has taken apart counts again where it is merged again.
type MergeStats struct {
	Merged  [PlaceCount][WhoCount]uint64
	Refused [ReasonCount]uint64
	Sectors uint64 // of the absorbed requests
}

// Add sums b into s.
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

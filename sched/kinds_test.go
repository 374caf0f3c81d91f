package sched

import (
	"strings"
	"testing"

	"github.com/elevisor/elevisor/blk"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// Every row is complete, and no name stands for two.
func TestKinds(t *testing.T) {
	seen, auto := map[string]bool{"auto": true, "": true}, map[Disks]int{}
	for i, k := range Kinds() {
		require.Equal(t, Names[i], k.Name)
		for _, name := range append([]string{k.Name}, k.Aliases...) {
			require.False(t, seen[name], "%q is there twice", name)
			seen[name] = true
			found, err := Find(name)
			require.NoError(t, err)
			require.Equal(t, k.Name, found.Name)
			resolved, err := Resolve(name)
			require.NoError(t, err)
			require.Equal(t, k.Name, resolved)
		}
		if k.Linux != "" {
			found, err := Find(k.Linux)
			require.NoError(t, err)
			require.Equal(t, k.Name, found.Name, "the kernel's name is taken")
		}
		require.NotEmpty(t, k.Summary)
		require.LessOrEqual(t, len(k.Summary), 90)
		require.Contains(t, Help(), k.Summary)
		require.Positive(t, k.Depth)
		s := k.New(&Config{})
		require.Zero(t, s.Len())
		require.Equal(t, k.Knobs(&Config{}), Tunables(s))
		auto[k.Auto]++
	}
	require.Len(t, Names, len(Kinds()))
	require.Equal(t, 1, auto[RotationalDisks])
	require.Equal(t, 1, auto[OtherDisks])
	require.Equal(t, RotationalDisks, Auto(true).Auto)
	require.Equal(t, OtherDisks, Auto(false).Auto)
	require.Equal(t, len(Names), strings.Count(Help(), "\n"))
}

// The table cannot be changed from outside.
func TestKinds_copy(t *testing.T) {
	Kinds()[0].Name = "other"
	require.Equal(t, Names[0], Kinds()[0].Name)
}

// With a scheduler in which queues do not meet, each is head as if it were alone: so
// each may have a loop of its own.
func TestKinds_apart(t *testing.T) {
	for _, k := range Kinds() {
		if k.Meets {
			continue
		}
		t.Run(k.Name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				disk, all := &blk.Disk{}, []blk.Request{}
				for i := range rapid.IntRange(1, 40).Draw(t, "requests") {
					at := 8 * blk.Sector(rapid.IntRange(0, 12).Draw(t, "sector"))
					all = append(all, blk.Request{
						Op: blk.Op(rapid.IntRange(0, 1).Draw(t, "op")), Disk: disk, Sector: at, Pos: at, Sectors: 8, Seq: uint64(i),
						Source: blk.Source{Queue: uint16(rapid.IntRange(0, 1).Draw(t, "queue"))},
					})
				}
				both := serve(k, all, func(uint16) bool { return true })
				for q := range uint16(2) {
					var alone []string
					for _, g := range serve(k, all, func(queue uint16) bool { return queue == q }) {
						alone = append(alone, g.parts)
					}
					var among []string
					for _, g := range both {
						if g.queue == q {
							among = append(among, g.parts)
						}
					}
					require.Equal(t, alone, among, "queue %d", q)
				}
			})
		})
	}
}

// headOf is one group that was dispatched.
type headOf struct {
	queue uint16
	parts string
}

// serve queues the requests of some queues and dispatches them all.
func serve(k Kind, reqs []blk.Request, of func(queue uint16) bool) (all []headOf) {
	s := k.New(&Config{})
	for _, r := range reqs {
		if of(r.Source.Queue) {
			s.Insert(0, &r)
		}
	}
	for r := s.Dispatch(0); r != nil; r = s.Dispatch(0) {
		all = append(all, headOf{r.Source.Queue, group(r)})
	}
	return all
}

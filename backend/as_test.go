package backend

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"strings"
	"testing"

	"github.com/elevisor/elevisor/backend/drive"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func simulatedOf(t require.TestingT, b Backend) SimStats {
	s, ok := As[Simulated](b)
	require.True(t, ok, "a simulated drive is behind it")
	return s.Simulated()
}

func recorderOf(t require.TestingT, b Backend) Recorder {
	r, ok := As[Recorder](b)
	require.True(t, ok, "it is recorded")
	return r
}

// labelled is a face of the test's own, which no decorator can have been written for.
type labelled struct {
	Wrapper
	label int
}

func (l *labelled) Label() int { return l.label }

// An optional interface is found through any stack of decorators: the outermost, and
// none where there is none.
func TestAs_throughAnyStack(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		base := memDisk(t, stackSize)
		img := base
		var label, drives, recorders int // the outermost of each, counted from the disk; 0: none
		outermost := map[int]*recorder{}
		for i := range rapid.IntRange(0, 7).Draw(rt, "height") {
			at := i + 1
			switch rapid.IntRange(0, 5).Draw(rt, "layer") {
			case 0:
				label = at
				img = &decorated{img, func(b Backend, _ Host) Backend { return &labelled{Wrapper{b}, at} }}
			case 1:
				drives = at
				model := &fakeDrive{depth: 4, stats: drive.Stats{Seeks: uint64(at)}}
				img = NewSim(img, model, Physical{}, Options{})
			case 2:
				recorders = at
				inner := NewRecorder(img).(*decorated)
				img = &decorated{img, func(b Backend, h Host) Backend {
					outermost[at] = inner.wrap(b, h).(*recorder)
					return outermost[at]
				}}
			default:
				img = drawPlain(rt, img)
			}
		}
		b, err := img.Attach(Host{Depth: 4})
		require.NoError(rt, err)

		l, ok := As[interface{ Label() int }](b)
		require.Equal(rt, label > 0, ok)
		if ok {
			require.Equal(rt, label, l.Label())
		}
		s, ok := As[Simulated](b)
		require.Equal(rt, drives > 0, ok)
		if ok {
			require.EqualValues(rt, drives, s.Simulated().Model.Seeks)
		}
		r, ok := As[Recorder](b)
		require.Equal(rt, recorders > 0, ok)
		if ok {
			require.Same(rt, outermost[recorders], r)
		}
		bottom, ok := As[*atOnce](b)
		require.True(rt, ok, "a concrete type, at the bottom of the stack")
		require.Equal(rt, base.Info(), bottom.Info())
		require.NoError(rt, b.Close())
		require.NoError(rt, base.Close())
	})
}

// A Backend that holds another one embeds Wrapper: one that embedded the interface would
// hide every face of what is behind it.
func TestAs_everyDecoratorUnwraps(t *testing.T) {
	files, err := os.ReadDir(".")
	require.NoError(t, err)
	found := 0
	for _, f := range files {
		if !strings.HasSuffix(f.Name(), ".go") {
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), f.Name(), nil, 0)
		require.NoError(t, err)
		ast.Inspect(parsed, func(n ast.Node) bool {
			spec, ok := n.(*ast.TypeSpec)
			if !ok {
				return true
			}
			if s, ok := spec.Type.(*ast.StructType); ok && spec.Name.Name != "Wrapper" {
				for _, field := range s.Fields.List {
					name, _ := field.Type.(*ast.Ident)
					if name == nil || len(field.Names) > 0 {
						continue
					}
					found++
					require.False(t, name.Name == "Backend" && spec.Name.Name != "world", "%s embeds Backend, not Wrapper", spec.Name.Name)
				}
			}
			return true
		})
	}
	require.Greater(t, found, 5)
}

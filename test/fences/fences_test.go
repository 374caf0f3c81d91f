// Package fences holds the rules of this tree that a compiler does not: which
// package may know which, where unsafe and the clock may stand, how long a function
// may be. Each rule comes with a planted violation that it must find.
package fences

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const (
	module       = "github.com/elevisor/elevisor"
	root         = "../.."
	functionMax  = 70 // lines
	interfaceMax = 8  // methods, those of embedded interfaces included
)

// layers says, for every package of the tree, which of our packages its code may
// import; tests may import what they like. The floors, from the ground up:
//
//	sys, blk < virtqueue, sched, backend < device, vhost < daemon, guest, qemu < lab < cmd
//
// A package that is not listed is a violation, and so is an entry that nothing uses.
var layers = map[string][]string{
	"sys/shm":               {},
	"sys/eventfd":           {},
	"sys/socket":            {},
	"sys/clock":             {"blk"},
	"blk":                   {},
	"virtqueue":             {"sys/shm", "sys/eventfd"},
	"sched":                 {"blk"},
	"backend":               {"backend/drive", "backend/uring", "blk", "sys/shm"},
	"backend/drive":         {"blk"},
	"backend/uring":         {},
	"device":                {"backend", "backend/uring", "blk", "sched", "sys/eventfd", "sys/shm", "virtqueue"},
	"vhost":                 {"sys/eventfd", "sys/shm", "sys/socket", "virtqueue"},
	"daemon":                {"backend", "blk", "daemon/ctl", "device", "sched", "sys/clock", "vhost", "virtqueue"},
	"daemon/ctl":            {"backend", "blk", "device", "sched", "sys/clock", "sys/socket", "virtqueue"},
	"guest":                 {"blk", "device", "sched", "sys/clock", "sys/eventfd", "sys/shm", "vhost", "virtqueue"},
	"guest/load":            {"blk", "guest", "sys/clock"},
	"guest/fio":             {"guest/load"},
	"qemu/qmp":              {"sys/clock"},
	"qemu/qmp/qmptest":      {},
	"qemu/attach":           {"qemu/qmp", "vhost"},
	"qemu/vm":               {"qemu/qmp"},
	"lab/stats":             {},
	"lab/virtual":           {"backend", "backend/drive", "blk", "daemon/ctl", "device", "guest", "guest/load", "sched"},
	"lab/tables":            {"backend", "backend/drive", "guest/load", "lab/virtual", "sched"},
	"lab/plan":              {"backend", "device", "guest/fio", "lab/stats", "sched", "virtqueue"},
	"lab/report":            {"guest/fio", "lab/plan", "lab/stats", "sched"},
	"lab/report/reporttest": {"guest/fio", "lab/plan"},
	"lab/worlds/measure":    {"backend", "backend/drive", "blk", "device", "guest", "guest/load", "lab/plan", "sched"},
	"lab/worlds/virtual":    {"backend", "backend/drive", "blk", "device", "guest", "guest/load", "lab/plan", "lab/virtual", "lab/worlds/measure"},
	"lab/worlds/loopback":   {"backend", "backend/drive", "blk", "daemon", "daemon/ctl", "guest", "guest/fio", "guest/load", "lab/plan", "lab/worlds/measure", "sched", "sys/clock"},
	"lab/worlds/qemu":       {"backend", "blk", "daemon", "daemon/ctl", "device", "guest/fio", "lab/plan", "lab/worlds/measure", "qemu/attach", "qemu/qmp", "qemu/vm", "sched"},
	"cmd/cli":               {"blk"},
	"cmd/elevisor":          {"cmd/cli", "daemon", "daemon/ctl", "qemu/attach", "sched"},
	"cmd/elevisor-lab":      {"backend", "backend/drive", "blk", "cmd/cli", "daemon", "device", "guest", "guest/fio", "guest/load", "lab/plan", "lab/report", "lab/tables", "lab/virtual", "lab/worlds/loopback", "lab/worlds/qemu", "lab/worlds/virtual", "qemu/vm", "sched", "sys/clock", "virtqueue"},
}

// floors are the roots of the tree from the ground up. They keep the table honest: it may
// allow a package only what lies under its own root or on a lower floor.
var floors = [][]string{{"sys", "blk"}, {"virtqueue", "sched", "backend"}, {"device", "vhost"}, {"daemon", "guest", "qemu"}, {"lab"}, {"cmd"}}

// floorOf is the floor of a package; -1: none.
func floorOf(pkg string) int {
	root, _, _ := strings.Cut(pkg, "/")
	return slices.IndexFunc(floors, func(f []string) bool { return slices.Contains(f, root) })
}

// pure packages have one history of answers for one history of calls: what would
// bring in the world's state may not be imported.
var (
	pure   = []string{"blk", "sched", "backend/drive", "guest/fio", "lab/stats"}
	impure = []string{"os", "sync", "time", "math/rand", "golang.org/x/sys"}
	// But for these, by package or file: a model and the order of an experiment draw from
	// generators of their own, which they seed, a parameter file is read before there is a
	// model, and a job has times.
	pureBut = map[string]string{"backend/drive": "math/rand/v2", "backend/drive/preset.go": "os", "lab/stats": "math/rand/v2", "guest/fio": "time"}
	// randomGlobals draw from a generator that nobody seeds.
	randomGlobals = []string{
		"ExpFloat64", "Float32", "Float64", "Int", "Int32", "Int32N", "Int64", "Int64N", "IntN", "N", "NormFloat64",
		"Perm", "Shuffle", "Uint", "Uint32", "Uint32N", "Uint64", "Uint64N", "UintN",
	}
)

// clockFunctions read the real clock or wait for it. Virtual time needs them out
// of everything that the simulator runs.
var (
	clockFunctions = []string{"Now", "Since", "Until", "Sleep", "After", "AfterFunc", "Tick", "NewTimer", "NewTicker"}
	// In virtual time there is no other clock; that not even sys/clock is imported, layers says.
	virtual   = []string{"lab/virtual", "lab/worlds/virtual"}
	clockFree = []string{"sys/clock", "cmd", "test"}
	// vhost waits for front-ends on real sockets, which the simulator has none of;
	// it may set a limit to that, but not read the time.
	timersOnly = map[string][]string{"vhost": {"After", "AfterFunc", "NewTimer", "NewTicker"}}
)

// file is one Go file of the tree; name is relative to its root.
type file struct {
	name string
	fset *token.FileSet
	*ast.File
}

func (f *file) dir() string          { return path.Dir(f.name) }
func (f *file) test() bool           { return strings.HasSuffix(f.name, "_test.go") }
func (f *file) line(p token.Pos) int { return f.fset.Position(p).Line }

// report takes a violation: where, and what.
type report func(at token.Pos, format string, args ...any)

// rules by name. A function whose rule does not concern the file returns at once.
var rules = map[string]func(*file, report){
	"unsafe":     checkUnsafe,
	"layers":     checkLayers,
	"purity":     checkPurity,
	"clock":      checkClock,
	"printing":   checkPrinting,
	"functions":  checkFunctions,
	"names":      checkName,
	"interfaces": checkInterfaces,
	"documented": checkDocumented,
	"schedulers": checkSchedulers,
	"locks":      checkLocks,
}

func checkUnsafe(f *file, bad report) {
	if f.test() {
		return
	}
	for _, imp := range f.Imports {
		if imp.Path.Value == `"unsafe"` && !strings.HasSuffix(f.name, "_unsafe.go") {
			bad(imp.Pos(), "unsafe stands in *_unsafe.go files only")
		}
	}
	for _, d := range f.Decls {
		if use := firstUse(f, d, "unsafe", []string{"Pointer", "Slice", "SliceData", "String", "StringData", "Add"}); use != nil && !f.hasComment(d, "SAFETY:") {
			bad(use.Pos(), "no // SAFETY: comment says why this use of unsafe is sound")
		}
	}
}

func checkLayers(f *file, bad report) {
	if f.test() {
		return
	}
	allowed, known := layers[f.dir()]
	if !known {
		bad(f.Package, "package %s is not in the table of layers", f.dir())
		return
	}
	for _, imp := range f.Imports {
		if ours, ok := strings.CutPrefix(importPath(imp), module+"/"); ok && !slices.Contains(allowed, ours) {
			bad(imp.Pos(), "%s may not import %s", f.dir(), ours)
		}
	}
}

func checkPurity(f *file, bad report) {
	if f.test() || !slices.Contains(pure, f.dir()) {
		return
	}
	for _, imp := range f.Imports {
		for _, i := range impure {
			if p := importPath(imp); under(p, i) && p != pureBut[f.dir()] && p != pureBut[f.name] {
				bad(imp.Pos(), "%s is pure and may not import %s", f.dir(), p)
			}
		}
	}
	for _, d := range f.Decls {
		if use := firstUse(f, d, "math/rand/v2", randomGlobals); use != nil {
			bad(use.Pos(), "%s is pure: rand.%s is not seeded", f.dir(), use.Sel.Name)
		}
	}
}

func checkClock(f *file, bad report) {
	if f.test() || slices.ContainsFunc(clockFree, func(d string) bool { return under(f.dir(), d) }) {
		return
	}
	for _, imp := range f.Imports {
		if slices.Contains(virtual, f.dir()) && importPath(imp) == "math/rand" {
			bad(imp.Pos(), "%s runs in virtual time and draws from seeded generators: no math/rand", f.dir())
		}
	}
	forbidden := slices.DeleteFunc(slices.Clone(clockFunctions), func(name string) bool {
		return slices.Contains(timersOnly[f.dir()], name)
	})
	for _, d := range f.Decls {
		if use := firstUse(f, d, "time", forbidden); use != nil {
			bad(use.Pos(), "time comes in as an argument: no time.%s here", use.Sel.Name)
		}
	}
}

func checkPrinting(f *file, bad report) {
	if f.test() || under(f.dir(), "cmd") {
		return
	}
	for _, d := range f.Decls {
		if use := firstUse(f, d, "fmt", []string{"Print", "Printf", "Println"}); use != nil {
			bad(use.Pos(), "only commands print")
		}
	}
	for _, imp := range f.Imports {
		if importPath(imp) == "log" {
			bad(imp.Pos(), "use the *zap.Logger that was passed in")
		}
	}
}

func checkFunctions(f *file, bad report) {
	for _, d := range f.Decls {
		fn, ok := d.(*ast.FuncDecl)
		if !ok || f.test() {
			continue
		}
		if n := f.line(fn.End()) - f.line(fn.Pos()) + 1; n > functionMax {
			bad(fn.Pos(), "%s has %d lines, more than %d", fn.Name.Name, n, functionMax)
		}
	}
}

func checkName(f *file, bad report) {
	base := strings.TrimSuffix(strings.TrimSuffix(path.Base(f.name), ".go"), "_test")
	for _, vague := range []string{"util", "utils", "helper", "helpers", "common", "misc"} {
		if base == vague || path.Base(f.dir()) == vague {
			bad(f.Package, "the name %s says nothing about what is inside", vague)
		}
	}
}

func checkDocumented(f *file, bad report) {
	if f.test() || slices.ContainsFunc(strings.Split(f.dir(), "/"), func(part string) bool {
		return part == "cmd" || part == "test"
	}) {
		return
	}
	for _, d := range f.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			known := d.Recv != nil && slices.Contains([]string{"String", "Error", "Unwrap"}, d.Name.Name) // the standard library says what they do
			if d.Name.IsExported() && receiverExported(d) && d.Doc == nil && !known {
				bad(d.Pos(), "%s has no comment", d.Name.Name)
			}
		case *ast.GenDecl:
			for _, s := range d.Specs {
				checkSpec(d, s, bad)
			}
		}
	}
}

// checkSpec wants a comment for each type; names of constants and variables may
// share their group's.
func checkSpec(d *ast.GenDecl, s ast.Spec, bad report) {
	switch s := s.(type) {
	case *ast.TypeSpec:
		if s.Name.IsExported() && d.Doc == nil && s.Doc == nil && s.Comment == nil {
			bad(s.Pos(), "%s has no comment", s.Name.Name)
		}
	case *ast.ValueSpec:
		for _, name := range s.Names {
			if name.IsExported() && d.Doc == nil && s.Doc == nil && s.Comment == nil {
				bad(name.Pos(), "%s has no comment", name.Name)
			}
		}
	}
}

func receiverExported(d *ast.FuncDecl) bool {
	if d.Recv == nil {
		return true
	}
	exported := false
	ast.Inspect(d.Recv.List[0].Type, func(n ast.Node) bool {
		if id, ok := n.(*ast.Ident); ok && !exported {
			exported = id.IsExported()
			return false
		}
		return true
	})
	return exported
}

// firstUse finds a use of one of a package's names in a declaration, also where
// the package was imported under another name; a function's signature is no use.
func firstUse(f *file, d ast.Decl, pkg string, names []string) (use *ast.SelectorExpr) {
	local := ""
	for _, imp := range f.Imports {
		if importPath(imp) == pkg {
			local = path.Base(strings.TrimSuffix(pkg, "/v2"))
			if imp.Name != nil {
				local = imp.Name.Name
			}
		}
	}
	var node ast.Node = d
	if fn, ok := d.(*ast.FuncDecl); ok {
		if fn.Body == nil {
			return nil
		}
		node = fn.Body
	}
	ast.Inspect(node, func(n ast.Node) bool {
		if sel, ok := n.(*ast.SelectorExpr); ok && use == nil {
			if x, ok := sel.X.(*ast.Ident); ok && x.Name == local && slices.Contains(names, sel.Sel.Name) {
				use = sel
			}
		}
		return use == nil
	})
	return use
}

// hasComment is whether a comment with this text stands in or right above d.
func (f *file) hasComment(d ast.Decl, text string) bool {
	return slices.ContainsFunc(f.Comments, func(c *ast.CommentGroup) bool {
		inside := c.Pos() >= d.Pos() && c.End() <= d.End()
		above := f.line(c.End())+1 == f.line(d.Pos()) || f.line(c.End()) == f.line(d.Pos())
		return (inside || above) && strings.Contains(c.Text(), text)
	})
}

func importPath(imp *ast.ImportSpec) string {
	p, _ := strconv.Unquote(imp.Path.Value)
	return p
}

// under is whether p is dir or lies in it.
func under(p, dir string) bool { return p == dir || strings.HasPrefix(p, dir+"/") }

// check applies rules to one file's text (nil: read it) and returns "RULE: place: what".
func check(t *testing.T, root, name string, text any) (found []string) {
	t.Helper()
	fset := token.NewFileSet()
	parsed, err := parser.ParseFile(fset, filepath.Join(root, name), text, parser.ParseComments|parser.SkipObjectResolution)
	require.NoError(t, err)
	f := &file{name: filepath.ToSlash(name), fset: fset, File: parsed}
	for rule, apply := range rules {
		apply(f, func(at token.Pos, format string, args ...any) {
			found = append(found, fmt.Sprintf("%s: %s:%d: %s", rule, f.name, f.line(at), fmt.Sprintf(format, args...)))
		})
	}
	return found
}

func TestFences(t *testing.T) {
	files := 0
	var found []string
	used := map[string]map[string]bool{} // by package: what its code imports of ours
	require.NoError(t, filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && p != root && (strings.HasPrefix(d.Name(), ".") || d.Name() == "build" || d.Name() == "testdata"):
			return fs.SkipDir
		case d.IsDir() || !strings.HasSuffix(p, ".go"):
			return nil
		}
		name, err := filepath.Rel(root, p)
		files++
		found = append(found, check(t, root, name, nil)...)
		if !strings.HasSuffix(name, "_test.go") {
			imports(t, root, name, used)
		}
		return err
	}))
	require.Greater(t, files, 20, "the walk has found the tree")
	slices.Sort(found)
	require.Empty(t, found, strings.Join(found, "\n"))
	require.Empty(t, staleLayers(used))
}

// imports adds what a file imports of ours to its package's.
func imports(t *testing.T, root, name string, used map[string]map[string]bool) {
	t.Helper()
	parsed, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root, name), nil, parser.ImportsOnly)
	require.NoError(t, err)
	dir := path.Dir(filepath.ToSlash(name))
	if used[dir] == nil {
		used[dir] = map[string]bool{}
	}
	for _, imp := range parsed.Imports {
		if ours, ok := strings.CutPrefix(importPath(imp), module+"/"); ok {
			used[dir][ours] = true
		}
	}
}

// staleLayers are packages of the table that are gone, and what it allows to nobody's use.
func staleLayers(used map[string]map[string]bool) (stale []string) {
	for pkg, allowed := range layers {
		if used[pkg] == nil {
			stale = append(stale, pkg+" is no package")
		}
		for _, a := range allowed {
			if used[pkg] != nil && !used[pkg][a] {
				stale = append(stale, pkg+" no longer imports "+a)
			}
		}
	}
	slices.Sort(stale)
	return stale
}

// The table itself keeps to the floors.
func TestLayers_pointDown(t *testing.T) {
	for pkg, allowed := range layers {
		require.GreaterOrEqual(t, floorOf(pkg), 0, "%s stands on a floor", pkg)
		root, _, _ := strings.Cut(pkg, "/")
		for _, a := range allowed {
			require.True(t, under(a, root) && a != pkg || floorOf(a) < floorOf(pkg) || pkg == "sys/clock" && a == "blk",
				"%s may not be allowed %s: it stands no lower", pkg, a)
		}
	}
}

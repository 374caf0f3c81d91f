package fences

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"testing"

	"github.com/elevisor/elevisor/sched"
	"github.com/stretchr/testify/require"
)

// schedulerNames are all the names that a scheduler is known by.
var schedulerNames = func() (all []string) {
	for _, k := range sched.Kinds() {
		all = append(append(all, k.Name, k.Linux), k.Aliases...)
	}
	return slices.DeleteFunc(all, func(name string) bool { return name == "" })
}()

// schedulerData are files in which a scheduler's name is the key of data, and why.
var schedulerData = map[string]string{
	"lab/tables/experiment.go":         "the configurations of published tables, by the names they have there",
	"lab/report/reporttest/results.go": "made-up results, by the names of what is compared in them",
}

// lookups are functions that compare, by package.
var lookups = map[string][]string{
	"slices":  {"Contains", "Index"},
	"strings": {"EqualFold", "HasPrefix", "TrimPrefix", "CutPrefix"},
}

// checkSchedulers finds code outside sched that asks which scheduler it has, by a name's
// literal or by a type, instead of looking into the table of kinds.
func checkSchedulers(f *file, bad report) {
	if !f.test() && f.dir() != "sched" && schedulerData[f.name] == "" {
		findSchedulers(f, bad)
	}
}

func findSchedulers(f *file, bad report) {
	literal := func(e ast.Expr) {
		if name := schedulerName(e); name != "" {
			bad(e.Pos(), "what follows from the scheduler's name %q stands in sched.Kinds", name)
		}
	}
	kind := func(t ast.Expr) {
		if s, ok := t.(*ast.StarExpr); ok {
			t = s.X
		}
		if s, ok := t.(*ast.SelectorExpr); ok && f.importedAs(s.X) == "sched" && s.Sel.Name != "Tunable" {
			bad(t.Pos(), "what follows from a scheduler's type stands in sched.Kinds")
		}
	}
	ast.Inspect(f.File, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.BinaryExpr:
			if n.Op == token.EQL || n.Op == token.NEQ {
				literal(n.X)
				literal(n.Y)
			}
		case *ast.CaseClause:
			for _, e := range n.List {
				literal(e)
				kind(e)
			}
		case *ast.TypeAssertExpr:
			kind(n.Type)
		case *ast.IndexExpr:
			literal(n.Index)
		case *ast.CompositeLit:
			checkKeys(n, literal)
		case *ast.CallExpr:
			checkLookup(f, n, literal)
		}
		return true
	})
}

// schedulerName is the name that e is the literal of; empty: of none.
func schedulerName(e ast.Expr) string {
	lit, ok := e.(*ast.BasicLit)
	if !ok || lit.Kind != token.STRING {
		return ""
	}
	if name, err := strconv.Unquote(lit.Value); err == nil && slices.Contains(schedulerNames, name) {
		return name
	}
	return ""
}

// checkKeys looks at the keys of a map.
func checkKeys(n *ast.CompositeLit, literal func(ast.Expr)) {
	if _, ok := n.Type.(*ast.MapType); !ok {
		return
	}
	for _, e := range n.Elts {
		if kv, ok := e.(*ast.KeyValueExpr); ok {
			literal(kv.Key)
		}
	}
}

// checkLookup looks at the arguments of a function that compares, also at those that are
// lists.
func checkLookup(f *file, n *ast.CallExpr, literal func(ast.Expr)) {
	fn, ok := n.Fun.(*ast.SelectorExpr)
	if !ok || !slices.Contains(lookups[path.Base(f.importedAs(fn.X))], fn.Sel.Name) {
		return
	}
	for _, arg := range n.Args {
		literal(arg)
		if list, ok := arg.(*ast.CompositeLit); ok {
			for _, e := range list.Elts {
				literal(e)
			}
		}
	}
}

// A file that needs no exception has none.
func TestSchedulerData_needed(t *testing.T) {
	for name := range schedulerData {
		fset := token.NewFileSet()
		p, err := parser.ParseFile(fset, filepath.Join(root, name), nil, parser.SkipObjectResolution)
		require.NoError(t, err)
		found := 0
		findSchedulers(&file{name: name, fset: fset, File: p}, func(token.Pos, string, ...any) { found++ })
		require.NotZero(t, found, name)
	}
}

package fences

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strings"
)

// checkInterfaces counts what an interface asks of whoever implements it: its own
// methods and those of the interfaces it embeds.
func checkInterfaces(f *file, bad report) {
	ast.Inspect(f.File, func(n ast.Node) bool {
		if i, ok := n.(*ast.InterfaceType); ok {
			if n := len(methodsOf(f, i)); n > interfaceMax {
				bad(i.Pos(), "an interface with %d methods, more than %d", n, interfaceMax)
			}
		}
		return true
	})
}

// methodsOf are the names of i's methods. Of an embedded interface that is not of this
// tree no more is known than that it has one.
func methodsOf(f *file, i *ast.InterfaceType) map[string]bool {
	all := map[string]bool{}
	for _, field := range i.Methods.List {
		for _, name := range field.Names {
			all[name.Name] = true
		}
		if len(field.Names) > 0 {
			continue
		}
		in, dir, name := f, f.dir(), ""
		switch t := field.Type.(type) {
		case *ast.Ident:
			name = t.Name
		case *ast.SelectorExpr:
			dir, name = f.importedAs(t.X), t.Sel.Name
		default:
			continue // a constraint
		}
		var embedded *ast.InterfaceType
		if dir == f.dir() {
			embedded = declaredInterface(f, name)
		}
		if embedded == nil {
			in, embedded = interfaceIn(dir, name)
		}
		if embedded == nil {
			all[dir+"."+name] = true
			continue
		}
		for method := range methodsOf(in, embedded) {
			all[method] = true
		}
	}
	return all
}

// importedAs is the directory of the package that x names in f; for one that is not of
// this tree its import path.
func (f *file) importedAs(x ast.Expr) string {
	id, ok := x.(*ast.Ident)
	if !ok {
		return ""
	}
	for _, imp := range f.Imports {
		p := importPath(imp)
		if imp.Name != nil && imp.Name.Name == id.Name || imp.Name == nil && strings.HasSuffix("/"+p, "/"+id.Name) {
			return strings.TrimPrefix(p, module+"/")
		}
	}
	return ""
}

// declaredInterface is the interface of that name that f declares; nil if it does not.
func declaredInterface(f *file, name string) *ast.InterfaceType {
	for _, d := range f.Decls {
		g, ok := d.(*ast.GenDecl)
		if !ok {
			continue
		}
		for _, s := range g.Specs {
			if s, ok := s.(*ast.TypeSpec); ok && s.Name.Name == name {
				i, _ := s.Type.(*ast.InterfaceType)
				return i
			}
		}
	}
	return nil
}

// parsed are the files of the tree's packages, tests not included, by directory.
var parsed = map[string][]*file{}

// interfaceIn finds an interface in a package of the tree, and the file it stands in.
func interfaceIn(dir, name string) (*file, *ast.InterfaceType) {
	files, known := parsed[dir]
	if !known {
		names, _ := filepath.Glob(filepath.Join(root, dir, "*.go"))
		for _, n := range names {
			if strings.HasSuffix(n, "_test.go") {
				continue
			}
			fset := token.NewFileSet()
			if p, err := parser.ParseFile(fset, n, nil, parser.SkipObjectResolution); err == nil {
				files = append(files, &file{name: dir + "/" + filepath.Base(n), fset: fset, File: p})
			}
		}
		parsed[dir] = files
	}
	for _, f := range files {
		if i := declaredInterface(f, name); i != nil {
			return f, i
		}
	}
	return nil, nil
}

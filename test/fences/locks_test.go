package fences

import (
	"go/ast"
	"slices"
)

// lockFree packages have one owner for everything: a loop's goroutine. Whoever else wants
// something of it calls Loop.Do.
var lockFree = []string{"blk", "sched", "virtqueue", "device"}

// checkLocks finds locks, and what waits for another goroutine to give one back.
func checkLocks(f *file, bad report) {
	if f.test() || !slices.Contains(lockFree, f.dir()) {
		return
	}
	ast.Inspect(f.File, func(n ast.Node) bool {
		if s, ok := n.(*ast.SelectorExpr); ok && f.importedAs(s.X) == "sync" &&
			slices.Contains([]string{"Mutex", "RWMutex", "Locker", "Cond", "NewCond"}, s.Sel.Name) {
			bad(s.Pos(), "%s is owned by one goroutine: no sync.%s", f.dir(), s.Sel.Name)
		}
		return true
	})
}

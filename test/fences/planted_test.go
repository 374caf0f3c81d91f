package fences

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// planted is one small file for each thing that a rule must find, and, with an
// empty rule, for what it must let pass.
var planted = []struct{ rule, name, text string }{
	{"unsafe", "vhost/codec.go", `import "unsafe"; var size = unsafe.Sizeof(0)`},
	{"unsafe", "sys/shm/x_unsafe.go", "import \"unsafe\"\nfunc f(p *int) uintptr { return uintptr(unsafe.Pointer(p)) }"},
	{"unsafe", "sys/shm/x_unsafe.go", "import u \"unsafe\"\nfunc f(p *int) uintptr { return uintptr(u.Pointer(p)) }"},
	{"", "sys/shm/x_unsafe.go", "import \"unsafe\"\nfunc f(p *int) uintptr {\n// SAFETY: a number only.\nreturn uintptr(unsafe.Pointer(p)) }"},
	{"", "vhost/codec_test.go", `import "unsafe"; var size = unsafe.Sizeof(0)`},

	{"layers", "blk/x.go", `import _ "github.com/elevisor/elevisor/sched"`},
	{"layers", "sched/x.go", `import _ "github.com/elevisor/elevisor/virtqueue"`},
	{"layers", "device/x.go", `import _ "github.com/elevisor/elevisor/vhost"`},
	{"layers", "vhost/x.go", `import _ "github.com/elevisor/elevisor/device"`},
	{"layers", "backend/uring/x.go", `import _ "github.com/elevisor/elevisor/blk"`},
	{"layers", "backend/drive/x.go", `import _ "github.com/elevisor/elevisor/backend"`},
	{"layers", "backend/remote/x.go", ``}, // a new package must be entered first
	{"layers", "internal/x/x.go", ``},
	{"layers", "daemon/x.go", `import _ "github.com/elevisor/elevisor/lab/plan"`},
	{"layers", "daemon/x.go", `import _ "github.com/elevisor/elevisor/guest"`},
	{"layers", "daemon/ctl/x.go", `import _ "github.com/elevisor/elevisor/guest/load"`},
	{"layers", "daemon/x.go", `import _ "github.com/elevisor/elevisor/qemu/vm"`},
	{"layers", "cmd/elevisor/x.go", `import _ "github.com/elevisor/elevisor/lab/stats"`},
	{"layers", "cmd/elevisor/x.go", `import _ "github.com/elevisor/elevisor/guest"`},
	{"layers", "guest/x.go", `import _ "github.com/elevisor/elevisor/daemon"`},
	{"layers", "qemu/attach/x.go", `import _ "github.com/elevisor/elevisor/lab/plan"`},
	{"layers", "lab/stats/x.go", `import _ "github.com/elevisor/elevisor/blk"`},
	{"layers", "lab/plan/x.go", `import _ "github.com/elevisor/elevisor/cmd/elevisor"`},
	{"layers", "qemu/qmp/x.go", `import _ "github.com/elevisor/elevisor/vhost"`},
	{"layers", "qemu/vm/x.go", `import _ "github.com/elevisor/elevisor/daemon"`},
	{"layers", "qemu/attach/x.go", `import _ "github.com/elevisor/elevisor/daemon"`},
	{"", "sched/x.go", `import _ "github.com/elevisor/elevisor/blk"`},
	{"", "vhost/x_test.go", `import _ "github.com/elevisor/elevisor/device"`},
	{"", "lab/plan/x.go", `import _ "github.com/elevisor/elevisor/device"`},

	{"purity", "blk/x.go", `import _ "os"`},
	{"purity", "sched/x.go", `import _ "sync/atomic"`},
	{"purity", "sched/x.go", `import _ "math/rand/v2"`},
	{"purity", "sched/x.go", `import _ "golang.org/x/sys/unix"`},
	{"purity", "sched/x.go", `import _ "time"`},
	{"purity", "backend/drive/x.go", `import _ "os"`},
	{"purity", "backend/drive/x.go", `import _ "math/rand"`},
	{"purity", "backend/drive/x.go", "import \"math/rand/v2\"\nvar x = rand.Float64()"},
	{"", "backend/drive/x.go", "import \"math/rand/v2\"\nvar x = rand.NewPCG(1, 2)"},
	{"", "backend/drive/preset.go", `import _ "os"`},
	{"purity", "lab/stats/x.go", `import _ "time"`},
	{"purity", "lab/stats/x.go", "import \"math/rand/v2\"\nfunc f() { _ = rand.Perm(3) }"},
	{"", "lab/stats/x.go", "import \"math/rand/v2\"\nfunc f() { _ = rand.New(rand.NewPCG(1, 2)).Perm(3) }"},
	{"", "sched/x_test.go", `import _ "time"`},

	{"clock", "device/x.go", "import \"time\"\nfunc f() { time.Sleep(1) }"},
	{"clock", "backend/x.go", "import clock \"time\"\nvar started = clock.Now()"},
	{"clock", "vhost/x.go", "import \"time\"\nfunc f() { _ = time.Now() }"},
	{"", "vhost/x.go", "import \"time\"\nfunc f() { <-time.After(time.Second) }"},
	{"clock", "lab/virtual/x.go", "import \"time\"\nfunc f() { _ = time.Now() }"},
	{"layers", "lab/virtual/x.go", `import _ "github.com/elevisor/elevisor/sys/clock"`},
	{"clock", "lab/virtual/x.go", `import _ "math/rand"`},
	{"layers", "lab/virtual/x.go", `import _ "github.com/elevisor/elevisor/cmd/elevisor"`},
	{"", "lab/virtual/x.go", `import _ "github.com/elevisor/elevisor/device"`},
	{"", "sys/clock/x.go", "import \"time\"\nfunc f() { _ = time.Now() }"},
	{"", "cmd/elevisor/x.go", "import \"time\"\nfunc f() { _ = time.Now() }"},

	{"printing", "device/x.go", "import \"fmt\"\nfunc f() { fmt.Println() }"},
	{"printing", "vhost/x.go", `import _ "log"`},
	{"", "device/x.go", "import \"fmt\"\nfunc f() { _ = fmt.Sprint() }"},
	{"", "cmd/elevisor/x.go", "import \"fmt\"\nfunc f() { fmt.Println() }"},

	{"functions", "device/x.go", "func f() {" + strings.Repeat("\n", functionMax) + "}"},
	{"", "device/x.go", "func f() {" + strings.Repeat("\n", functionMax-1) + "}"},

	{"names", "device/util.go", ``},
	{"names", "helper/x_test.go", ``},
	{"names", "test/loopback/common_test.go", ``},
	{"", "device/utilization.go", ``},

	{"interfaces", "device/x.go", "type i interface { a(); b(); c(); d(); e(); f(); g(); h(); i() }"},
	{"", "device/x.go", "type i interface { a(); b(); c(); d(); e(); f(); g(); h() }"},
	{"interfaces", "device/x.go", "type i interface { a(); b(); c(); d(); j }\ntype j interface { e(); f(); g(); k }\ntype k interface { h(); i() }"},
	{"interfaces", "device/x.go", "import \"github.com/elevisor/elevisor/sched\"\ntype i interface { sched.Scheduler; sched.Tunable }"},
	{"interfaces", "device/x.go", "import s \"github.com/elevisor/elevisor/sched\"\ntype i interface { s.Scheduler; Other() }"},
	{"interfaces", "sched/x.go", "type i interface { Scheduler; Other() }"},
	{"interfaces", "device/x.go", "import \"io\"\ntype i interface { a(); b(); c(); d(); e(); f(); g(); io.Reader; io.Closer }"},
	{"", "device/x.go", "type i interface { a(); b(); c(); d(); e(); f(); g(); j }\ntype j interface { g(); h() }"},
	{"", "device/x.go", "import \"github.com/elevisor/elevisor/sched\"\ntype i interface { sched.Scheduler; Len() int }"},
	{"", "device/x.go", "type i interface { ~int | ~string }"},

	{"documented", "vhost/x.go", "func Exported() {}"},
	{"documented", "vhost/x.go", "// T is.\ntype T struct{}\nfunc (*T) Exported() {}"},
	{"documented", "vhost/x.go", "type Exported struct{}"},
	{"documented", "vhost/x.go", "const Exported = 1"},
	{"documented", "vhost/x.go", "var (\nExported = 1\n)"},
	{"", "vhost/x.go", "type t struct{}\nfunc (t) String() string { return \"\" }"},
	{"", "vhost/x.go", "// These are.\nconst (\nA = 1\nB = 2\n)"},
	{"", "vhost/x.go", "// T is.\ntype T struct{}\nfunc (T) Error() string { return \"\" }"},
	{"documented", "vhost/x.go", "func String() {}"},
	{"", "cmd/elevisor/x.go", "func Exported() {}"},

	{"locks", "device/x.go", "import \"sync\"\ntype t struct{ mu sync.Mutex }"},
	{"locks", "device/x.go", "import \"sync\"\nvar mu sync.RWMutex"},
	{"locks", "virtqueue/x.go", "import s \"sync\"\nfunc f() { _ = s.NewCond(nil) }"},
	{"locks", "virtqueue/x.go", "import \"sync\"\nfunc f(l sync.Locker) {}"},
	{"", "device/x.go", "import \"sync\"\nvar once sync.Once"},
	{"", "device/x_test.go", "import \"sync\"\nvar mu sync.Mutex"},
	{"", "daemon/x.go", "import \"sync\"\nvar mu sync.Mutex"},

	{"schedulers", "daemon/x.go", `func f(name string) bool { return name == "timeslice" }`},
	{"schedulers", "daemon/x.go", `func f(name string) bool { return "noop" != name }`},
	{"schedulers", "device/x.go", `func f(name string) int { switch name { case "cfq", "bfq": return 2 }; return 1 }`},
	{"schedulers", "guest/x.go", "import \"slices\"\nfunc f(name string) bool { return slices.Contains([]string{\"mq-deadline\"}, name) }"},
	{"schedulers", "cmd/elevisor/x.go", "import \"strings\"\nfunc f(name string) bool { return strings.EqualFold(name, \"kyber\") }"},
	{"schedulers", "device/x.go", `var depth = map[string]int{"timeslice": 2}`},
	{"schedulers", "device/x.go", `func f(m map[string]int) int { return m["bfq"] }`},
	{"schedulers", "guest/x.go", "import \"github.com/elevisor/elevisor/sched\"\nfunc f(s sched.Scheduler) { _, _ = s.(*sched.None) }"},
	{"schedulers", "guest/x.go", "import \"github.com/elevisor/elevisor/sched\"\nfunc f(s sched.Scheduler) { switch s.(type) { case *sched.CFQ: } }"},
	{"", "lab/tables/experiment.go", `var configurations = map[string]int{"cfq": 1}`},
	{"", "sched/x.go", `func f(name string) bool { return name == "timeslice" }`},
	{"", "guest/x_test.go", `func f(name string) bool { return name == "timeslice" }`},
	{"", "guest/x.go", "import \"github.com/elevisor/elevisor/sched\"\nfunc f(s sched.Scheduler) { _, _ = s.(sched.Tunable) }"},
	{"", "cmd/elevisor-lab/x.go", `func f() []string { return []string{"none", "deadline"} }`},
}

func TestFences_findPlantedViolations(t *testing.T) {
	covered := map[string]bool{}
	for _, p := range planted {
		text := "package x\n" + p.text
		found := check(t, "", p.name, text)
		if p.rule == "" {
			require.Empty(t, found, "%s is sound:\n%s", p.name, text)
			continue
		}
		covered[p.rule] = true
		require.NotEmpty(t, found, "%s breaks rule %q:\n%s", p.name, p.rule, text)
		for _, f := range found {
			require.True(t, strings.HasPrefix(f, p.rule+": "), "%s breaks only rule %q, yet: %s", p.name, p.rule, f)
		}
	}
	for pkg, allowed := range layers { // each row of the table holds: its package may not import what it does not list
		for other := range layers {
			if other == pkg || slices.Contains(allowed, other) {
				continue
			}
			found := check(t, "", pkg+"/x.go", "package x\nimport _ \""+module+"/"+other+"\"")
			require.Len(t, found, 1, "%s imports %s", pkg, other)
			require.Contains(t, found[0], "layers: ")
		}
	}
	for rule := range rules {
		require.True(t, covered[rule], "rule %q has a planted violation", rule)
	}
}

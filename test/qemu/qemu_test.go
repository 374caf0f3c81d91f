// Package qemu boots a real distribution kernel under QEMU with a vhost-user-blk disk of
// ours. The guest is the judge: it must see what was configured, read back what it wrote,
// and go on when the server dies.
//
// The guest is made by qemu/vm, which also chooses the accelerator. Environment variables
// change what is tested:
//
//	ELEVISOR_TEST_SERVER=qemu-storage-daemon   the peer serves: a failure then is the test's own
//	ELEVISOR_TEST_QEMU=PROGRAM                 another QEMU than qemu-system-x86_64
//	ELEVISOR_ACCEL=kvm|tcg                     no probe: this accelerator
//	ELEVISOR_TEST_KVM=SITUATION                another machine, as far as the probe can see (kvm_test.go)
package qemu

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/elevisor/elevisor/qemu/qmp/qmptest"
	"github.com/elevisor/elevisor/qemu/vm"
	"github.com/stretchr/testify/require"
)

// patience ends a wait for something that will never come. Under emulation on two
// busy cores a boot of 3 s has taken 12 s; nothing is said about speed here.
const patience = 5 * time.Minute

// peer is whether qemu-storage-daemon serves the disks instead of elevisor.
var peer = os.Getenv("ELEVISOR_TEST_SERVER") == "qemu-storage-daemon"

// scratch holds what all tests share; TestMain removes it.
var scratch string

// guestsAtOnce is how many tests run beside each other, unless -parallel says more: they
// often wait, for QEMU to connect again or for a slow disk.
const guestsAtOnce = 3

func TestMain(m *testing.M) {
	if how := os.Getenv(qmptest.ProgramVariable); how != "" {
		os.Exit(qmptest.Program(how))
	}
	os.Exit(run(m))
}

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "elevisor-qemu-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	scratch = dir
	flag.Parse()
	if parallel := flag.Lookup("test.parallel"); runtime.GOMAXPROCS(0) < guestsAtOnce && parallel.Value.String() == parallel.DefValue {
		_ = parallel.Value.Set(strconv.Itoa(guestsAtOnce))
	}
	return m.Run()
}

// missing says by name why the guest cannot run here, or nothing.
var missing = sync.OnceValue(func() string {
	if w := os.Getenv("ELEVISOR_TEST_SERVER"); w != "" && !peer {
		return fmt.Sprintf("ELEVISOR_TEST_SERVER=%s: only qemu-storage-daemon is known", w)
	}
	if lacking := vm.MissingError(vm.Missing(qemuProgram(), true)); lacking != nil {
		return fmt.Sprintf("%v (test/install-deps.sh installs what the tests need)", lacking)
	}
	if _, err := exec.LookPath("qemu-storage-daemon"); peer && err != nil {
		return "program qemu-storage-daemon is missing (test/install-deps.sh installs what the tests need)"
	}
	if _, err := situation(); err != nil {
		return err.Error()
	}
	if _, err := guestFiles(); err != nil {
		return err.Error()
	}
	return ""
})

// guestFiles are the guest's kernel and initramfs, built now if this is the first time.
var guestFiles = sync.OnceValues(func() (vm.Guest, error) {
	dir, err := vm.DefaultCacheDir()
	if err != nil {
		dir = "../../build" // a user without a home
	}
	return vm.Build(context.Background(), vm.BuildOptions{CacheDir: dir})
})

// elevisor is the program under test, built once.
var elevisor = sync.OnceValues(func() (string, error) {
	bin := filepath.Join(scratch, "elevisor")
	out, err := exec.Command("go", "build", "-o", bin, "../../cmd/elevisor").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("go build ../../cmd/elevisor: %w\n%s", err, out)
	}
	return bin, nil
})

// needGuest skips the test where the guest cannot run, saying what is missing. In CI
// nothing may be missing. The test then runs beside others.
func needGuest(t *testing.T) {
	t.Helper()
	ci := os.Getenv("CI") == "true"
	if testing.Short() && !ci {
		t.Skip("boots a virtual machine: not with -short")
	}
	if why := missing(); why != "" {
		if ci {
			require.FailNow(t, "nothing may be missing in CI", why)
		}
		t.Skip(why)
	}
	t.Parallel()
}

// eventually waits until ok holds.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			require.FailNow(t, "waited in vain", "%v for %s", patience, what)
		}
	}
}

package qemu

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/elevisor/elevisor/qemu/qmp/qmptest"
	"github.com/elevisor/elevisor/qemu/vm"
	"github.com/stretchr/testify/require"
)

// machine is what the probe of KVM sees: QEMU, the processor's flags and /dev/kvm.
type machine struct {
	program string
	probe   vm.Probe
}

// situation is the machine that the tests run on: this one, or what ELEVISOR_TEST_KVM says.
var situation = sync.OnceValues(func() (machine, error) {
	return machineWith(os.Getenv("ELEVISOR_TEST_KVM"))
})

// situations are machines where KVM is there and of no use.
var situations = []string{
	"no-flags",  // a /dev/kvm, and a processor without vmx and svm
	"no-device", // vmx, and a /dev/kvm that is none: QEMU refuses it
	"stops",     // KVM stops the guest with an internal error as it boots, and QEMU stays up
}

// machineWith makes a situation; empty: this machine.
func machineWith(name string) (m machine, err error) {
	m.program = qemuProgram()
	flags := "vmx"
	switch name {
	case "":
		return m, nil
	case "no-flags":
		flags = "sse2"
	case "no-device":
	case "stops":
		if m.program, err = stoppingQEMU(m.program); err != nil {
			return m, err
		}
	default:
		return m, fmt.Errorf("ELEVISOR_TEST_KVM=%s: there are %v", name, situations)
	}
	m.probe.CPUInfo, err = scratchFile("cpuinfo-"+name, "flags\t\t: fpu "+flags+"\n", 0o600)
	if err == nil {
		m.probe.KVM, err = scratchFile("kvm-"+name, "", 0o600)
	}
	return m, err
}

func qemuProgram() string { return cmp.Or(os.Getenv("ELEVISOR_TEST_QEMU"), vm.DefaultProgram) }

// stoppingQEMU is a script that runs QEMU, but with -accel kvm this test's own program, which
// plays the guest's stop.
func stoppingQEMU(program string) (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	return scratchFile("qemu-kvm-stops", fmt.Sprintf("#!/bin/sh\n"+
		"for a; do [ \"$a\" != kvm ] || exec env %s=%s '%s' \"$@\"; done\nexec '%s' \"$@\"\n",
		qmptest.ProgramVariable, qmptest.Stops, self, program), 0o700)
}

func scratchFile(name, text string, mode os.FileMode) (string, error) {
	name = filepath.Join(scratch, name)
	return name, os.WriteFile(name, []byte(text), mode)
}

// TestKVMOfNoUse boots where KVM is there and does not work: with TCG, and the reason is
// told. Where KVM is forced, it fails within seconds.
func TestKVMOfNoUse(t *testing.T) {
	needGuest(t)
	files, err := guestFiles()
	require.NoError(t, err)
	for _, name := range situations {
		host, err := machineWith(name)
		require.NoError(t, err)
		var said []string
		c := vm.Config{Program: host.program, Guest: files, Accel: vm.AccelAuto, Probe: host.probe, Log: func(line string) { said = append(said, line) }}
		a, err := vm.ChooseAccel(t.Context(), c)
		require.NoError(t, err)
		t.Logf("%s: %s: %s", name, a.Name, a.Reason)
		require.Equal(t, vm.AccelTCG, a.Name)
		require.Equal(t, []string{"KVM is not used, guests are emulated (TCG): " + a.Reason}, said)
		if name != "stops" {
			continue
		}
		require.Contains(t, a.Reason, "internal-error")
		c.Dir = t.TempDir()
		ctx, stop := context.WithTimeout(t.Context(), patience)
		defer stop()
		m, err := vm.Boot(ctx, c)
		require.NoError(t, err)
		require.NoError(t, m.Quit(ctx))

		c.Accel = vm.AccelKVM
		start := time.Now()
		_, err = vm.Boot(ctx, c)
		require.ErrorContains(t, err, "internal-error")
		require.ErrorContains(t, err, qmptest.Words, "the console's last lines")
		require.Less(t, time.Since(start), patience/4, "it is not waited for")
	}
}

package vm

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/elevisor/elevisor/qemu/qmp/qmptest"
	"github.com/stretchr/testify/require"
)

// probedConfig is a played machine whose accelerator is not forced, on a machine with these
// processor flags, where something lies at /dev/kvm or not.
func probedConfig(t *testing.T, how, flags string, kvm bool) (c Config, said *[]string) {
	t.Helper()
	t.Setenv(AccelVariable, "")
	c, said = config(t, how), new([]string)
	c.Accel = ""
	c.Log = func(line string) { *said = append(*said, line) }
	c.Probe = Probe{CPUInfo: filepath.Join(c.Dir, "cpuinfo"), KVM: filepath.Join(c.Dir, "kvm")}
	require.NoError(t, os.WriteFile(c.Probe.CPUInfo, []byte("processor\t: 0\nflags\t\t: fpu "+flags+" sse2\nbugs\t\t: vmxoff\n"), 0o600))
	if kvm {
		require.NoError(t, os.WriteFile(c.Probe.KVM, nil, 0o600))
	}
	return c, said
}

// TestChooseAccel wants each reason for TCG in one line, once, and KVM where nothing is
// against it.
func TestChooseAccel(t *testing.T) {
	const failed = "the probe's guest failed under KVM: "
	for name, c := range map[string]struct {
		how, flags string
		kvm        bool
		accel      string
		reason     string
	}{
		"no /dev/kvm":            {qmptest.Well, "vmx", false, AccelTCG, "open DIR/kvm: no such file or directory"},
		"no vmx, no svm":         {qmptest.Well, "", true, AccelTCG, "the processor flags have neither vmx nor svm (DIR/cpuinfo)"},
		"KVM works, VT-x":        {qmptest.Well, "vmx", true, AccelKVM, "the probe booted the guest under KVM"},
		"KVM works, AMD-V":       {qmptest.Well, "svm", true, AccelKVM, "the probe booted the guest under KVM"},
		"KVM stops the guest":    {qmptest.KVMStops, "vmx", true, AccelTCG, failed + "the guest has stopped: QEMU's run state is internal-error; QEMU said: KVM internal error. Suberror: 1"},
		"QEMU does not take KVM": {qmptest.Dies, "vmx", true, AccelTCG, failed + "QEMU has ended (exit status 1); QEMU said: qemu: no such machine"},
		"KVM is too slow":        {qmptest.Mute, "vmx", true, AccelTCG, failed + "the guest does not answer: it has not booted within 500ms"},
	} {
		t.Run(name, func(t *testing.T) {
			conf, said := probedConfig(t, c.how, c.flags, c.kvm)
			conf.Probe.Limit = 500 * time.Millisecond
			if c.how != qmptest.Mute {
				conf.Probe.Limit = time.Minute
			}
			want := Accel{c.accel, strings.ReplaceAll(c.reason, "DIR", conf.Dir)}
			for range 2 { // the second time it is known
				a, err := ChooseAccel(t.Context(), conf)
				require.NoError(t, err)
				require.Equal(t, want, a)
				require.NoError(t, os.RemoveAll(conf.Probe.KVM))
			}
			if c.accel == AccelTCG {
				require.Equal(t, []string{"KVM is not used, guests are emulated (TCG): " + want.Reason}, *said)
			} else {
				require.Empty(t, *said)
			}
		})
	}
}

// TestBootFallsBack boots with TCG where KVM stops the guest; where KVM is forced, that is
// an error, soon.
func TestBootFallsBack(t *testing.T) {
	c, said := probedConfig(t, qmptest.KVMStops, "vmx", true)
	m, err := Boot(t.Context(), c)
	require.NoError(t, err)
	m.Kill()
	require.Len(t, *said, 1)
	args, err := os.ReadFile(filepath.Join(c.Dir, "args"))
	require.NoError(t, err)
	require.Contains(t, string(args), "-accel\ntcg,thread=multi\n")

	c.Accel = AccelKVM
	_, err = Boot(t.Context(), c)
	require.ErrorContains(t, err, "boot: the guest has stopped: QEMU's run state is internal-error")
	require.ErrorContains(t, err, "KVM internal error")
	require.ErrorContains(t, err, qmptest.Words)
	require.Len(t, *said, 1, "no fall-back")
}

// TestParseAccel wants a choice to win over the environment, and a bad word refused by name.
func TestParseAccel(t *testing.T) {
	for _, c := range []struct {
		asked, variable string
		want            Accel
		err             string
	}{
		{"", "", Accel{Name: AccelAuto}, ""},
		{"auto", "tcg", Accel{Name: AccelAuto}, ""},
		{"kvm", "tcg", Accel{AccelKVM, "forced"}, ""},
		{"", "tcg", Accel{AccelTCG, "forced by ELEVISOR_ACCEL"}, ""},
		{"hvf", "tcg", Accel{}, `accelerator "hvf" is unknown; there are auto, kvm, tcg`},
		{"", "KVM", Accel{}, `ELEVISOR_ACCEL: accelerator "KVM" is unknown; there are auto, kvm, tcg`},
	} {
		t.Setenv(AccelVariable, c.variable)
		a, err := ParseAccel(c.asked)
		require.Equal(t, c.want, a)
		if c.err == "" {
			require.NoError(t, err)
			continue
		}
		require.EqualError(t, err, c.err)
		conf := config(t, qmptest.Well)
		conf.Accel = c.asked
		_, err = Boot(t.Context(), conf)
		require.EqualError(t, err, c.err)
	}
}

// TestChooseAccelFails keeps no result of a probe that was no judgement on KVM.
func TestChooseAccelFails(t *testing.T) {
	c, said := probedConfig(t, qmptest.Mute, "vmx", true)
	ctx, stop := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer stop()
	_, err := ChooseAccel(ctx, c)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	c.Program = "/nonexistent/qemu"
	_, err = ChooseAccel(t.Context(), c)
	require.ErrorContains(t, err, "/nonexistent/qemu")
	require.Empty(t, *said)
}

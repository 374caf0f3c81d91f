package main

import (
	"testing"

	"github.com/elevisor/elevisor/qemu/vm"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
)

// A bad accelerator is refused by name; the flag wins over the environment.
func TestCompareAccelerator(t *testing.T) {
	words := []string{"compare", "--world=qemu", "--guest=none", "--host=none", "--preset=linear4k"}
	_, err := run(t.Context(), append(words, "--accel=hvf")...)
	require.EqualError(t, err, `--accel: accelerator "hvf" is unknown; there are auto, kvm, tcg`)
	t.Setenv(vm.AccelVariable, "hvf")
	_, err = run(t.Context(), words...)
	require.EqualError(t, err, `ELEVISOR_ACCEL: accelerator "hvf" is unknown; there are auto, kvm, tcg`)
	_, err = run(t.Context(), append(words, "--accel=tcg", "--qemu=/nonexistent/qemu")...)
	require.ErrorContains(t, err, "missing: /nonexistent/qemu")
	_, err = run(t.Context(), "compare", "--accel=tcg", "--preset=linear4k")
	require.EqualError(t, err, "--accel is for --world qemu; this is virtual")
}

// The plan holds the accelerator that the environment forces: the figures depend on it, and
// --resume goes on with it.
func TestCompareAcceleratorInPlan(t *testing.T) {
	for _, c := range []struct{ world, flag, variable, want string }{
		{"qemu", "", "", ""},
		{"qemu", "", "tcg", "tcg"},
		{"qemu", "auto", "tcg", "auto"},
		{"loopback", "", "tcg", ""},
	} {
		t.Setenv(vm.AccelVariable, c.variable)
		var f worldFlags
		set := pflag.NewFlagSet("", pflag.ContinueOnError)
		f.flags(set)
		if c.flag != "" {
			require.NoError(t, set.Set("accel", c.flag))
		}
		all, err := f.options(c.world)
		require.NoError(t, err)
		require.Equal(t, c.want, all["accel"])
	}
}

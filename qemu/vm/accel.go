package vm

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// The accelerators, by their names in QEMU; AccelAuto leaves the choice to a probe.
const (
	AccelAuto = "auto"
	AccelKVM  = "kvm"
	AccelTCG  = "tcg"
)

// Accels are the choices.
var Accels = []string{AccelAuto, AccelKVM, AccelTCG}

// AccelVariable is the environment variable that chooses where nothing else does.
const AccelVariable = "ELEVISOR_ACCEL"

// Accel is a machine's accelerator.
type Accel struct {
	Name   string // AccelKVM or AccelTCG; AccelAuto before the choice
	Reason string // why it is that one; one line
}

// Probe says how to find out whether KVM works. The zero value is for this machine.
type Probe struct {
	CPUInfo string        // /proc/cpuinfo
	KVM     string        // /dev/kvm
	Limit   time.Duration // of the boot, which takes a second where KVM works; 30 s
}

// ParseAccel reads a choice: asked, or where that is empty, [AccelVariable]. It returns an
// accelerator that is forced, or AccelAuto.
func ParseAccel(asked string) (Accel, error) {
	a := Accel{Name: asked, Reason: "forced"}
	if variable := os.Getenv(AccelVariable); asked == "" && variable != "" {
		a = Accel{Name: variable, Reason: "forced by " + AccelVariable}
	}
	switch {
	case a.Name == "" || a.Name == AccelAuto:
		return Accel{Name: AccelAuto}, nil
	case slices.Contains(Accels, a.Name):
		return a, nil
	}
	err := fmt.Errorf("accelerator %q is unknown; there are %s", a.Name, strings.Join(Accels, ", "))
	if asked == "" {
		err = fmt.Errorf("%s: %w", AccelVariable, err)
	}
	return Accel{}, err
}

// probes are the results of all probes of this process, which takes one at a time.
var probes struct {
	sync.Mutex
	found map[probed]Accel
}

// probed is what a result holds for.
type probed struct {
	program string
	guest   Guest
	probe   Probe
}

// ChooseAccel returns the accelerator for machines like c: the one that c.Accel or
// [AccelVariable] forces, or else KVM if it can run c.Guest, and TCG if not. A /dev/kvm
// proves nothing: where the processor's virtualization is itself emulated, KVM may stop at
// the first instruction that it does not know. So the guest is booted once.
//
// The result is kept for the life of the process. A fall-back to TCG is told to c.Log when
// it is found.
func ChooseAccel(ctx context.Context, c Config) (Accel, error) {
	a, err := ParseAccel(c.Accel)
	if err != nil || a.Name != AccelAuto {
		return a, err
	}
	c = c.withDefaults()
	key := probed{c.Program, c.Guest, c.Probe}
	probes.Lock()
	defer probes.Unlock()
	if a, known := probes.found[key]; known {
		return a, nil
	}
	a, err = probeAccel(ctx, c)
	if err != nil {
		return a, err
	}
	if probes.found == nil {
		probes.found = map[probed]Accel{}
	}
	probes.found[key] = a
	if a.Name == AccelTCG && c.Log != nil {
		c.Log("KVM is not used, guests are emulated (TCG): " + a.Reason)
	}
	return a, nil
}

// probeAccel asks what is cheap to ask first. An error is none of KVM's.
func probeAccel(ctx context.Context, c Config) (Accel, error) {
	if reason := withoutKVM(c.Probe); reason != "" {
		return Accel{AccelTCG, reason}, nil
	}
	c, v, err := c.check(ctx)
	if err != nil {
		return Accel{}, err
	}
	dir, err := os.MkdirTemp("", "elevisor-probe-")
	if err != nil {
		return Accel{}, fmt.Errorf("probe of KVM: %w", err)
	}
	defer os.RemoveAll(dir)
	c.Accel, c.Dir, c.Disks, c.More = AccelKVM, dir, nil, nil
	limited, stop := context.WithTimeoutCause(ctx, c.Probe.Limit, fmt.Errorf("it has not booted within %v", c.Probe.Limit))
	defer stop()
	m, err := boot(limited, c, v)
	switch {
	case err == nil:
		m.Kill()
		return Accel{AccelKVM, "the probe booted the guest under KVM"}, nil
	case ctx.Err() != nil:
		return Accel{}, context.Cause(ctx)
	case m == nil:
		return Accel{}, err
	}
	return Accel{AccelTCG, "the probe's guest failed under KVM: " + oneLine(err, m.said.String())}, nil
}

// withoutKVM says why KVM cannot be used here, as far as that is known without using it.
func withoutKVM(p Probe) string {
	info, err := os.ReadFile(p.CPUInfo)
	if err != nil {
		return fmt.Sprintf("processor flags: %v", err)
	}
	if !virtualizes(string(info)) {
		return "the processor flags have neither vmx nor svm (" + p.CPUInfo + ")"
	}
	f, err := os.OpenFile(p.KVM, os.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return err.Error()
	}
	f.Close()
	return ""
}

// virtualizes says whether the processor's flags in /proc/cpuinfo have VT-x or AMD-V.
func virtualizes(cpuinfo string) bool {
	for line := range strings.Lines(cpuinfo) {
		key, flags, _ := strings.Cut(line, ":")
		if strings.TrimSpace(key) == "flags" {
			f := strings.Fields(flags)
			return slices.Contains(f, "vmx") || slices.Contains(f, "svm")
		}
	}
	return false
}

// oneLine is an error's first line, and the first of what QEMU said about it.
func oneLine(err error, said string) string {
	line, _, _ := strings.Cut(err.Error(), "\n")
	for text := range strings.Lines(said) {
		if text = strings.TrimSpace(text); text != "" && !strings.Contains(text, "warning:") {
			return line + "; QEMU said: " + text
		}
	}
	return line
}

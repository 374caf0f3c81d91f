package plan

import (
	"os"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Environment describes this machine: kernel, CPU model, number of CPUs, frequency
// governor, load average and Go version. What cannot be found out is left out. Worlds in
// real time start theirs with it.
func Environment() map[string]string {
	env := map[string]string{"cpus": strconv.Itoa(runtime.NumCPU()), "go": runtime.Version()}
	note := func(key, value string) {
		if value != "" {
			env[key] = value
		}
	}
	var u unix.Utsname
	if unix.Uname(&u) == nil {
		note("kernel", unix.ByteSliceToString(u.Release[:]))
	}
	cpu, _ := os.ReadFile("/proc/cpuinfo")
	note("cpu", within(string(cpu), "model name"))
	governor, _ := os.ReadFile("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
	note("governor", strings.TrimSpace(string(governor)))
	load, _ := os.ReadFile("/proc/loadavg")
	note("load", strings.Join(strings.Fields(string(load))[:min(3, len(strings.Fields(string(load))))], " "))
	return env
}

// within returns the value of the first line "key : value" in text.
func within(text, key string) string {
	for line := range strings.Lines(text) {
		if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == key {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

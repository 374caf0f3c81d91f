package plan

import (
	"os"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Environment describes the machine that we are on: kernel, processor, cores, governor,
// load and Go's version; what it does not tell is left out. Worlds in real time begin
// theirs with it.
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

// within is the part of text behind the first key of a line "key : value".
func within(text, key string) string {
	for line := range strings.Lines(text) {
		if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == key {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

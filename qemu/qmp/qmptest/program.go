package qmptest

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// ProgramVariable is the environment variable that makes a test's own program play QEMU:
// its TestMain calls [Program] with the value, if there is one.
const ProgramVariable = "ELEVISOR_TEST_PLAYS_QEMU"

// What is wrong with a played QEMU.
const (
	Well     = "well"
	Dies     = "dies"      // at its start, with a message
	Mute     = "mute"      // the guest's shell never answers
	Clings   = "clings"    // does not obey quit
	Stops    = "stops"     // the guest stops with internal-error as it boots, and QEMU stays up
	KVMStops = "kvm-stops" // the same with -accel kvm; well without
)

// greeting is what the guest's shell prints as it starts.
const greeting = "SeaBIOS\r\n=0 0\r\n"

// Words are what a played console holds.
const Words = "the kernel's last words"

// Program plays QEMU with the arguments that package vm gives it: the monitors, and on
// standard input and output the guest's shell. Its commands: "stop STATUS", "tell EVENT
// DATA", "hang", "end" and "fail"; any other one is printed. It returns QEMU's exit status.
func Program(how string) int {
	if slices.Contains(os.Args, "--version") {
		fmt.Fprintln(os.Stdout, "QEMU emulator version 10.1.2 (played)")
		return 0
	}
	v := New()
	v.Major, v.Minor = 10, 1
	var monitors []string
	for _, a := range os.Args {
		if path, ok := strings.CutPrefix(a, "unix:"); ok {
			path, _, _ = strings.Cut(path, ",")
			monitors = append(monitors, path)
		}
		if console, ok := strings.CutPrefix(a, "file:"); ok {
			_ = os.WriteFile(console, []byte(Words+"\n"), 0o600)
			_ = os.WriteFile(filepath.Join(filepath.Dir(console), "args"), []byte(strings.Join(os.Args[1:], "\n")), 0o600)
		}
		if a == "kvm" && how == KVMStops {
			how = Stops
		}
	}
	switch how {
	case Dies:
		fmt.Fprintln(os.Stderr, "qemu: no such machine")
		return 1
	case Clings:
		v.Faults["quit"] = Silent
	case Stops:
		fmt.Fprintln(os.Stderr, "KVM internal error. Suberror: 1")
	}
	v.OnQuit = func() { os.Exit(0) }
	v.OnReset = func() { fmt.Fprint(os.Stdout, greeting) }
	for _, path := range monitors {
		_ = os.Remove(path) // an earlier one's, as QEMU does
		if v.Listen(path) != nil {
			return 2
		}
	}
	switch how {
	case Stops:
		v.Stop("internal-error")
	case Mute:
	default:
		fmt.Fprint(os.Stdout, greeting)
	}
	return v.shell()
}

// shell is the guest's.
func (v *VM) shell() int {
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		n, command, _ := strings.Cut(in.Text(), " ")
		word, rest, _ := strings.Cut(command, " ")
		switch word {
		case "reboot":
			v.Tell("RESET", `{"guest": true, "reason": "guest-reset"}`)
			fmt.Fprint(os.Stdout, greeting)
		case "stop":
			v.Stop(rest)
		case "tell":
			name, data, _ := strings.Cut(rest, " ")
			v.Tell(name, data)
		case "hang":
		case "end":
			return 3
		case "fail":
			fmt.Fprintf(os.Stdout, "bad luck\n\n=%s 7\n", n)
		default:
			fmt.Fprintf(os.Stdout, "%s\n\n=%s 0\n", command, n)
		}
	}
	return 0
}

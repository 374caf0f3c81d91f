package vm

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// Need is a program and what brings it.
type Need struct {
	Program string
	Package string // Debian's
	For     string
}

// machineItself is what the table of needs says of QEMU.
const machineItself = "the machine"

// needs are the programs of guest/packages.
func needs() (list []Need) {
	table, err := scripts.ReadFile("guest/packages")
	if err != nil {
		panic(err) // it is in the program
	}
	for line := range strings.Lines(string(table)) {
		f := strings.Fields(line)
		list = append(list, Need{f[0], f[1], strings.Join(f[2:], " ")})
	}
	return list
}

// Missing are the programs that this machine lacks of those that run a machine with
// QEMU's program (default qemu-system-x86_64), and, with build, make its guest.
func Missing(program string, build bool) (list []Need) {
	for _, n := range needs() {
		qemu := n.For == machineItself
		if qemu && program != "" {
			n.Program = program
		}
		if (qemu || build) && !found(n.Program) {
			list = append(list, n)
		}
	}
	return list
}

// found says whether a program is there. A plain user's PATH lacks Debian's directories
// of the administrator's programs, which guest/build.sh adds.
func found(program string) bool {
	if _, err := exec.LookPath(program); err == nil {
		return true
	}
	for _, dir := range []string{"/usr/sbin", "/sbin"} {
		if st, err := os.Stat(filepath.Join(dir, program)); err == nil && st.Mode()&0o111 != 0 {
			return true
		}
	}
	return false
}

// MissingError names what is missing, and the command that brings it; nil for nothing.
func MissingError(list []Need) error {
	if len(list) == 0 {
		return nil
	}
	var names, packages []string
	seen := map[string]bool{}
	for _, n := range list {
		names = append(names, fmt.Sprintf("%s (%s; Debian package %s)", n.Program, n.For, n.Package))
		if !seen[n.Package] {
			seen[n.Package] = true
			packages = append(packages, n.Package)
		}
	}
	return fmt.Errorf("missing: %s; to install: apt-get install --no-install-recommends %s",
		strings.Join(names, ", "), strings.Join(packages, " "))
}

package vm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
)

// consoleEnd is how much of the console an error quotes, in bytes.
const consoleEnd = 4096

// What a machine has in its directory.
func controlSocket(dir string) string { return filepath.Join(dir, "qmp.sock") }
func monitorSocket(dir string) string { return filepath.Join(dir, "monitor.sock") }
func consoleFile(dir string) string   { return filepath.Join(dir, "console") }

// Diagnosis is what QEMU and the guest's kernel have said last, for the end of an error.
func (m *Machine) Diagnosis() string {
	var b strings.Builder
	if said := strings.TrimSpace(m.said.String()); said != "" {
		fmt.Fprintf(&b, "\nQEMU said:\n%s", said)
	}
	file := consoleFile(m.dir)
	console, _ := os.ReadFile(file)
	text := strings.TrimSpace(string(console[max(0, len(console)-consoleEnd):]))
	if text == "" {
		fmt.Fprintf(&b, "\nthe guest's console (%s) is empty", file)
	} else {
		fmt.Fprintf(&b, "\nthe end of the guest's console (%s):\n%s", file, text)
	}
	return b.String()
}

// explained adds a diagnosis to an error, unless it is the caller's own will.
func (m *Machine) explained(err error) error {
	if err == nil || errors.Is(err, context.Canceled) {
		return err
	}
	return fmt.Errorf("%w%s", err, m.Diagnosis())
}

// output keeps what a process prints; any goroutine may read it.
type output struct {
	mu sync.Mutex
	b  strings.Builder
}

// Write implements io.Writer.
func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

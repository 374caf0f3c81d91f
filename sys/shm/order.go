//go:build !(amd64 || arm64 || riscv64 || loong64 || 386 || arm)

package shm

// Rings of virtio 1 are little-endian. On a big-endian machine this package would load
// the wrong halves of words.
var _ = elevisorNeedsALittleEndianMachine

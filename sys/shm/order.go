//go:build !(amd64 || arm64 || riscv64 || loong64 || 386 || arm)

package shm

// Rings of virtio 1 are little-endian; on a machine that is not, the barriers
// of this package would read halves of words in the wrong order.
var _ = elevisorNeedsALittleEndianMachine

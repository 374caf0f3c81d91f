package uring

import (
	"runtime"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"golang.org/x/sys/unix"
)

// refuse makes the kernel answer a system call of this thread with errno, as
// container runtimes do with io_uring's.
func refuse(t *testing.T, call uint32, errno unix.Errno) {
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 0},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: call, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(errno)},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
	prog := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	assert.NoError(t, unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
	// SAFETY: prog is read during the call only, and filter is alive until its end.
	err := unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&prog)), 0, 0)
	runtime.KeepAlive(filter)
	assert.NoError(t, err)
}

func TestARefusedRingIsUnavailable(t *testing.T) {
	for name, call := range map[string]uint32{"setup": unix.SYS_IO_URING_SETUP, "enter": unix.SYS_IO_URING_ENTER} {
		t.Run(name, func(t *testing.T) {
			done := make(chan struct{})
			go func() {
				defer close(done)
				runtime.LockOSThread() // and never unlocked: the thread ends with its filter
				refuse(t, call, unix.EPERM)
				err := Probe()
				assert.ErrorIs(t, err, ErrUnavailable)
				assert.ErrorIs(t, err, unix.EPERM)
			}()
			<-done
		})
	}
}

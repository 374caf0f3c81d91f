package uring

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// maxFiles is the size of the table of registered files: images a loop serves,
// each with up to two descriptors.
const maxFiles = 256

// File is what an operation works on: a registered file, which saves the kernel
// the look-up and the reference count of each operation, or a plain descriptor.
type File struct {
	fd    int32 // descriptor, or place in the table
	fixed bool
}

type fileTable struct {
	made    bool
	refused bool
	command bool // the kernel knows URING_CMD
	used    [maxFiles]bool
}

// resourceUpdate is struct io_uring_rsrc_update and struct io_uring_files_update.
type resourceUpdate struct {
	offset, _ uint32
	data      uint64
}

// RegisterFile makes fd, which stays the caller's and must stay open, known to
// the ring. Where the table cannot be had or is full, the File is fd itself: it
// works the same, a little slower.
func (r *Ring) RegisterFile(fd int) (File, error) {
	plain := File{fd: int32(fd)}
	if fd < 0 {
		return File{}, fmt.Errorf("register file with io_uring: %w", unix.EBADF)
	}
	if !r.makeTable() {
		return plain, nil
	}
	for i, used := range r.files.used {
		if used {
			continue
		}
		switch err := sysFilesUpdate(r.fd, i, fd); {
		case errors.Is(err, unix.EBADF):
			return File{}, fmt.Errorf("register file %d with io_uring: %w", fd, err)
		case err != nil:
			return plain, nil
		}
		r.files.used[i] = true
		return File{fd: int32(i), fixed: true}, nil
	}
	return plain, nil
}

// UnregisterFile takes f back; operations in flight keep the file open.
func (r *Ring) UnregisterFile(f File) {
	if f.fixed {
		_ = sysFilesUpdate(r.fd, int(f.fd), -1) // clearing a place that is ours cannot fail
		r.files.used[f.fd] = false
	}
}

// CanCommand says whether the kernel knows URING_CMD, which BlockDiscard needs;
// whether a device takes the command is another question.
func (r *Ring) CanCommand() bool { return r.files.command }

func (r *Ring) makeTable() bool {
	if t := &r.files; !t.made && !t.refused {
		t.made = sysFilesRegister(r.fd, maxFiles) == nil
		t.refused = !t.made
	}
	return r.files.made
}

package uring

import "golang.org/x/sys/unix"

// Operations and their flags, from include/uapi/linux/io_uring.h.
const (
	opNop         = 0
	opReadv       = 1
	opWritev      = 2
	opFsync       = 3
	opPollAdd     = 6
	opAsyncCancel = 14
	opFallocate   = 17
	opRead        = 22
	opWrite       = 23
	opURingCmd    = 46

	sqeFixedFile  = 1 << 0
	sqeSkip       = 1 << 6 // no completion if it succeeds
	fsyncDataSync = 1 << 0
	cancelAll     = 1 << 0 // 5.19
	cancelAny     = 1 << 2

	cmdBlockDiscard = 0x1200 // BLOCK_URING_CMD_DISCARD, include/uapi/linux/blkdev.h, 6.12
)

// sqe is struct io_uring_sqe, with the names its fields have in our operations.
type sqe struct {
	opcode, flags uint8
	ioprio        uint16
	fd            int32
	off           uint64 // of a URING_CMD: the command
	addr          uint64
	len           uint32
	opFlags       uint32
	userData      uint64
	bufIndex      uint16
	personality   uint16
	fileIndex     uint32
	addr3         uint64
	_             uint64
}

// cqe is struct io_uring_cqe.
type cqe struct {
	userData uint64
	res      int32
	flags    uint32
}

const (
	sqeSize = 64
	cqeSize = 16
)

func userData(t Tag, index uint32) uint64 { return uint64(t)<<32 | uint64(index) }

// next is the next free SQE, cleared but for its owner. If there is none, those
// queued are submitted first.
func (r *Ring) next(t Tag, index uint32) *sqe {
	if r.Queued() == len(r.sqes) {
		r.Submit()
	}
	e := &r.sqes[r.tail&uint32(len(r.sqes)-1)]
	r.tail++ // the kernel sees it with the next Enter, when the entry is filled
	*e = sqe{userData: userData(t, index)}
	return e
}

func (e *sqe) file(f File) {
	e.fd = f.fd
	if f.fixed {
		e.flags |= sqeFixedFile
	}
}

// Nop queues an operation that does nothing and succeeds.
func (r *Ring) Nop(t Tag, index uint32) { r.next(t, index).opcode = opNop }

// Readv queues preadv2(2): off and the length of iov are bytes, rwFlags are RWF_*.
func (r *Ring) Readv(t Tag, index uint32, f File, iov []Iovec, off int64, rwFlags uint32) {
	r.vectored(opReadv, t, index, f, iov, off, rwFlags)
}

// Writev queues pwritev2(2).
func (r *Ring) Writev(t Tag, index uint32, f File, iov []Iovec, off int64, rwFlags uint32) {
	r.vectored(opWritev, t, index, f, iov, off, rwFlags)
}

func (r *Ring) vectored(op uint8, t Tag, index uint32, f File, iov []Iovec, off int64, rwFlags uint32) {
	e := r.next(t, index)
	e.opcode, e.off, e.addr, e.len, e.opFlags = op, uint64(off), addrOfIovecs(iov), uint32(len(iov)), rwFlags
	e.file(f)
}

// Read queues pread(2), or read(2) with off = -1. buf is off the Go heap.
//
// On an eventfd it completes when the counter is not zero, and takes it. With or
// without O_NONBLOCK the kernel meanwhile waits by a poll of its own (seen on
// 6.18). Before 5.15 it answers EAGAIN for O_NONBLOCK; then PollIn comes first.
func (r *Ring) Read(t Tag, index uint32, fd int, buf []byte, off int64) {
	e := r.next(t, index)
	e.opcode, e.fd, e.off, e.addr, e.len = opRead, int32(fd), uint64(off), addrOf(buf), uint32(len(buf))
}

// Signal queues the notification of an eventfd: a write of 1, of which nobody is
// told what came. Unlike write(2) it never blocks the caller, even if whoever
// shares the descriptor has cleared O_NONBLOCK and filled the counter.
func (r *Ring) Signal(fd int) {
	e := r.next(0, signalIndex)
	e.opcode, e.fd, e.off, e.addr, e.len = opWrite, int32(fd), ^uint64(0), addrOf(r.one), uint32(len(r.one))
	if r.canSkip {
		e.flags = sqeSkip
		r.taken++ // its completion will not come; should it fail, take knows
	}
}

// signalIndex marks signals among the operations of nobody.
const signalIndex = 1

// PollIn queues a one-shot wait until fd is readable (or broken); res is the
// event mask.
func (r *Ring) PollIn(t Tag, index uint32, fd int) {
	e := r.next(t, index)
	e.opcode, e.fd, e.opFlags = opPollAdd, int32(fd), unix.POLLIN
}

// Fsync queues fsync(2), or fdatasync(2).
func (r *Ring) Fsync(t Tag, index uint32, f File, datasync bool) {
	e := r.next(t, index)
	e.opcode = opFsync
	if datasync {
		e.opFlags = fsyncDataSync
	}
	e.file(f)
}

// Fallocate queues fallocate(2); off and n are bytes.
func (r *Ring) Fallocate(t Tag, index uint32, f File, mode uint32, off, n int64) {
	e := r.next(t, index)
	e.opcode, e.off, e.addr, e.len = opFallocate, uint64(off), uint64(n), mode
	e.file(f)
}

// BlockDiscard queues a discard on a block device; off and n are bytes and
// multiples of its logical block. A kernel that cannot answers EINVAL or
// EOPNOTSUPP (before 6.12).
func (r *Ring) BlockDiscard(t Tag, index uint32, f File, off, n int64) {
	e := r.next(t, index)
	e.opcode, e.off, e.addr, e.addr3 = opURingCmd, cmdBlockDiscard, uint64(off), uint64(n)
	e.file(f)
}

// Cancel queues the cancellation of the operation that was started with t and
// index: it then completes with ECANCELED, or as it would have. Nobody is told
// what came of the Cancel itself.
func (r *Ring) Cancel(t Tag, index uint32) {
	e := r.next(0, 0)
	e.opcode, e.fd, e.addr = opAsyncCancel, -1, userData(t, index)
}

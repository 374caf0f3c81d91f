package uring

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// From include/uapi/linux/io_uring.h; golang.org/x/sys/unix has none of it.
const (
	setupCQSize       = 1 << 3
	setupClamp        = 1 << 4
	setupSubmitAll    = 1 << 7  // 5.18: an operation that fails at once does not end the batch
	setupCoopTaskrun  = 1 << 8  // 5.19: no interrupt of the thread for each completion
	setupTaskrunFlag  = 1 << 9  // 5.19
	setupSingleIssuer = 1 << 12 // 6.0
	setupNoSQArray    = 1 << 16 // 6.6

	featSingleMmap = 1 << 0
	featNoDrop     = 1 << 1
	featExtArg     = 1 << 8 // 5.11: a wait can have a limit

	offSQRing = 0
	offSQEs   = 0x10000000

	registerFiles       = 2
	registerFilesUpdate = 6
	registerProbe       = 8
	registerRingFDs     = 20 // 5.18
	unregisterRingFDs   = 21
	probeSupported      = 1 << 0
	probeOps            = 256
	featSkip            = 1 << 11 // IORING_FEAT_CQE_SKIP, 5.17
	featuresWanted      = featSingleMmap | featNoDrop | featExtArg
	completionsPerEntry = 4       // poorer rings overflow when many operations end at once
	maxCompletions      = 1 << 16 // the kernel's own limit
)

type params struct {
	sqEntries, cqEntries, flags, sqThreadCPU, sqThreadIdle, features, wqFD uint32
	_                                                                      [3]uint32
	sq                                                                     struct {
		head, tail, mask, entries, flags, dropped, array, _ uint32
		_                                                   uint64
	}
	cq struct {
		head, tail, mask, entries, overflow, cqes, flags, _ uint32
		_                                                   uint64
	}
}

type probeOp struct {
	op, _ uint8
	flags uint16
	_     uint32
}

type probe struct {
	lastOp, opsLen uint8
	_              uint16
	_              [3]uint32
	ops            [probeOps]probeOp
}

// flagSets are tried in order: what an older kernel does not know is EINVAL.
var flagSets = [...]uint32{
	setupSubmitAll | setupCoopTaskrun | setupTaskrunFlag | setupSingleIssuer | setupNoSQArray,
	setupSubmitAll | setupCoopTaskrun | setupTaskrunFlag | setupSingleIssuer,
	setupSubmitAll | setupCoopTaskrun | setupTaskrunFlag,
	setupSubmitAll,
	0,
}

var opsWanted = [...]uint8{opNop, opReadv, opWritev, opFsync, opPollAdd, opAsyncCancel, opFallocate, opRead, opWrite}

func (r *Ring) setup(entries uint32) error {
	var p params
	var err error
	for _, fl := range flagSets {
		p = params{
			flags:     fl | setupCQSize | setupClamp,
			cqEntries: min(entries, maxCompletions/completionsPerEntry) * completionsPerEntry,
		}
		if r.fd, err = sysSetup(entries, &p); err != unix.EINVAL {
			break
		}
	}
	if err != nil {
		r.fd = -1
		return refused("io_uring_setup", err)
	}
	r.enterFD, r.setupFl = r.fd, p.flags
	if p.features&featuresWanted != featuresWanted {
		return fmt.Errorf("%w: the kernel's io_uring has features %#x, need %#x (Linux 5.11)", ErrUnavailable, p.features, featuresWanted)
	}
	if err := r.probeOps(); err != nil {
		return err
	}
	if err := r.mapRings(&p); err != nil {
		return err
	}
	r.canSkip = p.features&featSkip != 0
	r.one = r.Alloc(8)
	r.one[0] = 1
	r.registerRing()
	return nil
}

// refused wraps err in ErrUnavailable if it says that this process gets no ring,
// as against one that was asked for wrongly.
func refused(call string, err error) error {
	for _, e := range []error{unix.ENOSYS, unix.EPERM, unix.EACCES, unix.ENOMEM, unix.EOPNOTSUPP, unix.EINVAL} {
		if errors.Is(err, e) {
			return fmt.Errorf("%w: %s: %w", ErrUnavailable, call, err)
		}
	}
	return fmt.Errorf("%s: %w", call, err)
}

func (r *Ring) probeOps() error {
	p := new(probe)
	if err := sysProbe(r.fd, p); err != nil {
		return refused("io_uring_register(PROBE)", err)
	}
	for _, op := range opsWanted {
		if !p.has(op) {
			return fmt.Errorf("%w: the kernel's io_uring lacks operation %d", ErrUnavailable, op)
		}
	}
	r.files.command = p.has(opURingCmd)
	return nil
}

func (p *probe) has(op uint8) bool {
	return op < p.opsLen && p.ops[op].flags&probeSupported != 0
}

// mapRings maps the queues, which the kernel puts into one piece of memory, and
// the operations, which are another.
func (r *Ring) mapRings(p *params) error {
	size := max(p.sq.array+p.sqEntries*4, p.cq.cqes+p.cqEntries*cqeSize)
	rings, err := r.mmap(offSQRing, int(size))
	if err != nil {
		return err
	}
	ops, err := r.mmap(offSQEs, int(p.sqEntries)*sqeSize)
	if err != nil {
		return err
	}
	r.sqHead, r.sqTail, r.sqFlags = word(rings, p.sq.head), word(rings, p.sq.tail), word(rings, p.sq.flags)
	r.cqHead, r.cqTail = word(rings, p.cq.head), word(rings, p.cq.tail)
	r.sqes, r.cqes = sqesOf(ops), cqesOf(rings[p.cq.cqes:][:p.cqEntries*cqeSize])
	if p.flags&setupNoSQArray == 0 {
		// The array between queue and operations is of no use to us: the identity.
		for i := range p.sqEntries {
			*word(rings, p.sq.array+i*4) = i
		}
	}
	r.arg, r.limit = waitArg(r.Alloc(waitArgSize))
	r.stash = make([]cqe, 0, p.cqEntries)
	return nil
}

func (r *Ring) mmap(off int64, size int) ([]byte, error) {
	m, err := unix.Mmap(r.fd, off, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_POPULATE)
	if err != nil {
		return nil, refused(fmt.Sprintf("map %d bytes of io_uring", size), err)
	}
	r.maps = append(r.maps, m)
	return m, nil
}

// registerRing spares each system call the look-up of the descriptor. It is worth
// a few percent; a kernel or a thread without a free slot does without.
func (r *Ring) registerRing() {
	up := resourceUpdate{offset: ^uint32(0), data: uint64(r.fd)}
	if n, err := sysRingFDs(r.fd, registerRingFDs, &up); err == nil && n == 1 {
		r.enterFD, r.enterFl = int(up.offset), enterRegisteredRing
	}
}

func (r *Ring) unregisterRing() {
	up := resourceUpdate{offset: uint32(r.enterFD)}
	_, _ = sysRingFDs(r.fd, unregisterRingFDs, &up)
}

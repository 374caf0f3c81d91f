package qemu

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// sysStat is what is used of /sys/block/X/stat (Documentation/block/stat.rst).
type sysStat struct {
	IOs    uint64 // read and write requests that completed
	Merges uint64 // requests that became part of others
}

// The places of the numbers.
const (
	statReads, statReadMerges   = 0, 1
	statWrites, statWriteMerges = 4, 5
	statFields                  = 11 // of the oldest kernels
)

func parseStat(line string) (s sysStat, err error) {
	f := strings.Fields(line)
	if len(f) < statFields {
		return s, fmt.Errorf("the guest's stat %q has %d numbers: want %d or more", line, len(f), statFields)
	}
	var n [statWriteMerges + 1]uint64
	for i := range n {
		if n[i], err = strconv.ParseUint(f[i], 10, 64); err != nil {
			return s, fmt.Errorf("the guest's stat %q: %w", line, err)
		}
	}
	return sysStat{n[statReads] + n[statWrites], n[statReadMerges] + n[statWriteMerges]}, nil
}

// outputMax bounds what fio may print, unpacked.
const outputMax = 64 << 20

// fetch brings fio's output out of the guest, packed: a serial line is slow.
func (l *load) fetch(ctx context.Context) ([]byte, error) {
	text, err := l.Sh(ctx, "gzip -c "+l.dir+"/out | base64")
	if err != nil {
		return nil, err
	}
	packed, err := base64.StdEncoding.DecodeString(strings.Join(strings.Fields(text), ""))
	if err != nil {
		return nil, fmt.Errorf("fio's output from the guest: %w", err)
	}
	z, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		return nil, fmt.Errorf("fio's output from the guest: %w", err)
	}
	out, err := io.ReadAll(io.LimitReader(z, outputMax))
	if err != nil {
		return nil, fmt.Errorf("fio's output from the guest: %w", err)
	}
	return out, nil
}

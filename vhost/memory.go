package vhost

import (
	"fmt"
	"slices"

	"go.uber.org/zap"

	"github.com/elevisor/elevisor/sys/shm"
)

// setMemTable replaces all regions, also while rings run. If one of the new ones cannot
// be used, the old ones stay.
func (s *Session) setMemTable(b []byte, in *received) error {
	table, err := parseTable(b)
	if err != nil {
		return err
	}
	if len(table) == 0 || len(table) > MaxRegions {
		return fmt.Errorf("%d regions, want 1 to %d", len(table), MaxRegions)
	}
	if len(in.fds) != len(table) {
		return fmt.Errorf("%d file descriptors for %d regions", len(in.fds), len(table))
	}
	if err := checkTotal(0, table...); err != nil {
		return err
	}
	var maps []*shm.Mapping
	defer func() { releaseMaps(maps) }()
	for i, r := range table {
		m, err := shm.Map(in.fds[i], r)
		if err != nil {
			return fmt.Errorf("region %d: %w", i, err)
		}
		maps = append(maps, m)
	}
	return s.useMemory(maps)
}

func (s *Session) addMemReg(b []byte, in *received) error {
	fd, err := in.one()
	if err != nil {
		return err
	}
	maps := s.mappings()
	if len(maps) >= MaxMemSlots {
		return fmt.Errorf("all %d memory slots are in use", MaxMemSlots)
	}
	r, total := parseSingle(b), uint64(0)
	for _, m := range maps {
		total += m.Size
	}
	if err := checkTotal(total, r); err != nil {
		return err
	}
	m, err := shm.Map(fd, r)
	if err != nil {
		return err
	}
	defer m.Release()
	return s.useMemory(append(maps, m))
}

// checkTotal refuses regions that, together with total bytes that are there already,
// exceed MaxMemory.
func checkTotal(total uint64, regions ...shm.Region) error {
	for i, r := range regions {
		if r.Size > MaxMemory-total {
			return fmt.Errorf("region %d of %#x bytes, with %#x bytes before it, exceeds the limit of %#x", i, r.Size, total, uint64(MaxMemory))
		}
		total += r.Size
	}
	return nil
}

// remMemReg identifies a region by everything but its offset. Older front-ends send a
// descriptor too.
func (s *Session) remMemReg(b []byte, in *received) error {
	if len(in.fds) > 1 {
		return fmt.Errorf("%d file descriptors, want none", len(in.fds))
	}
	r, maps := parseSingle(b), s.mappings()
	i := slices.IndexFunc(maps, func(m *shm.Mapping) bool {
		return m.GPA == r.GPA && m.UVA == r.UVA && m.Size == r.Size
	})
	if i < 0 {
		return fmt.Errorf("no region of %#x bytes at %#x, front-end address %#x", r.Size, r.GPA, r.UVA)
	}
	return s.useMemory(slices.Delete(maps, i, i+1))
}

// mappings is a copy of the table's list. The table holds the references.
func (s *Session) mappings() []*shm.Mapping {
	if s.memory == nil {
		return nil
	}
	return slices.Clone(s.memory.Mappings())
}

// useMemory makes a table of maps, retaining them, and hands it to the device.
// After an error the old one is still in use.
func (s *Session) useMemory(maps []*shm.Mapping) error {
	m, err := shm.NewMemory(maps)
	if err != nil {
		return err
	}
	if err := s.dev.SetMemory(m); err != nil {
		m.Release()
		return fmt.Errorf("use memory table: %w", err)
	}
	if s.memory != nil {
		s.memory.Release()
	}
	s.memory = m
	return nil
}

// dropMemory leaves the device with an empty table.
func (s *Session) dropMemory() {
	if s.memory == nil {
		return
	}
	if err := s.useMemory(nil); err != nil {
		s.log.Error("device keeps the memory of a front-end that has gone", zap.Error(err))
	}
	s.memory.Release()
	s.memory = nil
}

func releaseMaps(maps []*shm.Mapping) {
	for _, m := range maps {
		m.Release()
	}
}

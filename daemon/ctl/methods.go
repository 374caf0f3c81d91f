package ctl

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// target are the parameters of all methods that act on a disk. A pointer is nil
// where the parameter is missing.
type target struct {
	Disk  *string `json:"disk"`
	Name  *string `json:"name,omitempty"`
	Key   *string `json:"key,omitempty"`
	Value *string `json:"value,omitempty"`
}

// methods are the names on the wire.
func (s *Server) methods() map[string]method {
	return map[string]method{
		"list":      s.plain(func() any { return s.list() }),
		"stat":      s.plain(func() any { return NewStat(s.clock.Now(), s.control.Stat()) }),
		"scheduler": s.disk("name", "", s.scheduler),
		"set":       s.disk("key value", "key value", s.set),
		"tunables":  s.disk("", "", s.tunables),
		"describe":  s.disk("", "", s.describe),
	}
}

// plain makes a method that takes no parameters.
func (s *Server) plain(do func() any) method {
	return func(params json.RawMessage) (any, *Error) {
		if err := decode(params, &struct{}{}); err != nil {
			return nil, err
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		return do(), nil
	}
}

// disk makes a method that takes a disk and what else is named, of which needed
// must be there.
func (s *Server) disk(takes, needs string, do func(t target) (any, error)) method {
	return func(params json.RawMessage) (any, *Error) {
		var t target
		if err := decode(params, &t); err != nil {
			return nil, err
		}
		for _, p := range []struct {
			name  string
			value *string
		}{{"disk", t.Disk}, {"name", t.Name}, {"key", t.Key}, {"value", t.Value}} {
			in := func(list string) bool { return slices.Contains(strings.Fields(list), p.name) }
			switch {
			case p.value == nil && (p.name == "disk" || in(needs)):
				return nil, &Error{InvalidParams, "params: " + p.name + " is missing"}
			case p.value != nil && p.name != "disk" && !in(takes):
				return nil, &Error{InvalidParams, "params: " + p.name + " has no meaning here"}
			}
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		if err := s.known(*t.Disk); err != nil {
			return nil, &Error{Refused, err.Error()}
		}
		result, err := do(t)
		if err != nil {
			return nil, &Error{Refused, err.Error()}
		}
		return result, nil
	}
}

func (s *Server) list() []Disk {
	if disks := s.control.List(); disks != nil {
		return disks
	}
	return []Disk{}
}

// known refuses a disk that is not there.
func (s *Server) known(disk string) error {
	var ids []string
	for _, d := range s.control.List() {
		if d.ID == disk {
			return nil
		}
		ids = append(ids, d.ID)
	}
	return fmt.Errorf("there is no disk %q; there are: %s", disk, strings.Join(ids, ", "))
}

func (s *Server) scheduler(t target) (any, error) {
	if t.Name != nil {
		if err := s.control.SetScheduler(*t.Disk, *t.Name); err != nil {
			return nil, err
		}
	}
	return s.control.Scheduler(*t.Disk)
}

func (s *Server) set(t target) (any, error) {
	return struct{}{}, s.control.Set(*t.Disk, *t.Key, *t.Value)
}

func (s *Server) tunables(t target) (any, error) {
	list, err := s.control.Tunables(*t.Disk)
	return append([]Tunable{}, list...), err // [], not null, where there are none
}

func (s *Server) describe(t target) (any, error) {
	var b bytes.Buffer
	err := s.control.Describe(*t.Disk, &b)
	return Description{Disk: *t.Disk, Text: b.String()}, err
}

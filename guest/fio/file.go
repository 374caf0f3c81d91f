package fio

import (
	"fmt"
	"strings"
)

// SectionsMax is the most jobs in a file.
const SectionsMax = 256

// ParseFile makes a workload of a job file: [global] holds words for the jobs after it,
// each other section is a job, and all run at once. What follows a # or a ; is a
// comment. The workload has the file's name, without a directory and an extension; notes
// are as ParseWords' ones.
func ParseFile(name string, text []byte) (Workload, []string, error) {
	p := parser{file: name, global: Default()}
	for n, line := range strings.Split(string(text), "\n") {
		p.line = n + 1
		if err := p.take(line); err != nil {
			return Workload{}, nil, p.at(err)
		}
	}
	if err := p.end(); err != nil {
		return Workload{}, nil, p.at(err)
	}
	if len(p.jobs) == 0 {
		return Workload{}, nil, fmt.Errorf("%s: no job: want a section such as [job1]", name)
	}
	base := name[strings.LastIndexByte(name, '/')+1:]
	if i := strings.LastIndexByte(base, '.'); i > 0 {
		base = base[:i]
	}
	return Workload{Name: base, Jobs: p.jobs}, p.notes, nil
}

// parser is a file that is being read.
type parser struct {
	file   string
	line   int
	global Job
	jobs   []Job
	now    *Job // whose words come; nil: no section has begun
	begun  int  // in which line
	notes  []string
}

func (p *parser) at(err error) error { return fmt.Errorf("%s:%d: %w", p.file, p.line, err) }

func (p *parser) take(line string) error {
	if i := strings.IndexAny(line, "#;"); i >= 0 {
		line = line[:i]
	}
	line = strings.TrimSpace(line)
	switch {
	case line == "":
		return nil
	case line[0] == '[':
		return p.section(line)
	case p.now == nil:
		return fmt.Errorf("%q stands before any section: want [global] or the name of a job, such as [job1]", line)
	}
	note, err := p.now.set(line)
	if note != "" {
		p.notes = append(p.notes, fmt.Sprintf("%s:%d: %s", p.file, p.line, note))
	}
	return err
}

func (p *parser) section(line string) error {
	name := strings.TrimSpace(strings.TrimSuffix(line[1:], "]"))
	if !strings.HasSuffix(line, "]") || name == "" {
		return fmt.Errorf("%q is not a section: want [global] or the name of a job, such as [job1]", line)
	}
	here := p.line
	if err := p.end(); err != nil {
		return err
	}
	p.line, p.begun = here, here
	if name == "global" {
		p.now = &p.global
		return nil
	}
	if len(p.jobs) == SectionsMax {
		return fmt.Errorf("[%s]: want at most %d jobs", name, SectionsMax)
	}
	j := p.global
	j.Name = name
	p.jobs = append(p.jobs, j)
	p.now = &p.jobs[len(p.jobs)-1]
	return nil
}

// end checks the job whose section ends; what is wrong with its words together is said
// of the line in which it began.
func (p *parser) end() error {
	if p.now == nil || p.now == &p.global {
		return nil
	}
	err := p.now.Check()
	if err != nil {
		p.line = p.begun
	}
	return err
}

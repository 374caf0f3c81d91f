package plan

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/google/renameio/v2"
	"golang.org/x/sys/unix"
)

// Files of an experiment that is stored: its plan, and each run as it ended.
const (
	planName = "plan.json"
	runsName = "runs.jsonl"
)

// Experiment is what plan.json holds: the plan, and what it was started with.
type Experiment struct {
	Version     string            `json:"elevisor_version"`
	Command     []string          `json:"command"`
	Environment map[string]string `json:"environment"`
	Plan        Plan              `json:"plan"`
}

// planFile is the whole of plan.json.
type planFile struct {
	Schema
	Experiment
}

// State is an experiment that is stored in a directory. It survives the end of the program
// and of the machine at any moment, except for the runs that are under way. Only one
// program has it open at a time.
type State struct {
	Experiment
	Finished []Run // in the order in which they ended
	runs     *os.File
}

// ErrNoState is returned for a directory that has no experiment.
var ErrNoState = errors.New("there is no experiment in it")

// CreateState stores a new experiment in dir, which it creates if needed.
func CreateState(dir string, e Experiment) (*State, error) {
	var text bytes.Buffer
	line, err := Marshal(&planFile{Schema{PlanSchema, SchemaVersion}, e})
	if err == nil {
		err = json.Indent(&text, line, "", "  ")
	}
	if err != nil {
		return nil, fmt.Errorf("encode the plan: %w", err)
	}
	text.WriteByte('\n')
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("create the experiment's directory: %w", err)
	}
	if _, err := os.Stat(filepath.Join(dir, planName)); err == nil {
		return nil, fmt.Errorf("%s already has an experiment: continue it with --resume %s", dir, dir)
	}
	runs, err := lockRuns(dir)
	if err != nil {
		return nil, err
	}
	s := &State{Experiment: e, runs: runs}
	if err := s.create(dir, text.Bytes()); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// create writes the plan and begins the file of runs.
func (s *State) create(dir string, text []byte) error {
	info, err := s.runs.Stat()
	if err != nil {
		return err
	}
	if info.Size() > 0 {
		return fmt.Errorf("%s has a %s without a %s: move it away, or choose another directory", dir, runsName, planName)
	}
	if err := writeWhole(filepath.Join(dir, planName), text); err != nil {
		return err
	}
	return s.begin()
}

// OpenState opens the experiment in dir to continue it; ErrNoState if there is none.
func OpenState(dir string) (*State, error) {
	text, err := os.ReadFile(filepath.Join(dir, planName))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s: %w", dir, ErrNoState)
	}
	if err != nil {
		return nil, err
	}
	s := &State{}
	if s.Experiment, err = decodePlan(text); err != nil {
		return nil, fmt.Errorf("%s: %w", filepath.Join(dir, planName), err)
	}
	if s.runs, err = lockRuns(dir); err != nil {
		return nil, err
	}
	if err := s.read(); err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", filepath.Join(dir, runsName), err), s.Close())
	}
	return s, nil
}

func decodePlan(text []byte) (Experiment, error) {
	var p planFile
	if err := CheckSchema(text, PlanSchema); err != nil {
		return p.Experiment, err
	}
	if err := json.Unmarshal(text, &p); err != nil {
		return p.Experiment, err
	}
	return p.Experiment, p.Plan.check()
}

// lockRuns opens the file of runs, for this program alone.
func lockRuns(dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, runsName), os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		return nil, fmt.Errorf("another program is running the experiment in %s: %w", dir, err)
	}
	return f, nil
}

// begin writes the first line of the file of runs: its schema.
func (s *State) begin() error {
	return s.append(Schema{RunsSchema, SchemaVersion})
}

// read loads the finished runs. A last line without an end was being written when the
// program or the machine died: that run has not finished.
func (s *State) read() error {
	order, err := s.Plan.Order()
	if err != nil {
		return err
	}
	in, end := bufio.NewReader(s.runs), int64(0)
	seen := make([]bool, len(order))
	for n := 1; ; n++ {
		line, err := in.ReadBytes('\n')
		if err != nil { // the end, or a line without one
			break
		}
		if n == 1 {
			err = CheckSchema(line, RunsSchema)
		} else {
			err = s.load(line, order, seen)
		}
		if err != nil {
			return fmt.Errorf("line %d: %w", n, err)
		}
		end += int64(len(line))
	}
	if err := s.runs.Truncate(end); err != nil {
		return err
	}
	if _, err := s.runs.Seek(end, io.SeekStart); err != nil || end > 0 {
		return err
	}
	return s.begin()
}

// load takes one line of runs.jsonl. order are the plan's runs, seen those that were there.
func (s *State) load(line []byte, order []Run, seen []bool) error {
	var r Run
	if err := json.Unmarshal(line, &r); err != nil {
		return err
	}
	if r.Order < 0 || r.Order >= len(order) || r.Outcome == nil || seen[r.Order] {
		return fmt.Errorf("it is none of the plan's %d runs, or a second copy of one", len(order))
	}
	if o := order[r.Order]; o.Cell != r.Cell || o.Block != r.Block || o.Seed != r.Seed {
		return fmt.Errorf("run %d is not the plan's", r.Order)
	}
	seen[r.Order] = true
	s.Finished = append(s.Finished, r)
	return nil
}

// finish stores a run.
func (s *State) finish(r *Run) error {
	if err := s.append(r); err != nil {
		return fmt.Errorf("store run %d: %w", r.Order, err)
	}
	return nil
}

// append adds a line to the file of runs. When it returns, the line is on the disk.
func (s *State) append(value any) error {
	line, err := Marshal(value)
	if err == nil {
		_, err = s.runs.Write(append(line, '\n'))
	}
	if err == nil {
		err = s.runs.Sync()
	}
	return err
}

// Close releases the directory for other programs.
func (s *State) Close() error { return s.runs.Close() }

// writeWhole replaces path as a whole.
func writeWhole(path string, text []byte) error {
	return renameio.WriteFile(path, text, 0o644, renameio.WithTempDir(filepath.Dir(path)), renameio.IgnoreUmask())
}

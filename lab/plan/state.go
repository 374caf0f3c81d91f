package plan

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/google/renameio/v2"
	"golang.org/x/sys/unix"
)

// Files of a state directory: what was begun, and each run as it finished.
const (
	planName = "plan.json"
	runsName = "runs.jsonl"
)

// stateFormat is the only one that is read.
const stateFormat = 1

// Begun is what a state directory says of its experiment.
type Begun struct {
	Format      int               `json:"format"`
	Version     string            `json:"version"`
	Command     []string          `json:"command"`
	Environment map[string]string `json:"environment"`
	Plan        Plan              `json:"plan"`
}

// State is an experiment on disk: it outlives the program, and even the machine, at any
// moment, but for the runs that are under way. One program has it at a time.
type State struct {
	Begun
	Finished []Run // in the order in which they ended
	runs     *os.File
}

// ErrNoState says that there is no experiment in a directory.
var ErrNoState = errors.New("there is no experiment in it")

// CreateState begins an experiment in dir, which it makes; there is none in it.
func CreateState(dir string, b Begun) (*State, error) {
	b.Format = stateFormat
	text, err := json.MarshalIndent(&b, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("encode the plan: %w", err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("create the experiment's directory: %w", err)
	}
	if _, err := os.Stat(filepath.Join(dir, planName)); err == nil {
		return nil, fmt.Errorf("%s has an experiment already: --resume %s goes on with it", dir, dir)
	}
	runs, err := lockRuns(dir)
	if err != nil {
		return nil, err
	}
	s := &State{Begun: b, runs: runs}
	if err := writeWhole(filepath.Join(dir, planName), append(text, '\n')); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// OpenState goes on with the experiment in dir; ErrNoState if there is none.
func OpenState(dir string) (*State, error) {
	text, err := os.ReadFile(filepath.Join(dir, planName))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s: %w", dir, ErrNoState)
	}
	if err != nil {
		return nil, err
	}
	s := &State{}
	if err := json.Unmarshal(text, &s.Begun); err != nil {
		return nil, fmt.Errorf("%s: %w", filepath.Join(dir, planName), err)
	}
	if s.Format != stateFormat {
		return nil, fmt.Errorf("%s: the experiment is in format %d; this program goes on with format %d only", dir, s.Format, stateFormat)
	}
	if err := s.Plan.check(); err != nil {
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

// lockRuns opens the file of runs for one program alone.
func lockRuns(dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, runsName), os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		return nil, fmt.Errorf("the experiment in %s is being run by another program: %w", dir, err)
	}
	return f, nil
}

// read takes what was finished. A last line without an end was being written when the
// program or the machine died: that run has not finished.
func (s *State) read() error {
	order, err := s.Plan.Order()
	if err != nil {
		return err
	}
	seen := make([]bool, len(order))
	in, end := bufio.NewReader(s.runs), int64(0)
	for n := 1; ; n++ {
		line, err := in.ReadBytes('\n')
		if err != nil { // the end, or what is behind it
			break
		}
		var r Run
		if err := json.Unmarshal(bytes.TrimSpace(line), &r); err != nil {
			return fmt.Errorf("line %d: %w", n, err)
		}
		if r.Order < 0 || r.Order >= len(order) || r.Outcome == nil || seen[r.Order] {
			return fmt.Errorf("line %d: it is none of the plan's %d runs, or there twice", n, len(order))
		}
		if o := order[r.Order]; o.Cell != r.Cell || o.Block != r.Block || o.Seed != r.Seed {
			return fmt.Errorf("line %d: run %d is not the plan's", n, r.Order)
		}
		seen[r.Order] = true
		s.Finished = append(s.Finished, r)
		end += int64(len(line))
	}
	if err := s.runs.Truncate(end); err != nil {
		return err
	}
	_, err = s.runs.Seek(end, 0)
	return err
}

// finish stores a run. When it returns, the run is on the disk.
func (s *State) finish(r *Run) error {
	line, err := json.Marshal(r)
	if err == nil {
		_, err = s.runs.Write(append(line, '\n'))
	}
	if err == nil {
		err = s.runs.Sync()
	}
	if err != nil {
		return fmt.Errorf("store run %d: %w", r.Order, err)
	}
	return nil
}

// Close gives the directory up to other programs.
func (s *State) Close() error { return s.runs.Close() }

// writeWhole replaces path as a whole.
func writeWhole(path string, text []byte) error {
	return renameio.WriteFile(path, text, 0o644, renameio.WithTempDir(filepath.Dir(path)), renameio.IgnoreUmask())
}

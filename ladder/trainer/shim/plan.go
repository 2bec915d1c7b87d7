// Package shim owns the small Python package that turns knobs whose values are
// written in a script's own code: what is put in front of PYTHONPATH for one
// attempt, the plan it is given, and the record it leaves. The Python itself is
// in configs/shim. It decides nothing: a Plan says which knob goes to which
// value, and a Record says what came of it.
package shim

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"sparkrun/configs"
	"sparkrun/internal/job"
)

// Folders below an attempt's folder. CodeDir holds the package and the plan and is
// only read by the training, so a container may mount it read-only. RecordDir is
// where each process writes its record, so a container has to be able to write
// there. In a container both stand side by side below one folder.
const (
	CodeDir   = "shim"
	RecordDir = "shim-out"
	planFile  = "plan.json"
)

// PlanSchema is the schema of plan.json.
const PlanSchema = "sparkrun.shim-plan/1"

// PlanVar names the environment variable that tells the shim where its plan is.
// Without it, or where the file cannot be read, the shim does nothing.
const PlanVar = "SPARKRUN_SHIM_PLAN"

// Plan is what the shim of one attempt is to do. The zero Plan changes nothing and
// records what the libraries are given.
type Plan struct {
	Schema string  `json:"schema"`
	Clamps []Clamp `json:"clamps"`
	// Suffix is added to every output folder that the script names in its code,
	// so that an attempt which starts over never writes where an earlier one
	// saved; empty leaves them. It is for folders whose name is not known; a
	// clamp on job.OutputDir sets a known one.
	Suffix string `json:"suffix,omitempty"`
	// SmallerBatch allows a training loop of the script's own, whose accumulation
	// the shim leaves as it is, a smaller batch: another effective batch, so it is
	// never set under --exact. It holds only where the plan has no clamp on
	// job.Accumulation. Without it such a loop keeps its batch.
	SmallerBatch bool `json:"smaller_batch,omitempty"`
	// ResumeFolder limits a clamp on job.ResumeFrom to the trainer that saves
	// into this folder, as the script names it; empty means the first trainer
	// that trains.
	ResumeFolder string `json:"resume_folder,omitempty"`
}

// Clamp sets one knob where a library takes it. Either To or Halve is set.
type Clamp struct {
	Knob job.Knob `json:"knob"`
	// From is the value in the script, where that is known.
	From string `json:"from,omitempty"`
	// To is the value wanted. A size (length, batch) is only ever lowered to it.
	// Accumulation is not a size: it follows the micro-batch, so that their
	// product stays exactly what the script asked for, and To over From says how
	// much more is wanted on top.
	To string `json:"to,omitempty"`
	// Halve says how many times a value that is not known beforehand is halved.
	// A micro-batch takes its largest proper divisor each time, and accumulation
	// grows with it.
	Halve int `json:"halve,omitempty"`
	// Floor is the smallest value that halving may reach; a step that would go
	// below it is not taken.
	Floor int64 `json:"floor,omitempty"`
}

// Knobs are those that the shim can turn in code.
func Knobs() []job.Knob {
	return []job.Knob{
		job.SeqLen, job.Packing, job.MicroBatch, job.Accumulation, job.EvalBatch, job.LoadIn4Bit,
		job.DType, job.GradCkpt, job.NumWorkers, job.OutputDir, job.ResumeFrom,
	}
}

// halves are the knobs that can be turned without knowing their value.
var halves = []job.Knob{job.SeqLen, job.MicroBatch, job.EvalBatch}

// Check says what the shim cannot do of the plan.
func (p Plan) Check() error {
	var errs []error
	seen := map[job.Knob]bool{}
	for _, c := range p.Clamps {
		if err := c.check(); err != nil {
			errs = append(errs, err)
		}
		if seen[c.Knob] {
			errs = append(errs, fmt.Errorf("%s is in the shim's plan twice", c.Knob))
		}
		seen[c.Knob] = true
	}
	return errors.Join(errs...)
}

func (c Clamp) check() error {
	switch {
	case !slices.Contains(Knobs(), c.Knob):
		return fmt.Errorf("the shim cannot turn %s: no library takes it from a script's code in a known place", c.Knob)
	case c.Halve < 0 || c.Floor < 0:
		return fmt.Errorf("%s: halve %d, floor %d: neither may be negative", c.Knob, c.Halve, c.Floor)
	case (c.Halve > 0) == (c.To != ""):
		return fmt.Errorf("%s: a clamp has either a value to go to or a number of halvings", c.Knob)
	case c.Halve > 0 && !slices.Contains(halves, c.Knob):
		return fmt.Errorf("%s cannot be halved", c.Knob)
	}
	if c.To == "" {
		return nil
	}
	switch c.Knob {
	case job.SeqLen, job.MicroBatch, job.Accumulation, job.EvalBatch:
		return atLeast(c, 1)
	case job.NumWorkers:
		return atLeast(c, 0)
	case job.Packing, job.LoadIn4Bit, job.GradCkpt:
		if c.To != "true" && c.To != "false" {
			return fmt.Errorf("%s: %q is neither true nor false", c.Knob, c.To)
		}
		if c.Knob == job.LoadIn4Bit && c.To == "true" {
			return errors.New("load_in_4bit: the shim only takes 4-bit loading away")
		}
	}
	return nil
}

func atLeast(c Clamp, low int64) error {
	if n, err := strconv.ParseInt(c.To, 10, 64); err != nil || n < low {
		return fmt.Errorf("%s: %q is not a whole number of %d or more", c.Knob, c.To, low)
	}
	return nil
}

// File is one file that an attempt with the shim needs. The caller creates it and
// the folders above it.
type File struct {
	// Path is absolute.
	Path    string
	Content []byte
	Mode    fs.FileMode
}

// Files returns the package and the plan, below attemptDir. They are readable for
// all, since a container's user is often another one; the run's own folder keeps
// others on this machine out. Nothing is written.
func (p Plan) Files(attemptDir string) ([]File, error) {
	if err := p.Check(); err != nil {
		return nil, err
	}
	p.Schema = PlanSchema
	if p.Clamps == nil {
		p.Clamps = []Clamp{}
	}
	plan, err := json.MarshalIndent(p, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("the shim's plan: %w", err)
	}
	dir := filepath.Join(attemptDir, CodeDir)
	files := []File{{Path: filepath.Join(dir, planFile), Content: append(plan, '\n'), Mode: 0o644}}
	err = fs.WalkDir(configs.FS, "shim", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := configs.FS.ReadFile(name)
		if err != nil {
			return err
		}
		files = append(files, File{filepath.Join(dir, strings.TrimPrefix(name, "shim/")), text, 0o644})
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("the built-in shim: %w", err)
	}
	return files, nil
}

// CanUse says why no attempt in this folder can have the shim on this machine, nil where
// it can. It looks at the path alone, so it can be asked before anything is started.
func CanUse(attemptDir string) error {
	dir := path.Join(attemptDir, CodeDir)
	if strings.ContainsRune(dir, ':') {
		return fmt.Errorf("%s has a colon in its name, which PYTHONPATH cannot express: run it from another folder, or choose one with --runs-dir", dir)
	}
	if !path.IsAbs(dir) {
		return fmt.Errorf("%s is not an absolute path", dir)
	}
	return nil
}

// Env returns the variables that make Python load the shim. inner is the attempt's
// folder as the trainer sees it, the same as on this machine outside containers;
// pythonpath is what PYTHONPATH would be without us: the user's, or in a container
// the one given with -e or else set by the image.
func (p Plan) Env(inner, pythonpath string) ([]string, error) {
	if err := CanUse(inner); err != nil {
		return nil, err
	}
	dir := path.Join(inner, CodeDir)
	search := dir
	if pythonpath != "" {
		search += ":" + pythonpath
	}
	return []string{"PYTHONPATH=" + search, PlanVar + "=" + path.Join(dir, planFile)}, nil
}

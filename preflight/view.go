package preflight

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"sparkrun/internal/job"
	"sparkrun/internal/leash"
)

// view is what a look may see: this machine, or a recorded tree that stands for one.
// Nothing in it changes anything.
type view struct {
	root root
	// getenv is the trainer's environment; see environment. shell is the one around it.
	getenv func(string) string
	// job is the command; nil for a preflight without one.
	job   *job.Job
	stack stack
	in    Input
	now   time.Time
	// askedOnce is readAsked, shared by all looks of one preflight; nil reads anew.
	askedOnce func() request
	// over tells that nobody waits any more for what is shared; nil is never.
	over func() bool
	// processesOnce is readStats, shared likewise.
	processesOnce func() processStats
	// busy tells that this machine has more to do than processors; see facts.lookLimit.
	busy bool
	// modelOnce is Input.ModelPath, shared likewise; nil calls it anew.
	modelOnce func() string
}

// modelPath is the folder of the base model where Input knows it, else "". It may hang
// with the folder's file system.
func (v view) modelPath() string {
	switch {
	case v.modelOnce != nil:
		return v.modelOnce()
	case v.in.ModelPath != nil:
		return v.in.ModelPath()
	}
	return ""
}

// live tells that this machine is looked at, so that processes may be started and
// system calls mean something.
func (v view) live() bool { return v.root.live() }

// dir is the folder that relative paths of the command start from: where its trainer
// starts, else where the command does, else the shell's.
func (v view) dir() string {
	if v.job == nil {
		return v.shell("PWD")
	}
	if v.job.TrainerDir != "" {
		return v.job.TrainerDir
	}
	return v.job.Dir
}

// own reads a file of the command itself, such as its script or config, which a recorded
// tree often lacks: then it is this machine's.
func (v view) own(path string) ([]byte, error) {
	b, err := v.root.read(path)
	if !v.live() && errors.Is(err, fs.ErrNotExist) {
		return root("/").read(path)
	}
	return b, err
}

// disk is a file system, as statfs tells of it.
func (v view) disk(path string) (Disk, error) {
	if !v.live() {
		return v.in.Recorded.disk(path)
	}
	return statDisk(path)
}

// output runs a program that only reads, such as systemctl is-enabled, and returns what
// it printed; with an error also where it ended with a status other than 0. In a
// recorded tree the answer is the recorded one. Every process it started is gone when it
// returns.
func (v view) output(ctx context.Context, argv ...string) (string, error) {
	if !v.live() {
		return v.in.Recorded.output(argv)
	}
	path := findProgram(v.root, argv[0], v.path)
	if path == "" {
		return "", fmt.Errorf("%s: %w", argv[0], exec.ErrNotFound)
	}
	cmd := exec.Command(path, argv[1:]...)
	cmd.Dir = "/"
	// Words are looked for in what it prints.
	cmd.Env = append(os.Environ(), "LC_ALL=C", "PAGER=cat", "SYSTEMD_PAGER=cat", "SYSTEMD_COLORS=0")
	out, err := leash.Output(ctx, cmd)
	text := string(out)
	if len(text) > maxRead {
		text = text[:maxRead]
	}
	if err != nil {
		return text, fmt.Errorf("%s: %w", strings.Join(argv, " "), err)
	}
	return text, nil
}

// path is the environment for looking up programs of the system: the command's PATH,
// and the folders that an ordinary user's PATH lacks.
func (v view) path(name string) string {
	if name != "PATH" {
		return ""
	}
	return strings.Trim(v.shell("PATH")+":/usr/local/sbin:/usr/sbin:/sbin:/usr/local/bin:/usr/bin:/bin", ":")
}

// errNotRecorded is the reason of a reading that a recorded tree does not have.
var errNotRecorded = errors.New("not in the recorded tree")

// abs makes a path of the command absolute.
func (v view) abs(path string) string {
	if filepath.IsAbs(path) {
		return filepath.Clean(path)
	}
	return filepath.Join(v.dir(), path)
}

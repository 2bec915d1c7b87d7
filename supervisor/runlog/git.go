package runlog

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"

	"sparkrun/internal/regular"
)

// gitTimeout bounds all of Git: it is part of the time before the child starts.
const gitTimeout = 300 * time.Millisecond

// GitState is the state of the repository the command was started in.
type GitState struct {
	Commit string `json:"commit"`
	// Branch is empty on a detached head.
	Branch string `json:"branch,omitempty"`
	// Dirty says whether tracked or new files differ from Commit, runs left
	// out; nil where that could not be told in time.
	Dirty *bool `json:"dirty,omitempty"`
}

// Git asks git about the repository around dir. It takes no lock, runs none of
// the repository's own programs and gives up after 300 ms; ok is false where
// there is no repository, no commit yet or no git.
func Git(dir string) (state GitState, ok bool) {
	ctx, cancel := context.WithTimeout(context.Background(), gitTimeout)
	defer cancel()
	head, err := git(ctx, dir, "rev-parse", "--verify", "-q", "HEAD")
	if err != nil {
		return GitState{}, false
	}
	state.Commit = strings.TrimSpace(head)
	if branch, err := git(ctx, dir, "symbolic-ref", "--short", "-q", "HEAD"); err == nil {
		state.Branch = strings.TrimSpace(branch)
	}
	status, err := git(ctx, dir, "status", "--porcelain", "--ignore-submodules=dirty",
		"--", ":/", ":(top,exclude,glob)**/"+RunsFolder+"/**")
	if err == nil {
		dirty := strings.TrimSpace(status) != ""
		state.Dirty = &dirty
	}
	return state, true
}

func git(ctx context.Context, dir string, args ...string) (string, error) {
	// A repository can name a program to be run by status (fsmonitor); nobody
	// asked for that.
	cmd := exec.CommandContext(ctx, "git", append([]string{"-c", "core.fsmonitor=false"}, args...)...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GIT_OPTIONAL_LOCKS=0", "GIT_TERMINAL_PROMPT=0", "LC_ALL=C")
	cmd.WaitDelay = 50 * time.Millisecond
	out, err := cmd.Output()
	return string(out), err
}

// hashMax is the largest file that is hashed: scripts and config files are
// small, and a data file named as one must not hold up the start.
const hashMax = 64 << 20

// HashFile returns the SHA-256 of a regular file, in hex. A pipe or a device is
// an error: reading it would take the bytes away from the command.
func HashFile(path string) (string, error) {
	f, _, err := regular.Open(path)
	if errors.Is(err, regular.ErrNot) {
		return "", fmt.Errorf("hashing %s: not a regular file", path)
	}
	if err != nil {
		return "", fmt.Errorf("hashing: %w", err)
	}
	defer f.Close()
	h := sha256.New()
	n, err := io.Copy(h, io.LimitReader(f, hashMax+1))
	if err != nil {
		return "", fmt.Errorf("hashing: %w", err)
	}
	if n > hashMax {
		return "", fmt.Errorf("hashing %s: %w", path, errTooLarge)
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

var errTooLarge = errors.New("larger than 64 MiB")

package holder

import (
	"encoding/json"
	"errors"
	"fmt"
	"syscall"
	"time"

	"sparkrun/internal/clock"
	"sparkrun/supervisor/guard"
)

// Version is the version of Spec and of the socket protocol.
const Version = 1

// The values of Spec.Stdin.
const (
	// StdinPTY makes the PTY the command's fd 0.
	StdinPTY = "pty"
	// StdinInherit hands the descriptor given to Start to the command.
	StdinInherit = "inherit"
	// StdinNull gives the command /dev/null.
	StdinNull = "null"
)

// Spec says what to run and where its files go. It travels to the holder as
// JSON on a socket pair, never by argv or disk: Env holds secrets.
type Spec struct {
	// V is the version of this structure; 0 means Version.
	V       int
	RunID   string
	Attempt int
	// Dir is the attempt directory: absolute and existing.
	Dir string
	// Socket is the path of the control socket, "" for none. Its directory
	// must exist and belong to the user alone.
	Socket string

	// Path is the file to execute, already looked up; Argv includes argv[0].
	Path string
	Argv []string
	// Cwd is the command's working directory, "" for the caller's.
	Cwd string
	// Env is the command's whole environment.
	Env []string

	// PTY runs the command on a terminal of Rows x Cols; without it fds 1 and
	// 2 are one pipe.
	PTY        bool
	Rows, Cols uint16
	// Stdin is StdinPTY, StdinInherit or StdinNull.
	Stdin string

	// Cgroup is the directory of an existing cgroup (v1 hierarchy or v2) that
	// the command joins, "" for none.
	Cgroup string
	// OOMScoreAdj is the least oom_score_adj of the command; an inherited
	// higher one stays. Negative leaves it alone.
	OOMScoreAdj int

	// Grace is how long a stop waits after the first signal where the request
	// names no time.
	Grace time.Duration
	// MinFree is in bytes: output.log stops growing while the file system has
	// less than this available.
	MinFree uint64
	// Reserve is a file that is removed to make room for exit.json on a full
	// disk, "" for none.
	Reserve string

	// AwaitTree says that the command is a client whose descendants are the work
	// (podman, whose containers are no children of a daemon): they are waited
	// for, and never ended because the command has ended. The attempt is over
	// when the tree is empty or a stop has ended it.
	AwaitTree bool

	// Waits are the further times of the stop order; zero fields take the
	// defaults.
	Waits Waits

	// Guard is how the memory guard works; its zero value is on, with the
	// built-in floors.
	Guard guard.Options
	// Clock is the run's clock, which the times of blackbox.csv are counted on;
	// the zero value is one that starts with the holder.
	Clock clock.Clock
}

// Waits are the bounded waits of a holder. A zero field means its default.
type Waits struct {
	// Settle (200 ms) is what descendants get to end by themselves after the
	// command has ended: a tee that still has lines to write is no orphan. With
	// Spec.AwaitTree it counts only in a stop.
	Settle time.Duration
	// Leftover (5 s) lies between SIGTERM and SIGKILL for descendants that
	// outlived the command.
	Leftover time.Duration
	// Term (10 s) lies between SIGTERM to the tree and SIGKILL in a stop.
	Term time.Duration
	// Short (3 s) replaces Term after a second stop request.
	Short time.Duration
	// Kill (15 s) bounds the wait after SIGKILL: the kernel takes its time to free
	// a hundred gigabytes.
	Kill time.Duration
	// Drain (2 s) bounds the wait for the end of the output once the tree is
	// gone: somebody else may hold the terminal open.
	Drain time.Duration
	// Linger (200 ms) is how long clients have to take the last push.
	Linger time.Duration
}

func (w Waits) withDefaults() Waits {
	set := func(d *time.Duration, v time.Duration) {
		if *d <= 0 {
			*d = v
		}
	}
	set(&w.Settle, 200*time.Millisecond)
	set(&w.Leftover, 5*time.Second)
	set(&w.Term, 10*time.Second)
	set(&w.Short, 3*time.Second)
	set(&w.Kill, 15*time.Second)
	set(&w.Drain, 2*time.Second)
	set(&w.Linger, 200*time.Millisecond)
	return w
}

// plainSpec is Spec without its methods.
type plainSpec Spec

// wireSpec is the JSON form of a Spec. Paths, arguments and environment are
// bytes on Linux and need not be UTF-8, which JSON strings would replace: they
// travel as base64.
type wireSpec struct {
	plainSpec
	Dir, Socket, Path, Cwd, Cgroup, Reserve []byte
	Argv, Env                               [][]byte
}

// MarshalJSON writes the form that travels on the start pipe.
func (s Spec) MarshalJSON() ([]byte, error) {
	return json.Marshal(wireSpec{
		plainSpec: plainSpec(s),
		Dir:       []byte(s.Dir), Socket: []byte(s.Socket), Path: []byte(s.Path),
		Cwd: []byte(s.Cwd), Cgroup: []byte(s.Cgroup), Reserve: []byte(s.Reserve),
		Argv: toBytes(s.Argv), Env: toBytes(s.Env),
	})
}

// UnmarshalJSON reads what MarshalJSON wrote.
func (s *Spec) UnmarshalJSON(b []byte) error {
	var w wireSpec
	if err := json.Unmarshal(b, &w); err != nil {
		return err
	}
	*s = Spec(w.plainSpec)
	s.Dir, s.Socket, s.Path = string(w.Dir), string(w.Socket), string(w.Path)
	s.Cwd, s.Cgroup, s.Reserve = string(w.Cwd), string(w.Cgroup), string(w.Reserve)
	s.Argv, s.Env = toStrings(w.Argv), toStrings(w.Env)
	return nil
}

func toBytes(in []string) [][]byte {
	out := make([][]byte, len(in))
	for i, s := range in {
		out[i] = []byte(s)
	}
	return out
}

func toStrings(in [][]byte) []string {
	out := make([]string, len(in))
	for i, b := range in {
		out[i] = string(b)
	}
	return out
}

// Started says what is running after a successful Start.
type Started struct {
	HolderPID int `json:"holder_pid"`
	ChildPID  int `json:"child_pid"`
	// ChildStart is the command's start time in clock ticks since boot.
	ChildStart uint64 `json:"child_start"`
	// SocketErr says why there is no socket; "" when there is one or none was
	// asked for. The run goes on with signals only.
	SocketErr string `json:"socket_err,omitempty"`
	// Notes are what the exec step could not do and went on without.
	Notes []string `json:"notes,omitempty"`
}

// The stages at which a start can fail.
const (
	StageHolder = "holder" // the holder process did not come up
	StageSpec   = "spec"   // the Spec makes no sense
	StageDir    = "dir"    // the attempt directory cannot be used
	StagePTY    = "pty"    // no terminal or pipe
	StageStep   = "step"   // the exec step itself failed
	StageCgroup = "cgroup" // the cgroup could not be joined
	StageCwd    = "cwd"    // the working directory could not be entered
	StageExec   = "exec"   // the command could not be executed
)

// StartError says why nothing was started.
type StartError struct {
	Stage string `json:"stage"`
	// Path is the file or directory concerned.
	Path string `json:"path,omitempty"`
	// Errno is the kernel's answer, 0 where there is none.
	Errno syscall.Errno `json:"errno,omitempty"`
	// Exists is whether Path is there: an ENOENT for an existing script or
	// program means that its interpreter is missing.
	Exists bool `json:"exists,omitempty"`
	// IsDir is whether Path is a directory.
	IsDir bool `json:"is_dir,omitempty"`
	// Interpreter is the program of a script's #! line.
	Interpreter string `json:"interpreter,omitempty"`
	// Detail is a sentence for the stages that have no Path.
	Detail string `json:"detail,omitempty"`
}

// Error is one sentence that says what to do.
func (e *StartError) Error() string {
	switch e.Stage {
	case StageExec:
		return fmt.Sprintf("cannot run %q: %s", e.Path, e.execReason())
	case StageCwd:
		return fmt.Sprintf("cannot enter the working directory %q: %s", e.Path, e.reason())
	case StageCgroup:
		return fmt.Sprintf("cannot join the cgroup %q: %s", e.Path, e.reason())
	case StageDir:
		return fmt.Sprintf("cannot use the attempt directory: %q: %s", e.Path, e.reason())
	case StagePTY:
		return "cannot open a terminal for the command: " + e.reason()
	default:
		return "cannot start the holder process: " + e.reason()
	}
}

func (e *StartError) reason() string {
	switch {
	case e.Detail != "" && e.Errno != 0:
		return e.Detail + ": " + e.Errno.Error()
	case e.Detail != "":
		return e.Detail
	case e.Errno != 0:
		return e.Errno.Error()
	}
	return "no reason was given"
}

func (e *StartError) execReason() string {
	switch {
	case e.IsDir:
		return "it is a directory"
	case e.Errno == syscall.ENOENT && e.Exists && e.Interpreter != "":
		return fmt.Sprintf("its interpreter %q does not exist (first line of the script)", e.Interpreter)
	case e.Errno == syscall.ENOENT && e.Exists:
		return "the program loader it asks for does not exist: it was built for another system"
	case e.Errno == syscall.ENOENT:
		return "there is no such file"
	case e.Errno == syscall.EACCES && e.Exists:
		return "permission denied: it is not executable (chmod +x) or lies on a file system mounted noexec"
	case e.Errno == syscall.ENOEXEC:
		return "it is neither a program for this machine nor a script with a #! line"
	}
	return e.reason()
}

// Unwrap returns the errno, so that errors.Is(err, syscall.ENOENT) works.
func (e *StartError) Unwrap() error {
	if e.Errno == 0 {
		return nil
	}
	return e.Errno
}

// Status is the exit status that a shell would give: 127 where the command does
// not exist, 126 where it exists and cannot be executed (a missing interpreter
// included), 125 where sparkrun itself failed.
func (e *StartError) Status() int {
	if e.Stage != StageExec {
		return 125
	}
	if e.Errno == syscall.ENOENT && !e.Exists {
		return 127
	}
	return 126
}

func startError(stage, path string, err error) *StartError {
	var se *StartError
	if errors.As(err, &se) {
		return se
	}
	e := &StartError{Stage: stage, Path: path}
	if !errors.As(err, &e.Errno) {
		e.Detail = err.Error()
	}
	return e
}

package holder

import (
	"time"

	"sparkrun/internal/proctree"
	"sparkrun/supervisor/guard"
)

// RoleSupervisor is the role of the client that decides about the run. While
// one is connected the holder leaves signals sent to itself to it.
const RoleSupervisor = "supervisor"

// The names of requests.
const (
	reqHello     = "hello"
	reqStdin     = "stdin"
	reqResize    = "resize"
	reqSignal    = "signal"
	reqStop      = "stop"
	reqFloors    = "floors"
	reqContainer = "container"
	reqPause     = "pause"
	reqContinue  = "continue"
	reqRead      = "read"
	reqStatus    = "status"
	reqGoodbye   = "goodbye"
)

// Where a signal request goes.
const (
	// ToForeground is the foreground process group of the terminal; without a
	// terminal, the command's own process group.
	ToForeground = "fg"
	// ToChild is the command's process alone.
	ToChild = "child"
	// ToTree is the command and every descendant.
	ToTree = "tree"
)

// The kinds of pushes.
const (
	PushGrew   = "grew"
	PushExited = "exited"
	PushGap    = "gap"
	PushGuard  = "guard"
)

// request is one line from a client.
type request struct {
	V      int      `json:"v,omitempty"`
	ID     int64    `json:"id,omitempty"`
	Req    string   `json:"req"`
	Role   string   `json:"role,omitempty"`
	B64    []byte   `json:"b64,omitempty"`
	Rows   uint16   `json:"rows,omitempty"`
	Cols   uint16   `json:"cols,omitempty"`
	Name   string   `json:"name,omitempty"`
	To     string   `json:"to,omitempty"`
	Signal string   `json:"signal,omitempty"`
	GraceS *float64 `json:"grace_s,omitempty"`
	// LimitS, with pause, is the longest pause in seconds; nil is none.
	LimitS *float64 `json:"limit_s,omitempty"`
	From   int64    `json:"from,omitempty"`
	// Floors is set with floors, Endpoint and Container with container.
	Floors    *Floors `json:"floors,omitempty"`
	Endpoint  string  `json:"endpoint,omitempty"`
	Container string  `json:"container,omitempty"`
}

// reply is one line back, with the request's ID.
type reply struct {
	V      int     `json:"v,omitempty"`
	ID     int64   `json:"id,omitempty"`
	OK     bool    `json:"ok,omitempty"`
	Error  string  `json:"error,omitempty"`
	Off    int64   `json:"off,omitempty"`
	B64    []byte  `json:"b64,omitempty"`
	Status *Status `json:"status,omitempty"`
}

// push is one line that nobody asked for.
type push struct {
	Push    string `json:"push"`
	Offset  int64  `json:"offset"`
	Written int64  `json:"written"`
	Gap     *Gap   `json:"gap,omitempty"`
	Exit    *Exit  `json:"exit,omitempty"`
	Saved   bool   `json:"saved,omitempty"`

	Guard *guard.Action `json:"guard,omitempty"`
	Note  *guard.Note   `json:"note,omitempty"`
}

// Push is something the holder says unasked.
type Push struct {
	// Kind is PushGrew, PushExited, PushGap or PushGuard.
	Kind string
	// Offset is the number of bytes the command has printed.
	Offset int64
	// Written is up to where they are in output.log, or named in gaps.jsonl.
	Written int64
	// Gap is set with PushGap.
	Gap *Gap
	// Exit is set with PushExited; Saved is whether exit.json holds it too.
	Exit  *Exit
	Saved bool
	// Guard or Note is set with PushGuard: what the guard did, or found worth
	// telling.
	Guard *guard.Action
	Note  *guard.Note
}

// Floors is what Client.Floors tells the guard.
type Floors = guard.Floors

// Status is the state of a holder at one instant.
type Status struct {
	RunID      string `json:"run_id"`
	Attempt    int    `json:"attempt"`
	HolderPID  int    `json:"holder_pid"`
	ChildPID   int    `json:"child_pid"`
	ChildStart uint64 `json:"child_start"`
	// Tree is the command and its descendants, at most 512 of TreeTotal.
	Tree      []proctree.Proc `json:"tree"`
	TreeTotal int             `json:"tree_total"`
	// Offset is the number of bytes the command has printed, Written up to
	// where they are in output.log or named in gaps.jsonl.
	Offset  int64 `json:"offset"`
	Written int64 `json:"written"`
	// DiskError says why output.log does not grow now, "" when it does.
	DiskError string `json:"disk_error,omitempty"`
	// SlowestSync is the longest fdatasync so far.
	SlowestSync time.Duration `json:"slowest_sync_ns"`
	Paused      bool          `json:"paused"`
	// Awake are the processes that run although the tree is paused: somebody else has
	// woken them.
	Awake []proctree.Proc `json:"awake,omitempty"`
	// Stopped are pid and start time of the processes that the pause has stopped.
	Stopped []procID `json:"stopped,omitempty"`
	// PTY is whether there is a terminal; ISIG, ICANON and Echo are its
	// settings now, false without one.
	PTY    bool `json:"pty"`
	ISIG   bool `json:"isig"`
	ICANON bool `json:"icanon"`
	Echo   bool `json:"echo"`
	// Stopping is the phase of a stop ("grace", "term", "kill"), "" when none
	// is under way.
	Stopping string `json:"stopping,omitempty"`
	// Exited is whether the command itself has ended; with Spec.AwaitTree the
	// attempt may go on for as long as Stopping is "".
	Exited bool `json:"exited"`
}

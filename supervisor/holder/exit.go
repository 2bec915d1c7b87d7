package holder

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"sparkrun/supervisor/guard"
)

// ExitSchema is the schema of exit.json.
const ExitSchema = "sparkrun.exit/1"

// Bounds of the lists in an Exit: a fork bomb must not make exit.json large.
const (
	maxEnded  = 256
	maxReaped = 64
	maxStops  = 256
	maxNoted  = 16
	maxNote   = 400
)

// Exit is how one attempt ended: the content of exit.json.
type Exit struct {
	Schema     string `json:"schema"`
	RunID      string `json:"run_id"`
	Attempt    int    `json:"attempt"`
	ChildPID   int    `json:"child_pid"`
	ChildStart uint64 `json:"child_start"`

	// Reaped is whether the command's end was seen. It is false only for a
	// command that SIGKILL could not end (uninterruptible in a driver): then it
	// is among Survivors, and Code is -1.
	Reaped bool `json:"reaped"`
	// WaitStatus is the raw wait status.
	WaitStatus uint32 `json:"wait_status"`
	// Code is the exit code, -1 when a signal ended the command.
	Code int `json:"code"`
	// Signal is the name of the signal that ended it (SIGKILL), "" otherwise.
	Signal string `json:"signal,omitempty"`
	// AddressLimit is the command's RLIMIT_AS at its end in bytes (ulimit -v), 0
	// for none or unknown.
	AddressLimit uint64 `json:"address_limit_bytes,omitempty"`
	// Core is whether a core was dumped.
	Core   bool  `json:"core,omitempty"`
	Rusage Usage `json:"rusage"`
	// T is when the end was seen: RFC 3339 with milliseconds. Boot is the same
	// instant of CLOCK_BOOTTIME. With Spec.AwaitTree both are of the last
	// descendant's end, and what stands above is of the command alone.
	T    string        `json:"t"`
	Boot time.Duration `json:"boottime_ns"`

	// Offset is the number of bytes printed, Written up to where they are in
	// output.log or named in gaps.jsonl, GapBytes how many are lost.
	Offset   int64 `json:"offset"`
	Written  int64 `json:"written"`
	GapBytes int64 `json:"gap_bytes"`
	// Drained is whether the output was read to its end; false when somebody
	// outside the tree still held the terminal open.
	Drained bool `json:"drained"`
	// SlowestSync is the longest fdatasync of output.log or output.idx.
	SlowestSync time.Duration `json:"slowest_sync_ns"`

	// Stops are the signals sent because of stop and signal requests, or by the
	// guard.
	Stops []Sent `json:"stops"`
	// Guard is what the memory guard did to end the attempt; nil when it did
	// not.
	Guard *guard.Action `json:"guard,omitempty"`
	// Ended are descendants that had to be ended, the command itself left out.
	Ended []Ended `json:"ended"`
	// Survivors could not be ended.
	Survivors []Ended `json:"survivors"`
	// Orphans are reaped processes whose own parent had ended, at most 64 of
	// OrphansTotal.
	Orphans      []Orphan `json:"orphans"`
	OrphansTotal int      `json:"orphans_total"`
	// Notes are sentences on what could not be kept of the attempt: at most 16 of
	// 400 bytes.
	Notes []string `json:"notes,omitempty"`
}

// lost adds a note.
func (e *Exit) lost(format string, args ...any) {
	if len(e.Notes) < maxNoted {
		s := fmt.Sprintf(format, args...)
		e.Notes = append(e.Notes, strings.ToValidUTF8(s[:min(len(s), maxNote)], ""))
	}
}

// Status is the exit status a shell would give: the code, or 128+n.
func (e Exit) Status() int {
	ws := syscall.WaitStatus(e.WaitStatus)
	if e.Reaped && ws.Signaled() {
		return 128 + int(ws.Signal())
	}
	return e.Code
}

// Usage is what the command and its waited-for descendants used.
type Usage struct {
	UserS     float64 `json:"utime_s"`
	SystemS   float64 `json:"stime_s"`
	MaxRSSKiB int64   `json:"maxrss_kib"`
}

// ByGuard is Sent.By of a signal of the memory guard's.
const ByGuard = "guard"

// Sent is one signal sent on request or by the guard.
type Sent struct {
	Signal string `json:"signal"`
	// To is "fg", "child" or "tree".
	To string `json:"to"`
	T  string `json:"t"`
	// By is ByGuard, or "" for a request.
	By string `json:"by,omitempty"`
}

// Ended names a process; Signal is the last signal it was sent.
type Ended struct {
	PID    int    `json:"pid"`
	Comm   string `json:"comm"`
	Signal string `json:"signal,omitempty"`
}

// Orphan is a reaped descendant with its raw wait status.
type Orphan struct {
	PID    int    `json:"pid"`
	Comm   string `json:"comm,omitempty"`
	Status uint32 `json:"status"`
}

// ReadExit reads exit.json of an attempt directory. The error is os.ErrNotExist
// while the attempt is not over.
func ReadExit(dir string) (Exit, error) {
	path := filepath.Join(dir, exitName)
	b, err := os.ReadFile(path)
	if err != nil {
		return Exit{}, fmt.Errorf("reading the end of the attempt: %w", err)
	}
	var e Exit
	if err := json.Unmarshal(b, &e); err != nil {
		return Exit{}, fmt.Errorf("%s is damaged: %w", path, err)
	}
	if !strings.HasPrefix(e.Schema, "sparkrun.exit/") {
		return Exit{}, fmt.Errorf("%s has schema %q, not %s", path, e.Schema, ExitSchema)
	}
	return e, nil
}

// saveExit writes exit.json so that it is either whole or absent, also after a
// power cut: temporary file, fsync, rename, fsync of the directory.
func saveExit(dir string, e Exit) error {
	b, err := json.MarshalIndent(e, "", "  ")
	if err != nil {
		return fmt.Errorf("encoding exit.json: %w", err)
	}
	tmp := filepath.Join(dir, exitName+".tmp")
	if err := writeSynced(tmp, append(b, '\n')); err != nil {
		_ = os.Remove(tmp)
		return err
	}
	if err := os.Rename(tmp, filepath.Join(dir, exitName)); err != nil {
		_ = os.Remove(tmp)
		return err
	}
	d, err := os.Open(dir)
	if err != nil {
		return nil // renamed: only its durability is in doubt
	}
	defer d.Close()
	_ = d.Sync()
	return nil
}

func writeSynced(path string, b []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// persist keeps trying to save the last words of an attempt on a disk that may
// be full: gap first, since exit.json ends the attempt for every reader. The
// reserve file is given up at the first refusal. It returns whether the gap is
// named (or there is none) and whether exit.json is there. When the disk has gone
// on refusing for tellAfter it calls refused, once, with the former.
func persist(dir, reserve string, lost *Gap, e Exit, limit time.Duration, refused func(named bool)) (named, saved bool) {
	deadline := time.Now().Add(limit)
	tell := time.Now().Add(tellAfter)
	for {
		var err error
		if lost != nil {
			if err = appendGap(dir, *lost); err == nil {
				lost = nil
			}
		}
		if err == nil {
			if err = saveExit(dir, e); err == nil {
				return true, true
			}
		}
		if errors.Is(err, fs.ErrNotExist) {
			return lost == nil, false // the directory itself was removed
		}
		if reserve != "" && noSpace(err) {
			_ = os.Remove(reserve)
			reserve = ""
			continue
		}
		now := time.Now()
		if now.After(deadline) {
			return lost == nil, false
		}
		if refused != nil && now.After(tell) {
			refused(lost == nil)
			refused = nil
		}
		time.Sleep(saveEvery)
	}
}

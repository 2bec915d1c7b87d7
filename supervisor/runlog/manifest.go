package runlog

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"sparkrun/configs"
	"sparkrun/internal/clock"
	"sparkrun/internal/job"
	"sparkrun/internal/sample"
)

// ManifestSchema is the schema of run.json.
const ManifestSchema = "sparkrun.run/1"

// State is what a run is doing. The set is a contract.
type State string

// The states; the second group is final.
const (
	StatePreflight State = "preflight"
	StateStarting  State = "starting"
	StateRunning   State = "running"
	StateStopping  State = "stopping"
	StateVerdict   State = "verdict"
	StateGate      State = "gate"

	StateSucceeded State = "succeeded"
	// StateSucceededChanged: length, method or data seen is not what was asked
	// for.
	StateSucceededChanged State = "succeeded-changed"
	StateFailed           State = "failed"
	StateExhausted        State = "exhausted"
	StateBlocked          State = "blocked"
	StateStopped          State = "stopped"
	StateError            State = "error"
	StateLost             State = "lost"
)

// Final says whether a run in this state is over.
func (s State) Final() bool {
	switch s {
	case StateSucceeded, StateSucceededChanged, StateFailed, StateExhausted, StateBlocked, StateStopped, StateError, StateLost:
		return true
	}
	return false
}

// EndKind says how an attempt ended. The set is a contract.
type EndKind string

// The ends of an attempt.
const (
	EndExited     EndKind = "exited"
	EndSignaled   EndKind = "signaled"
	EndGuard      EndKind = "guard"
	EndHang       EndKind = "hang"
	EndTimeout    EndKind = "timeout"
	EndStopped    EndKind = "stopped"
	EndWedge      EndKind = "wedge"
	EndNotStarted EndKind = "not-started"
	EndLost       EndKind = "lost"
)

// EndedBy says who ended the run, where the exit status alone could come from
// the command or from sparkrun.
type EndedBy string

// Who can end a run.
const (
	ByChild    EndedBy = "child"
	ByEngine   EndedBy = "engine"
	ByGuard    EndedBy = "guard"
	ByUser     EndedBy = "user"
	ByLimit    EndedBy = "limit"
	BySparkrun EndedBy = "sparkrun"
)

// Manifest is run.json: what was asked for, on what machine, and what became of
// it. Keys that say nothing are left out; a number that is not known is null or
// missing, never zero.
type Manifest struct {
	Schema string `json:"schema"`
	ID     string `json:"id"`
	Name   string `json:"name"`

	// Argv and Env may hold secrets in memory; Save writes them redacted.
	Argv []string          `json:"argv"`
	Cwd  string            `json:"cwd"`
	Env  map[string]string `json:"env,omitempty"`

	// Git is nil where the working directory is in no repository.
	Git *GitState `json:"git,omitempty"`
	// Hashes maps the path of a script or config file to its SHA-256.
	Hashes      map[string]string `json:"hashes,omitempty"`
	Interpreter string            `json:"interpreter,omitempty"`
	Packages    map[string]string `json:"packages,omitempty"`
	// Nodes is how many machines the command says the job spans; 0 is not told.
	Nodes int  `json:"nodes,omitempty"`
	Host  Host `json:"host"`

	Start    Start           `json:"start"`
	State    State           `json:"state"`
	Pending  *Pending        `json:"pending,omitempty"`
	Attempts []AttemptRecord `json:"attempts"`

	// Result is the state in which the run ended, or "diverged" where the training
	// came to its end with a loss that is of no use; it decides where State leaves a
	// doubt.
	Result string `json:"result,omitempty"`
	// ExitStatus is sparkrun's own, nil until the run is over.
	ExitStatus *int     `json:"exit_status,omitempty"`
	EndedBy    EndedBy  `json:"ended_by,omitempty"`
	End        *Moment  `json:"end,omitempty"`
	Dropped    *Dropped `json:"dropped,omitempty"`
	// OtherExperiment is set from the first attempt on that trains by another method:
	// what comes out is not what was asked for.
	OtherExperiment bool `json:"other_experiment,omitempty"`
	// Divergence says how the loss of the last attempt went wrong; empty where it did
	// not.
	Divergence string  `json:"divergence,omitempty"`
	Summary    Summary `json:"summary"`

	Version       string `json:"sparkrun_version"`
	SupervisorPID int    `json:"supervisor_pid"`
}

// Moment is an instant of the run: the time a person reads and how far into the
// run it was.
type Moment struct {
	T time.Time
	// Mono is the time since run start.
	Mono time.Duration
}

// MomentOf returns the moment of t on the run's clock.
func MomentOf(clk clock.Clock, t time.Time) Moment {
	return Moment{T: t.In(clk.Wall.Location()), Mono: clk.Mono(t)}
}

type momentJSON struct {
	T     string  `json:"t"`
	MonoS float64 `json:"mono_s"`
}

// MarshalJSON writes {"t": RFC 3339 with ms and offset, "mono_s": seconds since
// run start}.
func (m Moment) MarshalJSON() ([]byte, error) {
	return json.Marshal(momentJSON{T: clock.Machine(m.T), MonoS: seconds(m.Mono)})
}

// UnmarshalJSON reads what MarshalJSON wrote.
func (m *Moment) UnmarshalJSON(b []byte) error {
	var j momentJSON
	if err := json.Unmarshal(b, &j); err != nil {
		return err
	}
	t, err := time.Parse(time.RFC3339, j.T)
	if err != nil {
		return err
	}
	*m = Moment{T: t, Mono: time.Duration(j.MonoS * float64(time.Second)).Round(time.Millisecond)}
	return nil
}

// seconds gives d in seconds, to the millisecond.
func seconds(d time.Duration) float64 { return float64(d.Milliseconds()) / 1e3 }

// Start is the origin of the run's clock, enough to restore it.
type Start struct {
	T time.Time `json:"t"`
	// UTCOffsetS is the zone that holds for the whole run, in seconds east.
	UTCOffsetS int `json:"utc_offset_s"`
	// BootNS is CLOCK_BOOTTIME at run start; it only means something under the
	// boot id of Host.
	BootNS int64 `json:"boot_ns"`
}

// StartOf returns the record of a clock.
func StartOf(clk clock.Clock) Start {
	_, offset := clk.Wall.Zone()
	return Start{T: clk.Wall, UTCOffsetS: offset, BootNS: int64(clk.Boot)}
}

// Clock returns the run's clock again.
func (s Start) Clock() clock.Clock {
	wall := s.T.In(time.FixedZone("", s.UTCOffsetS))
	return clock.Restore(wall, time.Duration(s.BootNS))
}

// Host is the machine of the run. A run whose name or boot id is another one is
// never adopted, nor called dead.
type Host struct {
	Name        string `json:"name"`
	Kernel      string `json:"kernel,omitempty"`
	BootID      string `json:"boot_id,omitempty"`
	MemTotalKiB int64  `json:"mem_total_kib,omitempty"`
	CPUs        int    `json:"cpus,omitempty"`
	// OS is the distribution and version, CPU the processor's model, Virtual
	// the kind of virtual machine or container the host itself is.
	OS      string `json:"os,omitempty"`
	CPU     string `json:"cpu,omitempty"`
	Virtual string `json:"virtual,omitempty"`
	// Machine is the product name, such as the DMI one.
	Machine string `json:"machine,omitempty"`
	Driver  string `json:"driver,omitempty"`
	GPU     string `json:"gpu,omitempty"`
}

// Pending is the decision in flight: it is written before its effect, so that
// whoever takes the run over knows what may be half done.
type Pending struct {
	Attempt int      `json:"attempt"`
	Rungs   []string `json:"rungs,omitempty"`
	Changes []Change `json:"changes,omitempty"`
	// Effect is what is about to be done: start, drop-caches, stop.
	Effect string `json:"effect"`
}

// Change is one thing that differs from the command as it was asked for.
type Change struct {
	// Layer is argv, config, env or shim.
	Layer string `json:"layer"`
	// Where is the flag, the FILE:KEY or the variable.
	Where string `json:"where"`
	// Before is empty for something added, After for something removed.
	Before string `json:"before"`
	After  string `json:"after"`
}

// AttemptRecord is one attempt in run.json.
type AttemptRecord struct {
	N       int       `json:"n"`
	Rungs   []string  `json:"rungs,omitempty"`
	Knobs   job.Knobs `json:"knobs,omitempty"`
	Changes []Change  `json:"changes,omitempty"`

	Start Moment  `json:"start"`
	End   *Moment `json:"end,omitempty"`
	// Holder is there once the child is, so that a later supervisor finds both.
	Holder *Holder `json:"holder,omitempty"`
	// DurationS is seconds from start to end.
	DurationS sample.Num      `json:"duration_s"`
	EndKind   EndKind         `json:"end_kind,omitempty"`
	Exit      *Exit           `json:"exit,omitempty"`
	Verdict   *VerdictSummary `json:"verdict,omitempty"`
	// Pauses is how often it was paused for heat, PausedS for how long in all; both are
	// absent without a pause.
	Pauses  int     `json:"pauses,omitempty"`
	PausedS float64 `json:"paused_s,omitempty"`

	// Heat and Energy are absent where nothing was known.
	Heat   *Heat   `json:"heat,omitempty"`
	Energy *Energy `json:"energy,omitempty"`

	Steps Span `json:"steps"`
	Loss  Span `json:"loss"`
	// Log is the raw output, relative to the run directory.
	Log string `json:"log"`
}

// Holder names the processes of an attempt. ChildStart is in clock ticks since
// boot; with the pid it names the process for good.
type Holder struct {
	PID        int    `json:"pid"`
	ChildPID   int    `json:"child_pid"`
	ChildStart uint64 `json:"child_start"`
}

// Exit is how the child itself ended.
type Exit struct {
	// Code is the exit code, nil where a signal ended it.
	Code *int `json:"code,omitempty"`
	// Signal is its name, such as SIGKILL.
	Signal string `json:"signal,omitempty"`
	// Status is what a shell would show: the code, or 128+n.
	Status int `json:"status"`
}

// VerdictSummary is the part of verdict.json that a list needs.
type VerdictSummary struct {
	Verdict    string `json:"verdict"`
	Kind       string `json:"kind,omitempty"`
	Reason     string `json:"reason,omitempty"`
	Confidence string `json:"confidence,omitempty"`
	// Quote is the one line that says it best.
	Quote string `json:"quote,omitempty"`
}

// Span is the first and the last value of something.
type Span struct {
	First sample.Num `json:"first"`
	Last  sample.Num `json:"last"`
}

// Dropped says what dropping caches has brought in this run.
type Dropped struct {
	FreedKiB int64 `json:"freed_kib"`
	Times    int   `json:"times"`
}

// Summary holds the figures of the last words.
type Summary struct {
	LowestMemAvailableKiB sample.Num `json:"lowest_mem_available_kib"`
	HottestC              sample.Num `json:"hottest_c"`
	ThrottleS             sample.Num `json:"throttle_s"`
	// LostS is the time in failed attempts, in the gate and in pauses, and what throttling
	// cost where that is known.
	LostS sample.Num `json:"lost_s"`
	// Heat and Energy are of all attempts, absent where nothing was known.
	Heat   *Heat   `json:"heat,omitempty"`
	Energy *Energy `json:"energy,omitempty"`
}

// Save replaces run.json atomically and on the disk: temp file, fsync, rename,
// fsync of the folder. Secrets in Argv, Env and Changes are redacted in the
// file, not in m. On a full disk the reserve is given up and the write tried
// once more. Where that helps nothing and the run is over, the text is written
// into the blocks of the last reserve, which then becomes run.json: bytes that
// are never free cannot be taken by anybody else.
func (d *Dir) Save(m *Manifest) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	data, err := m.encode(d.red)
	if err != nil {
		return fmt.Errorf("writing %s: %w", ManifestFile, err)
	}
	path := d.File(ManifestFile)
	write := replaceFile
	if m.unstarted() {
		// A power cut takes nothing but a run in which nothing was started. The first
		// version with a command in it is synced, a moment later.
		write = func(path string, data []byte, perm os.FileMode) error { return renameOver(path, data, perm, false) }
	}
	err = write(path, data, 0o600)
	if noSpace(err) {
		d.ReleaseReserve()
		err = write(path, data, 0o600)
	}
	if noSpace(err) && m.State.Final() {
		if last := fillReserve(d.File(lastFile), path, data); last == nil {
			err = nil
		}
	}
	if err != nil {
		return fmt.Errorf("writing %s: %w", path, err)
	}
	return nil
}

func (m *Manifest) encode(red *Redactor) ([]byte, error) {
	c := *m
	c.Schema = ManifestSchema
	c.Argv = red.Argv(m.Argv)
	c.Env = redactMap(m.Env)
	if m.Pending != nil {
		p := *m.Pending
		p.Changes = redactChanges(p.Changes)
		c.Pending = &p
	}
	c.Attempts = make([]AttemptRecord, len(m.Attempts))
	for i, r := range m.Attempts {
		r.Changes = redactChanges(r.Changes)
		c.Attempts[i] = r
	}
	data, err := encodeJSON(&c, "  ")
	if err != nil {
		return nil, err
	}
	return red.JSON(data), nil
}

// ReadManifest reads run.json; path is the file or the run directory.
func ReadManifest(path string) (*Manifest, error) {
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		path = filepath.Join(path, ManifestFile)
	}
	// A pipe of that name would hold whoever looks for runs.
	data, err := configs.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("reading run: %w", err)
	}
	var m Manifest
	if err := json.Unmarshal(data, &m); err != nil {
		var syntax *json.SyntaxError
		if errors.As(err, &syntax) && len(strings.TrimSpace(string(data))) == 0 {
			return nil, fmt.Errorf("reading run: %s is empty", path)
		}
		return nil, fmt.Errorf("reading run: %s: %w", path, err)
	}
	if m.Schema != ManifestSchema {
		return nil, fmt.Errorf("reading run: %s has schema %q, this version reads %q", path, m.Schema, ManifestSchema)
	}
	return &m, nil
}

// unstarted is whether the run has started no command yet.
func (m *Manifest) unstarted() bool {
	return len(m.Attempts) <= 1 && (m.State == StatePreflight || m.State == StateStarting)
}

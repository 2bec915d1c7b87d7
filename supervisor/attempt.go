package supervisor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"sparkrun/internal/cores"
	"sparkrun/internal/event"
	"sparkrun/internal/job"
	"sparkrun/internal/sample"
	"sparkrun/ladder/oom"
	"sparkrun/ladder/trainer"
	"sparkrun/ladder/trainer/progress"
	"sparkrun/supervisor/engine"
	"sparkrun/supervisor/follow"
	"sparkrun/supervisor/guard"
	"sparkrun/supervisor/holder"
	"sparkrun/supervisor/hygiene"
	"sparkrun/supervisor/runlog"
)

// attempt is one start of the command: what it is started with, its holder, and
// what was learned while it ran.
type attempt struct {
	n     int
	dir   string
	rungs []string
	knobs job.Knobs
	// job is the command as it is understood, with the settings of this attempt.
	job     job.Job
	rewrite trainer.Rewrite
	changed []trainer.Change // against the command as typed, for the summary
	other   bool             // it trains by another method than asked for
	resume  []string         // what is said of the checkpoint it goes on from
	plan    stdinPlan
	// baseKiB is MemAvailable just before the start, 0 for unknown.
	baseKiB uint64

	start, end time.Time
	holder     *holder.Holder
	started    holder.Started
	client     *holder.Client
	cancel     context.CancelFunc
	linesDone  chan struct{}

	printed, written atomic.Int64
	offsetsKnown     atomic.Bool
	wakeMu           sync.Mutex
	wakes            []chan struct{}
	exited           chan struct{} // closed when the holder says so
	gated            chan struct{} // closed when the gate behind it is through
	orders           chan stopOrder
	cgroupOurs       bool // the --cgroup folder was empty before
	exit             atomic.Pointer[holder.Exit]
	pushed           atomic.Pointer[holder.Exit] // as the holder told it
	lost             atomic.Bool                 // the holder is gone and there will be no exit
	tail             atomic.Pointer[tail]

	stops   []oom.SignalSent
	cgroup  cgroupCount
	ownCG   cgroupCount
	vmKills sample.Num
	// before is what lay in shared memory before the start, to tell what is ours.
	before hygiene.Before
	// box is the container behind a container client; engineStatus is the exit
	// status that its engine gives.
	box          box
	engineStatus *int
	// ending is who ended it where that was sparkrun: the guard, or the limit for
	// one that hung. Written before its end is told.
	ending runlog.EndedBy
	// watched is why a watch of ours ends it, nil while none does.
	watched atomic.Pointer[watchEnd]
	// quiet is what tells a hang, limits what the child may use, space what was
	// left where it writes.
	quiet  quiet
	limits limits
	space  space

	mu       sync.Mutex
	tree     map[int]oom.TreeProc
	starts   map[int]uint64  // start time of those in tree, in clock ticks since boot
	shm      map[string]bool // what it was seen to hold in /dev/shm
	mapped   map[string]bool
	first    progress.Step
	last     progress.Step
	haveStep bool
	lossA    sample.Num
	lossB    sample.Num
	total    int64
	finished bool
	stepTime sample.Num
	// eta is how many seconds were left at the last step.
	eta sample.Num
	// diverge watches the loss; diverged says what it found, behind mu.
	diverge  progress.Divergence
	diverged string
	// shim is what the shim has told, once the attempt is judged.
	shim     shimmed
	output   oom.Output
	lastLine time.Time // of the output
	// steps understands the output and the trainer's own log files, which two
	// goroutines read; it, diverge and pending are behind stepMu. pending is the newest
	// step, held until the next one: its loss is printed on a line of its own, after
	// the bar.
	stepMu  sync.Mutex
	steps   *progress.Progress
	pending *runlog.Step
	logs    *trainLogs

	// lowest is the least MemAvailable while it ran, lastSample the newest reading,
	// told what the guard knows of it; behind mu.
	lowest     sample.Num
	lastSample *sample.Sample
	told       holder.Floors
	acted      *guard.Action // as the guard told it, for an attempt whose exit is lost
	toldAt     time.Time
	// asked counts how often its end was asked for; cleaned says that what it left
	// was looked for.
	asked   atomic.Int32
	cleaned atomic.Bool

	// What became of it; written by the loop.
	endKind runlog.EndKind
	verdict oom.Verdict
	missing sample.Num

	// ours are the changed copies of config files beside the user's own.
	ours []string
	// prints is where its processes were seen at work.
	prints footprint
	// goesOn is the step of the checkpoint that it was to go on from, 0 for none.
	goesOn int64

	// decided is the verdict as judge made it, there once judged is closed.
	judging bool // the loop's, as is gating
	gating  bool
	judged  chan struct{}
	decided oom.Verdict
}

// setJob takes over the settings that were in force in the attempt, once they are known.
func (a *attempt) setJob(k job.Knobs) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.job.Knobs = k
}

func (a *attempt) theJob() job.Job {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.job
}

const commandName = "command.json"

// commandFile is attempts/N/command.json.
type commandFile struct {
	Schema   string            `json:"schema"`
	Attempt  int               `json:"attempt"`
	Argv     []string          `json:"argv"`
	Path     string            `json:"path"`
	Cwd      string            `json:"cwd"`
	EnvAdded map[string]string `json:"env_added"`
	Rungs    []string          `json:"rungs"`
	Knobs    job.Knobs         `json:"knobs"`
	Diff     []string          `json:"diff"`
	Stdin    string            `json:"stdin"`
	PTY      bool              `json:"pty"`
}

// childEnv is the environment of an attempt: the user's own, without what an
// outer sparkrun added, and what this run adds.
func (r *run) childEnv(a *attempt) (env, added []string) {
	for _, e := range r.o.Env {
		name, _, _ := strings.Cut(e, "=")
		switch name {
		case "SPARKRUN_RUN_ID", "SPARKRUN_RUN_DIR", "SPARKRUN_ATTEMPT", "SPARKRUN_RUNG":
			continue
		}
		if strings.HasPrefix(name, "SPARKRUN_KNOB_") {
			continue
		}
		env = append(env, e)
	}
	rung := "none"
	if len(a.rungs) > 0 {
		rung = strings.Join(a.rungs, "+")
	}
	added = []string{
		"SPARKRUN_RUN_ID=" + r.dir.ID,
		"SPARKRUN_RUN_DIR=" + r.dir.Path,
		"SPARKRUN_ATTEMPT=" + strconv.Itoa(a.n),
		"SPARKRUN_RUNG=" + rung,
	}
	j := r.job
	j.Knobs = a.knobs
	added = append(added, trainer.KnobEnv(j)...)
	if r.o.NoPTY {
		added = append(added, "PYTHONUNBUFFERED=1")
	}
	added = append(added, a.rewrite.Env...)
	added = append(added, r.trackerEnv(a)...)
	return overlay(env, added), added
}

// overlay puts words over an environment: of a name that stands twice a program takes
// the first or the last, as it likes.
func overlay(env, over []string) []string {
	set := map[string]bool{}
	for _, e := range over {
		name, _, _ := strings.Cut(e, "=")
		set[name] = true
	}
	out := make([]string, 0, len(env)+len(over))
	for _, e := range env {
		if name, _, _ := strings.Cut(e, "="); !set[name] {
			out = append(out, e)
		}
	}
	// Of ours too the last one counts.
	for i, e := range over {
		name, _, _ := strings.Cut(e, "=")
		last := !slices.ContainsFunc(over[i+1:], func(later string) bool { return strings.HasPrefix(later, name+"=") })
		if last {
			out = append(out, e)
		}
	}
	return out
}

// reachInside is the attempt's command, in which a container is given what it would
// otherwise not inherit: which attempt it is, and the tracker's run. It is not given the
// run's ID, by which the processes of the command are told from those of its container.
func (r *run) reachInside(a *attempt, added []string) []string {
	if r.job.Container == nil {
		return a.rewrite.Argv
	}
	env := r.trackerEnv(a)
	for _, e := range added {
		if name, _, _ := strings.Cut(e, "="); name == "SPARKRUN_ATTEMPT" || name == "SPARKRUN_RUNG" {
			env = append(env, e)
		}
	}
	argv, err := r.set.Inside(r.job, a.rewrite.Argv, env)
	if err != nil {
		r.log.Event(event.Event{Attempt: a.n, Kind: event.Hygiene, Level: event.Warn, Msg: "the training in the container is not told its attempt and tracker run: " + err.Error()})
	}
	return argv
}

// prepare makes the attempt's folder and everything in it that must be there
// before the child exists. It runs on the launching goroutine. A full disk is no
// reason not to start: what could not be written is told.
func (r *run) prepare(a *attempt) (holder.Spec, error) {
	var spec holder.Spec
	r.dir.RefillReserve()
	if _, err := r.dir.MakeAttempt(a.n); err != nil {
		return spec, err
	}
	// Present from the start, so that every reader finds it.
	f, err := os.OpenFile(filepath.Join(a.dir, "output.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return spec, fmt.Errorf("making the output file of attempt %d: %w", a.n, err)
	}
	f.Close()
	if a.n == 1 {
		bounded(nil, 3*time.Second, r.noteBefore)
	}
	bounded(nil, time.Second, func() { r.markOutput(a) })
	if err := r.writeFiles(a); err != nil {
		return spec, err
	}
	a.steps = r.set.NewProgress(a.job)
	a.steps.GoesOn(a.goesOn)
	a.logs = followTrainLogs(context.Background(), r.set.TrainerLogs(a.job), r.clk.Now, func(rec []byte, t time.Time) { r.onRecord(a, rec, t) })
	env, added := r.childEnv(a)
	a.before = hygiene.Snapshot()
	argv := r.planContainer(a, r.reachInside(a, added), env)
	path := r.path
	if argv[0] != r.argv[0] {
		if path, err = lookCommand(argv[0], r.o.Dir, r.o.Env); err != nil {
			return spec, err
		}
	}
	a.plan = r.stdin.plan(a.n, !r.o.NoPTY)
	rows, cols := r.term.windowSize()
	spec = holder.Spec{
		V: 1, RunID: r.dir.ID, Attempt: a.n, Dir: a.dir,
		Path: path, Argv: argv, Cwd: r.o.Dir, Env: env,
		PTY: !r.o.NoPTY, Rows: rows, Cols: cols, Stdin: a.plan.mode,
		Cgroup: r.o.Cgroup, OOMScoreAdj: childOOMScoreAdj,
		Grace: r.o.Grace, MinFree: r.o.MinFree, Reserve: filepath.Join(r.dir.Path, runlog.ReserveName),
		Guard: r.o.Guard, Clock: r.clk, AwaitTree: a.box.client && a.box.plan.Reach != engine.ReachNone,
	}
	if r.sockDir != "" {
		spec.Socket = filepath.Join(r.sockDir, r.dir.ID+"."+strconv.Itoa(a.n)+".sock")
	}
	if a.plan.note != "" {
		r.log.Event(event.Event{Attempt: a.n, Kind: event.Hygiene, Level: event.Warn, Msg: a.plan.note})
	}
	r.writeSmall(a, commandName, commandFile{
		Schema: "sparkrun.command/1", Attempt: a.n, Argv: r.secrets.Argv(argv), Path: path, Cwd: r.o.Dir,
		EnvAdded: r.secrets.Env(added), Rungs: a.rungs, Knobs: a.knobs, Diff: r.redactAll(a.rewrite.Diff),
		Stdin: a.plan.mode, PTY: !r.o.NoPTY,
	})
	return spec, nil
}

// writeSmall writes a small JSON file of an attempt. On a full disk the reserve
// is given up for it; a file that cannot be written even then is told.
func (r *run) writeSmall(a *attempt, name string, v any) {
	path := filepath.Join(a.dir, name)
	b, err := json.MarshalIndent(v, "", "  ")
	if err == nil {
		b = append(r.secrets.JSON(b), '\n')
		write := runlog.WriteFile
		if name == commandName {
			// The command is waiting for it.
			write = runlog.WriteFileSoon
		}
		if name == verdictFile {
			err = r.dir.WriteVerdict(path, b)
		} else if err = write(path, b); errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
			r.dir.ReleaseReserve()
			err = write(path, b)
		}
	}
	if err != nil {
		r.log.Event(event.Event{Attempt: a.n, Kind: event.Internal, Level: event.Error, Msg: err.Error()})
	}
}

func (r *run) redactAll(lines []string) []string {
	out := make([]string, len(lines))
	for i, l := range lines {
		out[i] = r.secrets.Text(l)
	}
	return out
}

// childOOMScoreAdj makes the kernel choose the training before us, the session
// and the desktop.
const childOOMScoreAdj = 500

// writeFiles writes what the attempt's command needs: changed copies and the shim. On a
// full disk the reserve is given up for it.
func (r *run) writeFiles(a *attempt) error {
	again := func(f func() error) error {
		err := f()
		if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
			r.dir.ReleaseReserve()
			err = f()
		}
		return err
	}
	for _, dir := range a.rewrite.Dirs {
		if err := again(func() error { return makeShimDir(dir) }); err != nil {
			return err
		}
	}
	for _, file := range a.rewrite.Files {
		write := func() error { return r.writeChanged(a, file) }
		if file.Original == "" {
			write = func() error { return writeShim(file) }
		}
		if err := again(write); err != nil {
			return err
		}
	}
	return nil
}

// writeChanged writes a changed copy of the user's config file and remembers to
// remove it. The user's own file is never touched. The attempt keeps a copy
// without secrets, and the diff.
func (r *run) writeChanged(a *attempt, file trainer.File) error {
	f, err := os.OpenFile(file.Path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if errors.Is(err, fs.ErrExist) && slices.Contains(a.ours, file.Path) {
		// The second try after a full disk.
		f, err = os.OpenFile(file.Path, os.O_TRUNC|os.O_WRONLY, 0o600)
	}
	if err != nil {
		return fmt.Errorf("writing the changed copy of %s: %w", file.Original, err)
	}
	if !slices.Contains(a.ours, file.Path) {
		a.ours = append(a.ours, file.Path)
	}
	defer func() { r.noteMade(file.Path) }() // as it is when it is left alone
	_, err = f.Write(file.Content)
	if file.Mode != 0 && file.Mode != 0o600 {
		err = errors.Join(err, f.Chmod(file.Mode)) // for a container's user
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("writing the changed copy of %s: %w", file.Original, err)
	}
	kept := filepath.Join(a.dir, filepath.Base(file.Original))
	err = os.WriteFile(kept, []byte(r.secrets.Config(string(file.Content))), 0o600)
	if err == nil {
		err = os.WriteFile(kept+".diff", []byte(strings.Join(r.redactAll(a.rewrite.Diff), "\n")+"\n"), 0o600)
	}
	if err != nil {
		// For whoever looks at the run later; the training does not need it.
		r.log.Event(event.Event{Attempt: a.n, Kind: event.Internal, Level: event.Warn, Msg: "the attempt's own copy of the changed config is not kept: " + err.Error()})
	}
	return nil
}

// mostCores are for the readers of an output that comes fast: the terminal, run.log and
// what understands it.
const mostCores = 4

// leanAfter is when what a start looks up is found out.
const leanAfter = 5 * time.Second

// launch prepares the attempt, starts the holder and, once the child exists, the
// readers. It runs on a goroutine of its own and reports through the inbox.
func (r *run) launch(a *attempt) {
	spec, err := r.prepare(a)
	if err == nil {
		a.holder, a.started, err = holder.Start(r.o.Exe, spec, a.plan.file)
	}
	if a.plan.own {
		a.plan.file.Close()
	}
	if err != nil {
		if a.logs != nil {
			a.logs.stop(0)
		}
		status := StatusError
		var se *holder.StartError
		var ce *StatusErr
		switch {
		case errors.As(err, &se):
			status = se.Status()
		case errors.As(err, &ce):
			status = ce.Status
		}
		r.post(Input{Kind: NotStarted, Status: status, Reason: err.Error()}, nil)
		return
	}
	r.diag.Debug("child started", "attempt", a.n, "holder_pid", a.started.HolderPID, "child_pid", a.started.ChildPID, "socket", spec.Socket, "socket_err", a.started.SocketErr)
	for _, note := range a.started.Notes {
		r.log.Event(event.Event{Attempt: a.n, Kind: event.Hygiene, Level: event.Info, Msg: note})
	}
	r.attach(a, spec)
	r.live.Store(a)
	r.resize() // the window may have changed while the child was being started
	if r.term.isLost() && a.client != nil {
		_ = a.client.Stdin([]byte{keyEOF}) // it went away while we were attaching
	}
	go r.describe()
	time.AfterFunc(leanAfter, func() { r.lean(a) })
	// In this order: the end must not overtake the start.
	r.post(Input{Kind: ChildStarted}, nil)
	go r.awaitEnd(a)
}

// lean makes little of this process while an attempt goes on: what the start needed goes
// back to the machine, whose memory is scarce.
func (r *run) lean(a *attempt) {
	over := func() bool { return r.live.Load() != a || a.exit.Load() != nil || a.lost.Load() }
	if over() {
		return
	}
	debug.FreeOSMemory()
	cores.Rest(mostCores)
	if over() {
		cores.Work() // it has just ended
	}
}

// attach connects to a holder and starts everything that follows the child.
func (r *run) attach(a *attempt, spec holder.Spec) {
	ctx, cancel := context.WithCancel(context.Background())
	a.cancel = cancel
	if spec.Socket != "" && a.started.SocketErr == "" {
		c, err := holder.Dial(spec.Socket, holder.RoleSupervisor)
		if err != nil {
			a.started.SocketErr = err.Error()
		} else {
			a.client = c
		}
	}
	// A command that was over at once may have taken its holder with it.
	_, errExit := holder.ReadExit(a.dir)
	if a.client == nil && errExit != nil && (a.started.SocketErr != "" || spec.Socket == "") {
		why := a.started.SocketErr
		if why == "" {
			why = r.sockErr
		}
		r.log.Event(event.Event{
			Attempt: a.n, Kind: event.Internal, Level: event.Warn,
			Msg: "no socket to the holder (" + why + "): the run goes on, but typing, resizing and output on a full disk are cut off",
		})
	}
	source := func() follow.Source {
		// Without a socket nobody wakes a reader, and it polls.
		var wake chan struct{}
		if a.client != nil {
			wake = make(chan struct{}, 1)
			a.wakes = append(a.wakes, wake)
		}
		s := follow.Source{
			Dir: a.dir, Wake: wake,
			Total: func() (int64, int64, bool) { return a.printed.Load(), a.written.Load(), a.offsetsKnown.Load() },
			Final: func() (int64, bool) {
				if e := a.exit.Load(); e != nil {
					return e.Offset, true
				}
				return -1, a.lost.Load()
			},
		}
		if a.client != nil {
			s.Ring = a.fromMemory
		}
		return s
	}
	screenReader := follow.NewReader(source(), 0)
	lineReader := follow.NewReader(source(), 0)
	r.screenq <- screenReader
	a.linesDone = make(chan struct{})
	go r.followLines(ctx, a, lineReader)
	if a.client != nil {
		// Until the child prints, nobody tells how much: readers that know there
		// is nothing need not ask.
		if st, err := a.client.Status(); err == nil {
			a.printed.Store(st.Offset)
			a.written.Store(st.Written)
			a.offsetsKnown.Store(true)
		}
		go a.pump(r)
	}
	go r.watchTree(ctx, a)
	go r.watchQuiet(ctx, a)
	go r.watchHang(ctx, a)
	go r.meetPace(ctx, a)
	go r.watchOthers(ctx.Done(), a)
	go a.space.watch(ctx, r.writesTo(a))
	go r.followContainer(ctx, a)
	go a.takeOrders(r)
}

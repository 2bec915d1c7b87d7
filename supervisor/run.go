package supervisor

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"sort"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/sys/unix"

	"sparkrun/configs"
	"sparkrun/internal/clock"
	"sparkrun/internal/event"
	"sparkrun/internal/hostfacts"
	"sparkrun/internal/job"
	"sparkrun/internal/meminfo"
	"sparkrun/internal/modelsize"
	"sparkrun/internal/proctree"
	"sparkrun/internal/sample"
	"sparkrun/ladder"
	"sparkrun/ladder/oom"
	"sparkrun/ladder/trainer"
	"sparkrun/ladder/trainer/progress"
	"sparkrun/ladder/trainer/shim"
	"sparkrun/preflight"
	"sparkrun/sampler"
	"sparkrun/sampler/throttle"
	"sparkrun/supervisor/follow"
	"sparkrun/supervisor/gate"
	"sparkrun/supervisor/guard"
	"sparkrun/supervisor/runlog"
)

// run is one run: everything in it belongs to the goroutine of loop, except
// what is atomic, behind mu, or a queue.
type run struct {
	o    Options
	path string // of the program to execute
	job  job.Job
	argv []string // with placeholders filled in

	// asked is the job as it was understood at the start: nobody changes it, and every
	// goroutine may read it. job has in addition what was learned since.
	asked job.Job

	set *trainer.Set
	lad ladder.Ladder
	// table reads the crash signatures at its first call, beside the child's own
	// start: they are needed only when it speaks.
	table func() *oom.Table
	heat  throttle.Config

	dir    *runlog.Dir
	unlock func()
	// secrets knows the values that must reach no file of ours.
	secrets *runlog.Redactor
	log     *runlog.Log
	diag    hclog.Logger // our own doings, for whoever debugs sparkrun
	clk     clock.Clock
	man     *runlog.Manifest
	saver   *saver
	// over is closed when the run is in a final state: nobody takes messages
	// any more.
	over chan struct{}
	// tableErr says why there are no signatures; read it after table.
	tableErr error
	sockDir  string
	sockErr  string

	term    *terminal
	stdin   stdinSource
	screen  *follow.Screen
	screenq chan *follow.Reader
	shown   chan struct{} // closed when the screen has shown everything
	// describe finds out about host and command, once. It is not in a hurry,
	// unlike the child's start.
	describe func()

	samp *sampler.Sampler
	caps capsInForce
	// actors do something about heat and pace; made before the first sample.
	actors []actor
	kernel *kernelLog

	m        Machine
	inbox    chan message
	live     atomic.Pointer[attempt] // the attempt whose child is there
	keys     keyboard                // the keyboard goroutine's own
	hintOnce sync.Once
	lostOnce sync.Once
	att      *attempt
	all      []*attempt
	past     []ladder.Past
	next     *attempt           // what the gate decided to start
	endLife  context.CancelFunc // ends what lives as long as the run
	cancel   context.CancelFunc // gives up what is under way: preflight, gate
	gate     time.Duration
	start0   gate.Reading // memory when the run started
	places   runlog.Places
	// holders and gpuHeld are what processes held then, by pid, for the gate to see
	// who came; behind mu.
	holders, gpuHeld map[int]uint64
	swapBefore       preflight.SwapReading
	began            time.Time     // by the file system's clock, to tell what the run has written
	checked          chan struct{} // closed when preflight has written what it writes
	// lookedBack is closed when earlier runs without an end have been told.
	lookedBack chan struct{}
	advice     []string
	// modelSeen is what the base model's files or its name said; it may come late.
	modelSeen atomic.Pointer[modelsize.Size]
	// refused are the knobs that could not be turned in this command when it was
	// tried, with the reason.
	refused map[job.Knob]string
	// made is what was made among the user's files, removed at the end.
	made madeList
	// looked is what was last read from the disk for a decision; hashes are the sums of
	// the command's own files at the start.
	looked *looked
	hashes map[string]string
	// claimed are the output folders that were made for attempts; behind made.mu.
	claimed []string
	marks   marks
	// before has what lay in the job's folders before the first attempt, where the file
	// system does not tell when a file came into being; noBirth takes every one for such.
	before   map[fileID]bool
	noBirth  bool
	trackers trackers

	treePIDs atomic.Pointer[[]int]
	diskFull sync.Once

	mu       sync.Mutex
	found    found
	detector *throttle.Detector
	lowest   sample.Num
	lowestAt time.Time
	hottest  sample.Num
	nowStep  sample.Num
	nowAt    time.Time // of nowStep
	nowTime  sample.Num
	// nowTokens are those that the attempt says it has trained on.
	nowTokens sample.Num
	nowN      int
	progFile  *runlog.ProgressLog
}

// found is what is learned about machine and command while the run goes on.
type found struct {
	git         *runlog.GitState
	hashes      map[string]string
	packages    map[string]string
	gpu, driver string
	facts       hostfacts.Facts
}

// message is an input together with what the loop must take over with it.
type message struct {
	in    Input
	apply func()
}

// post hands something to the loop.
func (r *run) post(in Input, apply func()) {
	select {
	case r.inbox <- message{in, apply}:
	case <-r.over:
	}
}

// Run runs a command to its end and returns how it went. An error means that
// nothing was started, or that sparkrun itself could not go on; *StatusErr
// carries the exit status.
func Run(o Options) (Result, error) {
	r := &run{o: o, inbox: make(chan message, 64), screenq: make(chan *follow.Reader, 1024), shown: make(chan struct{}), over: make(chan struct{}), checked: make(chan struct{}), lookedBack: make(chan struct{}), began: time.Now(), swapBefore: preflight.ReadSwap()}
	// Caught before anything exists, so that no signal ends us half-way.
	sigs := catchSignals()
	defer signal.Stop(sigs)
	r.table = sync.OnceValue(r.signatures)
	if err := unlessStopped(sigs, r.understand); err != nil {
		return Result{}, err
	}
	life, endLife := context.WithCancel(context.Background())
	defer endLife()
	work, cancel := context.WithCancel(life)
	defer cancel()
	r.endLife, r.cancel = endLife, cancel
	if err := unlessStopped(sigs, func() error { return r.open(life) }); err != nil {
		return Result{}, err
	}
	defer r.term.close()
	r.loop(work, sigs)
	return Result{State: r.m.State, Status: r.m.Status, RunDir: r.dir.Path}, nil
}

// signatures reads the crash signatures. They are built in and every one of them
// is tested, so that an error is a broken binary: told, and the run goes on
// without them.
func (r *run) signatures() *oom.Table {
	t, err := oom.Load()
	if err != nil {
		r.tableErr = err
		return &oom.Table{}
	}
	return t
}

// thresholds reads the throttle thresholds, with those of a user's file in place
// of the built-in ones.
func thresholds(path string) (throttle.Config, error) {
	if path == "" {
		return throttle.Load()
	}
	data, err := configs.ReadFile(path)
	if err != nil {
		return throttle.Config{}, fmt.Errorf("reading --thermal-config: %w", err)
	}
	return throttle.Parse(path, data)
}

// diagnostics opens sparkrun.log of the run directory: state changes and process
// ids, for people who look for a fault in sparkrun itself. Without the file the
// run is as good.
func diagnostics(d *runlog.Dir, clk clock.Clock, level string) hclog.Logger {
	f, err := os.OpenFile(d.File("sparkrun.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return hclog.NewNullLogger()
	}
	l := hclog.LevelFromString(level)
	if l == hclog.NoLevel {
		l = hclog.Debug
	}
	return hclog.New(&hclog.LoggerOptions{Name: "supervisor", Level: l, Output: newBehind(f), TimeFn: clk.Now, TimeFormat: clock.Layout})
}

// behind is a writer that never waits: lines are written by a goroutine, and
// dropped while a disk does not take them.
type behind chan []byte

func newBehind(f *os.File) behind {
	b := make(behind, 256)
	go func() {
		for line := range b {
			_, _ = f.Write(line) // of no use without the disk, and of no harm
		}
	}()
	return b
}

func (b behind) Write(p []byte) (int, error) {
	select {
	case b <- bytes.Clone(p):
	default:
	}
	return len(p), nil
}

// unlessStopped runs what comes before the loop while signals are heard: a file
// on a network mount that does not answer must not make us deaf.
func unlessStopped(sigs <-chan os.Signal, f func() error) error {
	done := make(chan error, 1)
	go func() { done <- f() }()
	for {
		select {
		case err := <-done:
			return err
		case s := <-sigs:
			switch s {
			case unix.SIGINT, unix.SIGTERM, unix.SIGQUIT:
				name := unix.SignalName(s.(syscall.Signal))
				return failf(128+signalNumber[name], "%s before anything was started", name)
			}
		}
	}
}

// catchSignals makes every signal that could end or stop us a message. SIGPIPE
// becomes a write error (which means no terminal, never an exit), and SIGTTOU
// and SIGTTIN are ignored so that a background run is never stopped for writing
// to its terminal; the exec step gives the child default dispositions again.
func catchSignals() chan os.Signal {
	sigs := make(chan os.Signal, 32)
	signal.Notify(sigs, unix.SIGINT, unix.SIGTERM, unix.SIGQUIT, unix.SIGHUP, unix.SIGPIPE, unix.SIGWINCH, unix.SIGCONT, unix.SIGTSTP)
	signal.Ignore(unix.SIGTTOU, unix.SIGTTIN)
	return sigs
}

// understand reads tables and command. Nothing exists yet, so every error here
// leaves nothing behind.
func (r *run) understand() error {
	var err error
	if r.argv, err = trainer.Expand(r.o.Argv, r.o.Knobs); err != nil {
		return failf(StatusError, "%w", err)
	}
	if r.path, err = lookCommand(r.argv[0], r.o.Dir, r.o.Env); err != nil {
		return err
	}
	if err := r.understandCommand(); err != nil {
		return err
	}
	if r.heat, err = thresholds(r.o.ThermalConfig); err != nil {
		return failf(StatusError, "throttle thresholds: %w", err)
	}
	if r.o.Cgroup != "" {
		if unix.Access(filepath.Join(r.o.Cgroup, "cgroup.procs"), unix.W_OK) != nil {
			return failf(StatusError, "--cgroup %s: no cgroup folder that can be written (its cgroup.procs)", r.o.Cgroup)
		}
	}
	if r.resumePath() != "" {
		r.looked = r.look(r.job)
		if c := chooseResume(r.resumeInput(nil, nil, false)); c.Refuse != "" {
			return failf(StatusError, "--resume %s: %s", r.o.Resume, c.Refuse)
		}
	}
	r.start0 = gate.Read("/")
	if err := r.o.Guard.CheckFor(r.start0.TotalKiB); err != nil && !r.o.Guard.Off {
		return failf(StatusError, "--guard-floor, --guard-soft: %w", err)
	}
	if floor := r.hardFloorKiB(); floor > 0 && r.start0.Known && floor >= r.start0.AvailKiB {
		return failf(StatusError, "--guard-floor: the floor of %s is not below the %s that are available now, so that the guard would end the command at once; lower it, free memory, or take --no-guard",
			guard.Size(floor), guard.Size(r.start0.AvailKiB))
	}
	return nil
}

// loadProfiles reads the trainer profiles: the built-in ones, those of the user's
// folders, and those beside the job.
func loadProfiles(o Options) (*trainer.Set, error) {
	set, err := trainer.Load(o.ProfileDirs)
	if err == nil && o.ProfileFile != "" {
		err = set.AddLocal(o.ProfileFile)
	}
	if err != nil {
		return nil, failf(StatusError, "trainer profile: %w", err)
	}
	if o.root != "" {
		set = set.Under(o.root)
	}
	return set, nil
}

// understandCommand reads profiles and ladder, and what the command says of itself.
func (r *run) understandCommand() error {
	var err error
	if r.set, err = loadProfiles(r.o); err != nil {
		return err
	}
	if r.lad, err = ladder.Load(r.o.Ladder); err != nil {
		return failf(StatusError, "ladder: %w", err)
	}
	rungs := r.lad.RungNames()
	for _, name := range r.o.Deny {
		if !slices.Contains(rungs, name) {
			return failf(StatusError, "--deny: ladder %s has no rung %q; its rungs are %s", r.o.Ladder, name, strings.Join(rungs, ", "))
		}
	}
	allowances := append(ladder.Allowances(), AllowRestart)
	for _, name := range r.o.Allow {
		if !slices.Contains(rungs, name) && !slices.Contains(allowances, name) {
			return failf(StatusError, "--allow: ladder %s has no rung %q; there are %s, and beside the rungs %s", r.o.Ladder, name, strings.Join(rungs, ", "), strings.Join(allowances, ", "))
		}
	}
	if r.job, err = r.set.Understand(r.o.Argv, r.o.Dir, r.o.Env, r.o.Knobs); err != nil {
		return failf(StatusError, "%w", err)
	}
	r.asked = r.job
	r.hashes = r.hashOwn()
	return nil
}

// open makes the run directory and starts everything that lives as long as the
// run.
func (r *run) open(life context.Context) (err error) {
	r.clk = clock.Start()
	places := runlog.Places{Getenv: func(n string) string { return lookupEnv(r.o.Env, n) }, Cwd: r.o.Dir, Home: lookupEnv(r.o.Env, "HOME")}
	r.dir, err = runlog.Create(places, r.o.RunsDir, runlog.Name(r.o.Argv, r.o.Name), r.clk.Wall)
	if err != nil {
		return failf(StatusError, "%w", err)
	}
	defer func() {
		if err != nil { // half a run is none
			_ = os.RemoveAll(r.dir.Path)
			if r.unlock != nil {
				r.unlock()
			}
		}
	}()
	if err := shim.CanUse(r.dir.Attempt(1)); err != nil && r.job.ShimRefused == "" && r.job.Container == nil {
		// Said at the start and not at the first death.
		r.job.ShimRefused = err.Error()
		r.asked.ShimRefused = r.job.ShimRefused
	}
	if r.log, err = runlog.OpenLog(r.dir, r.clk); err != nil {
		return failf(StatusError, "%w", err)
	}
	if r.sockDir, err = runlog.SocketDir(os.Getuid()); err != nil {
		r.sockErr, r.sockDir = err.Error(), ""
	}
	if r.unlock, err = r.dir.Lock(); err != nil {
		r.log.Event(event.Event{Kind: event.Internal, Level: event.Warn, Msg: "the run cannot be locked against a second supervisor: " + err.Error()})
		r.unlock = func() {}
	}
	r.term = newTerminal(r.o.Stdin, r.o.Stdout, r.o.Stderr)
	r.stdin = newStdinSource(r.o.Stdin)
	r.screen = follow.NewScreen(r.o.Stdout, r.o.Stderr, follow.ScreenOptions{})
	r.secrets = runlog.NewRedactor(r.o.Env)
	r.dir.SetRedactor(r.secrets)
	r.log.SetRedactor(r.secrets)
	r.log.SetMinFree(int64(min(r.o.MinFree, 1<<62)))
	r.log.Subscribe(r.show)
	r.diag = diagnostics(r.dir, r.clk, lookupEnv(r.o.Env, "SPARKRUN_LOG_LEVEL"))
	go r.showChild()
	go func() {
		<-r.screen.Lost()
		r.log.Event(event.Event{Kind: event.TerminalLost, Level: event.Warn, Msg: "the terminal is gone; the run goes on without it"})
	}()
	r.places = places
	if r.progFile, err = runlog.OpenProgress(r.dir, r.clk); err != nil {
		return failf(StatusError, "%w", err)
	}
	r.kernel = followKernel(life, r.clk, r.o.Env, r.log.Event, r.wasOurs)
	r.detector = throttle.New(r.heat)
	r.detector.Names = r.gpuNames()
	r.startActing(life)
	r.samp, err = sampler.Start(life, sampler.Options{
		Exe: r.o.Exe, Clock: r.clk, Dir: r.dir.Path, Interval: r.o.Interval, Tick: r.o.TelemetryInterval, Root: r.o.SensorRoot,
		Tree: func() []int {
			if p := r.treePIDs.Load(); p != nil {
				return *p
			}
			return nil
		},
		Progress:  r.progressNow,
		Tokens:    r.tokensNow,
		CgroupDir: func() string { return r.o.Cgroup },
		Events:    r.log.Event,
		OnSample:  r.onSample,
	})
	if err != nil {
		r.samp = nil
		r.log.Event(event.Event{Kind: event.SensorGap, Level: event.Error, Msg: "no sampling in this run: " + err.Error()})
	} else {
		go r.meetGPU(life)
	}
	if r.o.SensorRoot != "" {
		r.log.Event(event.Event{Kind: event.SensorAbsent, Level: event.Warn, Msg: "a test: the sensors are those recorded under " + r.o.SensorRoot + ", not this machine's", Data: map[string]any{"root": r.o.SensorRoot}})
	}
	if r.next, err = r.firstAttempt(); err != nil {
		return failf(StatusError, "%w", err)
	}
	r.trackers = r.findTrackers()
	r.man = r.newManifest()
	r.m = Machine{State: Preflight}
	r.saver = startSaver(r.dir, func(err error) {
		r.log.Event(event.Event{Kind: event.Internal, Level: event.Error, Msg: err.Error()})
	})
	go r.tellLost(life, r.copyFolders())
	r.describe = sync.OnceFunc(func() { r.findOut(life) })
	return nil
}

// loop is the goroutine that owns the run.
func (r *run) loop(ctx context.Context, sigs chan os.Signal) {
	stopKeys := make(chan struct{})
	defer close(stopKeys)
	if !r.o.NoPTY {
		if err := r.term.keys(stopKeys, func(b []byte) { r.typed(ctx, b) }, r.terminalLost); err != nil {
			r.log.Event(event.Event{Kind: event.Internal, Level: event.Warn, Msg: "the keyboard is not read: " + err.Error()})
		}
	}
	r.step(ctx, Input{Kind: Begin})
	steps := time.NewTicker(10 * time.Second)
	defer steps.Stop()
	var lastStep time.Duration
	for !r.m.State.Final() {
		select {
		case msg := <-r.inbox:
			if msg.apply != nil {
				msg.apply()
			}
			r.step(ctx, msg.in)
		case s := <-sigs:
			r.onSignal(ctx, s)
		case <-steps.C:
			if d := r.clk.Step(); (d - lastStep).Abs() > time.Second {
				r.log.Event(event.Event{
					Kind: event.ClockStep, Level: event.Info,
					Msg:  fmt.Sprintf("the machine's clock moved by %.1f s; this run keeps its own time, the real time is %s", (d - lastStep).Seconds(), clock.Machine(time.Now())),
					Data: map[string]any{"step_s": (d - lastStep).Seconds(), "real": clock.Machine(time.Now())},
				})
				lastStep = d
			}
		}
	}
	r.end(sigs)
}

// end lets finish write everything down while signals are still heard: one of
// them ends the waiting for a slow disk or terminal.
func (r *run) end(sigs chan os.Signal) {
	leave, done := make(chan struct{}), make(chan struct{})
	go func() {
		r.finish(leave)
		close(done)
	}()
	for left := false; ; {
		select {
		case <-done:
			return
		case s := <-sigs:
			switch s {
			case unix.SIGINT, unix.SIGTERM, unix.SIGQUIT:
				if !left {
					left = true
					close(leave)
				}
			case unix.SIGHUP:
				r.terminalLost()
			}
		}
	}
}

// step lets the machine take an input: the state is on disk before any effect
// of it begins, so that a later supervisor could take over from there.
func (r *run) step(ctx context.Context, in Input) {
	before := r.m.State
	var acts []Action
	r.m, acts = Next(r.m, in)
	if in.Kind != "" {
		r.diag.Debug("step", "input", in.Kind, "from", before, "to", r.m.State, "attempt", r.m.Attempt, "status", in.Status, "actions", acts)
	}
	// Begin with nothing to check has no effect that could be taken over.
	if (r.m.State != before || len(acts) > 0) && (in.Kind != Begin || !r.o.NoPreflight) {
		r.setPending(acts)
		wait := saveWait
		if slices.Contains(acts, DoStop) || slices.Contains(acts, DoHurry) || slices.Contains(acts, DoFinish) {
			wait = 0 // a signal is passed on at once, and the end is written by finish
		}
		r.saveManifest(wait)
	}
	for _, a := range acts {
		r.do(ctx, a)
	}
}

// do begins one effect. None of them blocks the loop.
func (r *run) do(ctx context.Context, a Action) {
	switch a {
	case DoPreflight:
		go r.preflight(ctx)
	case DoStart:
		r.start()
	case DoStop:
		r.beginStop()
	case DoHurry:
		r.hurry()
	case DoEnd:
		r.beginEnd()
	case DoJudge:
		r.att.judging = true
		go r.judge(ctx, r.att)
	case DoGate:
		r.att.gating = true
		go r.passGate(ctx, r.att)
	case DoCancel:
		r.cancel()
	case DoFinish:
		close(r.over)
	}
}

// isOurs says whether a process is or was part of the training.
func (r *run) isOurs(pid int) bool {
	a := r.live.Load()
	if a == nil {
		return false
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	_, ok := a.tree[pid]
	return ok || pid == a.started.ChildPID
}

// livesOn says whether a process of the training is still there: its number may
// have been given to somebody else since.
func (r *run) livesOn(pid int) bool {
	a := r.live.Load()
	if a == nil {
		return false
	}
	p, ok := proctree.Read(pid)
	a.mu.Lock()
	defer a.mu.Unlock()
	start, was := a.starts[pid]
	return ok && was && p.Start == start
}

// wasOurs says of a process that may have been too short-lived to be remembered,
// and is perhaps not reaped yet, whether it is part of the training.
func (r *run) wasOurs(pid int) bool {
	if r.isOurs(pid) {
		return true
	}
	a := r.live.Load()
	if a == nil {
		return false
	}
	for _, p := range proctree.Walk(a.started.HolderPID) {
		if p.PID == pid {
			return true
		}
	}
	return false
}

// resize gives the child's terminal the size of ours. A lost one is made good by
// the next.
func (r *run) resize() {
	if a := r.live.Load(); a != nil && a.client != nil {
		rows, cols := r.term.windowSize()
		go func() { _ = a.client.Resize(rows, cols) }()
	}
}

// onSignal is what a signal to sparkrun means.
func (r *run) onSignal(ctx context.Context, s os.Signal) {
	switch s {
	case unix.SIGWINCH:
		r.resize()
	case unix.SIGHUP:
		// The terminal is gone (an SSH connection dropped, a window closed).
		// The run goes on without it.
		r.terminalLost()
	case unix.SIGCONT:
		r.term.raw()
	case unix.SIGTSTP:
		// Stop only ourselves, with the terminal as it was; the child goes on
		// under its holder.
		r.term.restore()
		suspend()
	case unix.SIGINT, unix.SIGTERM, unix.SIGQUIT:
		r.askStop(ctx, unix.SignalName(s.(syscall.Signal)))
	}
}

// askStop is a user's wish to end the run, from a signal or a key.
func (r *run) askStop(ctx context.Context, name string) {
	now := r.clk.Now()
	text := name + ": ending the run"
	if r.m.StopCount > 0 {
		text = name + " again: not waiting any longer"
	} else if r.m.State == Running {
		text = fmt.Sprintf("%s: passed on to the command, which has %s to end by itself (again to hurry)", name, human(r.o.Grace))
	}
	r.log.Event(event.Event{T: now, Attempt: r.m.Attempt, Kind: event.RunStop, Level: event.Info, Msg: text, Data: map[string]any{"signal": name}})
	switch r.m.State {
	case Starting, Running, Stopping:
		r.att.stops = append(r.att.stops, oom.SignalSent{Name: name, By: "user", T: now})
	}
	r.step(ctx, Input{Kind: StopAsked, Signal: name})
}

// start begins the next attempt.
func (r *run) start() {
	a := r.next
	r.next = nil
	r.att = a
	a.job = r.job
	a.job.Knobs = a.knobs
	a.diverge = r.divergence(a)
	r.all = append(r.all, a)
	if info, err := meminfo.Read("/"); err == nil {
		a.baseKiB, _ = info.Available()
	}
	a.dir = r.dir.Attempt(a.n)
	a.start = r.clk.Now()
	r.mu.Lock()
	r.nowN, r.nowStep, r.nowTime, r.nowTokens, r.nowAt = a.n, sample.Num{}, sample.Num{}, sample.Num{}, time.Time{}
	r.mu.Unlock()
	if b, err := os.ReadFile(filepath.Join(r.o.Cgroup, "cgroup.procs")); r.o.Cgroup != "" && err == nil && len(bytes.TrimSpace(b)) == 0 {
		a.cgroupOurs = true
	}
	a.cgroup = cgroupCount{dir: r.o.Cgroup, kills: readCgroupKills(r.o.Cgroup), ooms: readCgroupOOMs(r.o.Cgroup)}
	own := ownMemoryCgroup()
	a.ownCG = cgroupCount{dir: own, kills: readCgroupKills(own), ooms: readCgroupOOMs(own)}
	if n, err := meminfo.OOMKills("/"); err == nil {
		a.vmKills = sample.Known(float64(n))
	}
	r.log.Event(event.Event{
		T: a.start, Attempt: a.n, Kind: event.AttemptStart, Level: event.Info,
		Msg:  fmt.Sprintf("attempt %d: %s", a.n, shellLine(r.secrets.Argv(a.rewrite.Argv))),
		Data: map[string]any{"rungs": a.rungs, "diff": a.rewrite.Diff},
	})
	go r.launch(a)
}

func (r *run) newAttempt(n int) *attempt {
	return &attempt{n: n, tree: map[int]oom.TreeProc{}, starts: map[int]uint64{}, shm: map[string]bool{}, mapped: map[string]bool{}, exited: make(chan struct{}), judged: make(chan struct{}), gated: make(chan struct{}), orders: make(chan stopOrder, 16)}
}

func (r *run) beginStop() { r.att.order(stopOrder{r.m.StopSignal, r.o.Grace}) }

func (r *run) hurry() { r.att.order(stopOrder{"SIGTERM", 0}) }

// progressNow is what the sampler writes beside each sample.
func (r *run) progressNow() (attempt int, step, stepTimeS sample.Num, at time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.nowN, r.nowStep, r.nowTime, r.nowAt
}

func (r *run) tokensNow() sample.Num {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.nowTokens
}

// progress takes a progress line of an attempt.
func (r *run) progress(a *attempt, s progress.Step, t time.Time) {
	if p := a.pending; p != nil && !s.Advance {
		fill := func(to *sample.Num, v sample.Num) {
			if v.OK {
				*to = v
			}
		}
		fill(&p.Loss, s.Loss)
		fill(&p.LR, s.LR)
		fill(&p.Tokens, s.Tokens)
		fill(&p.TokensPerS, s.TokensPerS)
		return
	}
	if !s.Advance {
		return
	}
	r.flushStep(a)
	rec := &runlog.Step{T: t, Attempt: a.n, Step: sample.Known(float64(s.N)), Loss: s.Loss, LR: s.LR, Tokens: s.Tokens, StepTimeS: s.StepTimeS, TokensPerS: s.TokensPerS}
	if eta, ok := a.steps.ETA(t); ok {
		rec.EtaS = sample.Known(eta.Round(time.Second).Seconds())
	}
	if r.samp != nil {
		if last, ok := r.samp.Last(); ok {
			rec.TempC = last.TempC
			if last.MemTotalKiB.OK && last.MemAvailableKiB.OK {
				rec.MemGB = sample.Known((last.MemTotalKiB.V - last.MemAvailableKiB.V) * 1024 / 1e9)
			}
		}
	}
	a.pending = rec
	r.mu.Lock()
	r.nowStep, r.nowAt = sample.Known(float64(s.N)), t
	if s.StepTimeS.OK {
		r.nowTime = s.StepTimeS
	}
	if s.Tokens.OK {
		r.nowTokens = s.Tokens
	}
	r.mu.Unlock()
}

// flushStep writes the step that was held back.
func (r *run) flushStep(a *attempt) {
	if a.pending != nil {
		r.progFile.Add(*a.pending)
		a.pending = nil
	}
}

// onSample looks at each sample as it is taken: extremes for the summary,
// throttling for the log.
func (r *run) onSample(s *sample.Sample) {
	r.mu.Lock()
	if s.MemAvailableKiB.OK && (!r.lowest.OK || s.MemAvailableKiB.V < r.lowest.V) {
		r.lowest, r.lowestAt = s.MemAvailableKiB, s.T
	}
	for _, t := range []sample.Num{s.TempC, s.ZoneMaxC} {
		if t.OK && (!r.hottest.OK || t.V > r.hottest.V) {
			r.hottest = t
		}
	}
	events := r.detector.Sample(s)
	r.mu.Unlock()
	if a := r.live.Load(); a != nil {
		a.sampled(s)
	}
	for _, e := range events {
		r.log.Event(e)
	}
	r.act(s, events)
}

// sortedFiles returns the keys of a set in order.
func sortedFiles(set map[string]bool) []string {
	out := make([]string, 0, len(set))
	for f := range set {
		out = append(out, f)
	}
	sort.Strings(out)
	return out
}

package supervisor

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"sparkrun/internal/event"
	"sparkrun/internal/proctree"
	"sparkrun/internal/sample"
	"sparkrun/ladder/oom"
	"sparkrun/supervisor/engine"
	"sparkrun/supervisor/holder"
)

// A container client is not the training: its death leaves the training running,
// and its processes are children of the engine. So the container is looked up
// when it starts, watched, and the attempt is over when the processes inside are.

// box is the container behind an attempt's command; the zero value is none.
type box struct {
	plan   engine.Plan
	client bool // the command is a container client

	mu    sync.Mutex
	c     *engine.Container
	procs []proctree.Proc
	kills map[string]killCount // by cgroup folder
	end   *engine.End
	// gone says that no process of it is left; lives that some are known to be.
	gone, lives bool
	resolved    chan struct{}
	// left is closed when the client has ended.
	left     chan struct{}
	leftOnce sync.Once
	// cancelEnd gives up the ending that is under way, nil while there is none.
	cancelEnd context.CancelFunc
	ending    int // counts the endings
}

// killCount is the out-of-memory kills of a cgroup, at first and at last. gone says
// that the folder is no more: a kill that took it along was never read.
type killCount struct {
	first, last sample.Num
	gone        bool
}

// planContainer adds to a container client's command what it takes to find the
// container, and says at the start where it cannot be ended.
func (r *run) planContainer(a *attempt, argv, env []string) []string {
	if r.job.Container == nil {
		return argv
	}
	a.box.client, a.box.resolved, a.box.left = true, make(chan struct{}), make(chan struct{})
	cmd, put := r.clientCommand(argv, env)
	a.box.plan = engine.Prepare(cmd, *r.job.Container, r.dir.ID, a.n, a.dir)
	p := &a.box.plan
	if len(p.Added) > 0 {
		whole, err := put(p.Argv)
		if err == nil {
			argv = whole
			r.log.Event(event.Event{
				Attempt: a.n, Kind: event.Hygiene, Level: event.Info,
				Msg:  "added to the container client's command, to find the container: " + strings.Join(p.Added, " "),
				Data: map[string]any{"added": p.Added},
			})
		} else {
			p.Reach, p.Added = engine.ReachNone, nil
			p.Why = "cannot end this container: its client's command cannot be changed: " + err.Error()
		}
	}
	for _, note := range p.Notes {
		r.log.Event(event.Event{Attempt: a.n, Kind: event.Hygiene, Level: event.Info, Msg: note})
	}
	if p.Why != "" {
		r.log.Event(event.Event{Attempt: a.n, Kind: event.GuardNote, Level: event.Warn, Msg: p.Why})
	}
	return argv
}

// clientCommand is the container client's own command within one that is started with
// env, and what puts other words back in its place: it may stand in a shell's text.
func (r *run) clientCommand(argv, env []string) (cmd engine.Command, put func([]string) ([]string, error)) {
	c := r.set.Client(argv, r.o.Dir, env)
	if c == nil {
		return engine.Command{Argv: argv, Env: env, Dir: r.o.Dir}, func(words []string) ([]string, error) { return words, nil }
	}
	cmd = engine.Command{Argv: c.Words, Dir: c.Dir, Sudo: c.Sudo, Unclear: c.Unclear}
	for name, value := range c.Env {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	return cmd, c.Command
}

// noRetry says, before the first attempt has begun, why no other could follow it for the
// sake of its container; "" where one can, and for other commands.
func (r *run) noRetry() string {
	if r.job.Container == nil {
		return ""
	}
	cmd, _ := r.clientCommand(r.o.Argv, r.o.Env)
	_, why := engine.CanRetry(cmd, *r.job.Container)
	return why
}

// containerEnds says whether the attempt's container is gone or, before the first
// attempt, whether it could be ended.
func (r *run) containerEnds() bool {
	if r.att == nil {
		return r.noRetry() == ""
	}
	return r.att.box.mayRetry()
}

// boxLook is how often a container is looked at.
const boxLook = time.Second

// followContainer finds the container of the attempt and keeps looking at it as
// long as the attempt goes on.
func (r *run) followContainer(ctx context.Context, a *attempt) {
	b := &a.box
	if !b.client {
		return
	}
	defer close(b.resolved)
	if b.plan.Reach == engine.ReachNone {
		return
	}
	go r.watchClient(ctx, a)
	// A client that ended before there was a container has none.
	looking, stop := context.WithCancel(ctx)
	go func() {
		select {
		case <-b.left:
			stop()
		case <-looking.Done():
		}
	}()
	c, err := b.plan.Resolve(looking)
	gone := looking.Err() != nil
	stop()
	if err != nil {
		if !gone {
			r.log.Event(event.Event{Attempt: a.n, Kind: event.GuardNote, Level: event.Warn, Msg: "the container was not found, so sparkrun cannot end it: " + err.Error()})
		}
		return
	}
	b.mu.Lock()
	b.c, b.kills = c, map[string]killCount{}
	for _, dir := range c.Dirs {
		n := readCgroupKills(dir)
		b.kills[dir] = killCount{first: n, last: n}
	}
	b.mu.Unlock()
	if c.PID != 0 {
		a.space.inside(c.PID)
	}
	r.log.Event(event.Event{
		Attempt: a.n, Kind: event.Hygiene, Level: event.Info, Msg: fmt.Sprintf("the container is %s (%s), its first process has pid %d", short12(c.ID), c.Engine, c.PID),
		Data: map[string]any{"container": c.ID, "name": c.Name, "engine": c.Engine, "pid": c.PID, "cgroup": c.Cgroup},
	})
	if a.client != nil {
		target, err := c.Target(ctx)
		if err == nil {
			err = a.client.Container(c.Endpoint, target)
		}
		if err != nil && ctx.Err() == nil {
			r.log.Event(event.Event{Attempt: a.n, Kind: event.GuardNote, Level: event.Warn, Msg: "the memory guard has no way of its own to end this container: " + err.Error()})
		}
	}
	go b.keepLooking(ctx, c)
}

// leave says that the client has ended.
func (b *box) leave() { b.leftOnce.Do(func() { close(b.left) }) }

// watchClient notices when the client has ended while something below the holder
// lives on. That is the container as a rule, and is waited for; but what podman keeps
// for the user's later containers (a pause process, a name server) lies there too and
// never ends, also where there never was a container.
func (r *run) watchClient(ctx context.Context, a *attempt) {
	b := &a.box
	if a.client == nil {
		return
	}
	tick := time.NewTicker(boxLook)
	defer tick.Stop()
	var over time.Time // since when the client is gone and nothing of the container lives
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if a.exit.Load() != nil {
			return
		}
		if st, err := a.client.Status(); err != nil || !st.Exited {
			continue
		}
		b.leave()
		select {
		case <-b.resolved:
		default:
			continue
		}
		alive := false
		if c := b.container(); c != nil {
			look, cancel := context.WithTimeout(ctx, 5*time.Second)
			alive, _ = c.Alive(look)
			cancel()
		}
		switch {
		case alive:
			over = time.Time{}
		case over.IsZero():
			over = time.Now()
		case time.Since(over) > boxOver:
			r.log.Event(event.Event{Attempt: a.n, Kind: event.Hygiene, Level: event.Info, Msg: "client and container are gone; ending what is left below them"})
			_ = a.client.Stop("SIGTERM", execLeftover) // gone means that it has ended meanwhile
			return
		}
	}
}

// boxOver is how long a container and its client must be gone before the rest of the
// tree is ended.
const boxOver = 10 * time.Second

func short12(id string) string { return id[:min(len(id), 12)] }

func (b *box) keepLooking(ctx context.Context, c *engine.Container) {
	tick := time.NewTicker(boxLook)
	defer tick.Stop()
	for {
		b.look(ctx, c)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// look reads what is gone once the container is: its processes and counters.
func (b *box) look(ctx context.Context, c *engine.Container) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	procs, err := c.Processes(ctx)
	b.mu.Lock()
	defer b.mu.Unlock()
	if err == nil {
		b.procs = procs
	}
	for dir, n := range b.kills {
		now := readCgroupKills(dir)
		n.gone = !now.OK
		if now.OK {
			n.last = now
			if !n.first.OK {
				n.first = now
			}
		}
		b.kills[dir] = n
	}
}

// processes are those inside the container, as last seen.
func (b *box) processes() []proctree.Proc {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.procs
}

func (b *box) container() *engine.Container {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.c
}

// beginEnd begins to end the container itself, for a client that is no longer there
// to do it, and returns: with an engine's stop, or with a kill where there is no
// grace. It takes the place of an ending that is under way.
func (b *box) beginEnd(grace time.Duration, failed func(error)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.c == nil {
		return
	}
	if b.cancelEnd != nil {
		b.cancelEnd()
	}
	ctx, cancel := context.WithTimeout(context.Background(), grace+20*time.Second)
	b.cancelEnd = cancel
	b.ending++
	mine := b.ending
	go func(c *engine.Container) {
		defer func() {
			cancel()
			b.mu.Lock()
			defer b.mu.Unlock()
			if b.ending == mine {
				b.cancelEnd = nil
			}
		}()
		end := func() error { return c.Stop(ctx, grace) }
		if grace <= 0 {
			end = func() error { return c.Kill(ctx) }
		}
		if err := end(); err != nil && ctx.Err() == nil {
			failed(err)
		}
	}(b.c)
}

// isEnding says whether somebody has begun to end the container.
func (b *box) isEnding() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.cancelEnd != nil
}

// endFailed tells that a container could not be ended.
func (r *run) endFailed(a *attempt) func(error) {
	return func(err error) {
		r.log.Event(event.Event{Attempt: a.n, Kind: event.RunStop, Level: event.Error, Msg: "the container could not be ended: " + err.Error()})
	}
}

// execLeftover is what the processes that an exec left behind get to end by
// themselves: the work was that of the command, as it is outside containers.
const execLeftover = 5 * time.Second

// settle runs when the client has ended: the attempt has not, while a process of
// the container lives. ended says that sparkrun was ending the attempt, and then
// what is left is killed; otherwise it is waited for, since the training is worth
// more than its client. It returns the exit status that the engine gives, and
// whether it gives one.
func (r *run) settle(a *attempt, ended func() (asked, hurry bool)) (status int, known bool) {
	b := &a.box
	if !b.client {
		return 0, false
	}
	b.leave()
	if b.plan.Reach == engine.ReachNone {
		return 0, false
	}
	select {
	case <-b.resolved:
	case <-time.After(10 * time.Second):
	}
	c := b.container()
	if c == nil {
		return 0, false
	}
	ctx := context.Background()
	var said bool
	var began, orphaned time.Time
	var patience time.Duration
	killed := false
	for {
		look, cancel := context.WithTimeout(ctx, 5*time.Second)
		alive, left := c.Alive(look)
		if alive && c.ExecID != "" && orphaned.IsZero() {
			if end, err := c.End(look); err == nil && end.ExitKnown && !end.Running {
				orphaned = time.Now()
			}
		}
		cancel()
		if !alive {
			break
		}
		b.mu.Lock()
		b.lives = true
		b.mu.Unlock()
		asked, hurry := ended()
		switch {
		case asked && began.IsZero():
			// A client that ended at the first signal has not passed it on, as that
			// of exec: the processes inside have their grace all the same.
			began, patience = time.Now(), r.o.Grace+40*time.Second
			if !b.isEnding() {
				grace := r.o.Grace
				if hurry {
					grace = 0
				}
				b.beginEnd(grace, r.endFailed(a))
			}
		case began.IsZero() && !orphaned.IsZero() && time.Since(orphaned) > execLeftover:
			began, patience = time.Now(), 40*time.Second
			r.log.Event(event.Event{Attempt: a.n, Kind: event.Hygiene, Level: event.Info, Msg: fmt.Sprintf("the command in the container has ended; ending the %d processes that it left", len(left))})
			b.beginEnd(execLeftover, r.endFailed(a))
		case !began.IsZero() && !killed && time.Since(began) > patience/2 && !b.isEnding():
			killed = true
			b.beginEnd(0, r.endFailed(a))
		case !began.IsZero() && time.Since(began) > patience:
			r.log.Event(event.Event{Attempt: a.n, Kind: event.RunStop, Level: event.Error, Msg: fmt.Sprintf("%d processes of the container %s are still there, and could not be ended", len(left), short12(c.ID))})
			return 0, false
		case began.IsZero() && orphaned.IsZero() && !said:
			said = true
			r.log.Event(event.Event{
				Attempt: a.n, Kind: event.GuardNote, Level: event.Warn,
				Msg: fmt.Sprintf("the client has ended, its container %s has not: waiting for the %d processes inside (Ctrl-C ends them)", short12(c.ID), len(left)),
			})
		}
		time.Sleep(200 * time.Millisecond)
	}
	look, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	end, err := c.End(look)
	b.look(look, c)
	if terr := c.Tidy(look); terr != nil {
		r.log.Event(event.Event{Attempt: a.n, Kind: event.Hygiene, Level: event.Warn, Msg: "the ended container is left behind: " + terr.Error()})
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.gone, b.lives = true, false
	if err != nil {
		r.log.Event(event.Event{Attempt: a.n, Kind: event.Internal, Level: event.Info, Msg: "the engine does not say how the container ended: " + err.Error()})
		return 0, false
	}
	b.end = &end
	if !end.ExitKnown && (b.plan.Detached || !began.IsZero() || said) {
		r.log.Event(event.Event{
			Attempt: a.n, Kind: event.GuardNote, Level: event.Warn,
			Msg: "how the container ended is not known (the engine has forgotten it, as with --rm); the status is that of its client",
		})
	}
	return end.ExitCode, end.ExitKnown
}

// mayRetry says whether nothing of the container is left, or can be left, when the
// next attempt starts.
func (b *box) mayRetry() bool {
	if !b.client {
		return true
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.gone
}

// evidence adds what the engine and the container's cgroups say.
func (b *box) evidence(ev *oom.Evidence) {
	if !b.client {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.c == nil {
		ev.Unreadable = append(ev.Unreadable, "the container engine: the container was not found")
		return
	}
	if b.c.Cgroup != "" {
		ev.CgroupPaths = append(ev.CgroupPaths, b.c.Cgroup)
	}
	kills := sample.Num{}
	gone := false
	for _, n := range b.kills {
		if d := grown(n.first, n.last); d.OK {
			kills = sample.Known(kills.V + d.V)
		}
		gone = gone || n.gone
	}
	if kills.OK && (kills.V > 0 || !gone) {
		ev.CgroupOOMKillDelta = kills
	}
	ev.Container = &oom.ContainerEnd{Engine: b.c.Engine}
	if b.end != nil {
		ev.Container.Known, ev.Container.OOMKilled = b.end.OOMKnown, b.end.OOMKilled
		ev.Container.ExitCode, ev.Container.Error = b.end.ExitCode, b.end.Error
	}
}

// endLost ends the container of an attempt whose holder is gone, as its processes
// outside containers are ended, and says in a clause what became of it; "" where
// there is none.
func (r *run) endLost(a *attempt) string {
	b := &a.box
	if !b.client {
		return ""
	}
	b.leave()
	select {
	case <-b.resolved:
	case <-time.After(3 * time.Second):
	}
	c := b.container()
	if c == nil {
		return "; its container could not be found and may go on"
	}
	b.beginEnd(0, r.endFailed(a))
	for deadline := time.Now().Add(15 * time.Second); time.Now().Before(deadline); time.Sleep(200 * time.Millisecond) {
		look, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		alive, _ := c.Alive(look)
		cancel()
		if !alive {
			return "; its container " + short12(c.ID) + " was ended too"
		}
	}
	return "; its container " + short12(c.ID) + " could not be ended and goes on"
}

// close gives back what the engine package keeps open.
func (b *box) close() {
	if c := b.container(); c != nil {
		c.Close()
	}
}

// endedByUs says whether a stop of sparkrun's was under way (the user's, the
// guard's or one for a hang), and whether there is no time for another grace.
func endedByUs(a *attempt, e *holder.Exit) (asked, hurry bool) {
	asked, hurry = a.asked.Load() > 0 || guardEnded(e), guardEnded(e) || a.asked.Load() > 1
	for _, s := range e.Stops {
		asked, hurry = true, hurry || s.To == holder.ToTree && s.T <= e.T
	}
	return asked, hurry
}

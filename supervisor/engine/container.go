package engine

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"sparkrun/internal/proctree"
)

// Container is a container, or one exec in it, that was found.
type Container struct {
	// ID is the engine's full id, Name the container's name, Engine docker or
	// podman.
	ID, Name, Engine string
	// Endpoint is the unix socket of the engine, "" where it has none.
	Endpoint string
	// PID is the host's number of the container's first process, or of the
	// exec's; 0 when it is not known or not a number of this pid namespace.
	PID int
	// Cgroup is the container's cgroup as the kernel names it in its records,
	// "" when it has none of its own.
	Cgroup string
	// Dirs are the folders of that cgroup with memory counters, v1 or v2.
	Dirs []string
	// ExecID is set for an exec: then only its own processes are meant.
	ExecID string
	// Limit is the container's memory limit in bytes, 0 for none.
	Limit uint64
	// PythonPath is the PYTHONPATH that its processes start with, from the image or
	// the client's words; "" for none.
	PythonPath string

	api    *api
	client *client
	watch  *watch
	start  uint64 // start time of PID
	made   time.Time
	// over is set for a container that had ended before it was found.
	over *End
	// remove is whether the engine was asked to remove it (--rm).
	remove bool

	mu   sync.Mutex
	seen map[int]uint64 // members of an exec: pid -> start time
}

// End is how a container or an exec ended.
type End struct {
	// Running is whether it has not ended.
	Running bool
	// ExitCode is its exit status, if ExitKnown.
	ExitCode  int
	ExitKnown bool
	// OOMKilled is the engine's word, if OOMKnown. It is a hint: true when any
	// process of the container was killed for memory, a harmless one too, and
	// false when the kill came from outside the container's own limit.
	OOMKilled bool
	OOMKnown  bool
	// Error is what the engine says went wrong with starting it.
	Error string
	// Started and Finished are the engine's times; zero is unknown.
	Started, Finished time.Time
}

// fromInspect reads the end out of a container's description.
func fromInspect(v inspected) End {
	e := End{Running: v.State.Running || v.State.Restarting, Error: brief(v.State.Error)}
	e.Started, e.Finished = engineTime(v.State.StartedAt), engineTime(v.State.FinishedAt)
	if e.Running {
		e.Finished = time.Time{}
		return e
	}
	if v.started() {
		e.ExitCode, e.ExitKnown = v.State.ExitCode, true
		e.OOMKilled, e.OOMKnown = v.State.OOMKilled, true
	}
	return e
}

// engineTime parses an engine's time; year 1 means never.
func engineTime(s string) time.Time {
	t, err := time.Parse(time.RFC3339Nano, s)
	if err != nil || t.Year() < 1971 {
		return time.Time{}
	}
	return t
}

// what names it in a sentence.
func (c *Container) what() string {
	name := c.Name
	if name == "" {
		name = c.ID[:min(12, len(c.ID))]
	}
	if c.ExecID != "" {
		return "the command in container " + brief(name)
	}
	return "container " + brief(name)
}

// inspect asks the engine, whichever way it is reached.
func (c *Container) inspect(ctx context.Context) (inspected, error) {
	if c.api != nil {
		return c.api.inspect(ctx, c.ID)
	}
	if c.client != nil {
		return c.client.inspect(ctx, c.ID)
	}
	return inspected{}, errors.New("there is no way to ask the engine")
}

// Processes returns the processes inside that have not ended, as this machine
// numbers them: those of its cgroup and those the engine lists; of an exec only
// its own. A list is returned with an error when a source failed.
func (c *Container) Processes(ctx context.Context) ([]proctree.Proc, error) {
	if c.PID == 0 {
		return nil, fmt.Errorf("the processes of %s are not visible from here", c.what())
	}
	if c.ExecID != "" {
		return c.execProcesses(), nil
	}
	var procs []proctree.Proc
	have := map[int]bool{}
	take := func(pid int) {
		if p, ok := proctree.Read(pid); ok && !have[pid] {
			have[pid] = true
			procs = append(procs, p)
		}
	}
	for _, dir := range c.Dirs {
		for _, pid := range cgroupProcs(dir) {
			take(pid)
		}
	}
	// The first process may sit in a cgroup that is not the container's own, and
	// so may what it started.
	if p, ok := proctree.Read(c.PID); ok && p.Start == c.start {
		take(c.PID)
		for _, d := range proctree.Walk(c.PID) {
			take(d.PID)
		}
	}
	// The cgroup is the kernel's own account and is enough; without one the
	// engine knows best.
	var err error
	if len(c.Dirs) == 0 && c.api != nil {
		var pids []int
		pids, err = c.api.top(ctx, c.ID)
		for _, pid := range pids {
			take(pid)
		}
		var se *statusError
		if errors.Is(err, errGone) || errors.As(err, &se) && se.code == http.StatusConflict {
			err = nil // it has ended
		}
	}
	return live(c.ordered(procs)), err
}

// Alive says whether anything of it still runs, and which processes.
func (c *Container) Alive(ctx context.Context) (bool, []proctree.Proc) {
	procs, _ := c.Processes(ctx)
	if len(procs) > 0 {
		return true, procs
	}
	ctx, cancel := context.WithTimeout(ctx, killLimit)
	defer cancel()
	e, err := c.End(ctx)
	if err != nil {
		// Nobody can tell. Where the processes can be seen, there are none.
		return c.PID == 0, nil
	}
	return e.Running, nil
}

// End asks how it ended. With --rm the engine has forgotten the container by
// then, and what it told meanwhile is the answer.
func (c *Container) End(ctx context.Context) (End, error) {
	if c.ExecID != "" {
		return c.execEnd(ctx)
	}
	if c.over != nil {
		return *c.over, nil
	}
	v, err := c.inspect(ctx)
	if err == nil {
		e := fromInspect(v)
		if e.Running && c.client != nil && c.PID != 0 {
			// podman goes by what its monitor wrote, and the monitor may have
			// been killed along with the container.
			if procs, err := c.Processes(ctx); err == nil && len(procs) == 0 {
				e.Running = false
			}
		}
		if c.watch != nil {
			told, oom, _ := c.watch.told()
			if told != nil && !e.Running {
				e.add(*told)
			}
			if oom {
				e.OOMKilled, e.OOMKnown = true, true
			}
		}
		return e, nil
	}
	if c.watch == nil {
		if errors.Is(err, errGone) {
			return End{}, nil // removed, and nothing was told
		}
		return End{}, err
	}
	// The news may still be on its way.
	if errors.Is(err, errGone) {
		select {
		case <-c.watch.ended:
		case <-ctx.Done():
		case <-time.After(2 * time.Second):
		}
	}
	told, oom, connected := c.watch.told()
	switch {
	case told != nil:
		e := *told
		switch {
		case oom:
			e.OOMKilled, e.OOMKnown = true, true
		case !e.OOMKnown && connected && c.Engine == "docker":
			// Docker tells of every kill in the container's limit; podman 4 of
			// none.
			e.OOMKnown = true
		}
		return e, nil
	case errors.Is(err, errGone):
		return End{OOMKilled: oom, OOMKnown: oom}, nil
	}
	return End{}, err
}

// killLimit is how long an engine may take to kill: what follows is quicker than
// waiting for one that hangs.
const killLimit = 2 * time.Second

// killWait is how long a killed container may take to be gone: the engine's own
// cleaning up included.
const killWait = 10 * time.Second

// Kill ends it with SIGKILL and waits until nothing of it lives, 10 s at most.
func (c *Container) Kill(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, killWait)
	defer cancel()
	if c.ExecID != "" {
		return c.execEndWith(ctx, syscall.SIGKILL, killWait)
	}
	kill := url.Values{"signal": {"KILL"}}
	err := c.order(ctx, killLimit, "/kill", kill)
	if err == nil {
		if v, e := c.inspect(ctx); e == nil && v.State.Paused {
			// A frozen process handles nothing, and engines refuse to try.
			if err = c.order(ctx, killLimit, "/unpause", nil); err == nil {
				err = c.order(ctx, killLimit, "/kill", kill)
			}
		}
	}
	return c.gone(ctx, err, func() error { return c.signalDirect(ctx, syscall.SIGKILL) })
}

// Stop asks it to end (the image's stop signal, SIGTERM as a rule) and kills it
// after grace, as `docker stop` does. It returns when nothing of it lives.
func (c *Container) Stop(ctx context.Context, grace time.Duration) error {
	grace = max(0, grace)
	if c.ExecID != "" {
		if err := c.execEndWith(ctx, syscall.SIGTERM, grace); err == nil {
			return nil
		}
		return c.Kill(ctx)
	}
	whole := int(grace.Round(time.Second) / time.Second)
	err := errors.New("no service of the engine answers")
	if c.api != nil {
		err = c.api.ping(ctx, probeLimit) // the stop itself may take as long as the grace
	}
	if err == nil {
		err = c.order(ctx, time.Duration(whole)*time.Second+callLimit, "/stop", url.Values{"t": {strconv.Itoa(whole)}})
	}
	if err != nil {
		// Without the engine: its own processes, while we may.
		if err = c.signalDirect(ctx, syscall.SIGTERM); err == nil {
			wait, cancel := context.WithTimeout(ctx, grace)
			defer cancel()
			if c.gone(wait, nil, nil) == nil {
				return nil
			}
		}
		return c.Kill(ctx)
	}
	wait, cancel := context.WithTimeout(ctx, killWait)
	defer cancel()
	return c.gone(wait, nil, func() error { return c.signalDirect(wait, syscall.SIGKILL) })
}

// order tells the engine to end the container. That it has ended already is no
// error.
func (c *Container) order(ctx context.Context, limit time.Duration, verb string, q url.Values) error {
	if c.api == nil {
		return errors.New("no service of the engine answers")
	}
	_, err := c.api.call(ctx, limit, http.MethodPost, "/containers/"+url.PathEscape(c.ID)+verb, q, nil, nil)
	var se *statusError
	if errors.Is(err, errGone) || errors.As(err, &se) && se.code == http.StatusConflict {
		return nil
	}
	return err
}

// signalDirect signals the processes themselves, or has podman do it.
func (c *Container) signalDirect(ctx context.Context, sig syscall.Signal) error {
	procs, err := c.Processes(ctx)
	if len(procs) == 0 {
		return err
	}
	targets := procs
	if sig != syscall.SIGKILL {
		targets = procs[:0:0]
		for _, p := range procs {
			if p.PID == c.PID {
				targets = append(targets, p)
			}
		}
	}
	refused := signalAll(targets, sig)
	if len(refused) == 0 {
		return nil
	}
	if c.client != nil {
		_, err := c.client.run(ctx, callLimit, "kill", "--signal", strconv.Itoa(int(sig)), "--", c.ID)
		return err
	}
	return fmt.Errorf("%s: this user may not signal its processes", c.what())
}

// gone waits until nothing lives. Where the engine's own way failed or takes
// over a second, again is called, and called again.
func (c *Container) gone(ctx context.Context, err error, again func() error) error {
	next := time.Now().Add(time.Second)
	if err != nil {
		next = time.Now()
	}
	wait := 10 * time.Millisecond
	for {
		alive, procs := c.Alive(ctx)
		if !alive {
			return nil
		}
		if again != nil && !time.Now().Before(next) {
			if e := again(); e != nil && err != nil {
				err = errors.Join(err, e)
				again = nil
			}
			next = time.Now().Add(time.Second)
		}
		select {
		case <-ctx.Done():
			return errors.Join(stillAlive(c.what(), procs), err)
		case <-time.After(wait):
			wait = min(2*wait, 250*time.Millisecond)
		}
	}
}

// Tidy removes the container where --rm asked for that and podman's monitor could
// not do it, since it was killed with the rest of the tree: its name would stay
// taken for the next attempt. It is nothing for docker, for an exec, and while
// the container lives.
func (c *Container) Tidy(ctx context.Context) error {
	if c.client == nil || c.ExecID != "" || !c.remove {
		return nil
	}
	if alive, _ := c.Alive(ctx); alive {
		return nil
	}
	var err error
	// The first call may fail over the container's being stopped, and takes note
	// of just that.
	for range 3 {
		_, err = c.client.run(ctx, killWait, "rm", "--force", "--time", "0", "--", c.ID)
		if err == nil || errors.Is(err, errGone) {
			return nil
		}
	}
	return fmt.Errorf("removing %s: %w", c.what(), err)
}

// Close lets go of the engine. The container is left as it is.
func (c *Container) Close() {
	if c.watch != nil {
		c.watch.close()
	}
}

// plainName takes the slash off docker's names.
func plainName(s string) string { return brief(strings.TrimPrefix(s, "/")) }

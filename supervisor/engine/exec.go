package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"syscall"
	"time"

	"sparkrun/internal/proctree"
)

// execProcesses returns what lives of an exec: its first process, all that
// descend from it or share its session, and those seen before that were
// re-parented since. A process that left both the tree and the session before
// it was ever looked at is not found.
func (c *Container) execProcesses() []proctree.Proc {
	inside := map[int]bool{}
	for _, dir := range c.Dirs {
		for _, pid := range cgroupProcs(dir) {
			inside[pid] = true
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.seen == nil {
		c.seen = map[int]uint64{c.PID: c.start}
	}
	all := proctree.All()
	now := make(map[int]proctree.Proc, len(all))
	for _, p := range all {
		now[p.PID] = p
	}
	for pid, start := range c.seen {
		if p, ok := now[pid]; !ok || p.Start != start {
			delete(c.seen, pid)
		}
	}
	// The number of a session is its first process's, and stays taken while
	// the session has a member.
	for grew := true; grew; {
		grew = false
		for _, p := range all {
			if _, ok := c.seen[p.PID]; ok || p.Start < c.start {
				continue
			}
			_, child := c.seen[p.PPID]
			// The container's own processes cannot be in the exec's session.
			session := p.SID == c.PID && (len(inside) == 0 || inside[p.PID])
			if child || session {
				c.seen[p.PID] = p.Start
				grew = true
			}
		}
	}
	var procs []proctree.Proc
	for pid := range c.seen {
		procs = append(procs, now[pid])
	}
	return live(c.ordered(procs))
}

// ordered puts the first process first and then the elder before the younger, which is
// the order for signals: a parent that saw its child die of one first would go on to its
// own end, with a status that hides the kill.
func (c *Container) ordered(procs []proctree.Proc) []proctree.Proc {
	slices.SortFunc(procs, func(a, b proctree.Proc) int {
		first := func(p proctree.Proc) int {
			if p.PID == c.PID {
				return 0
			}
			return 1
		}
		return cmp.Or(cmp.Compare(first(a), first(b)), cmp.Compare(a.Start, b.Start), cmp.Compare(a.PID, b.PID))
	})
	return procs
}

// execEnd asks how an exec ended. OOMKilled is whether the engine told of a kill
// for memory in its container since the exec began.
func (c *Container) execEnd(ctx context.Context) (End, error) {
	var e End
	if c.watch != nil {
		_, oom, connected := c.watch.told()
		e.OOMKilled, e.OOMKnown = oom, oom || connected && c.Engine == "docker"
	}
	if c.api == nil {
		e.Running = len(c.execProcesses()) > 0
		return e, nil
	}
	v, err := c.api.execInspect(ctx, c.ExecID)
	switch {
	case errors.Is(err, errGone):
		// Engines forget an exec some minutes after its end, or with its
		// container.
		return e, nil
	case err != nil:
		return End{}, err
	}
	e.Running = v.Running
	if !v.Running && v.ExitCode != nil {
		e.ExitCode, e.ExitKnown = *v.ExitCode, true
	}
	return e, nil
}

// execEndWith signals the exec's processes and waits until none lives. New ones
// are signalled as they appear.
func (c *Container) execEndWith(ctx context.Context, sig syscall.Signal, grace time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, grace)
	defer cancel()
	signalled := map[int]uint64{}
	wait := 10 * time.Millisecond
	for {
		alive, procs := c.Alive(ctx)
		if !alive {
			return nil
		}
		if c.PID == 0 {
			return fmt.Errorf("%s cannot be ended: its processes are not visible from here", c.what())
		}
		var fresh []proctree.Proc
		for _, p := range procs {
			if signalled[p.PID] != p.Start || sig == syscall.SIGKILL {
				fresh = append(fresh, p)
				signalled[p.PID] = p.Start
			}
		}
		if len(signalAll(fresh, sig)) > 0 {
			if err := c.signalInside(ctx, sig); err != nil {
				return fmt.Errorf("%s cannot be ended: %w", c.what(), err)
			}
		}
		select {
		case <-ctx.Done():
			return stillAlive(c.what(), procs)
		case <-time.After(wait):
			wait = min(2*wait, 250*time.Millisecond)
		}
	}
}

// killScript runs inside the container, for a user who may not signal its
// processes from outside (a member of the engine's group, where the container
// runs as root). It finds everything that descends from process $2 or is in its
// session, and sends it signal $1. It needs a shell and nothing else: the fields
// of /proc/PID/stat behind the name are state, parent, group, session.
const killScript = `k=" $2 "
again=1
while [ "$again" ]; do
  again=
  for f in /proc/[0-9]*/stat; do
    read -r s <"$f" || continue
    p=${s%% *}
    r=${s##*) }
    set -- "$1" "$2" $r
    case "$k" in *" $p "*) continue;; esac
    case "$k" in *" $4 "*) k="$k$p "; again=1; continue;; esac
    [ "$6" != "$2" ] || { k="$k$p "; again=1; }
  done 2>/dev/null
done
kill -s "$1" $k 2>/dev/null
kill -s 0 $2 2>/dev/null && [ "$1" = KILL ] && exit 1
exit 0
`

// prepareInside makes an exec that will send a signal to the processes of this
// one, and returns its id. Nothing runs until it is started.
func (c *Container) prepareInside(ctx context.Context, sig string) (string, error) {
	if c.api == nil {
		return "", errors.New("no service of the engine answers")
	}
	inner, err := innerPID(c.PID)
	if err != nil {
		return "", err
	}
	body := map[string]any{
		"Cmd":  []string{"sh", "-c", killScript, "sparkrun-kill", sig, strconv.Itoa(inner)},
		"User": "0", "AttachStdin": false, "AttachStdout": false, "AttachStderr": false, "Tty": false,
	}
	var v struct{ ID string }
	if _, err := c.api.call(ctx, callLimit, http.MethodPost, "/containers/"+url.PathEscape(c.ID)+"/exec", nil, body, &v); err != nil {
		return "", err
	}
	if !validID.MatchString(v.ID) {
		return "", errors.New("the engine made an exec without an id")
	}
	return v.ID, nil
}

// startDetached is the body that starts an exec nobody listens to.
var startDetached = map[string]any{"Detach": true, "Tty": false}

// signalInside sends a signal from inside the container and waits until that
// has been done.
func (c *Container) signalInside(ctx context.Context, sig syscall.Signal) error {
	name := map[syscall.Signal]string{syscall.SIGKILL: "KILL", syscall.SIGTERM: "TERM", 0: "0"}[sig]
	id, err := c.prepareInside(ctx, name)
	if err != nil {
		return err
	}
	if _, err := c.api.call(ctx, callLimit, http.MethodPost, "/exec/"+id+"/start", nil, startDetached, nil); err != nil {
		return err
	}
	limit := time.Now().Add(callLimit)
	for wait := 10 * time.Millisecond; ; wait = min(2*wait, 250*time.Millisecond) {
		v, err := c.api.execInspect(ctx, id)
		switch {
		case errors.Is(err, errGone):
			return nil // with its container
		case err != nil:
			return err
		case !v.Running && v.ExitCode != nil:
			if *v.ExitCode > 1 {
				return fmt.Errorf("the image has no shell to send a signal with (status %d)", *v.ExitCode)
			}
			return nil
		case time.Now().After(limit):
			return errors.New("sending a signal inside the container takes too long")
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(wait):
		}
	}
}

// Target returns what killer.Open takes to end this at once: for a container its
// id; for an exec its process numbers where this user may signal them, else an
// exec inside the container that is made now and only started when it comes to
// it; for podman without a service the first process, with which the kernel ends
// the others. It asks the engine a question or two, so it is called right after
// Resolve, while there is memory.
func (c *Container) Target(ctx context.Context) (string, error) {
	pid := "pid/" + strconv.Itoa(c.PID) + "/" + strconv.FormatUint(c.start, 10)
	permitted := c.PID > 0 && (proctree.Proc{PID: c.PID, Start: c.start}).Signal(0) == nil
	switch {
	case c.ExecID == "" && c.api != nil:
		return c.ID, nil
	case permitted:
		return pid, nil
	case c.PID == 0:
		return "", fmt.Errorf("%s cannot be ended: its processes are not visible from here", c.what())
	case c.ExecID == "" || c.api == nil:
		return "", fmt.Errorf("%s: this user may not signal its processes", c.what())
	}
	// Does it work at all? Better known now.
	if err := c.signalInside(ctx, 0); err != nil {
		return "", err
	}
	id, err := c.prepareInside(ctx, "KILL")
	if err != nil {
		return "", err
	}
	return "exec/" + id, nil
}

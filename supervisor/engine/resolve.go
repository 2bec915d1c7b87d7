package engine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"sparkrun/internal/proctree"
)

// errNotYet is a container or exec that does not exist, or has not started, so
// far: the image may still be pulled.
var errNotYet = errors.New("it has not started")

// ErrNotFound is returned by Resolve when the container never appeared.
var ErrNotFound = errors.New("the container was not found")

// Resolve waits until the container or exec exists and has started, and returns
// it. It is bounded by ctx, which the caller ends when the client ends: a
// container that was over by then is still found where the engine tells of it,
// which takes 2 s more at most. Close the container when the attempt is over.
func (p Plan) Resolve(ctx context.Context) (*Container, error) {
	if len(p.apis) == 0 && p.client == nil {
		return nil, fmt.Errorf("%w: %s", ErrNotFound, p.Why)
	}
	var err error
	wait := 20 * time.Millisecond
	for {
		var c *Container
		if c, err = p.find(ctx); err == nil {
			return c, nil
		}
		select {
		case <-ctx.Done():
			if c := p.findLate(); c != nil {
				return c, nil
			}
			return nil, fmt.Errorf("%w: %w", ErrNotFound, err)
		case <-time.After(wait):
			wait = min(wait*3/2, time.Second)
		}
	}
}

func (p Plan) find(ctx context.Context) (*Container, error) {
	if p.verb == "exec" {
		return p.findExec(ctx)
	}
	id, err := p.identify(ctx)
	if err != nil {
		return nil, err
	}
	v, a, err := p.inspect(ctx, id)
	switch {
	case errors.Is(err, errGone):
		return nil, errNotYet
	case err != nil:
		return nil, err
	}
	if err := p.ours(v); err != nil {
		return nil, err
	}
	return p.container(v, a), nil
}

// identify returns an id or name under which the container can be asked for.
func (p Plan) identify(ctx context.Context) (string, error) {
	switch {
	case p.cidfile != "":
		return readCIDFile(p.cidfile)
	case p.label != "" && len(p.apis) > 0:
		ids, err := p.apis[0].byLabel(ctx, p.label)
		switch {
		case err != nil:
			return "", err
		case len(ids) == 0:
			return "", errNotYet
		}
		return ids[0], nil
	case p.name != "":
		return p.name, nil
	}
	return "", errors.New("the container has neither a label nor a name to look for")
}

// readCIDFile reads the file the client writes the id into.
func readCIDFile(path string) (string, error) {
	f, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return "", errNotYet
	}
	if err != nil {
		return "", fmt.Errorf("reading the container's id: %w", err)
	}
	defer f.Close()
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
		return "", fmt.Errorf("%s is no regular file", path)
	}
	b, err := io.ReadAll(io.LimitReader(f, 256))
	if err != nil {
		return "", fmt.Errorf("reading the container's id: %w", err)
	}
	id := strings.TrimSpace(string(b))
	if !validID.MatchString(id) {
		return "", fmt.Errorf("%s holds no container id", path)
	}
	return id, nil
}

// inspect asks the service, and podman itself where the service does not know
// the container: it may serve another store.
func (p Plan) inspect(ctx context.Context, id string) (inspected, *api, error) {
	err := errNotYet
	for _, a := range p.apis {
		var v inspected
		if v, err = a.inspect(ctx, id); err == nil {
			return v, a, nil
		}
	}
	if p.client != nil {
		v, e := p.client.inspect(ctx, id)
		return v, nil, e
	}
	return inspected{}, nil, err
}

// slack is what two readings of the same clock may differ by, a step of it
// included.
const slack = 2 * time.Second

// ours says whether a container is the one this command started: another one
// may have the same name, or have written the same file yesterday.
func (p Plan) ours(v inspected) error {
	if !v.started() {
		return errNotYet
	}
	if p.label != "" {
		return nil
	}
	began := engineTime(v.Created)
	if p.verb == "start" {
		began = engineTime(v.State.StartedAt)
	} else if p.before.id == v.ID {
		return errNotYet
	}
	if began.IsZero() || began.Before(p.made.Add(-slack)) {
		return errNotYet
	}
	return nil
}

// container makes the container of a description.
func (p Plan) container(v inspected, a *api) *Container {
	c := &Container{ID: v.ID, Name: plainName(v.Name), Engine: p.engine, api: a, client: p.client, made: p.made, remove: v.HostConfig.AutoRemove, PythonPath: v.pythonPath()}
	if v.HostConfig.Memory > 0 {
		c.Limit = uint64(v.HostConfig.Memory)
	}
	if a != nil {
		c.api = a
		c.Endpoint = a.socket
		c.watch = follow(c.api, v.ID, p.made)
	}
	c.place(v.State.Pid, engineTime(v.State.StartedAt))
	return c
}

// place takes a pid the engine named, if it is a number of this machine's: in a
// container that was given the engine's socket it is not.
func (c *Container) place(pid int, started time.Time) {
	p, ok := proctree.Read(pid)
	if pid <= 1 || !ok {
		return
	}
	path, dirs, named := cgroupOf(pid, c.ID)
	if !named && c.api != nil && !(near(p.Start, started) && inside(pid, os.Getpid(), c.ID)) {
		return
	}
	c.PID, c.start = pid, p.Start
	c.Cgroup, c.Dirs = path, dirs
	if c.Limit == 0 {
		c.Limit = limitOf(dirs)
	}
}

// near says whether a process started at about that time.
func near(ticks uint64, t time.Time) bool {
	if t.IsZero() {
		return false
	}
	age := time.Duration(int64(ticksNow())-int64(ticks)) * (time.Second / userHZ)
	return (time.Since(t) - age).Abs() < 10*time.Second
}

// limitOf reads the memory limit of a cgroup, 0 for none. v1 says "none" with a
// number near the top.
func limitOf(dirs []string) uint64 {
	for _, dir := range dirs {
		for _, name := range []string{"memory.max", "memory.limit_in_bytes"} {
			b, err := os.ReadFile(filepath.Join(dir, name))
			if err != nil {
				continue
			}
			if n, err := strconv.ParseUint(strings.TrimSpace(string(b)), 10, 64); err == nil && n < 1<<60 {
				return n
			}
		}
	}
	return 0
}

// home is a container in which an exec may be.
type home struct {
	v inspected
	a *api
}

// maxHomes is how many containers of one service are looked into.
const maxHomes = 64

// The labels by which every compose marks what it makes.
const (
	serviceLabel = "com.docker.compose.service"
	projectLabel = "com.docker.compose.project"
)

// execHomes returns the container that the command names, or those of the service: in
// which of them compose runs it, and of which project it is, stands in its files.
func (p Plan) execHomes(ctx context.Context) ([]home, error) {
	if p.service == "" {
		v, a, err := p.inspect(ctx, p.cmd.target)
		switch {
		case errors.Is(err, errGone):
			return nil, errNotYet
		case err != nil:
			return nil, err
		}
		return []home{{v, a}}, nil
	}
	label := serviceLabel + "=" + p.service
	var ids []string
	err := errNotYet
	if len(p.apis) > 0 {
		ids, err = p.apis[0].byLabel(ctx, label)
	}
	if len(ids) == 0 && p.client != nil {
		ids, err = p.client.byLabel(ctx, label)
	}
	if err != nil {
		return nil, err
	}
	var homes []home
	for _, id := range ids[:min(len(ids), maxHomes)] {
		v, a, err := p.inspect(ctx, id)
		if err == nil && (p.project == "" || v.Config.Labels[projectLabel] == p.project) {
			homes = append(homes, home{v, a})
		}
	}
	return homes, nil
}

// findExec finds the exec in a container that was not there before and has our
// words. Two of those at once cannot be told apart, and then neither is taken.
func (p Plan) findExec(ctx context.Context) (*Container, error) {
	homes, err := p.execHomes(ctx)
	if err != nil {
		return nil, err
	}
	type candidate struct {
		home
		id  string
		pid int
	}
	var found []candidate
	for _, h := range homes {
		if h.a == nil {
			for _, e := range conmonExecs() {
				if e.container != h.v.ID || slices.Contains(p.before.execs, e.id) || e.start+userHZ < p.madeTicks {
					continue
				}
				found = append(found, candidate{h, e.id, e.pid})
			}
			continue
		}
		for _, id := range h.v.ExecIDs {
			if slices.Contains(p.before.execs, id) || !validID.MatchString(id) {
				continue
			}
			e, err := h.a.execInspect(ctx, id)
			if err != nil || !slices.Equal(e.argv(), p.cmd.args) {
				continue
			}
			if e.Pid <= 1 {
				// Made, not started; or it could not be started.
				return nil, errNotYet
			}
			if proc, ok := proctree.Read(e.Pid); ok && proc.Start+userHZ < p.madeTicks {
				continue // it was there before us
			}
			found = append(found, candidate{h, id, e.Pid})
		}
	}
	switch len(found) {
	case 0:
		return nil, errNotYet
	case 1:
	default:
		return nil, fmt.Errorf("%d commands with the same words began in container %s: which one is ours cannot be told", len(found), brief(p.cmd.target))
	}
	f := found[0]
	return p.execContainer(f.v, f.a, f.id, f.pid), nil
}

// execContainer makes the container of an exec.
func (p Plan) execContainer(v inspected, a *api, id string, pid int) *Container {
	c := &Container{ID: v.ID, Name: plainName(v.Name), Engine: p.engine, ExecID: id, client: p.client, made: p.made}
	if a != nil {
		c.api = a
		c.Endpoint = a.socket
		c.watch = follow(c.api, v.ID, p.made)
	}
	if v.HostConfig.Memory > 0 {
		c.Limit = uint64(v.HostConfig.Memory)
	}
	c.place(pid, p.made)
	if c.PID == 0 && pid > 1 {
		// It is over already. What it left behind is in its session, inside the
		// container's cgroup.
		c.place(v.State.Pid, engineTime(v.State.StartedAt))
		if c.PID != 0 && len(c.Dirs) > 0 {
			c.PID, c.start = pid, p.madeTicks-min(p.madeTicks, userHZ)
		} else {
			c.PID, c.start = 0, 0
		}
	}
	if c.PID != 0 {
		c.execProcesses() // remember its members from now on
	}
	return c
}

// conmonExec is an exec as podman's monitor shows it.
type conmonExec struct {
	id, container string
	pid           int
	start         uint64
}

// conmonExecs finds podman's execs by its monitor processes: one for each, whose
// words name the container and the exec and whose child is the command.
func conmonExecs() []conmonExec {
	var out []conmonExec
	for _, p := range proctree.All() {
		if p.Comm != "conmon" || p.State == 'Z' {
			continue
		}
		b, err := os.ReadFile("/proc/" + strconv.Itoa(p.PID) + "/cmdline")
		if err != nil {
			continue
		}
		words := strings.Split(string(b), "\x00")
		value := func(flag string) string {
			if i := slices.Index(words, flag); i >= 0 && i+1 < len(words) {
				return words[i+1]
			}
			return ""
		}
		e := conmonExec{id: value("-u"), container: value("-c"), start: p.Start}
		if e.container == e.id || !validID.MatchString(e.id) || !validID.MatchString(e.container) {
			continue // the monitor of a container itself
		}
		for _, child := range proctree.Walk(p.PID) {
			// The runtime is a child too, until it has started the command, and so
			// is podman when it cleans up. The command alone is inside.
			if child.PPID == p.PID && !strings.HasPrefix(child.Comm, "runc:") && inside(child.PID, p.PID, e.container) {
				e.pid = child.PID
				out = append(out, e)
				break
			}
		}
	}
	return out
}

// inside says whether a process is in a container: by its cgroup, or by a pid
// namespace that is not its monitor's.
func inside(pid, monitor int, container string) bool {
	if _, _, named := cgroupOf(pid, container); named {
		if _, _, too := cgroupOf(monitor, container); !too {
			return true
		}
	}
	ns := func(pid int) string {
		s, err := os.Readlink("/proc/" + strconv.Itoa(pid) + "/ns/pid")
		if err != nil {
			return ""
		}
		return s
	}
	a, b := ns(pid), ns(monitor)
	return a != "" && b != "" && a != b
}

// findLate looks for a container that is over already: the engine's events tell
// of it even when it was removed.
func (p Plan) findLate() *Container {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	if c, err := p.find(ctx); err == nil {
		return c
	}
	switch {
	case len(p.apis) == 0:
		return nil
	case p.verb == "exec":
		return p.findLateExec(ctx)
	}
	key, value := "label", p.label
	if p.label == "" {
		key, value = "container", p.name
		if p.cidfile != "" {
			value, _ = readCIDFile(p.cidfile)
		}
	}
	if value == "" {
		return nil
	}
	a := p.apis[0]
	var c *Container
	oom := false
	_ = readEvents(ctx, a, key, value, p.made, time.Now(), func() {}, func(e eventLine) {
		if !validID.MatchString(e.Actor.ID) || e.Actor.ID == p.before.id && p.verb != "start" {
			return
		}
		switch e.Action {
		case "oom":
			oom = true
		case "die", "died":
			end := fromDie(e)
			c = &Container{
				ID: e.Actor.ID, Name: plainName(e.Actor.Attributes["name"]), Engine: p.engine,
				Endpoint: a.socket, api: a, made: p.made, over: &end,
			}
		}
	})
	if c != nil {
		c.over.OOMKilled, c.over.OOMKnown = oom, oom || p.engine == "docker"
	}
	return c
}

// findLateExec looks for an exec that was over before it was looked for: docker
// no longer lists it with its container then, but its events name it.
func (p Plan) findLateExec(ctx context.Context) *Container {
	homes, err := p.execHomes(ctx)
	if err != nil {
		return nil
	}
	type candidate struct {
		home
		id string
	}
	var found []candidate
	for _, h := range homes {
		if h.a == nil {
			continue
		}
		var ids []string
		_ = readEvents(ctx, h.a, "container", h.v.ID, p.made, time.Now(), func() {}, func(e eventLine) {
			id := e.Actor.Attributes["execID"]
			if e.Action == "exec_start: "+strings.Join(p.cmd.args, " ") && e.Actor.ID == h.v.ID && validID.MatchString(id) && !slices.Contains(ids, id) {
				ids = append(ids, id)
			}
		})
		for _, id := range ids {
			found = append(found, candidate{h, id})
		}
	}
	if len(found) != 1 {
		return nil
	}
	f := found[0]
	e, err := f.a.execInspect(ctx, f.id)
	if err != nil || !slices.Equal(e.argv(), p.cmd.args) {
		return nil
	}
	return p.execContainer(f.v, f.a, f.id, e.Pid)
}

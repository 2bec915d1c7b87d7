package engine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"sparkrun/internal/job"
)

// Reach says how a container can be found and ended.
type Reach string

// The ways, best first.
const (
	// ReachAPI is the engine's own API on a unix socket.
	ReachAPI Reach = "api"
	// ReachTree is podman without a service: what it starts is re-parented to
	// our holder, so it is in our own process tree, and `podman inspect` names
	// the container. It is ended by signals to its processes.
	ReachTree Reach = "tree"
	// ReachNone is a container that sparkrun cannot end; Plan.Why says why.
	ReachNone Reach = "none"
)

// Label is the label `run` gets, where the engine is asked by label; its value
// is RUN-ID.ATTEMPT.
const Label = "sparkrun.attempt"

// CIDFile is the name of the file in the attempt's folder into which podman
// writes the container's id.
const CIDFile = "container.cid"

// probeLimit is how long Prepare waits for an engine. One that systemd starts
// at the first connection takes longer; then the answer is "does not answer",
// and Resolve tries again.
const probeLimit = 1500 * time.Millisecond

// Plan is what sparkrun does about a command that is a container client.
type Plan struct {
	// Argv is the command to start: as typed, but for what Added names.
	Argv []string
	// Added are the words added behind `run`, for command.json and the log.
	Added []string
	// Reach is how this container can be found and ended.
	Reach Reach
	// Why is the sentence to print at the start when the container cannot be
	// ended, "" otherwise: "cannot end this container: ...".
	Why string
	// Detached is whether the client leaves at once (-d). The attempt is not
	// over then: the container can be found, watched and ended as any other.
	Detached bool
	// Again says why the same command would be refused by the engine a second
	// time ("the name train is taken..."), "" when it would not.
	Again string
	// Notes are sentences for the start that are no refusal.
	Notes []string

	engine, verb string
	cmd          command
	apis         []*api
	client       *client // the podman command, nil for docker
	label        string  // NAME=VALUE
	cidfile      string
	name         string // of the container, "" when it has none that is known
	before       before
	made         time.Time
	madeTicks    uint64 // the same instant as /proc counts it
}

// before is what was there before the start, and so is not ours.
type before struct {
	id    string
	execs []string
}

// Prepare decides how the container behind a command is found and ended, and
// adds a label or --cidfile to `run` where that needs one. argv is the command
// as it would be started, env its environment, dir the attempt's folder. It
// asks an engine at most a few small questions over its unix socket, with short
// deadlines.
func Prepare(argv []string, c job.Container, env []string, runID string, attempt int, dir string) Plan {
	p := Plan{Argv: argv, Reach: ReachNone, engine: c.Engine, verb: c.Verb, made: time.Now(), madeTicks: ticksNow()}
	switch {
	case c.Engine != "docker" && c.Engine != "podman":
		return p.cannot(fmt.Sprintf("%s is not an engine sparkrun can ask", c.Engine))
	case c.Verb == "compose":
		return p.cannot("compose starts containers of its own choice; use run or exec to have one followed")
	case c.Verb == "":
		return p.cannot(fmt.Sprintf("what %s does here is not understood", c.Engine))
	}
	p.cmd = takeApart(argv, c)
	switch {
	case c.Verb != "run" && c.Verb != "exec" && c.Verb != "start":
		return p.cannot(fmt.Sprintf("only run, exec and start of %s are followed, not %s", c.Engine, brief(c.Verb)))
	case p.cmd.verb < 0 || p.cmd.target == "":
		return p.cannot("its command line names no image or container")
	}
	e := environ{list: env, set: p.cmd.set, fresh: p.cmd.sudo && !p.cmd.keepsEnv}
	if c.Engine == "docker" && podmanInDisguise(argv[p.cmd.client], e) {
		p.engine = "podman"
		p.Notes = append(p.Notes, "docker is podman's stand-in here")
	}
	p.Detached = on(p.cmd.options, "-d", "--detach") ||
		c.Verb == "start" && !on(p.cmd.options, "-a", "--attach", "-i", "--interactive")
	if p.Detached {
		p.Notes = append(p.Notes, "the container is detached (-d): what it prints goes to the engine's log and not here, so no step and no error text of it is seen; leave -d out to have them")
	}
	w := dockerPlace(p.cmd, e)
	if p.engine == "podman" {
		w = podmanPlace(p.cmd, e)
	}
	p.connect(w, e)
	p.naming(w.local, runID, attempt, dir)
	p.snapshot()
	return p
}

// cannot fills in why a container cannot be ended.
func (p Plan) cannot(why string) Plan {
	p.Reach, p.Why = ReachNone, "cannot end this container: "+why
	return p
}

// connect probes the engine's sockets.
func (p *Plan) connect(w place, e environ) {
	if w.why != "" {
		*p = p.cannot(w.why)
		return
	}
	var first error
	for _, socket := range w.sockets {
		a := newAPI(socket)
		err := a.ping(context.Background(), probeLimit)
		if err == nil {
			p.apis = []*api{a}
			p.Reach = ReachAPI
			break
		}
		if first == nil {
			first = err
		}
		// One that may still be starting is asked again by Resolve.
		if errors.Is(err, context.DeadlineExceeded) && p.apis == nil {
			p.apis = []*api{newAPI(socket)}
		}
	}
	if w.local {
		p.client = newClient(p.cmd, e)
		switch {
		case p.Reach == ReachAPI:
		case p.cmd.sudo && os.Geteuid() != 0:
			*p = p.cannot("podman runs under sudo, and this user may not signal what it starts")
		default:
			p.Reach = ReachTree
			p.apis = nil // one that hangs is not asked again and again
		}
		return
	}
	if p.Reach != ReachAPI {
		*p = p.cannot(fmt.Sprint(first))
	}
}

// naming decides how the container will be told from all others.
func (p *Plan) naming(local bool, runID string, attempt int, dir string) {
	if p.verb != "run" {
		p.name = p.cmd.target
		if on(p.cmd.options, "-l", "--latest") {
			*p = p.cannot("--latest does not name a container")
		}
		return
	}
	name, named := last(p.cmd.options, "--name")
	file, filed := last(p.cmd.options, "--cidfile")
	rm := on(p.cmd.options, "--rm")
	switch {
	case filed:
		p.Again = fmt.Sprintf("--cidfile %s exists once the container was started, and %s then refuses", brief(file), p.engine)
	case named && !rm && !on(p.cmd.options, "--replace"):
		p.Again = fmt.Sprintf("the name %s stays taken, since the container is not removed (--rm)", brief(name))
	}
	p.name = name
	switch {
	case filed:
		if abs, err := filepath.Abs(file); err == nil {
			p.cidfile = abs
		}
	case named:
	case local:
		p.cidfile = filepath.Join(dir, CIDFile)
		p.add("--cidfile=" + p.cidfile)
	case len(p.apis) > 0:
		// A label and no file: the client may be confined (snap) or run as
		// somebody who cannot write here.
		p.label = Label + "=" + runID + "." + strconv.Itoa(attempt)
		p.add("--label=" + p.label)
	}
}

// add puts a word right behind the verb, where it is an option for certain.
func (p *Plan) add(word string) {
	p.Argv = slices.Insert(slices.Clone(p.Argv), p.cmd.verb+1, word)
	p.Added = append(p.Added, word)
}

// snapshot remembers what exists already under the names used.
func (p *Plan) snapshot() {
	if p.client != nil && p.verb == "exec" {
		for _, e := range conmonExecs() {
			p.before.execs = append(p.before.execs, e.id)
		}
	}
	if p.cidfile != "" && len(p.Added) == 0 {
		p.before.id, _ = readCIDFile(p.cidfile) // the user's own may be there
	}
	if p.Reach == ReachNone || p.name == "" {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), probeLimit)
	defer cancel()
	v, _, err := p.inspect(ctx, p.name)
	if err != nil {
		return
	}
	p.before.id = v.ID
	p.before.execs = append(p.before.execs, v.ExecIDs...)
	if p.verb == "run" && !on(p.cmd.options, "--replace") {
		p.Notes = append(p.Notes, fmt.Sprintf("a container named %s exists already: %s will refuse", brief(p.name), p.engine))
	}
}

// podmanInDisguise says whether docker is a script that calls podman, as the
// podman-docker package installs it.
func podmanInDisguise(word string, e environ) bool {
	path := lookPath(word, e)
	if st, err := os.Stat(path); path == "" || err != nil || !st.Mode().IsRegular() {
		return false
	}
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	b := make([]byte, 1024)
	n, _ := f.Read(b)
	return bytes.HasPrefix(b[:n], []byte("#!")) && bytes.Contains(b[:n], []byte("podman"))
}

// lookPath finds a command on the PATH of an environment.
func lookPath(word string, e environ) string {
	if strings.Contains(word, "/") {
		return word
	}
	path := e.get("PATH")
	if e.fresh {
		path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
	}
	for _, dir := range filepath.SplitList(path) {
		if !filepath.IsAbs(dir) {
			continue
		}
		if p, err := exec.LookPath(filepath.Join(dir, word)); err == nil {
			return p
		}
	}
	return ""
}

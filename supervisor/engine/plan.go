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

	"golang.org/x/sys/unix"

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
	service      string // of compose exec: which container it is, compose decides
	project      string // of compose, "" when files decide it
	before       before
	made         time.Time
	madeTicks    uint64 // the same instant as /proc counts it
}

// before is what was there before the start, and so is not ours.
type before struct {
	id    string
	execs []string
}

// Command is a container client's own command line, as it will be started.
type Command struct {
	// Argv is the simple command in which the client stands, with what is in front of
	// it: sudo docker run ...
	Argv []string
	// Env is the environment that Argv is started with, Dir its folder, "" where that
	// is not known.
	Env []string
	Dir string
	// Sudo says that sudo or doas stands further out than Argv.
	Sudo bool
	// Unclear are variables that a shell's text sets to values that are not known.
	Unclear []string
}

// Prepare decides how the container behind a command is found and ended, and
// adds a label, a name or --cidfile to `run` where that needs one. dir is the
// attempt's folder. It asks an engine at most a few small questions over its unix
// socket, with short deadlines.
func Prepare(cmd Command, c job.Container, runID string, attempt int, dir string) Plan {
	p, w, e := read(cmd, c)
	if p.Why != "" {
		return p
	}
	p.connect(w, e)
	p.naming(w.local, runID, attempt, dir)
	p.snapshot()
	return p
}

// CanRetry says, before anything was started, whether another attempt can follow the
// first: whether its container can be ended, and the same command be started again. It
// asks no engine, and an engine that is not there yet is taken to come: what the engine
// says, Prepare knows.
func CanRetry(cmd Command, c job.Container) (ok bool, why string) {
	p, w, _ := read(cmd, c)
	switch {
	case p.Why != "":
	case w.why != "":
		p = p.cannot(w.why)
	case w.local:
		if p.foreignRoot() {
			p = p.cannot(foreignRootWhy)
		}
	default:
		p = p.closed(w.sockets)
	}
	if p.Why == "" {
		p.Why = p.Again
	}
	return p.Why == "", p.Why
}

// closed says of sockets that are there that this user may not use them: the engine is
// another's, which a client behind sudo reaches all the same.
func (p Plan) closed(sockets []string) Plan {
	var first error
	for _, s := range sockets {
		switch err := unix.Access(s, unix.R_OK|unix.W_OK); {
		case err == nil:
			return p
		case errors.Is(err, unix.EACCES) && first == nil:
			first = fmt.Errorf("%s: %w (is this user in the engine's group?)", s, os.ErrPermission)
		}
	}
	if first != nil {
		return p.cannot(first.Error())
	}
	return p
}

// read takes a command apart, without asking anybody: Why is set where the container
// cannot be ended whatever its engine says.
func read(cmd Command, c job.Container) (Plan, place, environ) {
	p := Plan{Argv: cmd.Argv, Reach: ReachNone, engine: c.Engine, verb: c.Verb, made: time.Now(), madeTicks: ticksNow()}
	stop := func(format string, args ...any) (Plan, place, environ) {
		return p.cannot(fmt.Sprintf(format, args...)), place{}, environ{}
	}
	switch {
	case c.Engine != "docker" && c.Engine != "podman":
		return stop("%s is not an engine sparkrun can ask", c.Engine)
	case c.Verb == "":
		return stop("what %s does here is not understood", c.Engine)
	}
	p.cmd = takeApart(cmd.Argv, c)
	p.cmd.dir = cmd.Dir
	fresh := p.cmd.sudo && !p.cmd.keepsEnv
	p.cmd.sudo = p.cmd.sudo || cmd.Sudo
	if c.Verb == composeVerb {
		switch {
		case p.cmd.unknown != "":
			return stop("option %s of compose is not known", brief(p.cmd.unknown))
		case p.cmd.verb < 0:
			return stop("what compose does here is not understood")
		}
		p.verb = cmd.Argv[p.cmd.verb]
		if p.verb != "run" && p.verb != "exec" {
			return stop("compose %s starts containers of its own choice; use run or exec to have one followed", brief(p.verb))
		}
	}
	switch {
	case p.verb != "run" && p.verb != "exec" && p.verb != "start":
		return stop("only run, exec and start of %s are followed, not %s", c.Engine, brief(c.Verb))
	case p.verb != "run" && on(p.cmd.options, "-l", "--latest"):
		return stop("--latest does not name a container")
	case p.cmd.verb < 0 || p.cmd.target == "":
		return stop("its command line names no image or container")
	}
	for _, name := range cmd.Unclear {
		if slices.Contains(engineVariables, name) {
			return stop("the shell's text sets %s to a value that is not known", name)
		}
	}
	e := environ{list: cmd.Env, set: p.cmd.set, fresh: fresh}
	if c.Engine == "docker" && p.cmd.compose != composeProgram && podmanInDisguise(cmd.Argv[p.cmd.client], e) {
		p.engine = "podman"
		p.Notes = append(p.Notes, "docker is podman's stand-in here")
	}
	p.Detached = on(p.cmd.options, "-d", "--detach") ||
		p.verb == "start" && !on(p.cmd.options, "-a", "--attach", "-i", "--interactive")
	if p.Detached {
		p.Notes = append(p.Notes, "the container is detached (-d): what it prints goes to the engine's log and not here, so no step and no error text of it is seen; leave -d out to have them")
	}
	w := dockerPlace(p.cmd, e)
	if p.engine == "podman" {
		w = podmanPlace(p.cmd, e)
	}
	if p.cmd.compose != noCompose {
		p.project = p.cmd.project(e)
	}
	p.Again = p.again()
	return p, w, e
}

// again says why an engine would refuse the same command a second time.
func (p Plan) again() string {
	if p.verb != "run" {
		return ""
	}
	name, named := last(p.cmd.options, "--name")
	file, filed := last(p.cmd.options, "--cidfile")
	switch {
	case filed:
		return fmt.Sprintf("--cidfile %s exists once the container was started, and %s then refuses", brief(file), p.engine)
	case named && !on(p.cmd.options, "--rm") && !on(p.cmd.options, "--replace"):
		return fmt.Sprintf("the name %s stays taken, since the container is not removed (--rm)", brief(name))
	}
	return ""
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
		case p.foreignRoot():
			*p = p.cannot(foreignRootWhy)
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

// foreignRoot says whether the client runs as root and we do not.
func (p Plan) foreignRoot() bool { return p.cmd.sudo && os.Geteuid() != 0 }

const foreignRootWhy = "podman runs under sudo, and this user may not signal what it starts"

// naming decides how the container will be told from all others.
func (p *Plan) naming(local bool, runID string, attempt int, dir string) {
	if p.verb != "run" {
		p.name = p.cmd.target
		if p.cmd.compose != noCompose {
			p.name, p.service = "", p.cmd.target // its container is told by labels
		}
		return
	}
	name, named := last(p.cmd.options, "--name")
	file, filed := last(p.cmd.options, "--cidfile")
	p.name = name
	switch {
	case filed:
		p.cidfile = file
		if !filepath.IsAbs(file) {
			p.cidfile = filepath.Join(p.cmd.dir, file)
		}
		if !filepath.IsAbs(p.cidfile) {
			*p = p.cannot(fmt.Sprintf("the folder that --cidfile %s lies in is not known", brief(file)))
		}
	case named:
	case !local && len(p.apis) == 0:
	case p.cmd.compose != noCompose:
		// No --cidfile there, and podman-compose reads --label and forgets it.
		p.name = containerName(runID, attempt)
		p.add("--name=" + p.name)
	case local:
		p.cidfile = filepath.Join(dir, CIDFile)
		p.add("--cidfile=" + p.cidfile)
	default:
		// A label and no file: the client may be confined (snap) or run as
		// somebody who cannot write here.
		p.label = Label + "=" + runID + "." + strconv.Itoa(attempt)
		p.add("--label=" + p.label)
	}
}

// containerName is a name that every engine takes: letters, digits and "_.-".
func containerName(runID string, attempt int) string {
	return "sparkrun-" + strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("_.-", r) {
			return r
		}
		return '-'
	}, runID) + "-" + strconv.Itoa(attempt)
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
	if p.Reach == ReachNone || p.name == "" && p.service == "" {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), probeLimit)
	defer cancel()
	if p.service != "" {
		homes, _ := p.execHomes(ctx) // none so far is none before
		for _, h := range homes {
			p.before.execs = append(p.before.execs, h.v.ExecIDs...)
		}
		return
	}
	if p.cmd.compose != noCompose && len(p.Added) > 0 {
		return // a name that nobody has
	}
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
	if path == "" { // sudo's own, as a rule
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

package place

import (
	"bufio"
	"bytes"
	"fmt"
	"slices"
	"strings"

	"sparkrun/internal/job"
)

// The options of all container clients that say what the trainer sees.
var (
	optEnv        = []string{"-e", "--env"}
	optEnvFile    = []string{"--env-file"}
	optVolume     = []string{"-v", "--volume"}
	optMount      = []string{"--mount"}
	optTmpfs      = []string{"--tmpfs"}
	optWorkdir    = []string{"-w", "--workdir"}
	optEntrypoint = []string{"--entrypoint"}
	optEnvHost    = []string{"--env-host"}
	optRootfs     = []string{"--rootfs"}
	optLatest     = []string{"-l", "--latest"}
)

// container reads the command line of a container client.
func (f *finder) container(e *engine, words []string) {
	p := f.p
	if p.Container != nil {
		f.unsure(words, "the trainer runs in a container that is started from within another")
		return
	}
	c := &job.Container{Engine: e.Name}
	p.Container = c
	global := optionSet{Plain: e.GlobalPlain, Value: e.GlobalValue}
	g := global.read(words, 1)
	if f.unknown(words, g, e.Name) {
		p.Launchers = append(p.Launchers, e.Name)
		return
	}
	i := g.next
	if i < len(words) && words[i] == "compose" {
		p.Container = nil
		f.compose(e.Name, words, i+1)
		return
	}
	if i < len(words) && words[i] == "container" {
		i++
	}
	if i < len(words) {
		c.Verb = words[i]
	}
	set := &e.optionSet
	switch c.Verb {
	case "run", "create":
	case "exec":
		set = &e.Exec
	default:
		p.Launchers = append(p.Launchers, e.Name)
		p.Dir = ""
		p.ShimRefused = fmt.Sprintf("%s %s takes neither environment nor folders", e.Name, c.Verb)
		f.opaque(words, "%s %s starts what the container was made with: the trainer's own settings are not seen", e.Name, c.Verb)
		return
	}
	o := set.read(words, i+1)
	if f.unknown(words, o, e.Name+" "+c.Verb) {
		p.Launchers = append(p.Launchers, e.Name)
		return
	}
	i = o.next
	// With --latest the container is not named.
	latest := c.Verb == "exec" && o.on(optLatest)
	if i >= len(words) {
		p.Launchers = append(p.Launchers, e.Name)
		f.unsure(words, "%s %s names no image", e.Name, c.Verb)
		return
	}
	if !latest {
		c.Image = words[i]
		i++
	}
	if o.on(optRootfs) {
		c.Image = ""
	}
	remote := f.remote(e, g)
	l := f.client(e.Name, words, i, o, remote)
	f.workdir(c.Image, c.Verb)
	switch {
	case remote != "":
		p.ShimRefused = remote
	case c.Verb == "exec":
		l.noMounts = fmt.Sprintf("%s exec cannot add a folder to a container that is running", e.Name)
		p.ShimRefused = l.noMounts
	}
	f.push(l)
	f.image(c, o, words[i:])
}

// image goes on with what is run in an image or container.
func (f *finder) image(c *job.Container, o options, inner []string) {
	switch entry, typed := o.last(optEntrypoint); {
	case typed && entry != "" && c.Verb != "exec":
		f.opaque(inner, "--entrypoint %s takes the words behind the image: the trainer's own settings are not seen", entry)
	case len(inner) == 0:
		f.opaque(inner, "the image's own command is started, which is not seen")
	case strings.HasPrefix(inner[0], "-"):
		f.opaque(inner, "the image's own program is given %s: the trainer's own settings are not seen", inner[0])
	default:
		f.peel(inner)
	}
}

// remote says why the engine is not this machine's, "" if it is.
func (f *finder) remote(e *engine, g options) string {
	for _, x := range g.list {
		if !slices.Contains(e.Remote, x.name) || local(x.value) && x.value != "" {
			continue
		}
		return fmt.Sprintf("%s %s talks to an engine that may be another machine's", e.Name, x.name)
	}
	around := f.around()
	for _, name := range e.RemoteEnv {
		if v := around[name]; v != "" && !local(v) {
			return fmt.Sprintf("%s=%s: %s talks to an engine that may be another machine's", name, v, e.Name)
		}
	}
	return ""
}

func local(engine string) bool {
	return strings.HasPrefix(engine, "unix:") || engine == "default" || engine == "false"
}

// client makes the layer of a container client, behind which the command inside
// starts at words[i], and applies what its options say.
func (f *finder) client(engine string, words []string, i int, o options, remote string) layer {
	p := f.p
	outer, dir := f.around(), p.Dir
	l := layer{name: engine, head: words[:i], way: wayClient, at: o.next, typed: map[string]string{}}
	if o.dash >= 0 {
		l.at = o.dash
	}
	if !o.on(optEnvHost) {
		l.blocks = engine + " does not pass our environment on"
		p.clear()
	}
	set := func(name, value string) {
		p.set(name, value)
		l.typed[name] = value
	}
	for _, file := range o.all(optEnvFile) {
		f.envFile(absolute(dir, file), outer, set)
	}
	for _, x := range o.list {
		if !slices.Contains(optEnv, x.name) {
			continue
		}
		name, value, ok := strings.Cut(x.value, "=")
		if !ok {
			if value, ok = outer[name]; !ok {
				continue
			}
		}
		set(name, value)
		l.spots = append(l.spots, spot{x.end - 1, name, x.value})
	}
	if w, ok := o.last(optWorkdir); ok {
		p.Workdir = w
	} else {
		p.Workdir = ""
	}
	for _, x := range o.list {
		switch {
		case slices.Contains(optVolume, x.name):
			p.addMount(parseVolume(x.value, dir), remote)
		case slices.Contains(optMount, x.name):
			p.addMount(parseMount(x.value, dir), remote)
		case slices.Contains(optTmpfs, x.name):
			inside, _, _ := strings.Cut(x.value, ":")
			p.addMount(Mount{Inside: inside}, remote)
		}
	}
	p.first, p.OtherPath, p.Dir = "", true, ""
	return l
}

// workdir finds the folder the trainer starts in.
func (f *finder) workdir(image, verb string) {
	p := f.p
	if p.Workdir == "" && verb != "exec" {
		name := image
		if at := strings.LastIndex(name, "@"); at >= 0 {
			name = name[:at]
		}
		if at := strings.LastIndex(name, ":"); at > strings.LastIndex(name, "/") {
			name = name[:at]
		}
		p.Workdir = f.t.Workdirs[name]
	}
	if p.Workdir != "" {
		p.Dir, _ = p.HostPath(p.Workdir)
	}
}

// envFile reads NAME=VALUE lines as container clients do: # starts a comment line,
// a bare NAME takes our value.
func (f *finder) envFile(path string, outer map[string]string, set func(name, value string)) {
	lines := bufio.NewScanner(bytes.NewReader(f.p.root.For(path).Head(path, maxProject)))
	for lines.Scan() {
		line := strings.TrimLeft(strings.TrimSuffix(lines.Text(), "\r"), " \t")
		if line == "" || line[0] == '#' {
			continue
		}
		name, value, ok := strings.Cut(line, "=")
		if !ok {
			if value, ok = outer[name]; !ok {
				continue
			}
		}
		set(name, value)
	}
}

// compose reads what stands behind `docker compose`, at words[i].
func (f *finder) compose(engine string, words []string, i int) {
	p, t := f.p, f.t.Compose
	if p.Container != nil {
		f.unsure(words, "the trainer runs in a container that is started from within another")
		return
	}
	p.Container = &job.Container{Engine: engine, Verb: "compose"}
	global := optionSet{Plain: t.GlobalPlain, Value: t.GlobalValue}
	g := global.read(words, i)
	if f.unknown(words, g, engine+" compose") {
		p.Launchers = append(p.Launchers, engine)
		return
	}
	verb := ""
	if g.next < len(words) {
		verb = words[g.next]
	}
	if verb != "run" {
		p.Launchers = append(p.Launchers, engine)
		p.Dir = ""
		p.ShimRefused = strings.TrimSpace(engine+" compose "+verb) + " takes neither environment nor folders"
		f.opaque(words, "%s starts what the compose file says: the trainer's own settings are not seen", strings.TrimSpace(engine+" compose "+verb))
		return
	}
	o := t.Run.read(words, g.next+1)
	if f.unknown(words, o, engine+" compose run") {
		p.Launchers = append(p.Launchers, engine)
		return
	}
	if o.next >= len(words) {
		p.Launchers = append(p.Launchers, engine)
		f.unsure(words, "%s compose run names no service", engine)
		return
	}
	l := f.client(engine, words, o.next+1, o, "")
	f.workdir("", "run")
	f.push(l)
	f.opaque(words[o.next+1:], "%s compose run starts what the compose file says: the trainer's own settings are left alone", engine)
}

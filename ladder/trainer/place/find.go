package place

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"sparkrun/internal/lazyre"
	"sparkrun/internal/treefs"
)

// maxLayers bounds how deep a command is taken apart.
const maxLayers = 24

var (
	pythonName = lazyre.New(`^(python|pypy)[0-9.]*t?$`)
	assignment = lazyre.New(`^[A-Za-z_][A-Za-z0-9_]*=`)
)

// finder takes one command apart.
type finder struct {
	t   *Table
	p   *Place
	env map[string]string
	spread
}

// Find takes a command apart: its words, the absolute folder it is started in and
// the environment it is started with. A few files are read for it: project files of
// task runners, host files, configs of accelerate, the first lines of a script.
func (t *Table) Find(words []string, dir string, env map[string]string) *Place {
	return t.FindUnder("", words, dir, env)
}

// FindUnder is Find on the machine that root stands for: programs and environments are
// looked up there alone, the command's own files (its script, its configs) on this
// machine where that tree has none.
func (t *Table) FindUnder(root treefs.Root, words []string, dir string, env map[string]string) *Place {
	f := &finder{t: t, env: env, p: &Place{Dir: dir, Set: map[string]string{}, root: root}}
	f.peel(slices.Clone(words))
	f.finish()
	return f.p
}

// stop ends the search: words are left as they are.
func (f *finder) stop(words []string) {
	f.p.Words, f.p.Args = words, len(words)
}

func (f *finder) unsure(words []string, format string, args ...any) {
	f.p.Unsure = fmt.Sprintf(format, args...)
	f.stop(words)
}

func (f *finder) opaque(words []string, format string, args ...any) {
	f.p.Opaque = fmt.Sprintf(format, args...)
	f.stop(words)
}

// unknown stops at an option that is not in the table.
func (f *finder) unknown(words []string, o options, of string) bool {
	switch {
	case o.unknown != "":
		f.unsure(words, "cannot tell where the trainer starts: option %s of %s is not known", o.unknown, of)
	case o.short != "":
		f.unsure(words, "cannot tell where the trainer starts: option %s of %s has no value", o.short, of)
	default:
		return false
	}
	return true
}

// push adds a layer: head stands before the command inside.
func (f *finder) push(l layer) {
	f.p.layers = append(f.p.layers, l)
	f.p.Launchers = append(f.p.Launchers, l.name)
}

// peel takes words off until it comes to the trainer, or to something it does not
// look behind.
func (f *finder) peel(words []string) {
	if len(words) == 0 {
		f.unsure(words, "the command ends where a program should stand")
		return
	}
	if len(f.p.layers) >= maxLayers {
		f.unsure(words, "the command has more than %d others in front of it", maxLayers)
		return
	}
	w := words[0]
	base := filepath.Base(w)
	if u := unseenNamed(f.t.Elsewhere, w); u != nil {
		f.p.Launchers = append(f.p.Launchers, base)
		f.unsure(words, "%s: sparkrun cannot see or change it there", u.Why)
		f.p.ShimRefused = u.Why
		return
	}
	if u := unseenNamed(f.t.Unseen, w); u != nil {
		f.p.Launchers = append(f.p.Launchers, base)
		f.opaque(words, "%s: the trainer's own settings are not seen", u.Why)
		f.p.ShimRefused = u.Reach
		return
	}
	if pre := f.t.byName[base]; pre != nil {
		f.prefix(pre, words)
		return
	}
	if s := f.t.shellNamed(w); s != nil {
		f.shell(s, words)
		return
	}
	if e, ok := f.t.Compose.Programs[base]; ok {
		f.compose(e, words, 1)
		return
	}
	if e := f.t.engineNamed(w); e != nil {
		f.container(e, words)
		return
	}
	switch {
	case pythonName.MatchString(base):
		f.python(words)
	case assignment.MatchString(w):
		f.unsure(words, "%s is no program: write env in front of it", w)
	case w == "" || w[0] == '-':
		f.unsure(words, "%q stands where a program should", w)
	case f.shellScript(w):
		f.opaque(words, "%s is a shell script: what it starts is not seen", w)
		f.scriptAdvice(w)
		f.p.ShellFile, f.p.shellHead, f.p.shellArgs = w, []string{f.scriptShell(w)}, words[1:]
	case strings.HasSuffix(base, ".py"):
		f.p.Script = w
		f.trainer(words, 1)
	default:
		f.p.Program = w
		f.trainer(words, 1)
	}
}

func (f *finder) trainer(words []string, args int) {
	f.p.Words, f.p.Args = words, min(args, len(words))
}

// shellScript says whether a program is one; a console script of Python's that
// starts as a shell script is none.
func (f *finder) shellScript(w string) bool {
	switch filepath.Ext(w) {
	case ".sh", ".bash", ".zsh", ".ksh":
		return true
	}
	if !strings.Contains(w, "/") {
		return false
	}
	file, ok := f.p.HostPath(w)
	if !ok || shebang(f.p.root.For(file), file) != "" {
		return false
	}
	name := shebangName(f.p.root.For(file), file)
	return name != "" && f.t.shellNamed(name) != nil
}

// scriptShell is the shell that runs a script: that of its first line, else the one that
// the system takes for a program without.
func (f *finder) scriptShell(w string) string {
	if file, ok := f.p.HostPath(w); ok {
		if name := shebangName(f.p.root.For(file), file); name != "" && f.t.shellNamed(name) != nil {
			return name
		}
	}
	return "sh"
}

// prefix reads the options of a word that runs another command.
func (f *finder) prefix(pre *front, words []string) {
	i, global := 1, options{dash: -1}
	if pre.Sub != "" && filepath.Base(words[0]) == pre.Name {
		set := optionSet{Plain: pre.GlobalPlain, Value: pre.GlobalValue, Fold: pre.Fold}
		global = set.read(words, 1)
		i = global.next
		if global.unknown == "" && global.short == "" && (i >= len(words) || words[i] != pre.Sub) {
			// uv pip, accelerate config: a program like any other.
			f.p.Program = words[0]
			f.trainer(words, 1)
			return
		}
		if f.unknown(words, global, pre.Name) {
			f.p.Launchers = append(f.p.Launchers, pre.Name)
			return
		}
		i++
	}
	f.behind(pre, words, i, global)
}

// behind reads what follows at words[i], and goes on with the command inside.
func (f *finder) behind(pre *front, words []string, i int, global options) {
	start := i
	o := pre.read(words, i)
	of := pre.Name
	if pre.Sub != "" {
		of += " " + pre.Sub
	}
	var sets [][2]string
	i = o.next
	for pre.Assignments {
		n := i
		for ; i < len(words) && assignment.MatchString(words[i]); i++ {
			name, value, _ := strings.Cut(words[i], "=")
			sets = append(sets, [2]string{name, value})
		}
		if i == n || !pre.Resets || o.dash >= 0 {
			break
		}
		// sudo takes options and assignments in any order.
		more := pre.read(words, i)
		more.list = slices.Concat(o.list, more.list)
		o, i = more, more.next
	}
	at := i
	i = min(i+pre.Words, len(words))
	if f.hidden(pre, o.unknown, words) || i < len(words) && pre.Words > 0 && f.hidden(pre, words[i], words) {
		return
	}
	if f.unknown(words, o, of) {
		f.p.Launchers = append(f.p.Launchers, pre.Name)
		return
	}
	o.list = slices.Concat(global.list, o.list)
	l := layer{name: pre.Name, typed: map[string]string{}}
	f.surround(pre, o, &l)
	for _, kv := range sets {
		f.p.set(kv[0], kv[1])
		l.typed[kv[0]] = kv[1]
		if pre.Resets && l.way == noWay {
			l.way = wayWord // who may set one variable may set another
		}
	}
	l.head = words[:i]
	switch l.way {
	case wayWord:
		l.at = i
		if o.dash >= 0 && pre.Resets {
			l.at = o.dash // sudo takes assignments before -- only
		}
	case wayOption:
		l.at = at
		if o.dash >= 0 {
			l.at = o.dash
		}
	case noWay, wayClient, wayShell:
		l.at = i
	}
	if pre.Distributed {
		l.args = [2]int{start, o.next}
		f.p.LauncherArgs = slices.Clone(words[start:o.next])
	}
	f.launch(pre, o)
	if pre.Note != "" && !o.on(pre.NoteUnless) {
		f.p.Notes = append(f.p.Notes, pre.Note)
	}
	f.push(l)
	f.inside(pre, o, words, i)
}

// hidden says whether word is an option behind which the command cannot be seen.
func (f *finder) hidden(pre *front, word string, words []string) bool {
	for name, why := range pre.Opaque {
		if word == name || strings.HasPrefix(word, name+"=") || len(name) == 2 && strings.HasPrefix(word, name) {
			f.p.Launchers = append(f.p.Launchers, pre.Name)
			f.opaque(words, "%s: the trainer's own settings are not seen", why)
			if pre.Resets {
				f.p.ShimRefused = pre.Name + " does not pass our environment on"
			}
			return true
		}
	}
	return false
}

// surround applies what a prefix does to environment, folder and PATH.
func (f *finder) surround(pre *front, o options, l *layer) {
	p := f.p
	if pre.Assignments && !pre.Resets {
		l.way = wayWord
	}
	switch {
	case pre.Resets && !o.on(pre.Keeps):
		l.blocks = pre.Name + " does not pass our environment on"
		if pre.Name == "sudo" {
			l.blocks += " without -E"
		}
		p.clear()
	case pre.Resets && pre.Assignments:
		// sudo drops PYTHONPATH even then, but whoever may keep the environment
		// may set variables.
		l.way = wayWord
		l.gone = append(l.gone, pythonPath)
		p.unset(pythonPath)
	}
	if pre.Setenv != "" {
		l.way, l.option = wayOption, pre.Setenv
		for _, kv := range o.all([]string{pre.Setenv, "-E"}) {
			name, value, _ := strings.Cut(kv, "=")
			p.set(name, value)
			l.typed[name] = value
		}
	}
	if v, ok := o.last(pre.Export); ok && v != "ALL" && !strings.HasPrefix(v, "ALL,") {
		l.blocks = fmt.Sprintf("%s %s does not pass our environment on", pre.Name, pre.Export[0])
		p.clear()
	}
	for _, x := range o.list {
		switch {
		case slices.Contains(pre.Clears, x.name):
			l.blocks = pre.Name + " " + x.name + " empties the environment"
			p.clear()
		case slices.Contains(pre.Unset, x.name):
			p.unset(x.value)
			l.gone = append(l.gone, x.value)
		case slices.Contains(pre.Chdir, x.name):
			f.chdir(x.value)
		}
	}
	if len(pre.DirKeeps) > 0 && !o.on(pre.DirKeeps) {
		p.Dir, p.Workdir = "", ""
	}
	f.path(pre, o)
}

// chdir moves the folder the trainer starts in.
func (f *finder) chdir(to string) {
	p := f.p
	if p.Container != nil {
		if !filepath.IsAbs(to) {
			if p.Workdir == "" {
				return
			}
			to = filepath.Join(p.Workdir, to)
		}
		p.Workdir = filepath.Clean(to)
		p.Dir, _ = p.HostPath(p.Workdir)
		return
	}
	switch {
	case filepath.IsAbs(to):
		p.Dir = walk(p.root, "/", to)
	case p.Dir != "":
		p.Dir = walk(p.root, p.Dir, to)
	}
}

// cd moves the folder as a shell does, which takes a .. off the path as it was typed.
func (f *finder) cd(to string, physical bool) {
	if !physical && f.p.Container == nil {
		if !filepath.IsAbs(to) {
			if f.p.Dir == "" {
				return
			}
			to = filepath.Join(f.p.Dir, to)
		}
		to = filepath.Clean(to)
	}
	f.chdir(to)
}

// inside goes on with what a prefix runs, at words[i].
func (f *finder) inside(pre *front, o options, words []string, i int) {
	rest := words[i:]
	if pre.Scripts == "" || o.on(pre.Program) {
		if why := f.task(pre, rest); why != "" {
			f.opaque(rest, "%s", why)
			return
		}
		f.peel(rest)
		return
	}
	if len(rest) == 0 {
		f.unsure(rest, "the command ends where a script should stand")
		return
	}
	switch word := rest[0]; {
	case word == "":
		f.unsure(rest, "%q stands where a script should", word)
		return
	case o.on(pre.Module):
		f.p.Module = word
	case word == "-" && pre.Scripts == "py":
		f.opaque(rest, "the script comes from standard input: its settings cannot be read")
		return
	case strings.HasPrefix(word, "https://") || strings.HasPrefix(word, "http://"):
		f.opaque(rest, "the script comes from the network: its settings cannot be read")
		return
	case o.on(pre.Script), pre.Scripts == "always", strings.HasSuffix(word, ".py"):
		f.p.Script = word
	default:
		if why := f.task(pre, rest); why != "" {
			f.opaque(rest, "%s", why)
			return
		}
		f.peel(rest)
		return
	}
	if pre.Scripts == "always" {
		if host, ok := f.p.HostPath(rest[0]); f.p.Script != "" && filepath.Ext(rest[0]) != ".py" && (!ok || !f.p.root.For(host).IsFile(host)) {
			f.p.Notes = append(f.p.Notes, fmt.Sprintf("%s expects a Python script where %s stands, which is no file: a program is started by itself, or behind --no_python where the launcher has that", pre.Name, rest[0]))
		}
		if f.p.Python == "" {
			f.p.via = words[0]
		}
	} else {
		f.p.anyPython = true
		if f.inline() {
			f.p.first, f.p.OtherPath = "", true
		}
	}
	args := 1
	if pre.Distributed && len(rest) > 1 && rest[1] == "--" {
		args++ // argparse takes the -- right behind the script for the launcher's own
	}
	f.trainer(rest, args)
}

// around is the environment at this point.
func (f *finder) around() map[string]string { return f.p.Surroundings(f.env) }

// finish works out what needs the whole place.
func (f *finder) finish() {
	p := f.p
	around := f.around()
	p.told = f.spread
	p.Nodes, p.Procs = f.count(around)
	if p.Unsure != "" {
		return
	}
	if p.Dir == "" && p.Container == nil && p.Seen() {
		p.Notes = append(p.Notes, "the folder that the trainer starts in is not certain (an earlier command of the shell may change it), so what it names by a relative path is not read")
	}
	if p.ShimRefused == "" {
		if _, _, err := p.route(pythonPath + "=x"); err != nil {
			p.ShimRefused = err.Error()
		}
	}
}

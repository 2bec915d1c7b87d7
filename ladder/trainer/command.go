package trainer

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"sparkrun/internal/edit"
	"sparkrun/internal/job"
	"sparkrun/internal/pyread"
	"sparkrun/internal/treefs"
	"sparkrun/ladder/trainer/place"
)

// command is a command line as far as it is understood: where the trainer
// stands in it, which profile fits, and every setting found.
type command struct {
	// root is the machine that the command is looked at on.
	root  treefs.Root
	place *place.Place
	// words are the trainer's own, args the index of its first argument behind
	// subcommands.
	words []string
	args  int
	files files

	prof  *profile
	style string
	// noScript says that the script which a shell is to run is not there.
	noScript string
	// text is the beginning of the script, file its path on this machine.
	text, file string
	decl       map[string]declaration
	takes      *arguments
	// proven says that the parser is certain to take all flags of the profile.
	proven bool
	found  []mention
	// pairs says that the words are key=value though the parser knows flags too.
	pairs bool
	docs  []*document
	// config is the first config file as typed.
	config string
	// subcommand is the last word behind the program that args skips.
	subcommand string
	// consts are the keyword arguments in the script's text.
	consts []pyread.Constant
	// blind is set when settings stand in a file that cannot be read: then no
	// default holds.
	blind string
	// python is the interpreter that runs the trainer, "" if it is not known.
	python string
	// unheard are sentences about flags that the script does not read, by knob.
	unheard map[string]string
	// almost says how a trainer is known that this command comes close to.
	almost string
	// unread says why a profile that the config file would decide on was not taken.
	unread string
	// version is that of the profile's package, "" if unknown.
	version string
	// read are the files that were read, each with a hash.
	read map[string]string
	// env is the environment that the command starts in, with what a config adds.
	env map[string]string
	// world is how many processes train, 0 if unknown.
	world int64
}

// around is what inspect needs of the world beside the words.
type around struct {
	dir string
	env map[string]string
	// interpreter is the Python that runs the trainer, "" if that is to be found.
	interpreter string
	files       files
	// like is a command of the same trainer: its profile holds.
	like *command
}

// inspect reads a command line.
func (s *Set) inspect(words []string, a around) *command {
	c := &command{root: s.root, place: s.places.FindUnder(s.root, words, a.dir, a.env), files: a.files, read: map[string]string{}}
	c.words, c.args = c.place.Words, min(c.place.Args, len(c.place.Words))
	if !c.place.Seen() {
		c.noScript = s.missingScript(c.place, a.env)
		return c
	}
	python := a.interpreter
	if python == "" {
		python = c.place.Interpreter(a.env)
	}
	c.python = python
	c.text, c.file = source(c.root, c.place, python)
	c.saw(c.file, []byte(c.text))
	if why := c.place.Rewritten(s.places, c.file, false); c.file != "" && why != "" {
		c.place.Unsure = fmt.Sprintf("%s is not certain: %s", c.scriptName(), why)
	}
	if l := a.like; l != nil && l.prof != nil {
		c.prof, c.style, c.subcommand = l.prof, l.style, l.subcommand
		c.args = min(c.args+l.args-l.place.Args, len(c.words))
	} else if !s.recognise(c) {
		s.almostKnown(c)
		return c
	}
	p := c.prof.Parser
	c.proven = p.Always || mentions(c.text, p.Text)
	c.decl = declared(c.text, c.proven && c.style == "hf")
	if c.text != "" {
		c.consts = pyread.Constants(c.text)
	}
	c.link()
	c.takes = c.prof.arguments(c.style, c.decl)
	if !c.proven {
		c.takes.onlyDeclared(c.text, c.decl)
	}
	c.readConstants()
	c.found = c.takes.read(c.words, c.args)
	if !flagStyle(c.style) {
		flags := c.prof.flagNames()
		c.found = append(flags.read(c.words, c.args), c.found...)
	}
	if why := c.leftAlone(); why != "" {
		c.place.Unsure = why
	}
	c.openConfigs()
	for _, d := range c.docs {
		if why := c.place.Rewritten(s.places, d.path, true); why != "" {
			c.blind, c.docs = d.typed+" is not certain: "+why, nil
			break
		}
	}
	c.env = a.env
	s.joinEnv(c)
	c.version = place.InstalledVersion(c.root, python, c.prof.Package)
	c.world = c.worldSize()
	return c
}

// saw notes what was in a file.
func (c *command) saw(file string, data []byte) {
	if file != "" {
		sum := sha256.Sum256(data)
		c.read[file] = hex.EncodeToString(sum[:])
	}
}

// mentions says whether a text has one of the words; "A && B" demands both.
func mentions(text string, words []string) bool {
	if text == "" {
		return false
	}
	for _, w := range words {
		all := true
		for _, part := range strings.Split(w, " && ") {
			all = all && strings.Contains(text, part)
		}
		if all {
			return true
		}
	}
	return false
}

// arguments collects the flags that the profile and the script's text name.
func (p *profile) arguments(style string, decl map[string]declaration) *arguments {
	a := &arguments{
		style: style, names: map[string]bool{}, bools: map[string]bool{}, knobs: map[string]bool{}, shorts: map[string]string{},
		abbreviations: p.Parser.Abbreviations, foreign: map[string]bool{}, unclear: map[string]string{},
	}
	for _, k := range p.Knobs {
		for _, n := range k.Names {
			if k.Own {
				a.foreign[normalise(n)] = true
			}
			if len(n) == 1 {
				a.shorts["-"+n] = n
			}
			n = normalise(n)
			a.names[n], a.knobs[n] = true, true
			if k.Kind == "bool" && (style != "argparse" || decl[n].dual) {
				a.bools[n] = true
			}
		}
	}
	for _, c := range p.Config {
		for _, f := range c.flags() {
			a.names[normalise(f)] = true
		}
	}
	for _, n := range p.Flags {
		a.names[normalise(n)] = true
	}
	for n, d := range decl {
		a.names[n] = true
		delete(a.foreign, n)
		for _, s := range d.shorts {
			a.shorts[s] = n
		}
	}
	return a
}

// flagNames are the flags beside key=value words.
func (p *profile) flagNames() *arguments {
	a := &arguments{style: "argparse", names: map[string]bool{}, bools: map[string]bool{}, shorts: map[string]string{}}
	for _, k := range p.Knobs {
		for _, n := range k.FlagNames {
			a.names[normalise(n)] = true
			if len(n) <= 2 {
				a.shorts["-"+n] = normalise(n)
			}
		}
	}
	return a
}

// joinEnv adds to the environment what a config file of the trainer's puts there before
// it starts its processes.
func (s *Set) joinEnv(c *command) {
	more := map[string]string{}
	for _, d := range c.docs {
		if d.form.Env == "" {
			continue
		}
		for _, e := range d.doc.Entries() {
			if name, ok := strings.CutPrefix(e.Path, d.form.Env+"."); ok && e.Kind == edit.Scalar {
				more[name] = e.Value
			}
		}
	}
	if len(more) > 0 {
		c.place.Join(s.places, c.env, more)
	}
}

// worldSize is how many processes train together, 0 if that is not told.
func (c *command) worldSize() int64 {
	procs, nodes := int64(c.place.Procs), int64(max(1, c.place.Nodes))
	if n := c.ownProcs(); n > 0 {
		procs = n
	}
	if procs == 0 && !distributed(c.place.Launchers) {
		procs = 1
	}
	return procs * nodes
}

// ownProcs is what the trainer itself is told of its processes on this machine.
func (c *command) ownProcs() int64 {
	around, p := c.place.Surroundings(c.env), c.prof.Procs
	for _, name := range p.Env {
		n, err := parseInt(around[name])
		switch {
		case err != nil || n < 1:
		case len(p.EnvIf) == 0 || slices.ContainsFunc(p.EnvIf, func(v string) bool { on, _ := edit.AsBool(around[v]); return on }):
			return n
		default:
			return 1 // on a machine with one device it starts no others
		}
	}
	for i := c.place.Args; i < len(c.place.Words); i++ {
		word, value, inline := strings.Cut(c.place.Words[i], "=")
		long, ok := strings.CutPrefix(word, "--")
		if !ok || !slices.ContainsFunc(c.prof.Procs.Flags, func(f string) bool { return normalise(f) == normalise(long) }) {
			continue
		}
		if !inline && i+1 < len(c.place.Words) {
			value = c.place.Words[i+1]
		}
		if n, err := parseInt(value); err == nil && n > 0 {
			return n
		}
	}
	return 0
}

// distributed says whether a launcher that starts several processes is among
// them.
func distributed(launchers []string) bool {
	return slices.ContainsFunc(launchers, func(l string) bool {
		switch l {
		case "accelerate", "torchrun", "deepspeed", "mpirun", "mpiexec", "srun":
			return true
		}
		return false
	})
}

// inJob inspects the command of a job again, with its placeholders filled in.
func (s *Set) inJob(j job.Job, user map[string]string, env []string, over files) (*command, error) {
	words, err := Expand(j.Argv, user)
	if err != nil {
		return nil, err
	}
	e := place.Environ(env)
	if env == nil {
		e = map[string]string{}
	}
	c := s.inspect(words, around{dir: j.Dir, env: maps.Clone(e), interpreter: j.Interpreter, files: over})
	if j.Procs > 0 && c.prof != nil {
		c.world = int64(j.Procs) * int64(max(1, j.Nodes))
	}
	return c, nil
}

// scriptName names the trainer's program for people.
func (c *command) scriptName() string {
	switch {
	case c.place.Script != "":
		return filepath.Base(c.place.Script)
	case c.place.Module != "":
		return c.place.Module
	}
	return filepath.Base(c.place.Program)
}

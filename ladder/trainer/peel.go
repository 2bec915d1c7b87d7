package trainer

import (
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"sparkrun/internal/job"
)

// prefixTable is configs/trainers/_prefixes.yaml.
type prefixTable struct {
	Prefixes          []prefixWord   `yaml:"prefixes"`
	Launchers         []launcherWord `yaml:"launchers"`
	TrainerNodes      []string       `yaml:"trainer_nodes"`
	TrainerNodeConfig []string       `yaml:"trainer_node_config"`
	NodeEnv           []nodeEnv      `yaml:"node_env"`
	Engines           []engineWord   `yaml:"engines"`
}

type prefixWord struct {
	Name        string   `yaml:"name"`
	Plain       []string `yaml:"plain"`
	Value       []string `yaml:"value"`
	Words       int      `yaml:"words"`
	Assignments bool     `yaml:"assignments"`
	// OtherPath marks a prefix that runs the command on a PATH that is not ours.
	OtherPath bool `yaml:"other_path"`
}

type launcherWord struct {
	Name     string   `yaml:"name"`
	Modules  []string `yaml:"modules"`
	Nodes    []string `yaml:"nodes"`
	Hostfile []string `yaml:"hostfile"`
	Hosts    []string `yaml:"hosts"`
	Config   []string `yaml:"config"`
}

type nodeEnv struct {
	Name string `yaml:"name"`
	Per  string `yaml:"per"`
}

type engineWord struct {
	Name        string   `yaml:"name"`
	GlobalValue []string `yaml:"global_value"`
	GlobalPlain []string `yaml:"global_plain"`
	Plain       []string `yaml:"plain"`
}

// place says where in a command the trainer stands.
type place struct {
	// at is the index of the trainer's first word, args of its first argument.
	at, args int
	// python is the interpreter word in front of it, if there is one.
	python string
	// One of these is set, or none where the trainer is not seen.
	script, module, program string

	launcher  *launcherWord
	container *job.Container

	// dir is the folder the trainer starts in; set and unset are what env in
	// front of it does to the environment.
	dir       string
	set       map[string]string
	unset     []string
	cleared   bool
	otherPath bool
	// unsure says why the place is not certain.
	unsure string
}

func (p *place) seen() bool { return p.script != "" || p.module != "" || p.program != "" }

var (
	pythonName = regexp.MustCompile(`^(python|pypy)[0-9.]*t?$`)
	assignment = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*=`)
	niceNumber = regexp.MustCompile(`^-[0-9]+$`)
)

// find takes prefixes off a command until it comes to the trainer, to something
// it does not look behind, or to a word that makes the place uncertain.
func (t *prefixTable) find(words []string, dir string) place {
	p := place{dir: dir, set: map[string]string{}}
	i := 0
	for i < len(words) {
		base := filepath.Base(words[i])
		pre := t.prefix(base)
		if pre == nil {
			break
		}
		next, ok := p.skip(pre, words, i)
		if !ok {
			p.at, p.args = i, len(words)
			return p
		}
		i = next
	}
	p.at, p.args = i, len(words)
	if i >= len(words) {
		p.at = max(0, len(words)-1)
		return p
	}
	base := filepath.Base(words[i])
	if e := t.engine(base); e != nil {
		p.container = e.container(words[i:])
		return p
	}
	if l := t.launcherNamed(base); l != nil {
		p.launcher = l
		p.args = i + 1
		return p
	}
	if pythonName.MatchString(base) {
		p.findPython(t, words, i)
		return p
	}
	p.args = i + 1
	if strings.HasSuffix(base, ".py") {
		p.script = words[i]
	} else {
		p.program = words[i]
	}
	return p
}

func (t *prefixTable) prefix(base string) *prefixWord {
	for i := range t.Prefixes {
		if t.Prefixes[i].Name == base {
			return &t.Prefixes[i]
		}
	}
	return nil
}

func (t *prefixTable) launcherNamed(base string) *launcherWord {
	for i := range t.Launchers {
		if t.Launchers[i].Name == base {
			return &t.Launchers[i]
		}
	}
	return nil
}

func (t *prefixTable) engine(base string) *engineWord {
	if base == "docker-compose" || base == "podman-compose" {
		return &engineWord{Name: base}
	}
	for i := range t.Engines {
		if t.Engines[i].Name == base {
			return &t.Engines[i]
		}
	}
	return nil
}

// skip returns the index of the word behind the prefix at words[i].
func (p *place) skip(pre *prefixWord, words []string, i int) (int, bool) {
	fail := func(word string) (int, bool) {
		p.unsure = fmt.Sprintf("cannot tell where the trainer starts: option %s of %s is not known", word, pre.Name)
		return 0, false
	}
	p.otherPath = p.otherPath || pre.OtherPath
	i++
	for ; i < len(words); i++ {
		w := words[i]
		if w == "--" {
			i++
			break
		}
		if w == "-" && slices.Contains(pre.Plain, w) {
			p.option(pre, w, "")
			continue
		}
		if len(w) < 2 || w[0] != '-' {
			break
		}
		name, value, inline := w, "", false
		if strings.HasPrefix(w, "--") {
			name, value, inline = strings.Cut(w, "=")
		}
		switch {
		case slices.Contains(pre.Plain, name):
		case slices.Contains(pre.Value, name):
			if !inline {
				i++
				if i >= len(words) {
					return fail(w)
				}
				value = words[i]
			}
		case pre.Name == "nice" && niceNumber.MatchString(w):
		case len(w) > 2 && w[1] != '-' && slices.Contains(pre.Value, w[:2]):
			name, value = w[:2], w[2:]
		case w[1] != '-' && allPlain(w[1:], pre.Plain):
			for _, c := range w[1:] {
				p.option(pre, "-"+string(c), "")
			}
			continue
		default:
			return fail(w)
		}
		p.option(pre, name, value)
	}
	for n := 0; n < pre.Words; n++ {
		i++
	}
	if pre.Assignments {
		for ; i < len(words) && assignment.MatchString(words[i]); i++ {
			name, value, _ := strings.Cut(words[i], "=")
			p.set[name] = value
		}
	}
	if i > len(words) {
		i = len(words)
	}
	return i, true
}

func allPlain(letters string, plain []string) bool {
	for _, c := range letters {
		if !slices.Contains(plain, "-"+string(c)) {
			return false
		}
	}
	return true
}

// option applies what env's options do to the trainer's surroundings.
func (p *place) option(pre *prefixWord, name, value string) {
	if pre.Name != "env" {
		return
	}
	switch name {
	case "-i", "-", "--ignore-environment":
		p.cleared = true
		p.set = map[string]string{}
	case "-u", "--unset":
		p.unset = append(p.unset, value)
		delete(p.set, value)
	case "-C", "--chdir":
		if filepath.IsAbs(value) {
			p.dir = value
		} else {
			p.dir = filepath.Join(p.dir, value)
		}
	}
}

// findPython reads Python's own options at words[i], which is the interpreter.
func (p *place) findPython(t *prefixTable, words []string, i int) {
	p.python = words[i]
	for i++; i < len(words); i++ {
		w := words[i]
		if w == "-" || len(w) < 2 || w[0] != '-' {
			p.at, p.args = i, i+1
			if w == "-" || w == "" {
				p.unsure = "the script comes from standard input: its settings cannot be read"
				return
			}
			p.script = w
			return
		}
		if strings.HasPrefix(w, "--") {
			if w == "--check-hash-based-pycs" {
				i++
				continue
			}
			p.at = i
			p.unsure = fmt.Sprintf("cannot tell where the trainer starts: option %s of Python is not known", w)
			return
		}
		for at := 1; at < len(w); at++ {
			rest := w[at+1:]
			switch c := w[at]; {
			case strings.IndexByte("bBdEhiIOPqsSuvVx?", c) >= 0:
				continue
			case c == 'X' || c == 'W':
				if rest == "" {
					i++
				}
			case c == 'm':
				if rest == "" {
					i++
					if i >= len(words) {
						return
					}
					rest = words[i]
				}
				p.at, p.args, p.module = i, i+1, rest
				for n := range t.Launchers {
					if slices.Contains(t.Launchers[n].Modules, rest) {
						p.launcher, p.module = &t.Launchers[n], ""
					}
				}
				return
			case c == 'c':
				p.at = i
				p.unsure = "the program is given with python -c: its settings cannot be read"
				return
			default:
				p.at = i
				p.unsure = fmt.Sprintf("cannot tell where the trainer starts: option %s of Python is not known", w)
				return
			}
			break
		}
	}
}

// container reads the command line of a container client.
func (e *engineWord) container(words []string) *job.Container {
	c := &job.Container{Engine: e.Name}
	if engine, ok := strings.CutSuffix(e.Name, "-compose"); ok {
		c.Engine, c.Verb = engine, "compose"
		return c
	}
	i := 1
	for ; i < len(words) && strings.HasPrefix(words[i], "-"); i++ {
		name, _, inline := strings.Cut(words[i], "=")
		switch {
		case inline || slices.Contains(e.GlobalPlain, name):
		case slices.Contains(e.GlobalValue, name):
			i++
		default:
			return c
		}
	}
	if i < len(words) && words[i] == "container" {
		i++
	}
	if i >= len(words) {
		return c
	}
	c.Verb = words[i]
	if c.Verb != "run" && c.Verb != "exec" && c.Verb != "create" {
		return c
	}
	for i++; i < len(words); i++ {
		w := words[i]
		if w == "--" {
			i++
			break
		}
		if len(w) < 2 || w[0] != '-' {
			break
		}
		name, _, inline := strings.Cut(w, "=")
		switch {
		case inline || slices.Contains(e.Plain, name):
		case w[1] != '-' && allPlain(w[1:], e.Plain):
		case w[1] != '-' && len(w) > 2 && !slices.Contains(e.Plain, w[:2]):
			// -eNAME=value, -v/a:/b without a space.
		case w[1] != '-' && len(w) > 2 && !allPlain(w[1:len(w)-1], e.Plain):
			// A value joined behind plain letters: -iteNAME.
		default:
			i++
		}
	}
	if i < len(words) {
		c.Image = words[i]
	}
	return c
}

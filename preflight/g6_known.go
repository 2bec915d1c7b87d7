package preflight

import (
	"fmt"
	"path"
	"slices"
	"strings"
	"sync"

	"sparkrun/configs"
)

// servers is configs/servers.yaml: the programs that hold much memory.
type servers struct {
	AsOf    string `yaml:"as_of"`
	Coexist struct {
		Fraction float64 `yaml:"fraction"`
		JobGB    float64 `yaml:"job_gb"`
	} `yaml:"coexist"`
	SmallGiB       float64 `yaml:"small_gib"`
	NotebookGPUMiB float64 `yaml:"notebook_gpu_mib"`
	SharePct       float64 `yaml:"share_pct"`
	DesktopPct     float64 `yaml:"desktop_share_pct"`
	UnknownPct     float64 `yaml:"unknown_pct"`
	UnknownGiB     float64 `yaml:"unknown_gib"`
	Interpreters   []struct {
		Names []string `yaml:"names"`
		Takes []string `yaml:"takes"`
	} `yaml:"interpreters"`
	Wrappers []string  `yaml:"wrappers"`
	Programs []program `yaml:"programs"`
}

// Kinds of programs.
const (
	kindServer   = "server"
	kindTrainer  = "trainer"
	kindApp      = "app"
	kindDesktop  = "desktop"
	kindNotebook = "notebook"
	kindLauncher = "launcher"
)

// program is one entry of the table.
type program struct {
	Name    string       `yaml:"name"`
	Kind    string       `yaml:"kind"`
	Match   []match      `yaml:"match"`
	Caps    []capSetting `yaml:"caps"`
	Default float64      `yaml:"default"`
	Open    []string     `yaml:"open"`
	Config  []string     `yaml:"config"`
	Shows   struct {
		Flags []string `yaml:"flags"`
		Env   []string `yaml:"env"`
	} `yaml:"shows"`
	Cap string `yaml:"cap"`
}

// capsInEnv tells whether the environment may cap it; p may be nil.
func (p *program) capsInEnv() bool {
	return p != nil && slices.ContainsFunc(p.Caps, func(c capSetting) bool { return len(c.Env) > 0 })
}

// match is one way to know a program; every field that is given must fit.
type match struct {
	Program     []string `yaml:"program"`
	Module      []string `yaml:"module"`
	Script      []string `yaml:"script"`
	Title       []string `yaml:"title"`
	Words       []string `yaml:"words"`
	Dirs        []string `yaml:"dirs"`
	Interpreted bool     `yaml:"interpreted"`
}

// capSetting is one setting that caps a program.
type capSetting struct {
	Flags []string `yaml:"flags"`
	Env   []string `yaml:"env"`
	Is    string   `yaml:"is"`
}

// loadServers reads the built-in table once; a test reads it, so that a binary in use
// has it.
var loadServers = sync.OnceValues(func() (servers, error) {
	var t servers
	if err := configs.BuiltIn("servers.yaml", &t); err != nil {
		return servers{}, fmt.Errorf("reading the built-in table of servers: %w", err)
	}
	return t, t.check()
})

// large is the resident memory in bytes from which on anything matters, where total is all
// there is.
func (t servers) large(total int64) float64 {
	return max(t.UnknownPct/100*float64(total), t.UnknownGiB*(1<<30))
}

// check refuses a table that would match nothing, or everything.
func (t servers) check() error {
	kinds := []string{kindServer, kindTrainer, kindApp, kindDesktop, kindNotebook, kindLauncher}
	units := []string{capFraction, capFreeFraction, capLeftBytes, capLeftGiB, capFixed}
	for _, p := range t.Programs {
		if p.Name == "" || !slices.Contains(kinds, p.Kind) || len(p.Match) == 0 {
			return fmt.Errorf("configs/servers.yaml: %q has no name, no kind or nothing to know it by", p.Name)
		}
		for _, m := range p.Match {
			if len(m.Program)+len(m.Module)+len(m.Script)+len(m.Title) == 0 {
				return fmt.Errorf("configs/servers.yaml: %s: a match names neither program, module, script nor title", p.Name)
			}
			for _, list := range [][]string{m.Program, m.Module, m.Script, m.Title, m.Words, m.Dirs} {
				for _, pattern := range list {
					if _, err := path.Match(pattern, ""); err != nil {
						return fmt.Errorf("configs/servers.yaml: %s: pattern %q: %w", p.Name, pattern, err)
					}
				}
			}
		}
		for _, c := range p.Caps {
			if !slices.Contains(units, c.Is) {
				return fmt.Errorf("configs/servers.yaml: %s: a cap is one of %s, not %q", p.Name, strings.Join(units, ", "), c.Is)
			}
		}
	}
	return nil
}

// variables lists the variables of the environment that the table names.
func (t servers) variables() []string {
	out := []string{"XLA_PYTHON_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_PREALLOCATE"}
	for _, p := range t.Programs {
		out = append(out, p.Shows.Env...)
		for _, c := range p.Caps {
			out = append(out, c.Env...)
		}
	}
	return out
}

// commandLine is what a command line starts.
type commandLine struct {
	// title is the first word as it stands: a process may have named itself.
	title string
	// program is the base name of the program, or of what an interpreter runs; path is
	// where that lies, as the command line has it.
	program, path string
	// module is the module after -m, script the base name of a script that ends in .py.
	module, script string
	// interpreted tells that an interpreter runs it.
	interpreted bool
	// word is the first word behind it that is no flag.
	word string
	// label is what a person calls it.
	label string
}

// parse finds what a command line really runs: behind an interpreter the script or
// module, and behind a debugger or profiler what that runs.
func (t servers) parse(argv []string) commandLine {
	c := commandLine{title: argv[0], program: path.Base(argv[0]), path: argv[0]}
	rest := argv[1:]
	for range 4 { // python -m debugpy ... train.py
		takes, ok := t.interpreter(c.program)
		wrapped := !ok && c.module != "" && slices.Contains(t.Wrappers, c.module)
		if !ok && !wrapped {
			break
		}
		c.interpreted = true
		if wrapped {
			rest = fromTarget(rest)
		}
		what, isModule, behind := target(rest, takes)
		if what == "" && wrapped {
			break
		}
		if what == "" {
			// An interpreter by itself, or with a program in its own words (-c).
			return commandLine{title: c.title, program: c.program, path: c.path, label: c.program, interpreted: true}
		}
		rest = behind
		c.module, c.script, c.path = "", "", ""
		if isModule {
			c.module, c.program = what, ""
		} else {
			c.path, c.program = what, path.Base(what)
			if strings.HasSuffix(c.program, ".py") {
				c.script = c.program
			}
		}
	}
	for _, w := range rest {
		if !strings.HasPrefix(w, "-") {
			c.word = w
			break
		}
	}
	c.label = c.program
	if c.module != "" {
		c.label = c.module
	}
	return c
}

// interpreter tells whether a program is one, and which of its options take a word.
func (t servers) interpreter(name string) (takes []string, ok bool) {
	for _, i := range t.Interpreters {
		if anyMatch(i.Names, name) {
			return i.Takes, true
		}
	}
	return nil, false
}

// target finds what the words behind an interpreter make it run.
func target(words, takes []string) (what string, isModule bool, rest []string) {
	for i := 0; i < len(words); i++ {
		w := words[i]
		switch {
		case w == "-m" && i+1 < len(words):
			return words[i+1], true, words[i+2:]
		case strings.HasPrefix(w, "-m") && len(w) > 2:
			return w[2:], true, words[i+1:]
		case w == "-c" || strings.HasPrefix(w, "-c") && !strings.HasPrefix(w, "--"):
			return "", false, nil
		case slices.Contains(takes, w):
			i++
		case strings.HasPrefix(w, "-"):
		default:
			return w, false, words[i+1:]
		}
	}
	return "", false, nil
}

// fromTarget skips the words of a debugger or profiler that are its own.
func fromTarget(words []string) []string {
	i := slices.IndexFunc(words, func(w string) bool { return w == "-m" || strings.HasSuffix(w, ".py") })
	if i < 0 {
		return nil
	}
	return words[i:]
}

// find returns what a command line is known as; nil where it is not known. cwd is asked
// for only where it matters.
func (t servers) find(c commandLine, cwd func() string) *program {
	for i := range t.Programs {
		for _, m := range t.Programs[i].Match {
			if m.fits(c, cwd) {
				return &t.Programs[i]
			}
		}
	}
	return nil
}

func (m match) fits(c commandLine, cwd func() string) bool {
	if len(m.Title) > 0 && !anyPrefix(m.Title, c.title) ||
		len(m.Program) > 0 && !anyMatch(m.Program, c.program) ||
		len(m.Module) > 0 && !anyMatch(m.Module, c.module) ||
		len(m.Script) > 0 && !anyMatch(m.Script, c.script) ||
		len(m.Words) > 0 && !anyMatch(m.Words, c.word) ||
		m.Interpreted && !c.interpreted {
		return false
	}
	if len(m.Dirs) == 0 {
		return true
	}
	where := path.Dir(c.path)
	if !path.IsAbs(where) {
		where = path.Join(cwd(), where)
	}
	// The folder of another user's process cannot be seen, but an environment of its own
	// names it as well.
	for elem := range strings.SplitSeq(where+"/"+path.Dir(c.title), "/") {
		if anyMatch(m.Dirs, elem) {
			return true
		}
	}
	return false
}

// anyMatch tells whether a word as a whole fits one of the patterns; an empty one never
// does. A word with a slash fits none.
func anyMatch(patterns []string, word string) bool {
	return word != "" && slices.ContainsFunc(patterns, func(p string) bool {
		ok, err := path.Match(p, word)
		return ok && err == nil
	})
}

// anyPrefix is anyMatch for a title, which may hold slashes and spaces: its first word
// counts.
func anyPrefix(patterns []string, title string) bool {
	first, _, _ := strings.Cut(title, " ")
	return anyMatch(patterns, strings.ReplaceAll(first, "/", "_"))
}

package engine

import (
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"go.yaml.in/yaml/v3"

	"sparkrun/configs"
	"sparkrun/internal/job"
)

// command is a container client's command line, taken apart.
type command struct {
	argv []string
	// client and verb are the places of "docker" and "run" in argv, -1 for none.
	client, verb int
	// dir is the folder it is started in, "" where that is not known.
	dir string
	// compose says whether it is one of compose, composeOptions are those before its
	// verb, and unknown is one that no table has.
	compose        composeKind
	composeOptions []option
	unknown        string
	// set is the environment that words in front of the client give it (env,
	// sudo); sudo is whether sudo or doas stands there, keepsEnv whether it is
	// told to leave the environment alone.
	set            map[string]string
	sudo, keepsEnv bool
	globals        []option
	options        []option
	// target is the image of run, or the container of exec and start, with compose
	// the service; args is what follows it.
	target string
	args   []string
}

// option is one flag with the value it has; a flag without a value has "true".
type option struct {
	name, value string
	// words are the words of argv it is written as.
	words []string
}

// flagTable says which flags of an engine's client take no value. It is the
// table that recognises container clients in the first place, so that both read
// a command line the same way; ladder/trainer checks it strictly.
type flagTable struct {
	Name        string   `yaml:"name"`
	GlobalPlain []string `yaml:"global_plain"`
	Plain       []string `yaml:"plain"`
}

// prefixTable is the part of the table of prefixes that is used here.
type prefixTable struct {
	Engines []flagTable  `yaml:"engines"`
	Compose composeTable `yaml:"compose"`
}

var prefixes = sync.OnceValue(func() prefixTable {
	var t prefixTable
	b, err := configs.FS.ReadFile("trainers/_prefixes.yaml")
	if err != nil || yaml.Unmarshal(configs.Sections(b, "engines", "compose"), &t) != nil {
		return prefixTable{} // a test demands that it is there
	}
	return t
})

func tableOf(engine string) flagTable {
	for _, t := range prefixes().Engines {
		if t.Name == engine {
			return t
		}
	}
	return flagTable{}
}

// takeApart reads argv, in which c was recognised.
func takeApart(argv []string, c job.Container) command {
	if c.Verb == composeVerb {
		return takeApartCompose(argv, c.Engine)
	}
	first := command{argv: argv, client: -1, verb: -1}
	for i, w := range argv {
		if filepath.Base(w) != c.Engine {
			continue
		}
		got := takeApartAt(argv, i, c.Engine)
		// The word may also be a value: sudo -u docker docker run.
		if got.verb >= 0 && argv[got.verb] == c.Verb && (c.Image == "" || got.target == c.Image) {
			return got
		}
		if first.client < 0 {
			first = got
		}
	}
	return first
}

// inFront begins with what the words in front of the client say.
func inFront(argv []string, client int) command {
	c := command{argv: argv, client: client, verb: -1, set: map[string]string{}}
	for _, w := range argv[:client] {
		switch filepath.Base(w) {
		case "sudo", "doas":
			c.sudo = true
		case "-E", "--preserve-env":
			c.keepsEnv = true
		}
		if name, value, ok := strings.Cut(w, "="); ok && name != "" && name[0] != '-' && !strings.ContainsAny(name, "/ ") {
			c.set[name] = value
		}
	}
	return c
}

func takeApartAt(argv []string, client int, engine string) command {
	c := inFront(argv, client)
	table := tableOf(engine)
	i := client + 1
	c.globals, i = readOptions(argv, i, table.GlobalPlain)
	if i < len(argv) && argv[i] == "container" {
		i++
	}
	if i >= len(argv) {
		return c
	}
	c.verb = i
	plain := table.Plain
	switch argv[i] {
	case "run":
		// The table is for run and exec alike; -l is --label here.
		plain = slices.DeleteFunc(slices.Clone(plain), func(f string) bool { return f == "-l" })
	case "start":
		plain = []string{"-a", "--attach", "-i", "--interactive", "--sig-proxy", "-l", "--latest", "-q", "--quiet"}
	}
	c.options, i = readOptions(argv, i+1, plain)
	if i < len(argv) {
		c.target = argv[i]
		c.args = argv[i+1:]
	}
	return c
}

// readOptions reads flags from argv[i] on, as the clients do: values behind "="
// or in the next word, short flags joined, a value joined to its short flag. It
// returns the index of the first word that is no flag.
func readOptions(argv []string, i int, plain []string) ([]option, int) {
	var out []option
	for ; i < len(argv); i++ {
		w := argv[i]
		if w == "--" {
			return out, i + 1
		}
		if len(w) < 2 || w[0] != '-' {
			return out, i
		}
		at := i
		add := func(name, value string) { out = append(out, option{name, value, argv[at : i+1]}) }
		next := func() string {
			if i+1 < len(argv) {
				i++
				return argv[i]
			}
			return ""
		}
		if strings.HasPrefix(w, "--") {
			name, value, inline := strings.Cut(w, "=")
			switch {
			case inline:
			case slices.Contains(plain, name):
				value = "true"
			default:
				value = next()
			}
			add(name, value)
			continue
		}
		for n := 1; n < len(w); n++ {
			name, rest := "-"+w[n:n+1], w[n+1:]
			if strings.HasPrefix(rest, "=") {
				add(name, rest[1:])
				break
			}
			if slices.Contains(plain, name) {
				add(name, "true")
				continue
			}
			if rest == "" {
				rest = next()
			}
			add(name, rest)
			break
		}
	}
	return out, i
}

// last returns the last value given for one of the names; clients take that.
func last(options []option, names ...string) (string, bool) {
	for i := len(options) - 1; i >= 0; i-- {
		if slices.Contains(names, options[i].name) {
			return options[i].value, true
		}
	}
	return "", false
}

// on says whether a flag without a value is switched on.
func on(options []option, names ...string) bool {
	v, ok := last(options, names...)
	return ok && v != "false" && v != "0" && v != "f" && v != "F" && v != "False" && v != "FALSE"
}

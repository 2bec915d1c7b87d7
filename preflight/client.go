package preflight

import (
	"cmp"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"sparkrun/configs"
)

// This file reads what a container client is told on the command's own command line:
// which devices, folders and variables the trainer gets.

// clientTable is what configs/trainers/_prefixes.yaml says of container clients. The rest
// of that file is ladder/trainer's.
type clientTable struct {
	Workdirs map[string]string `yaml:"workdirs"`
	Engines  []struct {
		Name        string   `yaml:"name"`
		GlobalPlain []string `yaml:"global_plain"`
		GlobalValue []string `yaml:"global_value"`
		Remote      []string `yaml:"remote"`
		RemoteEnv   []string `yaml:"remote_env"`
		clientWords `yaml:",inline"`
		Exec        clientWords `yaml:"exec"`
	} `yaml:"engines"`
	Compose struct {
		Programs    map[string]string `yaml:"programs"`
		Files       []string          `yaml:"files"`
		Overrides   []string          `yaml:"overrides"`
		GlobalPlain []string          `yaml:"global_plain"`
		GlobalValue []string          `yaml:"global_value"`
		Run         clientWords       `yaml:"run"`
	} `yaml:"compose"`
}

// clientWords are the options of one verb: plain ones take no value.
type clientWords struct {
	Plain []string `yaml:"plain"`
	Value []string `yaml:"value"`
}

// loadClients reads the table once; it is part of the binary, and a test reads it.
var loadClients = sync.OnceValues(func() (clientTable, error) {
	var t clientTable
	if err := configs.BuiltInKeys("trainers/_prefixes.yaml", &t, "workdirs", "engines", "compose"); err != nil {
		return clientTable{}, fmt.Errorf("reading the built-in table of container clients: %w", err)
	}
	return t, nil
})

// maxShells bounds how deep shells within shells are looked into.
const maxShells = 4

// clientFlags is a container client's own command line.
type clientFlags struct {
	// engine is docker, podman or nerdctl; "" where no client was found in the command.
	engine string
	// verb is run, create, exec or compose; composeVerb what stands behind compose.
	verb, composeVerb string
	// global are the options before the verb, options those behind it, in order.
	global, options []clientOption
	// operand is the image, the container of exec or the service of compose.
	operand string
	// unread says why the flags are not all known; "" where they are.
	unread string
	// typed are the variables given by -e and --env-file, all the environment passed on
	// (--env-host).
	typed   map[string]string
	envHost bool
	// envUnread says which file of variables could not be read; "" where all were.
	envUnread string
}

type clientOption struct{ name, value string }

// readClient finds the client in the command. It reads no file but those of --env-file.
func readClient(v view) clientFlags {
	if v.job == nil || v.job.Container == nil {
		return clientFlags{}
	}
	t, err := loadClients()
	if err != nil {
		return clientFlags{unread: err.Error()}
	}
	c, ok := t.find(v.job.Argv, 0)
	if !ok {
		return clientFlags{unread: "the container client's own words were not found in the command"}
	}
	c.readEnv(v)
	return c
}

// find takes the first word that is a client with a verb that starts something: the word
// docker may also be a user or a folder. Words with blanks in them may be a shell's text,
// which is looked into some shells deep.
func (t clientTable) find(argv []string, depth int) (clientFlags, bool) {
	for i, word := range argv {
		if c, ok := t.at(argv[i:]); ok {
			return c, true
		}
		if depth == maxShells || !strings.ContainsAny(word, " \t\n") {
			continue
		}
		lines, _ := shellLines(word) // what is no shell's text has no commands
		for _, l := range lines {
			if c, ok := t.find(l.words, depth+1); ok {
				return c, true
			}
		}
	}
	return clientFlags{}, false
}

// at reads a client's command line that starts with words[0].
func (t clientTable) at(words []string) (clientFlags, bool) {
	name := filepath.Base(words[0])
	if engine := t.Compose.Programs[name]; engine != "" {
		return t.composeAt(clientFlags{engine: engine}, words[1:])
	}
	for _, e := range t.Engines {
		if e.Name != name {
			continue
		}
		c := clientFlags{engine: name}
		var rest []string
		c.global, rest, c.unread = readOptions(words[1:], e.GlobalPlain, e.GlobalValue)
		if len(rest) == 0 {
			return clientFlags{}, false
		}
		if rest[0] == "compose" {
			return t.composeAt(c, rest[1:])
		}
		if rest[0] == "container" && len(rest) > 1 {
			rest = rest[1:]
		}
		set := e.clientWords
		switch c.verb = rest[0]; c.verb {
		case "run", "create":
		case "exec":
			set = e.Exec
		default:
			return clientFlags{}, false
		}
		c.take(rest[1:], set)
		return c, true
	}
	return clientFlags{}, false
}

func (t clientTable) composeAt(c clientFlags, words []string) (clientFlags, bool) {
	c.verb = "compose"
	options, rest, unread := readOptions(words, t.Compose.GlobalPlain, t.Compose.GlobalValue)
	c.global = append(c.global, options...)
	c.unread = cmp.Or(c.unread, unread)
	if len(rest) == 0 {
		return clientFlags{}, false
	}
	c.composeVerb = rest[0]
	if c.composeVerb == "run" {
		c.take(rest[1:], t.Compose.Run)
	} else {
		// Options of up differ from release to release; a word that is no option is a
		// service, or the value of one, which then is no service of the file.
		for _, w := range rest[1:] {
			if !strings.HasPrefix(w, "-") && c.operand == "" {
				c.operand = w
			}
		}
	}
	return c, true
}

func (c *clientFlags) take(words []string, set clientWords) {
	options, rest, unread := readOptions(words, set.Plain, set.Value)
	c.options = options
	c.unread = cmp.Or(c.unread, unread)
	if len(rest) > 0 {
		c.operand = rest[0]
	}
}

// readOptions reads options up to the first word that is none. unread names an option
// that is not in the tables: whether it takes the next word is not known then.
func readOptions(words, plain, value []string) (options []clientOption, rest []string, unread string) {
	for i := 0; i < len(words); i++ {
		w := words[i]
		switch {
		case w == "--":
			return options, words[i+1:], ""
		case w == "-" || !strings.HasPrefix(w, "-"):
			return options, words[i:], ""
		case strings.HasPrefix(w, "--"):
			name, val, joined := strings.Cut(w, "=")
			switch {
			case joined && (slices.Contains(plain, name) || slices.Contains(value, name)), !joined && slices.Contains(plain, name):
				options = append(options, clientOption{name, val})
			case slices.Contains(value, name) && i+1 < len(words):
				i++
				options = append(options, clientOption{name, words[i]})
			default:
				return options, nil, "the option " + name + " is not known"
			}
		default:
			more, next, ok := readShort(words[i:], plain, value)
			options = append(options, more...)
			if !ok {
				return options, nil, "the option " + w + " is not known"
			}
			i += next
		}
	}
	return options, nil, ""
}

// readShort reads -it, -v X, -vX and -itv X; next is how many more words were used.
func readShort(words, plain, value []string) (options []clientOption, next int, ok bool) {
	for j := 1; j < len(words[0]); j++ {
		name, tail := "-"+words[0][j:j+1], words[0][j+1:]
		switch {
		case slices.Contains(plain, name):
			options = append(options, clientOption{name, ""})
		case slices.Contains(value, name) && tail != "":
			return append(options, clientOption{name, strings.TrimPrefix(tail, "=")}), 0, true
		case slices.Contains(value, name) && len(words) > 1:
			return append(options, clientOption{name, words[1]}), 1, true
		default:
			return options, 0, false
		}
	}
	return options, 0, true
}

// all returns the values of an option under any of its names, in order.
func (c clientFlags) all(names ...string) []string {
	var out []string
	for _, o := range c.options {
		if slices.Contains(names, o.name) {
			out = append(out, o.value)
		}
	}
	return out
}

// last returns the value that counts.
func (c clientFlags) last(names ...string) (string, bool) {
	all := c.all(names...)
	if len(all) == 0 {
		return "", false
	}
	return all[len(all)-1], true
}

// on tells that a plain option is given and not switched off.
func (c clientFlags) on(names ...string) bool {
	v, ok := c.last(names...)
	return ok && v != "false" && v != "0"
}

// words is how the verb is called: docker run, docker compose up.
func (c clientFlags) words() string {
	return strings.TrimSpace(c.engine + " " + c.verb + " " + c.composeVerb)
}

// elsewhere says why the engine may be another machine's, "" where it is this one's.
func (c clientFlags) elsewhere(getenv func(string) string) string {
	t, err := loadClients()
	if err != nil {
		return ""
	}
	local := func(s string) bool {
		return s == "" || s == "default" || s == "false" || strings.HasPrefix(s, "unix:")
	}
	for _, e := range t.Engines {
		if e.Name != c.engine {
			continue
		}
		for _, o := range c.global {
			if slices.Contains(e.Remote, o.name) && (!local(o.value) || o.value == "" && slices.Contains(e.GlobalPlain, o.name)) {
				return o.name
			}
		}
		for _, name := range e.RemoteEnv {
			if !local(getenv(name)) {
				return name
			}
		}
	}
	return ""
}

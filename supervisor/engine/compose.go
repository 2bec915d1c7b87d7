package engine

import (
	"path/filepath"
	"slices"
)

// composeVerb is how a command of compose is called in job.Container.
const composeVerb = "compose"

// composeKind says how a command reaches compose.
type composeKind int

const (
	noCompose      composeKind = iota
	composeSub                 // docker compose
	composeProgram             // docker-compose
)

// composeTable says which flags compose's clients take, and what their programs are
// called.
type composeTable struct {
	// Programs are the engines of the programs, by name.
	Programs    map[string]string `yaml:"programs"`
	Files       []string          `yaml:"files"`
	Overrides   []string          `yaml:"overrides"`
	GlobalPlain []string          `yaml:"global_plain"`
	GlobalValue []string          `yaml:"global_value"`
	Run         struct {
		Plain []string `yaml:"plain"`
		Value []string `yaml:"value"`
	} `yaml:"run"`
}

// composeExecPlain and composeExecValue are the flags of compose's exec.
var (
	composeExecPlain = []string{"-d", "--detach", "--privileged", "-T", "--no-TTY", "--no-tty", "-t", "--tty", "-i", "--interactive"}
	composeExecValue = []string{"-e", "--env", "--index", "-u", "--user", "-w", "--workdir"}
)

// takeApartCompose reads a command line of compose. Words are added to it, so an option
// that is not known is told.
func takeApartCompose(argv []string, engine string) command {
	table := prefixes().Compose
	first := command{argv: argv, client: -1, verb: -1}
	for n, w := range argv {
		base := filepath.Base(w)
		c := inFront(argv, n)
		i := n + 1
		switch {
		case table.Programs[base] == engine:
			c.compose = composeProgram
		case base == engine:
			own := tableOf(engine)
			c.globals, i = readOptions(argv, i, own.GlobalPlain)
			if i >= len(argv) || argv[i] != "compose" {
				continue // the word may also be a value: sudo -u docker docker compose
			}
			c.compose = composeSub
			i++
		default:
			continue
		}
		c.composeOptions, i = c.strictly(i, table.GlobalPlain, table.GlobalValue)
		if c.unknown == "" && i < len(argv) {
			c.verb = i
			plain, value := table.Run.Plain, table.Run.Value
			if argv[i] == "exec" {
				plain, value = composeExecPlain, composeExecValue
			}
			if argv[i] == "run" || argv[i] == "exec" {
				c.options, i = c.strictly(i+1, plain, value)
				if i < len(argv) {
					c.target, c.args = argv[i], argv[i+1:]
				}
			}
			return c
		}
		if first.client < 0 {
			first = c
		}
	}
	return first
}

// strictly reads flags and notes one that is in neither list.
func (c *command) strictly(i int, plain, value []string) ([]option, int) {
	options, i := readOptions(c.argv, i, plain)
	for _, o := range options {
		if c.unknown == "" && !slices.Contains(plain, o.name) && !slices.Contains(value, o.name) {
			c.unknown = o.name
		}
	}
	return options, i
}

// project is the name of compose's project where the command says it, "" where compose
// works it out from files.
func (c *command) project(e environ) string {
	if name, ok := last(c.composeOptions, "-p", "--project-name"); ok {
		return name
	}
	return e.get("COMPOSE_PROJECT_NAME")
}

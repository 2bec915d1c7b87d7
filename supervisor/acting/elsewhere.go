package acting

import (
	"errors"
	"fmt"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"sparkrun/configs"
)

// Clients are the programs that only wait for work which is done elsewhere, by a daemon or
// another machine: to stop them stops nothing. The built-in ones stand in
// configs/elsewhere.yaml.
type Clients struct {
	Clients []client `yaml:"clients"`
	// Interpreters are patterns of programs whose first word is the program.
	Interpreters []string `yaml:"interpreters"`
	SSH          sshWords `yaml:"ssh"`
}

// client is one program, or several that are used alike.
type client struct {
	Programs []string `yaml:"programs"`
	// Words make it a client; without any it always is one.
	Words []string `yaml:"words"`
	// FarOff says that the work may be the part of another machine.
	FarOff bool `yaml:"far_off"`
	SSH    bool `yaml:"ssh"`
}

// sshWords tell an ssh that works on another machine from a tunnel and from the transport
// of another program.
type sshWords struct {
	// Takes are the letters of the options that take a value, NoWork of those with which
	// there is neither command nor shell.
	Takes  string `yaml:"takes"`
	NoWork string `yaml:"no_work"`
	// Carries are how the commands of other programs begin that ssh only carries.
	Carries []string `yaml:"carries"`
}

// LoadClients returns the built-in table.
func LoadClients() (Clients, error) {
	const name = "elsewhere.yaml"
	var c Clients
	if err := configs.BuiltIn(name, &c); err != nil {
		return Clients{}, fmt.Errorf("reading the built-in table of clients: %w", err)
	}
	if err := c.check(); err != nil {
		return Clients{}, fmt.Errorf("configs/%s: %w", name, err)
	}
	return c, nil
}

func (c Clients) check() error {
	seen := map[string]bool{}
	for _, is := range c.Clients {
		if len(is.Programs) == 0 {
			return errors.New("a client without programs")
		}
		for _, p := range is.Programs {
			if p == "" || p != filepath.Base(p) || seen[p] {
				return fmt.Errorf("the program %q is empty, a path or named twice", p)
			}
			seen[p] = true
		}
		if is.SSH && len(is.Words) > 0 {
			return fmt.Errorf("%s: ssh is told by its options and not by words", is.Programs[0])
		}
	}
	for _, pattern := range c.Interpreters {
		if _, err := path.Match(pattern, ""); err != nil {
			return fmt.Errorf("the interpreter %q: %w", pattern, err)
		}
	}
	if len(c.Clients) == 0 || c.SSH.Takes == "" || c.SSH.NoWork == "" || slices.Contains(c.SSH.Carries, "") {
		return errors.New("clients, ssh.takes or ssh.no_work is missing, or something in ssh.carries is empty")
	}
	return nil
}

// named returns the client of that name.
func (c Clients) named(program string) (client, bool) {
	i := slices.IndexFunc(c.Clients, func(is client) bool { return slices.Contains(is.Programs, program) })
	if i < 0 {
		return client{}, false
	}
	return c.Clients[i], true
}

// Elsewhere says that the process with these words waits for work that is done elsewhere.
// It returns what the process is, as "docker run", or "" for others. machines is over how
// many the command says it is spread: what starts the other machines' part is then beside
// ours, and not in its place.
func (c Clients) Elsewhere(argv []string, machines int) string {
	if len(argv) == 0 {
		return ""
	}
	name := filepath.Base(argv[0])
	is, ok := c.named(name)
	if !ok && len(argv) > 1 && slices.ContainsFunc(c.Interpreters, func(pattern string) bool {
		runs, err := path.Match(pattern, name)
		return err == nil && runs
	}) {
		argv = argv[1:]
		name = filepath.Base(argv[0])
		is, ok = c.named(name)
	}
	switch {
	case !ok, machines > 1 && is.FarOff:
		return ""
	case is.SSH:
		return c.SSH.work(argv)
	case len(is.Words) == 0:
		return name
	}
	for _, w := range argv[1:] {
		if slices.Contains(is.Words, w) {
			return name + " " + w
		}
	}
	return ""
}

// work returns "ssh HOST" for an ssh that works on another machine.
func (s sshWords) work(argv []string) string {
	host := ""
	rest := argv[1:]
	for ; len(rest) > 0 && host == ""; rest = rest[1:] {
		w := rest[0]
		if !strings.HasPrefix(w, "-") || w == "-" {
			host = w
			continue
		}
		for i := 1; i < len(w); i++ {
			if strings.IndexByte(s.NoWork, w[i]) >= 0 {
				return ""
			}
			if strings.IndexByte(s.Takes, w[i]) >= 0 {
				if i == len(w)-1 && len(rest) > 1 {
					rest = rest[1:] // its value is the next word
				}
				break // else the rest of this one
			}
		}
	}
	if host == "" {
		return ""
	}
	command := strings.Join(rest, " ") + " "
	for _, begins := range s.Carries {
		if strings.HasPrefix(command, begins) {
			return ""
		}
	}
	return "ssh " + host
}

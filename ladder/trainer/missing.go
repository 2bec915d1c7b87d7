package trainer

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"sparkrun/ladder/trainer/place"
)

// missing says why the trainer's code could not be read, or what in the command looks
// like a slip; "" where nothing does.
func (c *command) missing() string {
	p := c.place
	switch {
	case c.noScript != "":
		return c.noScript
	case p.Unsure != "" || p.Opaque != "" || c.text != "":
		return ""
	}
	if p.Script != "" {
		host, ok := p.HostPath(p.Script)
		if !ok {
			return ""
		}
		f, err := c.root.For(host).Open(host)
		if err == nil {
			if err := f.Close(); err != nil {
				return fmt.Sprintf("%s cannot be read: %v", p.Script, err)
			}
			return ""
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return fmt.Sprintf("%s cannot be read: %v", p.Script, reason(err))
		}
		if p.Container == nil {
			return p.Script + ": no such file"
		}
		for _, m := range p.Mounts {
			if _, err := c.root.For(m.Host).Stat(m.Host); errors.Is(err, fs.ErrNotExist) && strings.HasPrefix(host+"/", m.Host+"/") {
				return fmt.Sprintf("%s, which the container is to see as %s, is not there", m.Host, m.Inside)
			}
		}
		return fmt.Sprintf("%s: no such file (%s on this machine)", p.Script, host)
	}
	return c.almost
}

// missingScript says that the script which a shell is to run is not there. One that is
// named without a folder may lie on the PATH, where shells look for it as well, and an
// earlier command of the same line may make it.
func (s *Set) missingScript(p *place.Place, env map[string]string) string {
	name := p.ShellFile
	host, ok := p.HostPath(name)
	if name == "" || !ok || p.Unsure != "" || p.Container != nil || p.Rewritten(s.places, host, true) != "" {
		return ""
	}
	if _, err := s.root.For(host).Stat(host); !errors.Is(err, fs.ErrNotExist) {
		return ""
	}
	if !strings.Contains(name, "/") {
		if p.OtherPath {
			return ""
		}
		for _, dir := range filepath.SplitList(p.Surroundings(env)["PATH"]) {
			file := filepath.Join(dir, name)
			if _, err := s.root.For(file).Stat(file); err == nil {
				return ""
			}
		}
	}
	return name + ": no such file"
}

// reason is the system's word of an error, without the path.
func reason(err error) error {
	var pe *fs.PathError
	if errors.As(err, &pe) {
		return pe.Err
	}
	return err
}

// almostKnown notes a program of a trainer whose subcommand is nearly one that a profile
// knows.
func (s *Set) almostKnown(c *command) {
	base := filepath.Base(c.place.Program)
	if c.place.Program == "" || c.args >= len(c.words) {
		return
	}
	for _, p := range s.profiles {
		r := p.Recognise
		if !slices.Contains(r.Programs, base) || len(r.Subcommands) == 0 {
			continue
		}
		for _, sub := range r.Subcommands {
			first, _, _ := strings.Cut(sub, " ")
			if nearest(c.words[c.args], []string{first}) != "" {
				c.almost = fmt.Sprintf("%s %s is not known; did you mean %s %s (%s)?", base, c.words[c.args], base, sub, p.Name)
				return
			}
		}
	}
}

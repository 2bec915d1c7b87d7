package trainer

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
)

// recognise picks the profile that the strongest sign points to: the program, the
// module, the script's name, keys that must be in its config, its text, the flags
// in argv, and last the flags that the script declares. It sets prof, style and
// args, and is false where none fits.
func (s *Set) recognise(c *command) bool {
	rest := c.words[c.args:]
	signs := []func(*entry) (fits bool, subcommand int){
		func(p *entry) (bool, int) {
			r := p.Recognise
			if c.place.Program == "" || !slices.Contains(r.Programs, filepath.Base(c.place.Program)) {
				return false, 0
			}
			return followed(rest, r.Subcommands)
		},
		func(p *entry) (bool, int) {
			r := p.Recognise
			if c.place.Module == "" || !slices.Contains(r.Modules, c.place.Module) {
				return false, 0
			}
			return followed(rest, r.ModuleSubcommands)
		},
		func(p *entry) (bool, int) {
			return c.script() != "" && slices.ContainsFunc(p.Recognise.Scripts, func(name string) bool {
				return name == filepath.Base(c.script()) || strings.Contains(name, "/") &&
					strings.HasSuffix("/"+filepath.ToSlash(filepath.Clean(c.script())), "/"+strings.TrimPrefix(name, "/"))
			}), 0
		},
		func(p *entry) (bool, int) { return c.keysFit(p), 0 },
		func(p *entry) (bool, int) { return mentions(c.text, p.Recognise.Text), 0 },
		func(p *entry) (bool, int) {
			for _, w := range rest {
				name, _, _ := strings.Cut(w, "=")
				if strings.HasPrefix(name, "--") && containsName(p.Recognise.Flags, name[2:]) {
					return true, 0
				}
			}
			return false, 0
		},
	}
	for i, fits := range signs {
		for _, e := range s.profiles {
			ok, skip := fits(e)
			if !ok || i >= 2 && !c.keysAllow(e) {
				continue
			}
			p := e.profile()
			if p == nil {
				continue
			}
			c.prof, c.style = p, p.Parser.Style
			if i > 0 && p.Parser.ModuleStyle != "" {
				c.style = p.Parser.ModuleStyle
			}
			if c.args += skip; skip > 0 {
				c.subcommand = c.words[c.args-1]
			}
			return true
		}
	}
	if c.prof = s.byDeclarations(c.text); c.prof != nil {
		c.style = c.prof.Parser.Style
		if c.prof.Parser.ModuleStyle != "" {
			c.style = c.prof.Parser.ModuleStyle
		}
	}
	return c.prof != nil
}

// script is the path of the trainer's script, or of a program that is one.
func (c *command) script() string {
	if c.place.Script != "" {
		return c.place.Script
	}
	if strings.HasSuffix(c.place.Program, ".py") {
		return c.place.Program
	}
	return ""
}

func containsName(names []string, name string) bool {
	return slices.ContainsFunc(names, func(n string) bool { return normalise(n) == normalise(name) })
}

// followed says whether the words start with one of the subcommands, each of one or
// more words, and how many words that is.
func followed(words, subcommands []string) (bool, int) {
	if len(subcommands) == 0 {
		return true, 0
	}
	for _, s := range subcommands {
		want := strings.Fields(s)
		if len(words) >= len(want) && slices.Equal(words[:len(want)], want) {
			return true, len(want)
		}
	}
	return false, 0
}

// keysFit recognises a profile by the keys in the config file that it would read.
func (c *command) keysFit(p *entry) bool {
	r := p.Recognise
	if len(r.ConfigKeys) == 0 || len(r.Programs)+len(r.Modules)+len(r.Scripts)+len(r.Text)+len(r.Flags) > 0 {
		return false
	}
	unread := c.unread
	ok := c.keysIn(p)
	c.unread = unread
	return ok
}

// keysAllow says whether a profile that demands keys in the config finds them.
func (c *command) keysAllow(p *entry) bool {
	if len(p.Recognise.ConfigKeys) == 0 {
		return true
	}
	return c.keysIn(p)
}

func (c *command) keysIn(e *entry) bool {
	p := e.profile()
	if p == nil {
		return false
	}
	probe := *c
	probe.prof = p
	for _, form := range p.Config {
		for _, d := range probe.wordsOf(form) {
			err := d.open(&probe)
			if err == nil && d.hasKeys(p.Recognise.ConfigKeys) {
				return true
			}
			if err != nil {
				c.unread = fmt.Sprintf("it looks like %s, but its config file cannot be read: %v", p.Name, err)
			}
		}
	}
	return false
}

// dispatches are words of scripts of which one parser takes a flag that another
// refuses, or that hand on what they do not know: where a flag may go cannot be
// told from its declaration.
var dispatches = []string{"add_subparsers(", "REMAINDER", "@click.group", ".group("}

// byDeclarations picks a profile for a script none of whose flags is typed: one
// of its names must be declared in the script, and of several profiles the one
// that knows the most of its settings fits. The user's own come first.
func (s *Set) byDeclarations(text string) *profile {
	if text == "" || mentions(text, dispatches) {
		return nil
	}
	decl := declared(text, false)
	has := func(name string) bool { _, ok := decl[normalise(name)]; return ok }
	var best *profile
	most := 0
	for _, e := range s.profiles {
		if !slices.ContainsFunc(e.Recognise.Flags, has) {
			continue
		}
		p := e.profile()
		if p == nil {
			continue
		}
		if p.user {
			return p
		}
		known := 0
		for _, k := range p.Knobs {
			if slices.ContainsFunc(k.Names, has) {
				known++
			}
		}
		if known > most {
			best, most = p, known
		}
	}
	return best
}

package place

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// way is how more environment is given at a layer.
type way int

const (
	noWay     way = iota // it cannot
	wayWord              // NAME=VALUE words: env, sudo
	wayOption            // an option joined to it: --setenv=NAME=VALUE
	wayClient            // -e NAME=VALUE, mounts with -v
	wayShell             // NAME='VALUE' in a shell's text
)

// layer is one word in front of the trainer, with all that belongs to it: the
// command is head, the command inside, tail; or, for a shell, head, the text with
// the command in it, tail.
type layer struct {
	name       string
	head, tail []string
	text       *shellText

	way way
	// at is the index in head where environment and mounts go; option is the name
	// for wayOption.
	at     int
	option string
	// blocks is why nothing of the environment around gets through; "" if it does.
	blocks string
	// typed are variables set at this layer, gone those taken away. A typed value
	// that is not known is in unclear.
	typed   map[string]string
	unclear []string
	gone    []string
	// spots are the words of head in which a client's -e NAME=VALUE stands.
	spots []spot
	// noMounts says why no folder can be added.
	noMounts string
	// args is the part of head with the options of a distributed launcher.
	args [2]int
}

// spot is a variable typed with -e: words[at] ends with it.
type spot struct {
	at         int
	name, text string
}

// touches says whether the layer decides what the variable is.
func (l *layer) touches(name string) bool {
	_, set := l.typed[name]
	return set || l.blocks != "" || slices.Contains(l.gone, name) || slices.Contains(l.unclear, name)
}

const pythonPath = "PYTHONPATH"

// addition is what one layer is given.
type addition struct {
	env    []string
	mounts []Mount
}

// Command returns the whole command with the trainer's words replaced, env
// (NAME=VALUE) reaching the trainer and mounts added. What of env reaches it
// by inheritance is returned as hostEnv; the rest stands in argv.
//
// A value that the user typed in the command is kept, except PYTHONPATH, which
// gets ours in front. A mount outside of a container is nothing to do.
func (p *Place) Command(words, env []string, mounts []Mount) (argv, hostEnv []string, err error) {
	add := make([]addition, len(p.layers))
	for _, kv := range env {
		at, text, err := p.route(kv)
		switch {
		case err != nil:
			return nil, nil, err
		case at == outside:
			hostEnv = append(hostEnv, text)
		case at >= 0:
			add[at].env = append(add[at].env, text)
		}
	}
	if len(mounts) > 0 {
		if err := p.routeMounts(mounts, add); err != nil {
			return nil, nil, err
		}
	}
	argv = slices.Clone(words)
	for i := len(p.layers) - 1; i >= 0; i-- {
		if argv, err = p.layers[i].around(argv, add[i]); err != nil {
			return nil, nil, err
		}
	}
	return argv, hostEnv, nil
}

const (
	outside = -1 // inherited
	kept    = -2 // the user's own value stays
)

// route says at which layer a variable is given, and what is given there.
func (p *Place) route(kv string) (at int, text string, err error) {
	name, value, ok := strings.Cut(kv, "=")
	if !ok || name == "" || strings.ContainsRune(kv, 0) {
		return 0, "", fmt.Errorf("%q is no NAME=VALUE", kv)
	}
	last := outside
	for i := range p.layers {
		if p.layers[i].touches(name) {
			last = i
		}
	}
	if last == outside {
		return outside, kv, nil
	}
	l := &p.layers[last]
	typed, set := l.typed[name]
	if name != pythonPath {
		if set || slices.Contains(l.unclear, name) {
			return kept, "", nil
		}
	} else {
		if slices.Contains(l.unclear, name) {
			return 0, "", fmt.Errorf("%s sets PYTHONPATH to a value that is not known, so nothing can be put before it", l.name)
		}
		if set && typed != "" && value != typed && !strings.HasSuffix(value, ":"+typed) {
			value += ":" + typed
		}
	}
	for i := last; i < len(p.layers); i++ {
		if p.layers[i].way != noWay {
			return i, name + "=" + value, nil
		}
	}
	why := l.blocks
	if why == "" {
		why = fmt.Sprintf("%s sets %s itself", l.name, name)
	}
	return 0, "", fmt.Errorf("%s does not reach the trainer: %s", name, why)
}

func (p *Place) routeMounts(mounts []Mount, add []addition) error {
	if p.Container == nil {
		for _, m := range mounts {
			if m.Host != m.Inside {
				return fmt.Errorf("%s cannot be put at %s: the command runs in no container", m.Host, m.Inside)
			}
		}
		return nil
	}
	for i := range p.layers {
		l := &p.layers[i]
		if l.way != wayClient {
			continue
		}
		if l.noMounts != "" {
			return errors.New(l.noMounts)
		}
		add[i].mounts = mounts
		return nil
	}
	return fmt.Errorf("the command line of %s has no place for a mount", p.Container.Engine)
}

// around returns the command of this layer and all inside it.
func (l *layer) around(inner []string, add addition) ([]string, error) {
	head := slices.Clone(l.head)
	var more []string
	switch l.way {
	case wayWord:
		more = add.env
	case wayOption:
		for _, kv := range add.env {
			more = append(more, l.option+"="+kv)
		}
	case wayClient:
		for _, kv := range add.env {
			if !l.replace(head, kv) {
				more = append(more, "-e", kv)
			}
		}
		for _, m := range add.mounts {
			words, err := mountWords(m)
			if err != nil {
				return nil, err
			}
			more = append(more, words...)
		}
	case wayShell, noWay:
	}
	head = slices.Insert(head, l.at, more...)
	if l.text == nil {
		return slices.Concat(head, inner, l.tail), nil
	}
	text, err := l.text.with(inner, add.env)
	if err != nil {
		return nil, err
	}
	return slices.Concat(head, []string{text}, l.tail), nil
}

// replace changes a variable where the user typed it with -e: of two -e for one
// name not every engine takes the last.
func (l *layer) replace(head []string, kv string) bool {
	name, _, _ := strings.Cut(kv, "=")
	done := false
	for _, s := range l.spots {
		if s.name == name {
			head[s.at] = strings.TrimSuffix(l.head[s.at], s.text) + kv
			done = true
		}
	}
	return done
}

// mountWords are the words of a container client that add a mount.
func mountWords(m Mount) ([]string, error) {
	if strings.ContainsAny(m.Host+m.Inside, "\x00\n\",") && strings.Contains(m.Host+m.Inside, ":") {
		return nil, fmt.Errorf("the folder %q cannot be named on a container client's command line", m.Host)
	}
	if strings.Contains(m.Host+m.Inside, ":") {
		text := "type=bind,source=" + m.Host + ",target=" + m.Inside
		if m.ReadOnly {
			text += ",readonly"
		}
		return []string{"--mount", text}, nil
	}
	text := m.Host + ":" + m.Inside
	if m.ReadOnly {
		text += ":ro"
	}
	return []string{"-v", text}, nil
}

// WithLauncherArgs returns the same place with other options of its distributed
// launcher, for those that must agree with the trainer's.
func (p *Place) WithLauncherArgs(args []string) (*Place, error) {
	for i := len(p.layers) - 1; i >= 0; i-- {
		l := p.layers[i]
		if l.args == [2]int{} {
			continue
		}
		c := *p
		c.layers = slices.Clone(p.layers)
		l.head = slices.Concat(l.head[:l.args[0]], args, l.head[l.args[1]:])
		l.args[1] = l.args[0] + len(args)
		l.at = len(l.head)
		c.layers[i] = l
		c.LauncherArgs = slices.Clone(args)
		return &c, nil
	}
	return nil, errors.New("the command has no distributed launcher in front of the trainer")
}

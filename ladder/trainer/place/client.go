package place

import "slices"

// Client is a container client's own command, where it stands in a larger one: the
// simple command in the text of the innermost shell in front of the client, with what
// stands before the client there (sudo docker run ...). Outside of shells it is the whole
// command.
type Client struct {
	Words []string
	// Env is the environment that Words are started with, Dir their absolute folder,
	// "" where that is not known.
	Env map[string]string
	Dir string
	// Sudo says that sudo or doas stands further out than Words.
	Sudo bool
	// Unclear are variables that are set further out, to values that are not known.
	Unclear []string

	outer []layer
}

// Client finds the container client of a command, which Find would take apart with the
// same arguments; nil where there is none.
func (t *Table) Client(argv []string, dir string, env map[string]string) *Client {
	p := t.Find(argv, dir, env)
	if p.Container == nil {
		return nil
	}
	// What the client is given is a layer as well, unless it was not understood.
	front := slices.IndexFunc(p.layers, func(l layer) bool { return l.way == wayClient })
	if front < 0 {
		front = len(p.layers)
	}
	for front > 0 && p.layers[front-1].text == nil {
		front--
	}
	whole := &Client{Words: slices.Clone(argv), Env: env, Dir: dir}
	if front == 0 {
		return whole
	}
	words := slices.Clone(p.Words)
	for i := len(p.layers) - 1; i >= front; i-- {
		var err error
		if words, err = p.layers[i].around(words, addition{}); err != nil {
			return nil
		}
	}
	c := &Client{Words: words, outer: p.layers[:front]}
	for _, l := range c.outer {
		c.Sudo = c.Sudo || l.name == "sudo" || l.name == "doas"
		for _, name := range l.unclear {
			if !slices.Contains(c.Unclear, name) {
				c.Unclear = append(c.Unclear, name)
			}
		}
	}
	// A program in place of the client is started in the same folder and environment.
	stand, err := c.Command([]string{"client"})
	if err != nil {
		return nil
	}
	at := t.Find(stand, dir, env)
	c.Dir, c.Env = at.Dir, at.Surroundings(env)
	return c
}

// Command is the whole command with other words in place of the client's.
func (c *Client) Command(words []string) ([]string, error) {
	words = slices.Clone(words)
	for i := len(c.outer) - 1; i >= 0; i-- {
		var err error
		if words, err = c.outer[i].around(words, addition{}); err != nil {
			return nil, err
		}
	}
	return words, nil
}

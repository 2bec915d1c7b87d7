package engine

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"time"

	"sparkrun/internal/leash"
)

// client is the podman command, asked where no service answers: with the
// environment and the global flags of the command that was given, so that it
// looks into the same store.
type client struct {
	path    string
	globals []string
	env     []string
}

func newClient(c command, e environ) *client {
	word := c.argv[c.client]
	if c.compose == composeProgram {
		word = "podman" // podman-compose calls it
	}
	k := &client{path: lookPath(word, e)}
	for _, o := range c.globals {
		k.globals = append(k.globals, o.words...)
	}
	k.env = append(k.env, e.list...)
	for name, value := range e.set {
		k.env = append(k.env, name+"="+value)
	}
	return k
}

// run runs podman with a deadline and returns what it prints.
func (k *client) run(ctx context.Context, limit time.Duration, args ...string) ([]byte, error) {
	if k.path == "" {
		return nil, errors.New("podman is not on the command's PATH")
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	cmd := exec.Command(k.path, append(append([]string{}, k.globals...), args...)...)
	cmd.Env = k.env
	out, errs := &cappedBuffer{}, &cappedBuffer{}
	cmd.Stdout, cmd.Stderr = out, errs
	err := leash.RunClient(ctx, cmd)
	switch {
	case ctx.Err() != nil && err != nil:
		return nil, fmt.Errorf("podman %s does not answer: %w", args[0], ctx.Err())
	case err != nil:
		text := strings.TrimSpace(errs.b.String())
		if strings.Contains(text, "no such") {
			return nil, fmt.Errorf("%w: %s", errGone, brief(text))
		}
		return nil, fmt.Errorf("podman %s: %w: %s", args[0], err, brief(text))
	case out.over:
		return nil, fmt.Errorf("podman %s answers with more than %d MiB: not read", args[0], maxAnswer>>20)
	}
	return out.b.Bytes(), nil
}

// inspect asks for one container by id or name.
func (k *client) inspect(ctx context.Context, id string) (inspected, error) {
	b, err := k.run(ctx, callLimit, "container", "inspect", "--", id)
	if err != nil {
		return inspected{}, err
	}
	// Podman's own form has the same names where they are used here, except
	// that its ids and names come without decoration and Config.Labels may be
	// null.
	var list []inspected
	if err := json.Unmarshal(b, &list); err != nil || len(list) != 1 || !validID.MatchString(list[0].ID) {
		return inspected{}, fmt.Errorf("podman container inspect answers with something else than one container")
	}
	return list[0], nil
}

// byLabel returns the ids of the containers, running or not, with a label.
func (k *client) byLabel(ctx context.Context, label string) ([]string, error) {
	b, err := k.run(ctx, callLimit, "ps", "--all", "--quiet", "--no-trunc", "--filter", "label="+label)
	if err != nil {
		return nil, err
	}
	var ids []string
	for _, id := range strings.Fields(string(b)) {
		if validID.MatchString(id) {
			ids = append(ids, id)
		}
	}
	return ids, nil
}

// cappedBuffer keeps the first maxAnswer bytes and takes the rest as read.
type cappedBuffer struct {
	b    bytes.Buffer
	over bool
}

func (c *cappedBuffer) Write(p []byte) (int, error) {
	if room := maxAnswer - c.b.Len(); len(p) > room {
		c.over = true
		c.b.Write(p[:room])
	} else {
		c.b.Write(p)
	}
	return len(p), nil
}

package supervisor

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/google/renameio/v2"

	"sparkrun/internal/job"
	"sparkrun/internal/leash"
	"sparkrun/internal/regular"
	"sparkrun/ladder/trainer"
	"sparkrun/preflight"
	"sparkrun/supervisor/engine"
)

// imagesOf is what preflight asks for the image of a command that starts a container;
// nil for other commands. Nothing is started for it but the podman command, where no
// service answers.
func imagesOf(set *trainer.Set, o Options, j *job.Job) func(ctx context.Context, engine, ref string) (preflight.ImageFacts, error) {
	if j == nil || j.Container == nil {
		return nil
	}
	return func(ctx context.Context, _, _ string) (preflight.ImageFacts, error) {
		i, err := engine.FindImage(ctx, clientOf(set, o), *j.Container)
		if errors.Is(err, engine.ErrNoImage) {
			return preflight.ImageFacts{}, nil
		}
		if err != nil {
			return preflight.ImageFacts{}, fmt.Errorf("%s: %w", j.Container.Engine, err)
		}
		f := preflight.ImageFacts{
			ID: i.ID, Ref: i.Ref, Container: i.Container, Tags: i.Tags, Digests: i.Digests, Machine: unameOf(i.Arch),
			Env: i.Env, Labels: i.Labels, Layers: i.Layers,
		}
		if p, err := readProbe(o, i.ID); err == nil {
			f.Probe = &p
		}
		return f, nil
	}
}

// clientOf is the container client's own command.
func clientOf(set *trainer.Set, o Options) engine.Command {
	c := set.Client(o.Argv, o.Dir, o.Env)
	if c == nil {
		return engine.Command{Argv: o.Argv, Env: o.Env, Dir: o.Dir}
	}
	cmd := engine.Command{Argv: c.Words, Dir: c.Dir, Sudo: c.Sudo, Unclear: c.Unclear}
	for name, value := range c.Env {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	return cmd
}

// unameOf is an engine's word for an architecture as uname -m says it.
func unameOf(arch string) string {
	switch arch {
	case "arm64":
		return "aarch64"
	case "amd64":
		return "x86_64"
	}
	return arch
}

// probeLimit bounds the start of an image; the engine may have to unpack it first.
const probeLimit = 2 * time.Minute

// ProbeImage starts the image of a command once and asks its Python which packages it
// has: without network and GPU, with nothing mounted and nothing pulled. Nothing of the
// packages is imported. The answer is kept for later preflights, for as long as the
// image has the same ID; it is returned even where it could not be kept, with an error
// that says so.
func ProbeImage(ctx context.Context, o Options) (preflight.ImageProbe, error) {
	set, err := loadProfiles(o)
	if err != nil {
		return preflight.ImageProbe{}, err
	}
	j, err := set.Understand(o.Argv, o.Dir, o.Env, o.Knobs)
	if err != nil {
		return preflight.ImageProbe{}, failf(StatusError, "%w", err)
	}
	if j.Container == nil {
		return preflight.ImageProbe{}, failf(StatusError, "the command starts no container, so there is no image to look into")
	}
	ctx, cancel := context.WithTimeout(ctx, probeLimit)
	defer cancel()
	client := clientOf(set, o)
	i, err := engine.FindImage(ctx, client, *j.Container)
	switch {
	case errors.Is(err, engine.ErrNoImage):
		return preflight.ImageProbe{}, failf(StatusError, "%s does not have the image of this command yet: pull it first", j.Container.Engine)
	case err != nil:
		return preflight.ImageProbe{}, failf(StatusError, "the image of this command: %w", err)
	}
	asked := preflight.InsidePython(j)
	// A path may lie in a folder that the command mounts: the image itself has none.
	tries := []string{"python3", "python"}
	if asked != "" {
		tries = append([]string{asked}, tries...)
	}
	var first error
	for _, python := range tries {
		out, err := runProbe(ctx, client, *j.Container, i.ID, python)
		if first == nil {
			first = err
		}
		if ctx.Err() != nil {
			break
		}
		if err != nil {
			continue
		}
		p, err := preflight.ParseProbe(out)
		if err != nil {
			return p, failf(StatusError, "asking the image %s: %w", i.Ref, err)
		}
		p.ID, p.Image, p.Time, p.Asked = i.ID, i.Ref, time.Now().UTC().Truncate(time.Second), python
		if err := keepProbe(o, p); err != nil {
			return p, failf(StatusError, "the answer of the image cannot be kept: %w", err)
		}
		return p, nil
	}
	return preflight.ImageProbe{}, failf(StatusError, "asking the image %s: %w", i.Ref, first)
}

// maxProbeOutput bounds what a probe may print.
const maxProbeOutput = 4 << 20

// runProbe starts the image once and returns what its Python prints. No container is
// left behind.
func runProbe(ctx context.Context, client engine.Command, c job.Container, id, python string) ([]byte, error) {
	name := fmt.Sprintf("sparkrun-probe-%d-%d", os.Getpid(), time.Now().UnixNano())
	start, remove, err := engine.ProbeCommand(client, c, id, name, python, "-c", preflight.ProbeScript)
	if err != nil {
		return nil, err
	}
	out, err := runClient(ctx, start)
	if ctx.Err() != nil {
		after, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		_, _ = runClient(after, remove) // it may be gone by itself
		return nil, fmt.Errorf("%s: %w", python, ctx.Err())
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", python, err)
	}
	return out, nil
}

// runClient runs a command of a container client to its end.
func runClient(ctx context.Context, c engine.Command) ([]byte, error) {
	path, err := lookIn(c.Argv[0], c.Env, c.Dir)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(path, c.Argv[1:]...)
	cmd.Env, cmd.Dir = c.Env, os.TempDir()
	out, errs := &clientOutput{left: maxProbeOutput}, &clientOutput{left: 64 << 10}
	cmd.Stdout, cmd.Stderr = out, errs
	if err := leash.RunClient(ctx, cmd); err != nil {
		said := strings.TrimSpace(errs.b.String())
		if n := strings.LastIndexByte(said, '\n'); n >= 0 {
			said = said[n+1:]
		}
		return nil, fmt.Errorf("%w: %s", err, said)
	}
	return out.b.Bytes(), nil
}

// clientOutput keeps what fits and takes the rest as read.
type clientOutput struct {
	b    bytes.Buffer
	left int
}

func (w *clientOutput) Write(p []byte) (int, error) {
	n := min(len(p), w.left)
	w.b.Write(p[:n])
	w.left -= n
	return len(p), nil
}

// lookIn finds a program on the PATH of an environment.
func lookIn(word string, env []string, dir string) (string, error) {
	if strings.Contains(word, "/") {
		if !filepath.IsAbs(word) {
			word = filepath.Join(dir, word)
		}
		return word, nil
	}
	for _, folder := range filepath.SplitList(lookupEnv(env, "PATH")) {
		if !filepath.IsAbs(folder) {
			continue
		}
		if p, err := exec.LookPath(filepath.Join(folder, word)); err == nil {
			return p, nil
		}
	}
	return "", fmt.Errorf("%s: %w", word, exec.ErrNotFound)
}

// probeFile is where the answer of an image is kept: in the user's cache, by its ID.
func probeFile(o Options, id string) (string, error) {
	dir := lookupEnv(o.Env, "XDG_CACHE_HOME")
	if !filepath.IsAbs(dir) {
		home := lookupEnv(o.Env, "HOME")
		if !filepath.IsAbs(home) {
			return "", errors.New("neither XDG_CACHE_HOME nor HOME names a folder")
		}
		dir = filepath.Join(home, ".cache")
	}
	return filepath.Join(dir, "sparkrun-train", "images", id+".json"), nil
}

// readProbe reads the kept answer of an image.
func readProbe(o Options, id string) (preflight.ImageProbe, error) {
	path, err := probeFile(o, id)
	if err != nil {
		return preflight.ImageProbe{}, err
	}
	b, err := regular.Read(path, maxProbeOutput)
	if err != nil {
		return preflight.ImageProbe{}, err
	}
	return preflight.ReadProbe(b, id)
}

// keepProbe writes the answer of an image, whole or not at all.
func keepProbe(o Options, p preflight.ImageProbe) error {
	path, err := probeFile(o, p.ID)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	b, err := p.JSON()
	if err != nil {
		return err
	}
	return renameio.WriteFile(path, b, 0o600)
}

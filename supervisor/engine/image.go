package engine

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"sparkrun/internal/job"
	"sparkrun/internal/lazyre"
)

// Image is what an engine says of the image that a command starts, or that the container
// it goes into was made from.
type Image struct {
	// ID is the image's digest in hexadecimal, without sha256: in front.
	ID string
	// Ref is the image as the command, the compose file or the container calls it.
	Ref string
	// Container is the running container that the command goes into (exec), else "".
	Container string
	// Tags and Digests are its names in the engine.
	Tags, Digests []string
	// Arch is the architecture in the engine's words (arm64, amd64).
	Arch string
	// Env is the environment that its containers start with, or that of the container;
	// Labels are the image's.
	Env    map[string]string
	Labels map[string]string
	// Layers are the folders that its file system lies in, uppermost first, of a running
	// container the one folder of its own file system; none where the engine does not
	// tell. Whether they can be read is another matter: as a rule root alone may.
	Layers []string
}

// ErrNoImage is returned where the engine does not have the image, or no such container.
var ErrNoImage = errors.New("the engine does not have it")

// FindImage asks the engine of a command for the image that it starts, or the container
// that it goes into. It asks a few small questions and starts nothing; ctx bounds it.
func FindImage(ctx context.Context, cmd Command, c job.Container) (Image, error) {
	p, w, e := read(cmd, c)
	if p.Why != "" {
		return Image{}, errors.New(strings.TrimPrefix(p.Why, "cannot end this container: "))
	}
	q, err := p.asker(w, e)
	if err != nil {
		return Image{}, err
	}
	if p.verb == "run" {
		ref := p.cmd.target
		if on(p.cmd.options, "--rootfs") {
			return Image{}, errors.New("it starts a folder and no image (--rootfs)")
		}
		if p.cmd.compose != noCompose {
			if ref, err = p.composeImage(e); err != nil {
				return Image{}, err
			}
		}
		return q.image(ctx, ref)
	}
	if p.service = ""; p.cmd.compose != noCompose {
		p.service = p.cmd.target
	}
	if q.api != nil {
		p.apis = []*api{q.api}
	}
	p.client = q.client
	homes, err := p.execHomes(ctx)
	switch {
	case errors.Is(err, errNotYet), err == nil && len(homes) == 0:
		return Image{}, ErrNoImage
	case err != nil:
		return Image{}, err
	case len(homes) > 1:
		return Image{}, fmt.Errorf("the service %s has more than one container", brief(p.service))
	}
	return q.container(ctx, homes[0].v.ID, p.verb == "exec")
}

// asker is one engine: over its socket, or the podman command.
type asker struct {
	api    *api
	client *client
}

// asker finds the engine without waiting for one that does not answer: a socket that is
// there is asked, and the question itself has a deadline.
func (p Plan) asker(w place, e environ) (asker, error) {
	if w.why != "" {
		return asker{}, errors.New(w.why)
	}
	var first error
	for _, s := range w.sockets {
		err := unix.Access(s, unix.R_OK|unix.W_OK)
		if err == nil {
			return asker{api: newAPI(s)}, nil
		}
		if first == nil {
			first = newAPI(s).explain(context.Background(), err)
		}
	}
	if w.local && !p.foreignRoot() {
		return asker{client: newClient(p.cmd, e)}, nil
	}
	if w.local {
		return asker{}, errors.New(foreignRootWhy)
	}
	return asker{}, first
}

// described is what is used of an image's description.
type described struct {
	ID           string `json:"Id"`
	RepoTags     []string
	RepoDigests  []string
	Architecture string
	Config       struct {
		Env    []string
		Labels map[string]string
	}
	GraphDriver graphDriver
	RootFS      struct{ Layers []string }
}

type graphDriver struct {
	Name string
	Data map[string]string
}

// containing is what is used of a container's description besides inspected.
type containing struct {
	ID    string `json:"Id"`
	Image string
	State struct {
		Running, Paused bool
		Pid             int
	}
	Config struct {
		Image string
		Env   []string
	}
	ImageName   string // podman's
	GraphDriver graphDriver
}

// ask sends a question for one thing and decodes the answer.
func (q asker) ask(ctx context.Context, kind, name string, v any) error {
	if q.api != nil {
		path := "/" + kind + "s/" + name + "/json"
		_, err := q.api.call(ctx, callLimit, http.MethodGet, path, nil, nil, v)
		if errors.Is(err, errGone) {
			return ErrNoImage
		}
		return err
	}
	b, err := q.client.run(ctx, callLimit, kind, "inspect", "--", name)
	switch {
	case errors.Is(err, errGone), err != nil && (strings.Contains(err.Error(), "not known") || strings.Contains(err.Error(), "no such")):
		return ErrNoImage
	case err != nil:
		return err
	}
	var list []json.RawMessage
	if err := json.Unmarshal(b, &list); err != nil || len(list) != 1 {
		return fmt.Errorf("podman %s inspect answers with something else than one %s", kind, kind)
	}
	if err := json.Unmarshal(list[0], v); err != nil {
		return fmt.Errorf("podman %s inspect: %w", kind, &cleanError{err})
	}
	return nil
}

// validRef is what images are called; an engine decides the rest. No part of it can
// leave the path of a request.
// Its length is counted apart: a pattern that counts is slow to compile, at each start.
var validRef = lazyre.New(`^[A-Za-z0-9][A-Za-z0-9._:@/+-]*$`)

const maxRef = 512

func (q asker) image(ctx context.Context, ref string) (Image, error) {
	if len(ref) > maxRef || !validRef.MatchString(ref) || slices.ContainsFunc(strings.Split(ref, "/"), func(s string) bool { return s == "" || s == "." || s == ".." }) {
		return Image{}, fmt.Errorf("%q is no name of an image", brief(ref))
	}
	var v described
	if err := q.ask(ctx, "image", ref, &v); err != nil {
		return Image{}, err
	}
	id := strings.TrimPrefix(v.ID, "sha256:")
	if !validID.MatchString(id) || len(id) != 64 {
		return Image{}, errors.New("the engine describes an image without an id")
	}
	i := Image{
		ID: id, Ref: ref, Tags: v.RepoTags, Digests: v.RepoDigests, Arch: v.Architecture,
		Env: variables(v.Config.Env), Labels: v.Config.Labels, Layers: v.GraphDriver.layers(),
	}
	if len(i.Layers) == 0 {
		i.Layers = q.layerFolders(ctx, v)
	}
	return i, nil
}

// container describes a container; live says that the command goes into it as it runs.
func (q asker) container(ctx context.Context, id string, live bool) (Image, error) {
	var v containing
	if err := q.ask(ctx, "container", id, &v); err != nil {
		return Image{}, err
	}
	if !validID.MatchString(v.ID) {
		return Image{}, errors.New("the engine describes a container without an id")
	}
	ref := v.ImageName
	if ref == "" {
		ref = v.Config.Image
	}
	i, err := q.image(ctx, strings.TrimPrefix(v.Image, "sha256:"))
	if err != nil {
		return Image{}, err
	}
	i.Ref, i.Container, i.Env = ref, v.ID, variables(v.Config.Env)
	switch {
	case live && v.State.Running && v.State.Pid > 1:
		// Its own view of its files, whatever the engine keeps them in, with mounts.
		i.Layers = []string{"/proc/" + strconv.Itoa(v.State.Pid) + "/root"}
	default:
		if l := v.GraphDriver.layers(); len(l) > 0 {
			i.Layers = l
		}
	}
	return i, nil
}

// variables makes a map of NAME=VALUE; the last one wins.
func variables(list []string) map[string]string {
	m := make(map[string]string, len(list))
	for _, kv := range list {
		if name, value, ok := strings.Cut(kv, "="); ok {
			m[name] = value
		}
	}
	return m
}

// layers are the folders of overlayfs, as docker and podman tell them.
func (g graphDriver) layers() []string {
	var out []string
	for _, list := range []string{g.Data["UpperDir"], g.Data["LowerDir"]} {
		for _, dir := range strings.Split(list, ":") {
			if filepath.IsAbs(dir) && filepath.Clean(dir) != "/" {
				out = append(out, filepath.Clean(dir))
			}
		}
	}
	return out
}

// layerFolders finds the folder of an image in the store of a docker whose driver keeps
// each image whole (vfs) and tells no folders: the store's own index names it.
func (q asker) layerFolders(ctx context.Context, v described) []string {
	if q.api == nil || v.GraphDriver.Name != "vfs" || len(v.RootFS.Layers) == 0 {
		return nil
	}
	var info struct{ DockerRootDir string }
	if _, err := q.api.call(ctx, callLimit, http.MethodGet, "/info", nil, nil, &info); err != nil || !filepath.IsAbs(info.DockerRootDir) {
		return nil
	}
	// The index goes by the chain: each layer's digest with all below it.
	chain := ""
	for _, digest := range v.RootFS.Layers {
		if chain == "" {
			chain = digest
			continue
		}
		sum := sha256.Sum256([]byte(chain + " " + digest))
		chain = "sha256:" + hex.EncodeToString(sum[:])
	}
	hexa := strings.TrimPrefix(chain, "sha256:")
	if !validID.MatchString(hexa) {
		return nil
	}
	f, err := os.Open(filepath.Join(info.DockerRootDir, "image/vfs/layerdb/sha256", hexa, "cache-id"))
	if err != nil {
		return nil
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, 128))
	if id := strings.TrimSpace(string(b)); err == nil && validID.MatchString(id) {
		return []string{filepath.Join(info.DockerRootDir, "vfs/dir", id)}
	}
	return nil
}

// ProbeCommand is a command that starts the image of a container client's command once,
// with another program and its arguments in place of its own: no network, no GPU, nothing
// mounted, nothing pulled, and removed when it has ended. image is the image's ID, name
// what the container is called; remove takes it away by force, should it not end.
func ProbeCommand(cmd Command, c job.Container, image, name, program string, args ...string) (run, remove Command, err error) {
	p, _, _ := read(cmd, c)
	if p.Why != "" {
		return Command{}, Command{}, errors.New(strings.TrimPrefix(p.Why, "cannot end this container: "))
	}
	words := slices.Clone(cmd.Argv[:p.cmd.client])
	if p.cmd.compose == composeProgram {
		words = append(words, p.engine)
	} else {
		words = append(words, cmd.Argv[p.cmd.client])
		for _, o := range p.cmd.globals {
			words = append(words, o.words...)
		}
	}
	run, remove = cmd, cmd
	run.Argv = slices.Concat(words, []string{
		"run", "--rm", "--name=" + name, "--pull=never", "--network=none", "--cap-drop=ALL", "--security-opt=no-new-privileges",
		// An engine may put the GPU into every container.
		"-e", "NVIDIA_VISIBLE_DEVICES=void", "--entrypoint=" + program, image,
	}, args)
	remove.Argv = slices.Concat(words, []string{"rm", "--force", name})
	return run, remove, nil
}

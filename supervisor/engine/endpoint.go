package engine

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// place is where the client of a command finds its engine.
type place struct {
	// sockets are the unix sockets to try, best first.
	sockets []string
	// why says why there is none: the engine is reached another way.
	why string
	// local is podman that runs containers itself, without any service.
	local bool
}

// environ looks variables up as the client will see them.
type environ struct {
	list []string
	set  map[string]string
	// fresh is whether sudo stands in between, which gives the client an
	// environment and a home of its own.
	fresh bool
}

func (e environ) get(name string) string {
	if v, ok := e.set[name]; ok {
		return v
	}
	if e.fresh {
		return ""
	}
	for i := len(e.list) - 1; i >= 0; i-- {
		if v, ok := strings.CutPrefix(e.list[i], name+"="); ok {
			return v
		}
	}
	return ""
}

// engineVariables are those that lead a client to its engine, its store or, with
// compose, its project.
var engineVariables = []string{
	"DOCKER_HOST", "DOCKER_CONTEXT", "DOCKER_CONFIG", "CONTAINER_HOST", "CONTAINER_CONNECTION", "CONTAINERS_CONF", "CONTAINERS_STORAGE_CONF",
	"HOME", "XDG_RUNTIME_DIR", "COMPOSE_PROJECT_NAME", "COMPOSE_PROFILES", "COMPOSE_FILE",
}

// The sockets of a system-wide engine.
const (
	dockerSocket = "/var/run/docker.sock"
	podmanSocket = "/run/podman/podman.sock"
)

// dockerPlace follows the docker client's own order: -H, --context,
// DOCKER_HOST, DOCKER_CONTEXT, the current context, the default socket.
func dockerPlace(c command, env environ) place {
	globals := slices.Concat(c.globals, c.composeOptions)
	if host, ok := last(globals, "-H", "--host"); ok {
		return fromURL(host, "-H")
	}
	name, ok := last(globals, "--context", "-c")
	if !ok {
		if host := env.get("DOCKER_HOST"); host != "" {
			return fromURL(host, "DOCKER_HOST")
		}
		name = env.get("DOCKER_CONTEXT")
	}
	dir, ok := last(c.globals, "--config")
	if !ok {
		dir = env.get("DOCKER_CONFIG")
	}
	if home := env.get("HOME"); dir == "" && home != "" {
		dir = filepath.Join(home, ".docker")
	}
	if name == "" && dir != "" {
		name = currentContext(dir)
	}
	if name != "" && name != "default" {
		return fromContext(dir, name)
	}
	p := place{sockets: []string{dockerSocket}}
	// Rootless docker is usually found by a context or DOCKER_HOST; a wrapper
	// around the client may have neither.
	if run := env.get("XDG_RUNTIME_DIR"); run != "" {
		p.sockets = append(p.sockets, filepath.Join(run, "docker.sock"))
	}
	return p
}

// currentContext reads currentContext of the client's config.json.
func currentContext(dir string) string {
	var v struct {
		CurrentContext string `json:"currentContext"`
	}
	if readSmallJSON(filepath.Join(dir, "config.json"), &v) != nil {
		return ""
	}
	return v.CurrentContext
}

// fromContext reads where a docker context points. Its folder is called by the
// hash of its name.
func fromContext(dir, name string) place {
	sum := sha256.Sum256([]byte(name))
	var v struct {
		Endpoints map[string]struct{ Host string }
	}
	path := filepath.Join(dir, "contexts", "meta", hex.EncodeToString(sum[:]), "meta.json")
	if err := readSmallJSON(path, &v); err != nil {
		return place{why: fmt.Sprintf("the docker context %q cannot be read: %v", name, err)}
	}
	return fromURL(v.Endpoints["docker"].Host, fmt.Sprintf("the docker context %q", name))
}

// podmanPlace tells the service podman's client talks to, or that it works by
// itself.
func podmanPlace(c command, env environ) place {
	if u, ok := last(c.globals, "--url"); ok {
		return fromURL(u, "--url")
	}
	if name, ok := last(c.globals, "--connection", "-c"); ok {
		return place{why: fmt.Sprintf("podman's connection %q may lead to another machine", name)}
	}
	if u := env.get("CONTAINER_HOST"); u != "" {
		return fromURL(u, "CONTAINER_HOST")
	}
	if name := env.get("CONTAINER_CONNECTION"); name != "" {
		return place{why: fmt.Sprintf("podman's connection %q may lead to another machine", name)}
	}
	p := place{local: !on(c.globals, "--remote", "-r")}
	if host := env.get("DOCKER_HOST"); host != "" && c.compose == composeSub {
		// podman hands it on to docker's compose, if that is the one it calls.
		if p = fromURL(host, "DOCKER_HOST"); p.why != "" {
			return p
		}
		p.local = true
		return p
	}
	if !c.sudo && os.Geteuid() != 0 {
		run := env.get("XDG_RUNTIME_DIR")
		if run == "" {
			run = "/run/user/" + strconv.Itoa(os.Geteuid())
		}
		p.sockets = []string{filepath.Join(run, "podman", "podman.sock")}
	} else {
		p.sockets = []string{podmanSocket}
	}
	return p
}

// fromURL takes unix sockets; everything else is another machine.
func fromURL(u, from string) place {
	path, ok := strings.CutPrefix(u, "unix://")
	if ok && filepath.IsAbs(path) {
		return place{sockets: []string{path}}
	}
	scheme, _, found := strings.Cut(u, "://")
	if !found {
		return place{why: fmt.Sprintf("%s is %q, which is no unix socket", from, brief(u))}
	}
	return place{why: fmt.Sprintf("%s leads over %s, perhaps to another machine; only a unix socket is reached", from, brief(scheme))}
}

// readSmallJSON reads a JSON file of at most 1 MiB.
func readSmallJSON(path string, v any) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return err
	}
	if !st.Mode().IsRegular() || st.Size() > 1<<20 {
		return fmt.Errorf("%s is no small regular file", path)
	}
	return json.NewDecoder(f).Decode(v)
}

// brief makes a word from outside fit for a sentence: printable and short.
func brief(s string) string {
	s = strings.Map(func(r rune) rune {
		if r < 0x20 || r == 0x7f || (r >= 0x80 && r < 0xa0) || r == 0xfffd {
			return '?'
		}
		return r
	}, s)
	if r := []rune(s); len(r) > 200 {
		s = string(r[:200]) + "..."
	}
	return s
}

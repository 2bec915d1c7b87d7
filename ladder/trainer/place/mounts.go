package place

import (
	"path"
	"path/filepath"
	"slices"
	"sort"
	"strings"

	"sparkrun/internal/treefs"
)

// parseVolume reads HOST:INSIDE[:OPTIONS]. Where HOST is the name of a volume, or
// there is none, Host is empty: that folder is not this machine's.
func parseVolume(text, dir string) Mount {
	parts := strings.SplitN(text, ":", 3)
	if len(parts) == 1 {
		return Mount{Inside: text}
	}
	m := Mount{Host: hostFolder(parts[0], dir), Inside: parts[1]}
	if len(parts) == 3 {
		for _, o := range strings.Split(parts[2], ",") {
			// With O (podman) writing does not reach this machine.
			m.ReadOnly = m.ReadOnly || o == "ro" || o == "O"
		}
	}
	return m
}

// parseMount reads type=bind,source=HOST,target=INSIDE,readonly.
func parseMount(text, dir string) Mount {
	var m Mount
	bind := false
	for _, field := range strings.Split(text, ",") {
		name, value, ok := strings.Cut(strings.Trim(field, `"`), "=")
		switch strings.ToLower(name) {
		case "type":
			bind = value == "bind"
		case "source", "src":
			m.Host = value
		case "target", "dst", "destination":
			m.Inside = value
		case "readonly", "ro":
			m.ReadOnly = !ok || value == "true" || value == "1"
		}
	}
	if bind {
		m.Host = hostFolder(m.Host, dir)
	} else {
		m.Host = ""
	}
	return m
}

// hostFolder returns the absolute path of the host's side of a mount; "" where it
// is the name of a volume. The clients expand no ~.
func hostFolder(source, dir string) string {
	switch {
	case filepath.IsAbs(source):
		return filepath.Clean(source)
	case strings.HasPrefix(source, ".") && dir != "":
		return filepath.Join(dir, source)
	}
	return ""
}

// addMount notes a mount; of an engine elsewhere nothing is this machine's.
func (p *Place) addMount(m Mount, remote string) {
	if !path.IsAbs(m.Inside) {
		return
	}
	m.Inside = path.Clean(m.Inside)
	if m.Host == "" || remote != "" {
		p.hidden = append(p.hidden, m.Inside)
		return
	}
	p.Mounts = append(p.Mounts, m)
}

// HostPath turns a path as the trainer names it into one of this machine. It is
// not ok where the path lies in a container only, or is relative to a folder that
// is not known.
func (p *Place) HostPath(name string) (host string, ok bool) {
	if name == "" || strings.ContainsRune(name, 0) {
		return "", false
	}
	if p.Container == nil {
		if filepath.IsAbs(name) {
			return walk(p.root, "/", name), true
		}
		if p.Dir == "" {
			return "", false
		}
		return walk(p.root, p.Dir, name), true
	}
	if !path.IsAbs(name) {
		if p.Workdir == "" {
			return "", false
		}
		name = p.Workdir + "/" + name
	}
	if p.linkBeforeUp(name) {
		return "", false
	}
	return p.hostOf(path.Clean(name))
}

// hostOf maps a clean absolute path of the container.
func (p *Place) hostOf(name string) (host string, ok bool) {
	best := Mount{}
	for _, m := range p.Mounts {
		if below(name, m.Inside) && len(m.Inside) > len(best.Inside) {
			best = m
		}
	}
	for _, h := range p.hidden {
		if below(name, h) && len(h) >= len(best.Inside) {
			return "", false
		}
	}
	if best.Host == "" {
		return "", false
	}
	return filepath.Join(best.Host, strings.TrimPrefix(name, best.Inside)), true
}

// walk follows name from a folder as the kernel does: .. behind a symbolic link to a
// folder is the parent of where the link leads. Without .. it is the clean path.
func walk(r treefs.Root, dir, name string) string {
	at := filepath.Clean(dir)
	for _, part := range strings.Split(name, "/") {
		switch part {
		case "", ".":
		case "..":
			if real, err := r.Real(at); err == nil {
				at = real
			}
			at = filepath.Dir(at)
		default:
			at = filepath.Join(at, part)
		}
	}
	return at
}

// linkBeforeUp says whether a .. in a path of a container stands behind a symbolic
// link: where that leads, only the container knows.
func (p *Place) linkBeforeUp(name string) bool {
	parts := strings.Split(name, "/")
	at := "/"
	for i, part := range parts {
		at = path.Join(at, part)
		if part == ".." || !slices.Contains(parts[i+1:], "..") {
			continue
		}
		host, ok := p.hostOf(at)
		if !ok {
			continue
		}
		if p.root.IsLink(host) && !p.mounted(at) {
			return true
		}
	}
	return false
}

// mounted says whether the path is where a mount begins: its host's side may be a
// link, which the engine has followed.
func (p *Place) mounted(inside string) bool {
	return slices.ContainsFunc(p.Mounts, func(m Mount) bool { return m.Inside == inside })
}

// InnerPath turns an absolute path of this machine into the one under which the
// trainer sees the same file. It is not ok where a container does not see it.
func (p *Place) InnerPath(host string) (inner string, ok bool) {
	if !filepath.IsAbs(host) || strings.ContainsRune(host, 0) {
		return "", false
	}
	host = filepath.Clean(host)
	if p.Container == nil {
		return host, true
	}
	mounts := append([]Mount(nil), p.Mounts...)
	sort.SliceStable(mounts, func(i, j int) bool { return len(mounts[i].Host) > len(mounts[j].Host) })
	for _, m := range mounts {
		if !below(host, m.Host) {
			continue
		}
		inner := path.Join(m.Inside, strings.TrimPrefix(host, m.Host))
		// Another mount may lie over it.
		if back, ok := p.HostPath(inner); ok && back == host {
			return inner, true
		}
	}
	return "", false
}

// below says whether a clean path is folder or lies in it.
func below(name, folder string) bool {
	return name == folder || folder == "/" || strings.HasPrefix(name, folder+"/")
}

package preflight

import (
	"path"
	"strings"
)

// clientMount is a folder of the container that lies elsewhere.
type clientMount struct {
	inside string
	// source is what is mounted, as the client is told; volume tells that it cannot be a
	// folder of this machine.
	source string
	volume bool
	// lasting tells that what is written there outlives the container: a folder of this
	// machine or a volume with a name.
	lasting, readOnly bool
}

// mounts are the folders that the options name, in the client's own forms.
func (c clientFlags) mounts() []clientMount {
	var out []clientMount
	for _, o := range c.options {
		switch o.name {
		case "-v", "--volume":
			out = append(out, volumeMount(o.value))
		case "--mount":
			out = append(out, mountMount(o.value))
		case "--tmpfs":
			inside, _, _ := strings.Cut(o.value, ":")
			out = append(out, clientMount{inside: path.Clean(inside), volume: true})
		}
	}
	return out
}

// volumeMount reads [SOURCE:]INSIDE[:OPTIONS].
func volumeMount(text string) clientMount {
	parts := strings.SplitN(text, ":", 3)
	if len(parts) == 1 {
		return clientMount{inside: path.Clean(text), volume: true} // a volume without a name
	}
	m := clientMount{inside: path.Clean(parts[1]), source: parts[0], lasting: true}
	if len(parts) == 3 {
		for o := range strings.SplitSeq(parts[2], ",") {
			m.readOnly = m.readOnly || o == "ro"
			// Podman's overlay: what is written is dropped.
			m.lasting = m.lasting && o != "O"
		}
	}
	return m
}

// mountMount reads type=bind,source=HOST,target=INSIDE,readonly.
func mountMount(text string) clientMount {
	var m clientMount
	kind := "volume"
	for field := range strings.SplitSeq(text, ",") {
		name, value, ok := strings.Cut(strings.Trim(field, `"`), "=")
		switch strings.ToLower(name) {
		case "type":
			kind = value
		case "source", "src":
			m.source = value
		case "target", "dst", "destination":
			m.inside = path.Clean(value)
		case "readonly", "ro":
			m.readOnly = !ok || value == "true" || value == "1"
		}
	}
	m.lasting = kind != "tmpfs" && m.source != ""
	m.volume = kind != "bind"
	return m
}

// imageName takes tag and digest off an image's reference.
func imageName(ref string) (name, tag, digest string) {
	name, digest, _ = strings.Cut(ref, "@")
	if at := strings.LastIndexByte(name, ':'); at > strings.LastIndexByte(name, '/') {
		name, tag = name[:at], name[at+1:]
	}
	for _, hub := range []string{"docker.io/", "index.docker.io/"} {
		name = strings.TrimPrefix(name, hub)
	}
	return name, tag, digest
}
